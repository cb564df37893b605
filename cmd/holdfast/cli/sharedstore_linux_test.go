package cli

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// TestSharedByUsers: the users of a group run commands under one another's locks, and break them; another user cannot.
func TestSharedByUsers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	const group = 54200
	w := newWorkspace(t)
	w.openDirectory()
	dir := w.filePath("shared")
	err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 0, group), os.Chmod(dir, os.ModeSetgid|0o770))
	if err != nil {
		t.Fatal(err)
	}
	w.store = fmt.Sprintf("file://%s?group=%d", dir, group)
	as := func(user uint32, isMember bool, args ...string) *startedProgram {
		r := w.newProgram(args...)
		r.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
		if isMember {
			r.cmd.SysProcAttr.Credential.Groups = []uint32{group}
		}
		return r.launch()
	}
	holder := as(54201, true, "run", "a", "sh", "-c", "umask 077; echo held; sleep 1000").awaitOutput("held")
	as(54202, true, "run", "-n", "a", "true").wait().check(t, 75, "a is held by 54201@")
	as(54203, false, "run", "-n", "a", "true").wait().check(t, 69, "is not in the group")
	next := as(54202, true, "run", "a", "true")
	as(54202, true, "break", "--force", "a").wait().check(t, 0)
	next.wait().check(t, 0)
	if got := holder.wait(); got.code != 76 {
		t.Errorf("want exit 76; %s", got.description)
	}
	as(54201, true, "once", "k", "true").wait().check(t, 0)
	as(54202, true, "once", "k", "true").wait().check(t, 0, "it has succeeded, in attempt 1 by 54201@")
}
