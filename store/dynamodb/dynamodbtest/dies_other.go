//go:build !linux

package dynamodbtest

import "syscall"

func diesWithUs() *syscall.SysProcAttr { return nil }
