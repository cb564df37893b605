//go:build !linux

package servertest

import "os/exec"

func dieWithUs(*exec.Cmd) {}
