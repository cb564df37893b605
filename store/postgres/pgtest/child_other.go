//go:build !linux

package pgtest

import "syscall"

func childAttributes() (*syscall.SysProcAttr, error) { return nil, nil }

func serverUser() (uid, gid int, err error) { return -1, -1, nil }
