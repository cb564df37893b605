package gcs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestRequests promises what each step costs: a take of a lock that does not exist, or is as this client has seen
// it last, is one request, and so are a renewal and a release. Seeing what another client has done is one more
// read.
func TestRequests(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startServer(t)
	ours, _ := mustOpen(t, s, quickOptions())
	theirs, _ := mustOpen(t, s, quickOptions())
	expect := func(what, want string) {
		t.Helper()
		if got := s.Counts(); got != want {
			t.Errorf("%s took %s, not %s", what, got, want)
		}
	}
	expect("opening twice", "read 2")

	a := acquire(t, ours, mutexClaim("m", time.Minute))
	expect("taking an absent lock", "insert 1")
	if err := renew(t, ours, a).Err; err != nil {
		t.Fatal(err)
	}
	expect("renewing", "insert 1")
	release(t, ours, a.Claim)
	expect("releasing", "insert 1")
	a = acquire(t, ours, mutexClaim("m", time.Minute))
	expect("taking a lock as it was left", "insert 1")
	if _, err := theirs.Acquire(ctx, mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	expect("being refused by a stranger's lock", "read 1, insert 1")
	if _, err := theirs.Acquire(ctx, mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	expect("being refused again", "read 1")
	release(t, ours, a.Claim)
	expect("releasing", "insert 1")
	a = acquire(t, theirs, mutexClaim("m", time.Minute))
	expect("taking a lock that a stranger has left", "read 1, insert 1")
	if _, err := theirs.Inspect(ctx, "m"); err != nil {
		t.Fatal(err)
	}
	expect("looking", "read 1")
	if err := ours.Release(ctx, a.Claim, a.Ref); err != nil {
		t.Fatal(err)
	}
	expect("releasing from another process", "read 1, insert 1")
}

// TestWaitersCost promises that a plain claim that waits writes nothing, and reports what it reads.
func TestWaitersCost(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	holder, _ := mustOpen(t, s, quickOptions())
	waiter, _ := mustOpen(t, s, quickOptions())
	acquire(t, holder, mutexClaim("m", time.Minute))
	c := mutexClaim("m", time.Minute)
	c.Wait = true
	begun := len(s.Writes("locks/m"))
	s.Counts()
	const d = 5 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if _, err := waiter.Acquire(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	t.Logf("a waiter's requests in its first %v: %s (times 12 for a minute, at most)", d, s.Counts())
	if n := len(s.Writes("locks/m")) - begun; n != 0 {
		t.Errorf("a waiting claim wrote %d times", n)
	}
}
