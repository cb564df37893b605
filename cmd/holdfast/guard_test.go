//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// guardTimes is how often each situation is gone through: make prove says more.
var guardTimes = flag.Int("guard.times", 2, "how often each situation of TestNothingRunsWhenTheNextHolderStarts is gone through")

// situation is something bad that happens while a command runs.
type situation struct {
	name   string
	strike func(w *world, r *running)
	// heal makes it good again, once nothing of the tree runs. If it is nil the tree ends only with the next holder's start.
	heal func(w *world, r *running)
	code int
}

var situations = []situation{
	{"the wrapper is stopped beyond its TTL", func(_ *world, r *running) { r.signal(unix.SIGSTOP) },
		func(_ *world, r *running) { r.signal(unix.SIGCONT) }, 76},
	{"the wrapper is killed", func(_ *world, r *running) { r.signal(unix.SIGKILL) }, nil, 137},
	{"the wrapper and its group are killed", func(_ *world, r *running) { _ = unix.Kill(-r.cmd.Process.Pid, unix.SIGKILL) }, nil, 137},
	{"the guard is killed", func(_ *world, r *running) { _ = unix.Kill(r.guard(), unix.SIGKILL) }, nil, 76},
	{"the guard is stopped, and the lock broken", func(w *world, r *running) {
		_ = unix.Kill(r.guard(), unix.SIGSTOP)
		w.run("break", "a").want(w.T, 0)
	}, nil, 76},
	{"the guard is stopped, and the store fails", func(_ *world, r *running) {
		_ = unix.Kill(r.guard(), unix.SIGSTOP)
		r.cutOff()
	}, nil, 76},
	{"the store fails", func(_ *world, r *running) { r.cutOff() }, nil, 76},
	{"the lock is broken", func(w *world, _ *running) { w.run("break", "a").want(w.T, 0) }, nil, 76},
	{"the wrapper is stopped and the lock broken", func(w *world, r *running) {
		r.signal(unix.SIGSTOP)
		w.run("break", "a").want(w.T, 0)
	}, func(_ *world, r *running) { r.signal(unix.SIGCONT) }, 76},
	{"the guard is stopped, and killed after all that runs", func(w *world, r *running) { // so it reports nothing
		guard := r.guard()
		_ = unix.Kill(guard, unix.SIGSTOP)
		for _, f := range familyFiles {
			_ = unix.Kill(w.number(f), unix.SIGKILL)
		}
		w.familyDead()
		_ = unix.Kill(guard, unix.SIGKILL)
	}, nil, 76},
	{"the wrapper is stopped, then killed", func(w *world, r *running) {
		r.signal(unix.SIGSTOP)
		w.await("the stop", func() bool {
			return strings.Contains(w.read(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid)), ") T ")
		})
		r.signal(unix.SIGKILL)
	}, nil, 137},
}

// guard is the number of the guard's process.
func (r *running) guard() int {
	r.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.cmd.Process.Pid))
	for _, f := range files {
		for number := range strings.FieldsSeq(r.read(f)) {
			if r.read("/proc/"+number+"/comm") == guardName+"\n" {
				pid, _ := strconv.Atoi(number)
				return pid
			}
		}
	}
	r.Fatal("no guard found")
	return 0
}

// checker is a command that looks, first thing, whether any process of a family is there.
func (w *world) checker(flags ...string) *running {
	w.Helper()
	return w.checkerOf(familyFiles, flags...)
}

func (w *world) checkerOf(files []string, flags ...string) *running {
	w.Helper()
	r := w.command(append(append(append([]string{"run"}, flags...), "a", self), files...)...)
	r.cmd.Env = w.env("HOLDFAST_TEST_HELPER=check")
	return r.begin()
}

func TestNothingRunsWhenTheNextHolderStarts(t *testing.T) {
	t.Parallel()
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for i := range *guardTimes {
				s.goThrough(newWorld(t), i%2 == 0)
			}
		})
	}
}

func (s *situation) goThrough(w *world, stubborn bool) {
	w.Helper()
	args := []string{"run", "--ttl", "5s", "a", "sh", "-c", family(stubborn)}
	r, _ := w.withPipe(args...) // a store that fails takes files of the wrapper's own along
	r.says("held")
	next := w.checker()
	next.behind()
	s.strike(w, r)
	if s.heal != nil {
		w.familyDead()
	}
	got := next.wait()
	got.want(w.T, 0)
	if got.out != "checked\n" {
		w.Errorf("when the next holder starts: %s", got.out)
	}
	w.familyDead()
	if s.heal != nil {
		s.heal(w, r)
	}
	if end := r.wait(); end.code != s.code {
		w.Errorf("want exit %d; %s", s.code, end.description)
	}
	w.killAll()
}

// A guard that is replaced after it has told the tree to end, and the user why, has told them, also if that comes so late that
// the lock is over anyway.
func TestALossIsToldOnce(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		w := newWorld(t)
		r := w.start("run", "--ttl", "10s", "--grace", "5s", "--json", "record", "a", "sh", "-c",
			`exec 2>/dev/null; trap "echo told" TERM; echo held; while :; do sleep 0.01; done`).says("held")
		w.run("break", "a").want(t, 0)
		r.says("told")
		r.await("the loss on stderr", func() bool { return strings.Contains(r.stderr(), "\n") })
		_ = unix.Kill(r.guard(), unix.SIGSTOP)
		if late {
			r.signal(unix.SIGSTOP)
			time.Sleep(10 * time.Second)
			r.signal(unix.SIGCONT)
		}
		got := r.wait()
		got.want(t, 76, "an operator broke it")
		if _, events := w.last(w.path("record")); strings.Count(got.out, "told") != 1 || !slices.Contains(events, "guard gone") {
			t.Errorf("late %v: events %q; %s", late, events, got.description)
		}
	}
}

// What a guard has started is ended also if it died before it could say that it has started it.
func TestAGuardThatDiesWithoutAWord(t *testing.T) {
	t.Parallel()
	c := exec.Command(self)
	c.Env = append(os.Environ(), "HOLDFAST_TEST_HELPER=unreported", noRaceSleep)
	out, err := c.CombinedOutput()
	var child int
	if _, scanned := fmt.Sscan(string(out), &child); err != nil || scanned != nil || !strings.HasSuffix(string(out), "nothing is left\n") {
		t.Fatalf("%v: %s", err, out)
	}
	if alive(child) {
		t.Errorf("process %d runs", child)
		_ = unix.Kill(child, unix.SIGKILL)
	}
}

// The wrapper was stopped before there was a guard, for longer than the TTL.
func TestALockThatIsLostBeforeTheStartIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	orders, give, err1 := os.Pipe()
	take, reports, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer closeAll(orders, give, take, reports)
	r := w.command()
	r.cmd.Args = []string{guardName, "3", "4", "-1", "/bin/sh", "sh", "-c", "echo started"}
	r.cmd.ExtraFiles = []*os.File{orders, reports}
	r.begin()
	_, _ = give.WriteString(`{"begin":{"lock":"a","until":1}}` + "\n")
	got := r.wait()
	if got.want(t, 0, "a is lost", "without a renewal", "not started"); got.out != "" {
		t.Error(got.description)
	}
}

// A lock that is taken by force is free at once, so its next holder may start beside the old one. But that one ends soon.
func TestAForcedBreakEndsTheTreeAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	var machine pace.Pace
	defer machine.Watch()()
	const ttl = 6 * time.Second
	for range *guardTimes {
		w := newWorld(t)
		r := w.start("run", "--ttl", ttl.String(), "a", "sh", "-c", family(true)).says("held")
		w.run("break", "--force", "a").want(t, 0, "may still be working")
		start := time.Now()
		r.wait().want(t, 76)
		w.familyDead()
		if took := time.Since(start); took > ttl+machine.Lost(start) {
			t.Errorf("the tree lived %v longer than its lock", took)
		}
	}
}

// A command that ends well under a lock that was taken by force is no success, though nobody has heard of the loss before
// the lock is given back.
func TestACommandThatEndsUnderATakenLockIsNoSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run("run", "--json", "record", "a", program, "break", "--force", "a")
	if r.code != 76 || !strings.Contains(r.err, "a was lost meanwhile") {
		t.Errorf("want exit 76 and the loss told; %s", r.description)
	}
	if last, _ := w.last(w.path("record")); last["outcome"] != "lost" || last["command_exit_code"] != 0.0 {
		t.Errorf("record: %v", last)
	}
}

// A disk that hangs, as one on a dead network or a broken controller does. Making one takes root and a file system of
// its own.
func TestAFrozenDisk(t *testing.T) {
	t.Parallel()
	for i := range *guardTimes {
		w := newWorld(t)
		freeze, thaw := w.onItsOwnDisk()
		r := w.start("run", "--ttl", "5s", "a", "sh", "-c", family(i%2 == 0)).says("held")
		next := w.checker().behind()
		freeze()
		w.familyDead()
		thaw()
		if got := next.wait(); got.code != 0 || got.out != "checked\n" {
			t.Errorf("when the next holder starts: %s", got.description)
		}
		if got := r.wait(); got.code != 76 {
			t.Errorf("want exit 76; %s", got.description)
		}
	}
}

// onItsOwnDisk gives the store a file system of its own.
func (w *world) onItsOwnDisk() (freeze, thaw func()) {
	w.Helper()
	if os.Geteuid() != 0 {
		w.Skip("needs root to freeze a disk")
	}
	image, at := w.path("image"), w.path("disk")
	must := func(name string, args ...string) {
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			w.Skipf("no disk to freeze here: %s: %v: %s", name, err, out)
		}
	}
	w.write("image", "")
	if err := errors.Join(os.Truncate(image, 16<<20), os.Mkdir(at, 0o700)); err != nil {
		w.Fatal(err)
	}
	must("mkfs.ext4", "-q", image)
	must("mount", "-o", "loop", image, at)
	w.Cleanup(func() {
		_ = exec.Command("fsfreeze", "-u", at).Run()
		_ = exec.Command("umount", "-l", at).Run()
	})
	w.store = "file://" + at + "/store"
	return func() { w.Helper(); must("fsfreeze", "-f", at) }, func() { w.Helper(); must("fsfreeze", "-u", at) }
}
