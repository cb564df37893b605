//go:build unix && !linux

package guard

import (
	"os"
	"syscall"
)

// OwnProgram is the path of the running binary.
func OwnProgram() (string, error) { return os.Executable() }

// NameProcess does nothing: there is no call for it that all these systems have.
func NameProcess(string) {}

// ReapOrphansDuring calls f: the first process of these systems is their own.
func ReapOrphansDuring(f func()) { f() }

// ownThreads returns none: these systems have no call that signals one thread of a process, for which it would be.
func ownThreads() []int { return nil }

// signalThread is not called.
func signalThread(int, syscall.Signal) error { return syscall.ENOSYS }
