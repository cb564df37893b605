package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

func TestHold(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		r := w.startProgram("hold", "--events", "record", "a")
		r.awaitTrue("the token", func() bool { return regexp.MustCompile(`^\d{10,}\n$`).MatchString(r.readStdout()) })
		w.runProgram("run", "-n", "a", "true").check(t, 75, "a is held by", "(hold)")
		r.signal(unix.SIGWINCH)
		r.signal(sig)
		r.wait().check(t, 0)
		w.runProgram("run", "-n", "a", "true").check(t, 0)
		if last, _ := w.readRecord(w.filePath("record")); last["outcome"] != "released" {
			t.Errorf("record: %v", last)
		}
	}
	r := w.startProgram("hold", "--ttl", "15s", "a").awaitOutput("\n")
	w.runProgram("hold", "-n", "a").check(t, 75)
	w.runProgram("break", "a").check(t, 0)
	r.wait().check(t, 76, "a is lost: an operator broke it")
	w.runProgram("hold").check(t, 64)
	w.runProgram("hold", "--grace", "1s", "a").check(t, 64)

	r = w.startProgram("hold", "--ttl", "9s", "a").awaitOutput("\n")
	r.signal(unix.SIGSTOP)
	w.runProgram("run", "a", "true").check(t, 0)
	r.signal(unix.SIGCONT)
	r.wait().check(t, 76, "a is lost")
}

// TestAcquireRenewRelease: what acquire prints can be renewed and released by any process, and a release that is
// repeated is told from a loss.
func TestAcquireRenewRelease(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	take := func(flags ...string) string {
		got := w.runProgram(append(append([]string{"acquire", "--ttl", "30s"}, flags...), "a")...)
		got.check(t, 0)
		if h, err := parseHandle(got.out); err != nil || h.Token <= 0 || strings.Count(got.out, "\n") != 1 {
			t.Fatalf("no handle: %v; %s", err, got.description)
		}
		return strings.TrimSpace(got.out)
	}
	h := take()
	w.runProgram("run", "-n", "a", "true").check(t, 75, "(acquire)")
	w.runProgram("acquire", "-n", "--ttl", "10m", "a").check(t, 75)
	if r := w.runProgram("acquire", "-n", "--ttl", "10m", "--skip-ok", "a"); r.code != 0 || r.out+r.err != "" {
		t.Errorf("want nothing; %s", r.description)
	}
	w.runProgram("acquire", "a").check(t, 64, "--ttl is missing")
	w.runProgram("renew", h).check(t, 0)
	w.runProgram("release", h).check(t, 0)
	w.runProgram("run", "-n", "a", "true").check(t, 0)
	holder, end := w.startHolder("a") // who comes between the two releases takes nothing from anybody
	w.runProgram("release", h).check(t, 0, "a was released before")
	end()
	holder.wait().check(t, 0)
	for range 2 { // once nobody has held it since, and once somebody has
		w.runProgram("release", h).check(t, 0, "a was released before")
		w.runProgram("renew", h).check(t, 76, "a is lost")
		w.runProgram("run", "-n", "a", "true").check(t, 0)
	}

	// A timed lock, which no process holds.
	const ttl = 10 * time.Second
	h = take("--ttl", ttl.String())
	time.Sleep(2 * time.Second) // by which it would end sooner if it were not renewed
	renewing := time.Now()
	w.runProgram("renew", h).check(t, 0)
	renewed := time.Now()
	w.runProgram("run", "a", "true").check(t, 0)
	if took := time.Since(renewing); took < ttl || time.Since(renewed) > ttl+15*time.Second {
		t.Errorf("renewed for %v, the lock was free after %v", ttl, took)
	}
	w.runProgram("renew", h).check(t, 76)

	// It can be broken, and handles of other claims cannot release it.
	h = take("--shared", "--ttl", "5m")
	other := take("--shared", "--ttl", "5m")
	w.runProgram("release", other).check(t, 0)
	w.runProgram("run", "-n", "a", "true").check(t, 75)
	r := w.newProgram("release", "-")
	r.cmd.Stdin = strings.NewReader(h + "\n")
	r.launch().wait().check(t, 0)
	w.runProgram("run", "-n", "a", "true").check(t, 0)

	// A renew or release that learns that the lock was broken releases it.
	for _, does := range []string{"renew", "release"} {
		h = take("--ttl", "5m")
		b := w.runProgram("break", "a")
		b.check(t, 0)
		if !strings.Contains(b.out, "is taken from its handle") || !strings.Contains(b.out, "at once with --force") {
			t.Errorf("break of a detached lock prints %q", b.out)
		}
		w.runProgram("run", "-n", "a", "true").check(t, 75)
		w.runProgram(does, h).check(t, 76, "a is lost: an operator broke it")
		w.runProgram("run", "-n", "a", "true").check(t, 0)
	}

	for _, bad := range []string{"nonsense", "{}"} {
		w.runProgram("renew", bad).check(t, 64, "not a handle")
		w.runProgram("release", bad).check(t, 64, "not a handle")
	}
	for _, empty := range []string{"", " ", "-"} { // the input is empty, too
		w.runProgram("renew", empty).check(t, 64, "not a handle")
		w.runProgram("release", empty).check(t, 0, "nothing to release")
	}
	w.runProgram("--store", w.store+"2", "release", h).check(t, 64, "the handle is for the store")
	// One store has many names.
	alias := w.storeAlias()
	named := w.runProgram("acquire", "--ttl", "30s", "aliased")
	w.runProgram("--store", alias, "renew", strings.TrimSpace(named.out)).check(t, 0)
	w.runProgram("--store", alias, "release", strings.TrimSpace(named.out)).check(t, 0)
	w.runProgram("run", "-n", "aliased", "true").check(t, 0)
	w.runProgram("renew", strings.Replace(h, `"token":`, `"token":-`, 1)).check(t, 64)
	w.runProgram("renew", strings.Replace(h, `"store":`, `"shop":`, 1)).check(t, 64, "that is not a handle")
}

// TestReleaseInOtherBoot: a handle whose claim is gone while somebody else has the lock was released before only if its
// TTL cannot have passed since. The clock of another boot, or of another machine, does not show that.
func TestReleaseInOtherBoot(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	h := strings.TrimSpace(w.runProgram("acquire", "--ttl", "10m", "a").out)
	w.runProgram("release", h).check(t, 0)
	holder, end := w.startHolder("a")
	w.runProgram("release", h).check(t, 0, "a was released before")
	bootField := regexp.MustCompile(`"boot":"[^"]*"`)
	timeField := regexp.MustCompile(`"boot_expires_ms":\d+`)
	if !bootField.MatchString(h) || !timeField.MatchString(h) {
		t.Fatalf("the handle has no boot: %s", h)
	}
	for _, c := range []struct {
		name string
		code int
		h    string
	}{
		{"another boot", 76, bootField.ReplaceAllString(h, `"boot":"another"`)},
		{"a handle without a boot", 76, bootField.ReplaceAllString(h, `"x":0`)},
		{"the boot clock says that it has expired", 76, timeField.ReplaceAllString(h, `"boot_expires_ms":1`)},
		{"the wall clock says so", 76, regexp.MustCompile(`"expires":"[^"]*"`).
			ReplaceAllString(h, `"expires":"2026-01-01T00:00:00Z"`)},
	} {
		if got := w.runProgram("release", c.h); got.code != c.code {
			t.Errorf("%s: want exit %d; %s", c.name, c.code, got.description)
		}
	}
	end()
	holder.wait().check(t, 0)
}

func TestWatch(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	r := w.startProgram("watch", "a").awaitOutput("a: free\n")
	j := w.startProgram("watch", "--json", "a").awaitOutput(`"holders":[]`)
	holder, release := w.startHolder("a")
	r.awaitOutput("a: mutex held by ")
	j.awaitOutput(fmt.Sprintf("holdfast[%d]", holder.cmd.Process.Pid))
	release()
	holder.wait()
	r.awaitTrue("it to be free", func() bool {
		return strings.HasSuffix(r.readStdout(), "a: free\n") && strings.Count(r.readStdout(), "\n") == 3
	})
	for line := range strings.Lines(j.readStdout()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("%q", line)
		}
	}
	r.signal(unix.SIGTERM)
	if got := r.wait(); got.err != "" {
		t.Error(got.description)
	}
	j.signal(unix.SIGQUIT)
	if got := j.wait(); got.code != 131 || got.err != "" {
		t.Error(got.description)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	got := w.runProgram("explain", "--ttl", "12s", "--grace", "3s", "--signal", "INT", "--max-hold", "1m", "a")
	got.check(t, 0)
	for _, line := range []string{
		`(?m)^kept in +` + regexp.QuoteMeta(w.filePath("store/locks/a")) + `/$`,
		`(?m)^TTL +12s$`,
		`(?m)^renewed every +4s; a renewal may be late by 3\.88s$`,
		`(?m)^the command is signaled +with SIGINT, 7\.88s after`,
		`(?m)^and killed +3s later, 1\.12s before`,
		`(?m)^held for +1m0s at most$`,
		`(?m)^replaced, if it is killed +within \d+ms`,
		`(?m)^now +free$`,
	} {
		if !regexp.MustCompile(line).MatchString(got.out) {
			t.Errorf("no line like %s in\n%s", line, got.out)
		}
	}
	_, release := w.startHolder("a", "--limit", "3")
	defer release()
	if got := w.runProgram("explain", "--limit", "3", "a"); !strings.Contains(got.out, "semaphore of 3, held by ") {
		t.Error(got.description)
	}
	refused := func(want string, args ...string) {
		got := w.runProgram(args...)
		if got.code != 0 || !strings.Contains(got.out, want) || want == "" && strings.Contains(got.out, "refused") {
			t.Errorf("want %q; %s", want, got.description)
		}
	}
	refused("run now", "explain", "--limit", "4", "a")
	refused("is refused: a is in use as a semaphore of 3", "explain", "a")
	refused("is refused: b is already held by an enclosing holdfast run", "run", "b", program, "explain", "b")
	refused("is refused: b is in use as a mutex", "run", "b", program, "explain", "--limit", "2", "b")
	refused("", "explain", "--limit", "3", "a")
	refused("", "run", "b", "env", "-u", "HOLDFAST_HELD", program, "explain", "--shared", "b")
	if got := w.runProgram("list"); strings.Count(got.out, "\n") != 2 {
		t.Errorf("explain changed something: %s", got.description)
	}
	w.runProgram("explain", "--ttl", "10s", "--grace", "9s", "a").check(t, 64, "does not fit")
	w.runProgram("explain").check(t, 64)
	w.runProgram("explain", "--store", "file:///dev/null", "a").check(t, 69)
}

// uncertainDetachStore is a store that never confirms a Detach.
type uncertainDetachStore struct{ driver.Store }

func (uncertainDetachStore) Detach(context.Context, driver.Grant, time.Duration) error {
	return driver.ErrUncertain
}

func TestLockWithoutHandleReleased(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(uncertainDetachStore{memory.New(nil).Open()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	lease, err := client.Mutex("a", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var exit *exitError
	_, err = detachLease(client, lease)
	if !errors.As(err, &exit) || exit.code != 69 || !strings.Contains(err.Error(), "a was released") {
		t.Errorf("want exit 69 and a released; %v", err)
	}
	if _, err := client.Mutex("a", nil).TryLock(t.Context()); err != nil {
		t.Errorf("the lock is still held: %v", err)
	}
}

// TestHandleOfClosedOutput: acquire does not acquire a lock whose handle nobody would get. An output that drops it is
// what the user has asked for.
func TestHandleOfClosedOutput(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for redirect, code := range map[string]int{">&-": 74, "1<>/dev/null": 74, ">/dev/null": 0, ">/dev/full": 74} {
		shell := w.newProgram()
		shell.cmd.Path = "/bin/sh"
		shell.cmd.Args = []string{"sh", "-c", program + " acquire --ttl 10m 'lock " + redirect + "' " + redirect}
		got := shell.launch().wait()
		if got.check(t, code); code != 0 && !strings.Contains(got.err, "the handle cannot be printed") {
			t.Error(got.description)
		}
		held := 0
		if code == 0 {
			held = 75
		}
		w.runProgram("run", "-n", "lock "+redirect, "true").check(t, held)
	}
}
