//go:build !linux

package servertest

import "os/exec"

func dieWithUs(*exec.Cmd) {}

// isRunning is not known here.
func isRunning(int) bool { return false }
