//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// inNamespaces runs a shell line as root in namespaces of its own.
func (w *world) inNamespaces(script string, flags ...string) *running {
	w.Helper()
	if os.Geteuid() != 0 {
		w.Skip("needs root to make namespaces")
	}
	r := w.command()
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		w.Fatal(err)
	}
	r.cmd.Path, r.cmd.Args = unshare, append(append([]string{"unshare"}, flags...), "sh", "-c", script)
	return r.begin()
}

// shells are the shells that run in the command of this test's, as this process sees them.
func (w *world) shells() (found []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		of := filepath.Dir(link)
		cwd, _ := os.Readlink(link)
		pid, err := strconv.Atoi(filepath.Base(of))
		if err == nil && cwd == w.dir && w.read(of+"/comm") == "sh\n" && strings.Contains("\x00"+w.read(of+"/environ"), "\x00HOLDFAST_ID=") && alive(pid) {
			found = append(found, pid)
		}
	}
	return found
}

// noted writes numbers into files for a checker.
func (w *world) noted(pids []int) (files []string) {
	w.Helper()
	for _, pid := range pids {
		name := fmt.Sprintf("pid-%d", pid)
		w.write(name, strconv.Itoa(pid))
		files = append(files, name)
	}
	return files
}

// In a pid namespace with the /proc of its host all numbers in /proc are those of other processes.
func TestTheTreeIsEndedWhereProcIsAnotherNamespaces(t *testing.T) {
	t.Parallel()
	for _, stubborn := range []bool{false, true} {
		w := newWorld(t)
		w.write("family.sh", family(stubborn))
		r := w.inNamespaces(program+" run --json record --ttl 6s a sh family.sh; exit $?", "-pf")
		r.says("held")
		var members []int
		r.await("the whole family", func() bool { members = w.shells(); return len(members) == len(familyFiles) })
		next := w.checkerOf(w.noted(members))
		next.behind()
		w.run("break", "a").want(t, 0)
		got := r.wait()
		if got.code != 76 || !strings.Contains(got.err, "/proc is not that of this pid namespace") {
			t.Error(got.description)
		}
		if got := next.wait(); got.code != 0 || got.out != "checked\n" {
			t.Errorf("when the next holder starts: %s", got.description)
		}
		if _, events := w.last(w.path("record")); !strings.Contains(fmt.Sprint(events), "not all can be seen") {
			t.Errorf("events %q", events)
		}
		w.killAll()
	}
}

// What has ended by itself is known without /proc, and a signal reaches the command.
func TestARunWhereProcIsAnotherNamespaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.inNamespaces(program+" run a sh -c '(setsid sh -c \"while [ ! -e gate ]; do sleep 0.01; done\" &); exit 3'; exit $?", "-pf")
	r.await("word of what is left", func() bool { return strings.Contains(r.stderr(), keptFor) })
	w.run("run", "-n", "a", "true").want(t, 75)
	w.write("gate", "")
	r.wait().want(t, 3, hiddenName)
	w.run("run", "-n", "a", "true").want(t, 0)
}

// Where /proc hides the processes of other users, what stands below a set-uid program is ended all the same if it may be, and
// what may not be is named.
func TestTheTreeIsEndedWhereProcHides(t *testing.T) {
	t.Parallel()
	for _, depth := range []string{"1", "2"} {
		w := newWorld(t)
		for _, name := range []string{"setuid", "checker"} {
			if err := exec.Command("cp", self, w.path(name)).Run(); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(w.path("setuid"), os.ModeSetuid|0o755); err != nil {
			t.Fatal(err)
		}
		inner := `trap "" TERM; echo $$ >inner.new; mv inner.new inner; echo held; while :; do sleep 0.05; done`
		w.write("inner.sh", inner)
		_ = os.Chmod(w.path("inner.sh"), 0o644)
		w.openToAll()
		as := "setpriv --reuid 65534 --regid 65534 --clear-groups "
		r := w.inNamespaces("mount -t proc -o hidepid=2 proc /proc && export HOLDFAST_TEST_HELPER=hidden && exec "+as+program+
			" run --json record --ttl 6s a ./setuid "+depth+" 'sh inner.sh'", "-m")
		r.says("held")
		next := w.command("run", "a", "./checker", "inner")
		next.cmd.Env = w.env("HOLDFAST_TEST_HELPER=check")
		w.asNobody(next)
		next.begin().behind()
		b := w.command("break", "a")
		w.asNobody(b)
		b.begin().wait().want(t, 0)
		if got := r.wait(); got.code != 76 || !strings.Contains(got.err, "not all of the command can be killed") || !strings.Contains(got.err, hiddenName) {
			t.Error(got.description)
		}
		if got := next.wait(); got.code != 0 || got.out != "checked\n" {
			t.Errorf("depth %s, when the next holder starts: %s", depth, got.description)
		}
		if last, _ := w.last(w.path("record")); !strings.Contains(fmt.Sprint(last["escaped"]), hiddenName) {
			t.Errorf("depth %s: record: %v", depth, last)
		}
		w.killAll()
	}
}
