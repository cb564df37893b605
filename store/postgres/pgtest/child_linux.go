package pgtest

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// child makes a server another user's if we are root, whom PostgreSQL refuses to serve.
func child() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{}
	uid, gid, err := servant()
	if err == nil && uid >= 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attr, err
}

// servant is the user that servers run as: -1 for our own.
func servant() (uid, gid int, err error) {
	if os.Geteuid() != 0 {
		return -1, -1, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return 0, 0, err
	}
	if uid, err = strconv.Atoi(u.Uid); err == nil {
		gid, err = strconv.Atoi(u.Gid)
	}
	return uid, gid, err
}
