package pgtest

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// childAttributes makes a server run as another user if we are root: PostgreSQL refuses to run as root.
func childAttributes() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{}
	uid, gid, err := serverUser()
	if err == nil && uid >= 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attr, err
}

// serverUser returns the user that servers run as; -1: the user of this process.
func serverUser() (uid, gid int, err error) {
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
