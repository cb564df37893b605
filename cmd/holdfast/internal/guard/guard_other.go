//go:build unix && !linux

package guard

import "os"

// OwnProgram is the path of the running binary.
func OwnProgram() (string, error) { return os.Executable() }

// NameProcess does nothing: there is no call for it that all these systems have.
func NameProcess(string) {}
