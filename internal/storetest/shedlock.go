package storetest

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// ShedLockClient does what ShedLock's JDBC provider does with the database's time. Each has a name of its own, host-0
// and so on, like a process on another host.
type ShedLockClient interface {
	Lock(ctx context.Context, name string, atMost time.Duration) (bool, error)
	Extend(ctx context.Context, name string, atMost time.Duration) (bool, error)
	Unlock(ctx context.Context, name string, atLeast time.Duration) (bool, error)
}

// checkShedLockError fails unless an error is of a kind and mentions all of says.
func checkShedLockError(t *testing.T, err, want error, says ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not mention %q", err, text)
		}
	}
}

// MeetShedLock checks that a store and two of ShedLock's clients each respect a lock that the other holds, for as long
// as it is held, and that neither releases or extends the other's lock. The columns are as wide as in ShedLock's
// manual.
func MeetShedLock(t *testing.T, s driver.Store, peers []ShedLockClient) {
	t.Helper()
	ctx := t.Context()
	says := func(want bool) func(bool, error) {
		return func(got bool, err error) {
			t.Helper()
			if err != nil || got != want {
				t.Fatalf("ShedLock's client got %v %v, want %v", got, err, want)
			}
		}
	}
	c := Mutex("job", time.Minute)
	c.Owner = strings.Repeat("o🔒", 50)
	g := Acquire(t, s, c)
	says(false)(peers[0].Lock(ctx, "job", time.Minute))
	says(false)(peers[0].Extend(ctx, "job", time.Minute))
	says(false)(peers[0].Unlock(ctx, "job", 0))
	if r := Renew(t, s, g); r.Err != nil {
		t.Fatal(r.Err)
	}
	if err := s.Release(ctx, c, ""); err != nil {
		t.Fatal(err)
	}

	says(true)(peers[0].Lock(ctx, "job", 5*time.Minute))
	_, err := s.Acquire(ctx, Mutex("job", time.Minute))
	checkShedLockError(t, err, driver.ErrHeld, "host-0")
	l, err := s.Inspect(ctx, "job")
	if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign || l.Holders[0].Remaining < time.Second {
		t.Fatalf("%+v %v", l, err)
	}
	for _, mode := range []driver.BreakMode{driver.BreakGraceful, driver.BreakRequestRelease} {
		checkShedLockError(t, s.Break(ctx, "job", l.Holders[0].Ref, driver.Break{Mode: mode}), driver.ErrUnsupported)
	}
	checkShedLockError(t, s.Release(ctx, c, g.Ref), driver.ErrLost)
	if l := LossOf(Renew(t, s, g).Err); l != driver.LossTaken {
		t.Errorf("our former holder is told %q", l)
	}
	checkShedLockError(t, s.Break(ctx, "job", g.Ref, driver.Break{Mode: driver.BreakForce}), driver.ErrLost)
	var machine pace.Pace
	defer machine.Watch()()
	start := time.Now()
	says(true)(peers[0].Extend(ctx, "job", 3*time.Second)) // which ends it sooner
	extended := time.Now()
	w := Waiting(Mutex("job", time.Minute))
	next := Acquire(t, s, w) // when the lock of ShedLock's holder has expired
	if after := time.Since(start); after < 2900*time.Millisecond ||
		time.Since(extended) > 5*time.Second+machine.Lost(start) {
		t.Errorf("a silent holder of ShedLock's was replaced after %v of 3 s", after)
	}
	if next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
	says(false)(peers[0].Unlock(ctx, "job", 0)) // it wakes up late
	if r := Renew(t, s, next); r.Err != nil {
		t.Error(r.Err)
	}
	if err := s.Release(ctx, w, ""); err != nil {
		t.Fatal(err)
	}

	says(true)(peers[1].Lock(ctx, "least", time.Minute))
	says(true)(peers[1].Unlock(ctx, "least", time.Minute))
	_, err = s.Acquire(ctx, Mutex("least", time.Minute))
	checkShedLockError(t, err, driver.ErrHeld)

	says(true)(peers[1].Lock(ctx, "forced", time.Minute))
	l, err = s.Inspect(ctx, "forced")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Break(ctx, "forced", l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
		t.Fatal(err)
	}
	Acquire(t, s, Mutex("forced", time.Minute))
	_, err = s.Acquire(ctx, Mutex(strings.Repeat("n", 65), time.Minute))
	checkShedLockError(t, err, driver.ErrInvalid, "64")
}

// RenewDetachedShedLock tries renewals that arrive after their claims were detached, for longer and for less than their
// TTL. They change nothing. A renewal by another process, which knows the detached claim, extends it.
func RenewDetachedShedLock(t *testing.T, s driver.Store) {
	t.Helper()
	remaining := func(name string) time.Duration {
		l, err := s.Inspect(t.Context(), name)
		if err != nil || len(l.Holders) != 1 || !l.Holders[0].Detached {
			t.Fatalf("%s: %+v %v", name, l, err)
		}
		return l.Holders[0].Remaining
	}
	for name, c := range map[string]struct{ ttl, keep time.Duration }{
		"longer": {time.Minute, time.Hour}, "less": {time.Hour, time.Minute}} {
		g := Acquire(t, s, Mutex(name, c.ttl))
		if err := s.Detach(t.Context(), g, c.keep); err != nil {
			t.Fatal(err)
		}
		err := Renew(t, s, g).Err
		if left := remaining(name); !errors.Is(err, driver.ErrLost) || left > c.keep+time.Second || left < c.keep*3/4 {
			t.Errorf("after a late renewal the claim that was detached for %v lasts for %v: %v", c.keep, left, err)
		}
		g.Detached, g.GrantedTTL = true, 2*time.Hour
		if err := Renew(t, s, g).Err; err != nil || remaining(name) < time.Hour+time.Minute {
			t.Errorf("a renewal of a detached claim: %v left, %v", remaining(name), err)
		}
		Release(t, s, g.Claim)
	}
}

// ContendWithShedLock has two of a store's clients and all peers contend for one lock until each kind has had it that
// often. There are never two holders, and our tokens rise.
func ContendWithShedLock(t *testing.T, s driver.Store, peers []ShedLockClient, rounds int64) {
	t.Helper()
	var inside, ours, theirs, token atomic.Int64
	work := func() {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d holders", n)
		}
		time.Sleep(rand.N(500 * time.Microsecond))
		inside.Add(-1)
	}
	over := func() bool {
		return ours.Load() >= rounds && theirs.Load() >= rounds || t.Failed() || t.Context().Err() != nil
	}
	var all sync.WaitGroup
	for _, p := range peers {
		all.Go(func() {
			for !over() {
				got, err := p.Lock(t.Context(), "m", time.Minute)
				if got {
					work()
					theirs.Add(1)
					_, err = p.Unlock(t.Context(), "m", 0)
				}
				if err != nil {
					t.Error(err)
				}
				time.Sleep(rand.N(2 * time.Millisecond))
			}
		})
	}
	for i := range 2 {
		all.Go(func() {
			for !over() {
				c := Mutex("m", time.Minute)
				c.Wait = i == 0
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				g, err := s.Acquire(ctx, c)
				cancel()
				switch {
				case err == nil:
					work()
					ours.Add(1)
					if before := token.Swap(g.Token); before >= g.Token {
						t.Errorf("token %d after %d", g.Token, before)
					}
				case !errors.Is(err, driver.ErrHeld) && !errors.Is(err, context.DeadlineExceeded):
					t.Error(err)
				}
				if rerr := s.Release(t.Context(), c, ""); rerr != nil && err == nil {
					t.Error(rerr)
				}
				time.Sleep(rand.N(2 * time.Millisecond))
			}
		})
	}
	all.Wait()
	t.Logf("%d grants to us and %d to ShedLock's clients, never two at a time", ours.Load(), theirs.Load())
}

//go:embed testdata/Peer.java
var shedlockPeer []byte

// ContendWithShedLockItself has a store and the real ShedLock, in a process of its own, contend for one lock. Each
// increments a number in a file in two steps, and none sees the state between them. pom names ShedLock and the driver
// of the database.
func ContendWithShedLockItself(t *testing.T, s driver.Store, rounds int, pom, jdbcURL string) {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "Peer.java")
	if err := os.WriteFile(source, shedlockPeer, 0o600); err != nil {
		t.Fatal(err)
	}
	file, stop := filepath.Join(dir, "number"), filepath.Join(dir, "stop")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	number := func() int {
		text, err := os.ReadFile(file)
		n, perr := strconv.Atoi(string(text))
		if err := errors.Join(err, perr); err != nil {
			t.Fatal("two held at a time: ", err)
		}
		return n
	}
	peer := osexec.CommandContext(t.Context(), "java", "-cp", ClassPath(t, pom), source, jdbcURL, "m", file, stop)
	var said bytes.Buffer
	peer.Stdout, peer.Stderr = &said, &said
	if err := peer.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- peer.Wait() }()
	ours, theirs, refused := 0, 0, 0
	for ; min(ours, theirs) < rounds && len(over) == 0; time.Sleep(rand.N(10 * time.Millisecond)) {
		c := Mutex("m", time.Minute)
		c.Wait = rand.N(8) == 0
		_, err := s.Acquire(t.Context(), c)
		if errors.Is(err, driver.ErrHeld) {
			refused++
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		n := number()
		theirs = n - ours
		err = os.WriteFile(file, nil, 0o600)
		time.Sleep(rand.N(5 * time.Millisecond))
		if err = errors.Join(err, os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600),
			s.Release(t.Context(), c, "")); err != nil {
			t.Fatal(err)
		}
		ours++
	}
	if err := errors.Join(os.WriteFile(stop, nil, 0o600), <-over); err != nil {
		t.Fatalf("the peer: %v\n%s", err, said.Bytes())
	}
	_, words, _ := strings.Cut(said.String(), "refused ")
	theirRefusals, err := strconv.Atoi(strings.TrimSpace(words))
	if err != nil || theirRefusals == 0 || refused == 0 {
		t.Errorf("the two hardly contended: we were refused %d times, and it says: %s", refused, said.Bytes())
	}
	t.Logf("%d grants to ShedLock and %d to us, never two at a time; it was refused %d times, and we %d times",
		number()-ours, ours, theirRefusals, refused)
}
