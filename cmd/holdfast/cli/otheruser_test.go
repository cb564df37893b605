package cli

import (
	"os"
	"strings"
	"syscall"
)

// runAsNobody makes the program run as an ordinary user, on a store that this user may write.
func (w *workspace) runAsNobody(r *startedProgram) {
	w.Helper()
	const nobodyID = 65534
	if os.Geteuid() != 0 {
		w.Skip("needs root to become somebody else")
	}
	w.openDirectory()
	r.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobodyID, Gid: nobodyID}
}

// openDirectory lets any user make files in the test's directory.
func (w *workspace) openDirectory() {
	for dir := w.dir; strings.Contains(dir, "Test"); dir = dir[:strings.LastIndexByte(dir, '/')] {
		_ = os.Chmod(dir, os.ModeSticky|0o777)
	}
}

// TestSetuidCommand: a command that runs with the rights of another user is ended if this user may signal it, and else
// named in the record.
