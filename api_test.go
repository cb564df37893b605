package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

func newMemoryClient(t *testing.T, m *memory.Memory, o *holdfast.Options) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(m.Open(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestNilArguments: a nil client, context or function gives ErrInvalid, and no panic.
func TestNilArguments(t *testing.T) {
	t.Parallel()
	var noClient *holdfast.Client
	var noContext context.Context
	var noFunction func(context.Context, *holdfast.Lease) error
	ctx := t.Context()
	c := newMemoryClient(t, memory.New(nil), nil)
	errs := map[string]error{}
	note := func(what string, err error) { errs[what] = err }
	lease, err := c.Mutex("held", nil).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]func() error{
		"nil client, Lock":     func() error { _, err := noClient.Mutex("a", nil).Lock(ctx); return err },
		"nil client, TryRLock": func() error { _, err := noClient.RWMutex("a", nil).TryRLock(ctx); return err },
		"nil client, Acquire":  func() error { _, err := noClient.Semaphore("a", 1, nil).Acquire(ctx, 1); return err },
		"nil client, Campaign": func() error { _, err := noClient.Election("a", nil).Campaign(ctx); return err },
		"nil client, Inspect":  func() error { _, err := noClient.Inspect(ctx, "a"); return err },
		"nil client, Break":    func() error { return noClient.Break(ctx, "a", "x", holdfast.BreakForce, "") },
		"nil client, Explain":  func() error { _, err := noClient.Mutex("a", nil).Explain(); return err },
		"nil client, Examine":  func() error { _, err := noClient.Examine(ctx); return err },
		"nil client, Close":    noClient.Close,
		"nil context, Open":    func() error { _, err := holdfast.Open(noContext, "file:///x", nil); return err },
		"nil context, Lock":    func() error { _, err := c.Mutex("a", nil).Lock(noContext); return err },
		"nil context, Try":     func() error { _, err := c.RWMutex("a", nil).TryLock(noContext); return err },
		"nil context, All":     func() error { _, err := holdfast.LockAll(noContext, c.Mutex("a", nil)); return err },
		"nil context, Run":     func() error { return c.Election("a", nil).Run(noContext, noFunction) },
		"nil context, Release": func() error { return lease.ReleaseContext(noContext) },
		"nil context, Renew":   func() error { _, err := c.Renew(noContext, holdfast.Handle{}); return err },
		"nil context, Close":   func() error { return c.CloseContext(noContext) },
		"nil context, RequestRelease": func() error {
			return c.RequestRelease(noContext, "a", "x")
		},
		"nil function, Do":  func() error { return c.Do(ctx, "a", noFunction) },
		"nil function, RDo": func() error { return c.RWMutex("a", nil).RDo(ctx, noFunction) },
		"nil function, Run": func() error { return c.Election("a", nil).Run(ctx, noFunction) },
		"nil store":         func() error { _, err := holdfast.New(nil, nil); return err },
	} {
		note(what, try())
	}
	for _, err := range c.List(noContext, "") {
		note("nil context, List", err)
	}
	for _, err := range c.Watch(noContext, "a") {
		note("nil context, Watch", err)
	}
	for _, err := range c.Election("a", nil).Observe(noContext) {
		note("nil context, Observe", err)
	}
	for what, err := range errs {
		var typed *holdfast.Error
		if !errors.Is(err, holdfast.ErrInvalid) || !errors.As(err, &typed) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	if !lease.Valid() {
		t.Error("a release that was refused has ended the lease")
	}
}

// TestBreakTheOnlyHolder: without a ref, Break and RequestRelease act on the only holder, and on none if there are
// several.
func TestBreakTheOnlyHolder(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	m := memory.New(nil)
	c, operator := newMemoryClient(t, m, &holdfast.Options{Owner: "holder"}), newMemoryClient(t, m, nil)
	var loss *holdfast.LossError
	if err := operator.Break(ctx, "a", "", holdfast.BreakForce, ""); !errors.Is(err, holdfast.ErrLost) ||
		!errors.As(err, &loss) || loss.Cause != holdfast.LossGone {
		t.Errorf("nobody holds it: %v", err)
	}
	lease, err := c.Mutex("a", &holdfast.LockOptions{TTL: 6 * time.Second}).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := operator.RequestRelease(ctx, "a", ""); err != nil {
		t.Error(err)
	}
	select {
	case <-lease.ReleaseRequested():
	case <-lease.Context().Done():
		t.Error("a request to release ended the lease")
	}
	if err := operator.Break(ctx, "a", "", holdfast.BreakForce, ""); err != nil {
		t.Error(err)
	}
	<-lease.Context().Done()
	if err := lease.Release(); !errors.As(err, &loss) || loss.Cause != holdfast.LossBroken ||
		!strings.Contains(lease.String(), `lease on "a", token`) {
		t.Errorf("%v, %v", err, lease)
	}
	var refs []string
	for range 2 {
		l, err := c.Semaphore("s", 2, nil).Acquire(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, l.Ref())
	}
	err = operator.Break(ctx, "s", "", holdfast.BreakGraceful, "")
	if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), refs[0]) ||
		!strings.Contains(err.Error(), refs[1]) {
		t.Errorf("two holders: %v", err)
	}
}

// TestErrorTypes: the errors of a store, and those of this package, are found by the types of this package.
func TestErrorTypes(t *testing.T) {
	t.Parallel()
	m := memory.New(nil)
	c, other := newMemoryClient(t, m, &holdfast.Options{Owner: "holder"}), newMemoryClient(t, m, nil)
	if _, err := c.Mutex("a", nil).Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, client := range []*holdfast.Client{c, other} {
		_, err := client.Mutex("a", nil).TryLock(t.Context())
		var held *holdfast.HeldError
		if !errors.Is(err, holdfast.ErrHeld) || !errors.As(err, &held) || len(held.Holders) != 1 ||
			held.Holders[0].Owner != "holder" {
			t.Errorf("%v: %+v", err, held)
		}
	}
	stored := &holdfast.Error{Op: "x", Err: &driver.LossError{Cause: driver.LossTaken}}
	var loss *holdfast.LossError
	if !errors.As(errors.Join(stored), &loss) || loss.Cause != holdfast.LossTaken {
		t.Errorf("%v", loss)
	}
	var back *driver.LossError
	if !errors.As(loss, &back) || back.Cause != driver.LossTaken {
		t.Errorf("%v", back)
	}
}

// TestCodes: the codes of this package and those of stores are the same, and each has a description of its own.
func TestCodes(t *testing.T) {
	t.Parallel()
	type described interface{ Description() string }
	for code, d := range map[string][2]described{
		"expired":            {holdfast.LossExpired, driver.LossExpired},
		"gone":               {holdfast.LossGone, driver.LossGone},
		"taken":              {holdfast.LossTaken, driver.LossTaken},
		"broken":             {holdfast.LossBroken, driver.LossBroken},
		"session-expired":    {holdfast.LossSessionExpired, driver.LossSessionExpired},
		"unreachable":        {holdfast.LossUnreachable, driver.LossUnreachable},
		"max-hold":           {holdfast.LossMaxHold, driver.LossMaxHold},
		"no-progress":        {holdfast.LossNoProgress, driver.LossNoProgress},
		"fence-safe":         {holdfast.TierFenceSafe, driver.TierFenceSafe},
		"safe-with-settings": {holdfast.TierSettings, driver.TierSettings},
		"advisory":           {holdfast.TierAdvisory, driver.TierAdvisory},
		"next-claimant":      {holdfast.ExpiredByClaimant, driver.ExpiredByClaimant},
		"store":              {holdfast.ExpiredByStore, driver.ExpiredByStore},
		"store-clock":        {holdfast.ExpiryClockStore, driver.ExpiryClockStore},
		"observer-clock":     {holdfast.ExpiryClockObserver, driver.ExpiryClockObserver},
		"always":             {holdfast.OrderAlways, driver.OrderAlways},
		"fair-only":          {holdfast.OrderFairOnly, driver.OrderFairOnly},
		"none":               {holdfast.OrderNone, driver.OrderNone},
	} {
		text := d[0].Description()
		if text != d[1].Description() || text == code && code != "none" || !strings.Contains(text, " ") &&
			code != "none" {
			t.Errorf("%s is described as %q and %q", code, text, d[1].Description())
		}
	}
}
