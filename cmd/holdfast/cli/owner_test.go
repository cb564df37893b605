package cli

import (
	"os/user"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwnerAndNote: others see who holds a lock and what for, as the user has said or by default.
func TestOwnerAndNote(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	_, release := w.startHolder("a")
	shown := w.runProgram("show", "a")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	owner := `(?m)^holds +` + regexp.QuoteMeta(me.Username) + `@\S+ holdfast\[\d+\] `
	if !regexp.MustCompile(owner).MatchString(shown.out) {
		t.Errorf("no line like %s; %s", owner, shown.description)
	}
	release()

	r := w.startProgram("hold", "--owner", "alice", "--note", "INC-123: no deploys", "b").awaitOutput("\n")
	w.runProgram("run", "-n", "b", "true").check(t, 75, "b is held by alice (INC-123: no deploys) since")
	r.signal(unix.SIGTERM)
	r.wait().check(t, 0)
	for _, flags := range [][]string{{"--owner", "alice"}, {"--note", "n1"}} {
		w.runProgram(append(append([]string{"once"}, flags...), "key"+flags[1], "true")...).check(t, 0)
		if got := w.runProgram("ledger", "show", "key"+flags[1]); !strings.Contains(got.out, flags[1]) {
			t.Errorf("want %s; %s", flags[1], got.description)
		}
	}
	for _, bad := range []string{"", " ", "two\nlines", "\x1b[31m", "\xff", strings.Repeat("x", 257)} {
		for _, flag := range []string{"--owner", "--note"} {
			w.runProgram("run", flag, bad, "a", "true").check(t, 64, flag)
		}
	}
}
