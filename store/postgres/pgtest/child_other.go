//go:build !linux

package pgtest

import "syscall"

func child() (*syscall.SysProcAttr, error) { return nil, nil }

func servant() (uid, gid int, err error) { return -1, -1, nil }
