//go:build linux

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// startInNamespaces runs a shell line as root in namespaces of its own.
func (w *workspace) startInNamespaces(script string, flags ...string) *startedProgram {
	w.Helper()
	if os.Geteuid() != 0 {
		w.Skip("needs root to make namespaces")
	}
	r := w.newProgram()
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		w.Fatal(err)
	}
	r.cmd.Path, r.cmd.Args = unshare, append(append([]string{"unshare"}, flags...), "sh", "-c", script)
	return r.launch()
}

// findFamily returns the members of a family that run, as this process sees them.
func (w *workspace) findFamily() (found []int) {
	for _, pid := range w.findProcesses() {
		p, _ := guard.ReadProcess(pid)
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/environ", pid))
		for _, f := range threads {
			if (p.Name == "sh" || p.Name == "leaderless") && strings.Contains("\x00"+w.readFile(f), "\x00HOLDFAST_ID=") {
				found = append(found, pid)
				break
			}
		}
	}
	return found
}

// writePIDs writes numbers into files for a checker.
func (w *workspace) writePIDs(pids []int) (files []string) {
	w.Helper()
	for _, pid := range pids {
		name := fmt.Sprintf("pid-%d", pid)
		w.writeFile(name, strconv.Itoa(pid))
		files = append(files, name)
	}
	return files
}

// TestTreeEndedWithForeignProc: in a pid namespace with the /proc of its host, the numbers in /proc belong to other
// processes. The tree is ended without /proc.
func TestTreeEndedWithForeignProc(t *testing.T) {
	t.Parallel()
	for _, stubborn := range []bool{false, true} {
		w := newWorkspace(t)
		w.writeFile("family.sh", familyScript(stubborn))
		r := w.startInNamespaces(program+" run --events record --ttl 12s a sh family.sh; exit $?", "-pf")
		r.awaitOutput("held")
		var members []int
		r.awaitTrue("the whole family",
			func() bool { members = w.findFamily(); return len(members) == len(familyFiles) })
		next := w.startCheckerOf(w.writePIDs(members))
		next.awaitSecondClient()
		w.runProgram("break", "a").check(t, 0)
		got := r.wait()
		if got.code != 76 || !strings.Contains(got.err, "/proc is not that of this pid namespace") {
			t.Error(got.description)
		}
		if got := next.wait(); got.code != 0 || got.out != "checked\n" {
			t.Errorf("when the next holder starts: %s", got.description)
		}
		if _, events := w.readRecord(w.filePath("record")); !strings.Contains(fmt.Sprint(events),
			"processes_hidden") {
			t.Errorf("events %q", events)
		}
		w.killLeftovers()
	}
}

// TestRunWithForeignProc: without /proc, the end of the tree is noticed, and a signal reaches the command.
func TestRunWithForeignProc(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startInNamespaces(program+
		" run a sh -c '(setsid sh -c \"while [ ! -e gate ]; do sleep 0.01; done\" &); exit 3'; exit $?", "-pf")
	r.awaitTrue("word of what is left", func() bool { return strings.Contains(r.readStderr(), keptFor) })
	w.runProgram("run", "-n", "a", "true").check(t, 75)
	w.writeFile("gate", "")
	r.wait().check(t, 3, guard.HiddenName)
	w.runProgram("run", "-n", "a", "true").check(t, 0)
}

// TestTreeEndedWithHidepid: where /proc hides the processes of other users, the processes of a set-uid program are
// ended if that is permitted, and are reported if it is not.
func TestTreeEndedWithHidepid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ depth, inner string }{
		{"1", "sh inner.sh"}, {"2", "sh inner.sh"}, {"2", "exec " + leaderless + " inner"},
	} {
		t.Run(c.depth+" "+filepath.Base(c.inner), func(t *testing.T) {
			t.Parallel()
			depth := c.depth
			w := newWorkspace(t)
			for _, name := range []string{"setuid", "checker"} {
				if err := exec.Command("cp", self, w.filePath(name)).Run(); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(w.filePath("setuid"), os.ModeSetuid|0o755); err != nil {
				t.Fatal(err)
			}
			inner := `trap "" TERM; echo $$ >inner.new; mv inner.new inner; while :; do sleep 0.05; done`
			w.writeFile("inner.sh", inner)
			_ = os.Chmod(w.filePath("inner.sh"), 0o644)
			w.openDirectory()
			as := "setpriv --reuid 65534 --regid 65534 --clear-groups "
			r := w.startInNamespaces("mount -t proc -o hidepid=2 proc /proc && export TEST_HELPER=hidden && exec "+
				as+program+
				" run --events record --ttl 12s a ./setuid "+depth+" '"+c.inner+"'", "-m")
			w.readPID("inner")
			next := w.newProgram("run", "a", "./checker", "inner")
			next.cmd.Env = w.testEnvironment("TEST_HELPER=check")
			w.runAsNobody(next)
			next.launch().awaitSecondClient()
			b := w.newProgram("break", "a")
			w.runAsNobody(b)
			b.launch().wait().check(t, 0)
			got := r.wait()
			if got.code != 76 || !strings.Contains(got.err, "not all of the command can be killed") ||
				!strings.Contains(got.err, guard.HiddenName) {
				t.Error(got.description)
			}
			if got := next.wait(); got.code != 0 || got.out != "checked\n" {
				t.Errorf("depth %s, when the next holder starts: %s", depth, got.description)
			}
			if last, _ := w.readRecord(w.filePath("record")); !strings.Contains(fmt.Sprint(last["escaped"]), guard.HiddenName) {
				t.Errorf("depth %s: record: %v", depth, last)
			}
			w.killLeftovers()
		})
	}
}

// TestProcessOneReapsOrphans: as process 1 of a container, the program reaps what programs leave that others start
// there.
func TestProcessOneReapsOrphans(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"run a sh -c 'echo held; exec sleep 1000'", "hold a", "serve --listen 127.0.0.1:0"} {
		t.Run(strings.Fields(args)[0], func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t)
			r := w.startInNamespaces("exec "+program+" "+args, "-pf", "--mount-proc")
			r.awaitOutput("\n")
			one := childrenOf(r.cmd.Process.Pid)[0]
			in, hold, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer guard.CloseAll(in, hold)
			c := exec.Command("nsenter", "-t", strconv.Itoa(one), "-p", "-m", "sh", "-c", "(exec cat <&3 >/dev/null 2>&1) &")
			c.Dir, c.ExtraFiles = w.dir, []*os.File{in}
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			w.awaitTrue("an orphan", func() bool { return childrenByName(one)["cat"] != 0 })
			_ = hold.Close()
			w.awaitTrue("the orphan to be reaped", func() bool { return childrenByName(one)["cat"] == 0 })
		})
	}
}
