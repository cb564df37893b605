package s3_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/s3"
)

// TestRequests promises what each step costs: a take of a lock that does not exist, or is as this client has seen it
// last, is one request, and so are a renewal and a release. Seeing what another client has done is one more read, and
// one more write that is refused if this client has never seen the lock.
func TestRequests(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startServer(t)
	ours, theirs := mustOpen(t, s, nil), mustOpen(t, s, nil)
	expect := func(what, want string) {
		t.Helper()
		if got := s.Counts(); got != want {
			t.Errorf("%s took %s, not %s", what, got, want)
		}
	}
	s.Counts()
	a := acquire(t, ours, mutexClaim("m", time.Minute))
	expect("taking an absent lock", "write 1")
	if err := renew(t, ours, a).Err; err != nil {
		t.Fatal(err)
	}
	expect("renewing", "write 1")
	release(t, ours, a.Claim)
	expect("releasing", "write 1")
	a = acquire(t, ours, mutexClaim("m", time.Minute))
	expect("taking a lock as it was left", "write 1")
	for what, want := range map[string]string{"being refused by a stranger's lock": "read 1, write 1"} {
		if _, err := theirs.Acquire(ctx, mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		expect(what, want)
	}
	if _, err := theirs.Acquire(ctx, mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	expect("being refused again", "read 1")
	release(t, ours, a.Claim)
	expect("releasing", "write 1")
	a = acquire(t, theirs, mutexClaim("m", time.Minute))
	expect("taking a lock that a stranger has left", "read 1, write 1")
	if _, err := theirs.Inspect(ctx, "m"); err != nil {
		t.Fatal(err)
	}
	expect("looking", "read 1")
	if err := ours.Release(ctx, a.Claim, a.Ref); err != nil {
		t.Fatal(err)
	}
	expect("releasing from another process", "read 1, write 1")
	fresh := mustOpen(t, s, nil)
	expect("opening", "read 1")
	a = acquire(t, fresh, mutexClaim("m", time.Minute))
	expect("taking a lock that others have left, in a new process", "read 1, write 2")
	release(t, fresh, a.Claim)
	s.Counts()

	tf := mustOpen(t, s, layoutOptions(s3.LayoutTerraform))
	s.Counts()
	a = acquire(t, tf, mutexClaim("m", time.Minute))
	if err := renew(t, tf, a).Err; err != nil {
		t.Fatal(err)
	}
	release(t, tf, a.Claim)
	expect("taking, renewing and releasing in Terraform's layout", "write 2, delete 1")
}

// TestWaitersCost promises that a plain claim that waits writes nothing, and reports what it reads.
func TestWaitersCost(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	holder, waiter := mustOpen(t, s, nil), mustOpen(t, s, nil)
	acquire(t, holder, mutexClaim("m", time.Minute))
	begun := len(s.Writes("m.json"))
	s.Counts()
	d := time.Duration(countFor(5, 60)) * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if _, err := waiter.Acquire(ctx, storetest.Waiting(mutexClaim("m", time.Minute))); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Fatal(err)
	}
	t.Logf("a waiter's requests in its first %v: %s", d, s.Counts())
	if n := len(s.Writes("m.json")) - begun; n != 0 {
		t.Errorf("a waiting claim wrote %d times", n)
	}
}

// TestRunLedgerCosts: what the steps of a run cost, and that a run's object is not among the locks.
func TestRunLedgerCosts(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	counted := func() storetest.CountedLedger {
		return storetest.CountedLedger{Ledger: storetest.OpenLedger(t, mustOpen(t, s, nil)), Take: s.Counts}
	}
	worker, other := counted(), counted()
	s.Counts()
	storetest.CheckLedgerCosts(t, worker, other, storetest.LedgerCosts{Begin: "write 1", Renew: "write 1",
		Succeed: "write 1", Ask: []string{"read 1", "read 1, write 1"}})
}
