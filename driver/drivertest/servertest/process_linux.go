package servertest

import (
	"os/exec"
	"syscall"
)

func dieWithUs(c *exec.Cmd) {
	attr := syscall.SysProcAttr{}
	if c.SysProcAttr != nil {
		attr = *c.SysProcAttr // it may be shared
	}
	attr.Pdeathsig = syscall.SIGKILL
	c.SysProcAttr = &attr
}
