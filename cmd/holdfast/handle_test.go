package main

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
	w := newWorld(t)
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		r := w.start("hold", "--json", "record", "a")
		r.await("the token", func() bool { return regexp.MustCompile(`^\d{10,}\n$`).MatchString(r.stdout()) })
		w.run("run", "-n", "a", "true").want(t, 75, "a is held by", "(hold)")
		r.signal(unix.SIGWINCH)
		r.signal(sig)
		r.wait().want(t, 0)
		w.run("run", "-n", "a", "true").want(t, 0)
		if last, _ := w.last(w.path("record")); last["outcome"] != "released" {
			t.Errorf("record: %v", last)
		}
	}
	r := w.start("hold", "--ttl", "6s", "a").says("\n")
	w.run("hold", "-n", "a").want(t, 75)
	w.run("break", "a").want(t, 0)
	r.wait().want(t, 76, "a is lost: an operator broke it")
	w.run("hold").want(t, 64)
	w.run("hold", "--grace", "1s", "a").want(t, 64)

	r = w.start("hold", "--ttl", "5s", "a").says("\n")
	r.signal(unix.SIGSTOP)
	w.run("run", "a", "true").want(t, 0)
	r.signal(unix.SIGCONT)
	r.wait().want(t, 76, "a is lost")
}

func TestAcquireRenewRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	take := func(flags ...string) string {
		got := w.run(append(append([]string{"acquire"}, flags...), "a")...)
		got.want(t, 0)
		var h handle
		if err := json.Unmarshal([]byte(got.out), &h); err != nil || h.Token <= 0 || strings.Count(got.out, "\n") != 1 {
			t.Fatalf("no handle: %v; %s", err, got.description)
		}
		return strings.TrimSpace(got.out)
	}
	h := take()
	w.run("run", "-n", "a", "true").want(t, 75, "(acquire)")
	w.run("acquire", "-n", "a").want(t, 75)
	w.run("acquire", "-n", "--skip-ok", "a").want(t, 0)
	w.run("renew", h).want(t, 0)
	w.run("release", h).want(t, 0)
	w.run("run", "-n", "a", "true").want(t, 0)
	w.run("release", h).want(t, 76, "a is lost")
	w.run("renew", h).want(t, 76, "a is lost")

	// A timed lock, whose holder is nobody.
	const ttl = 10 * time.Second
	h = take("--ttl", ttl.String())
	time.Sleep(2 * time.Second) // by which it would end sooner if it were not renewed
	renewing := time.Now()
	w.run("renew", h).want(t, 0)
	renewed := time.Now()
	w.run("run", "a", "true").want(t, 0)
	if took := time.Since(renewing); took < ttl || time.Since(renewed) > ttl+15*time.Second {
		t.Errorf("renewed for %v, the lock was free after %v", ttl, took)
	}
	w.run("renew", h).want(t, 76)

	// One may break it, and others' handles are of no use.
	h = take("--shared", "--ttl", "5m")
	other := take("--shared", "--ttl", "5m")
	w.run("release", other).want(t, 0)
	w.run("run", "-n", "a", "true").want(t, 75)
	r := w.command("release", "-")
	r.cmd.Stdin = strings.NewReader(h + "\n")
	r.begin().wait().want(t, 0)
	w.run("run", "-n", "a", "true").want(t, 0)

	// Whoever hears that it was broken passes it on.
	for _, does := range []string{"renew", "release"} {
		h = take("--ttl", "5m")
		w.run("break", "a").want(t, 0)
		w.run("run", "-n", "a", "true").want(t, 75)
		w.run(does, h).want(t, 76, "a is lost: an operator broke it")
		w.run("run", "-n", "a", "true").want(t, 0)
	}

	for _, bad := range []string{"", "nonsense", "{}", "-"} {
		w.run("renew", bad).want(t, 64, "no handle")
		w.run("release", bad).want(t, 64, "no handle")
	}
	w.run("--store", w.store+"2", "release", h).want(t, 64, "the handle is for the store")
	w.run("renew", strings.Replace(h, `"token":`, `"token":-`, 1)).want(t, 64)
	w.run("renew", strings.Replace(h, `"store":`, `"shop":`, 1)).want(t, 64, "that is no handle")
}

func TestWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, j := w.start("watch", "a").says("a: free\n"), w.start("watch", "--json", "a").says(`"holders":[]`)
	holder, release := w.hold("a")
	r.says("a: mutex held by ")
	j.says(fmt.Sprintf("holdfast[%d]", holder.cmd.Process.Pid))
	release()
	holder.wait()
	r.await("it to be free", func() bool { return strings.HasSuffix(r.stdout(), "a: free\n") && strings.Count(r.stdout(), "\n") == 3 })
	for line := range strings.Lines(j.stdout()) {
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
	w := newWorld(t)
	got := w.run("explain", "--ttl", "12s", "--grace", "3s", "--signal", "INT", "--max-hold", "1m", "a")
	got.want(t, 0)
	for _, line := range []string{
		`(?m)^stands in +` + regexp.QuoteMeta(w.path("store/locks/a")) + `/$`,
		`(?m)^TTL +12s$`,
		`(?m)^renewed every +4s; a renewal may be late by 3\.88s$`,
		`(?m)^the command is told to end +with SIGINT, 7\.88s after`,
		`(?m)^and killed +3s later, 1\.12s before`,
		`(?m)^held for +1m0s at most$`,
		`(?m)^replaced, if it is killed +within \d+ms`,
		`(?m)^now +free$`,
	} {
		if !regexp.MustCompile(line).MatchString(got.out) {
			t.Errorf("no line like %s in\n%s", line, got.out)
		}
	}
	_, release := w.hold("a", "--limit", "3")
	defer release()
	if got := w.run("explain", "--limit", "3", "a"); !strings.Contains(got.out, "semaphore of 3, held by ") {
		t.Error(got.description)
	}
	refused := func(want string, args ...string) {
		if got := w.run(args...); got.code != 0 || !strings.Contains(got.out, want) || want == "" && strings.Contains(got.out, "refused") {
			t.Errorf("want %q; %s", want, got.description)
		}
	}
	refused("run now", "explain", "--limit", "4", "a")
	refused("is refused: a is in use as a semaphore of 3", "explain", "a")
	refused("is refused: b is held already around this", "run", "b", program, "explain", "b")
	refused("is refused: b is in use as a mutex", "run", "b", program, "explain", "--limit", "2", "b")
	refused("", "explain", "--limit", "3", "a")
	refused("", "run", "b", "env", "-u", "HOLDFAST_HELD", program, "explain", "--shared", "b")
	if got := w.run("list"); strings.Count(got.out, "\n") != 2 {
		t.Errorf("explain changed something: %s", got.description)
	}
	w.run("explain", "--ttl", "10s", "--grace", "9s", "a").want(t, 64, "does not fit")
	w.run("explain").want(t, 64)
	w.run("explain", "--store", "file:///dev/null", "a").want(t, 69)
}

// undetached is a store whose claims cannot be made to stand alone, as far as their client can tell.
type undetached struct{ driver.Store }

func (undetached) Detach(context.Context, driver.Grant, time.Duration) error {
	return driver.ErrUncertain
}

func TestALockWithoutAHandleIsGivenBack(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(undetached{memory.New(nil).Open()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	lease, err := client.Mutex("a", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var exit *exitError
	if _, err := leave(client, lease); !errors.As(err, &exit) || exit.code != 69 || !strings.Contains(err.Error(), "a was given back") {
		t.Errorf("want exit 69 and a given back; %v", err)
	}
	if _, err := client.Mutex("a", nil).TryLock(t.Context()); err != nil {
		t.Errorf("the lock stands: %v", err)
	}
}
