package holdfast

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// fakeStore is a store of mutexes that can fail in every way in which a real one fails. A test can move the two
// readings of its clock apart. It is used in a synctest bubble.
type fakeStore struct {
	driver.Unsupported

	mu      sync.Mutex
	start   time.Time
	asleep  time.Duration // how far the boottime reading is ahead
	paused  time.Duration // how far the wall clock is ahead of that
	held    map[string]fakeHolder
	changed chan struct{}
	token   int64
	plain   bool // Info.NativeQueue

	// Calls so far.
	acquires, renews, releases, inspects int

	// How it fails. Hooks run without the mutex.
	// every call hangs until its context ends
	down bool
	// Renew hangs until this is closed, whatever its context says
	renewHangs    chan struct{}
	refuse        error // Acquire returns it
	refuseOnce    error // the next Acquire returns it
	hidesHolders  bool  // Acquire does not say who holds a lock
	refuseInspect error // Inspect returns it
	refuseRelease error // Release returns it
	// how long Acquire's reply takes after its effect
	delay    time.Duration
	renewal  func(ctx context.Context, g driver.Grant) (driver.Renewal, bool) // replies instead of the store
	released []string                                                         // ids in order of their release
	closed   bool
}

type fakeHolder struct {
	claim driver.Claim
	token int64
	ends  time.Duration // by the boottime reading
}

func newFakeStore() *fakeStore {
	return &fakeStore{start: time.Now(), held: map[string]fakeHolder{}, changed: make(chan struct{})}
}

func (f *fakeStore) clock() driver.Clock {
	return driver.Clock{
		Monotonic: func() time.Duration { return time.Since(f.start) },
		Boottime: func() time.Duration {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.readBoottime()
		},
		Wall: func() time.Duration {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.readBoottime() + f.paused
		},
	}
}

func (f *fakeStore) readBoottime() time.Duration { return time.Since(f.start) + f.asleep }

func (f *fakeStore) suspend(d time.Duration) { f.update(func() { f.asleep += d }) }

func (f *fakeStore) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeStore) Info() driver.Info {
	return driver.Info{Store: "fake:", Clock: f.clock(), Kinds: []driver.Kind{driver.KindMutex}, Order: driver.OrderNone, NativeQueue: f.plain}.Bounded()
}

// waitUntilReachable is the way to the store: it may take forever.
func (f *fakeStore) waitUntilReachable(ctx context.Context) error {
	f.mu.Lock()
	down, closed := f.down, f.closed
	f.mu.Unlock()
	if closed {
		return driver.ErrClosed
	}
	asked := f.clock().Now()
	if down {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return &driver.SilentError{For: f.clock().Since(asked), Err: errors.Join(driver.ErrUncertain, ctx.Err())}
	}
	return nil
}

func (f *fakeStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	f.update(func() { f.acquires++ })
	var seen error
	for {
		since := f.clock().Now()
		if err := f.waitUntilReachable(ctx); err != nil {
			return driver.Grant{}, errors.Join(err, seen)
		}
		g, changed, err := f.tryAcquire(c, since)
		if err == nil {
			f.mu.Lock()
			delay := f.delay
			f.mu.Unlock()
			sleepContext(ctx, delay)
			return g, nil
		}
		if !c.Wait || !errors.Is(err, driver.ErrHeld) {
			return driver.Grant{}, err
		}
		seen = err
		timer := time.NewTimer(time.Second)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			return driver.Grant{}, errors.Join(ctx.Err(), err)
		}
		timer.Stop()
	}
}

func (f *fakeStore) tryAcquire(c driver.Claim, since driver.Instant) (driver.Grant, chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return driver.Grant{}, nil, f.refuse
	}
	if err := f.refuseOnce; err != nil {
		f.refuseOnce = nil
		return driver.Grant{}, nil, err
	}
	if h, ok := f.held[c.Name]; ok && h.ends > f.readBoottime() {
		if f.hidesHolders {
			return driver.Grant{}, f.changed, &driver.HeldError{}
		}
		holder := driver.ClaimInfo{Owner: h.claim.Owner, Token: h.token, Ref: "ref-" + h.claim.ID}
		return driver.Grant{}, f.changed, &driver.HeldError{Holders: []driver.ClaimInfo{holder}}
	}
	f.token++
	f.held[c.Name] = fakeHolder{claim: c, token: f.token, ends: f.readBoottime() + c.TTL}
	return driver.Grant{Claim: c, Token: f.token, Since: since, GrantedTTL: c.TTL, Ref: "ref-" + c.ID}, nil, nil
}

func (f *fakeStore) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	f.mu.Lock()
	f.renews++
	deaf, renewal := f.renewHangs, f.renewal
	f.mu.Unlock()
	if deaf != nil {
		<-deaf
	}
	since := f.clock().Now()
	if renewal != nil {
		for i, g := range grants {
			if r, ok := renewal(ctx, g); ok {
				done(i, r)
			}
		}
		return
	}
	err := f.waitUntilReachable(ctx)
	for i, g := range grants {
		if err != nil {
			done(i, driver.Renewal{Err: err})
			continue
		}
		done(i, f.renewGrant(g, since))
	}
}

func (f *fakeStore) renewGrant(g driver.Grant, since driver.Instant) driver.Renewal {
	f.mu.Lock()
	defer f.mu.Unlock()
	h, ok := f.held[g.Name]
	if !ok || h.claim.ID != g.ID {
		return driver.Renewal{Err: &driver.LossError{Cause: driver.LossTaken}}
	}
	h.ends = f.readBoottime() + g.GrantedTTL
	f.held[g.Name] = h
	return driver.Renewal{Since: since, GrantedTTL: g.GrantedTTL}
}

func (f *fakeStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	f.update(func() { f.releases++ })
	if err := f.waitUntilReachable(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuseRelease != nil {
		return f.refuseRelease
	}
	f.released = append(f.released, c.ID)
	if h, ok := f.held[c.Name]; !ok || h.claim.ID != c.ID {
		return &driver.LossError{Cause: driver.LossExpired}
	}
	delete(f.held, c.Name)
	close(f.changed)
	f.changed = make(chan struct{})
	return nil
}

func (f *fakeStore) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	f.update(func() { f.inspects++ })
	if err := f.waitUntilReachable(ctx); err != nil {
		return driver.Lock{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuseInspect != nil {
		return driver.Lock{}, f.refuseInspect
	}
	lock := driver.Lock{Name: name}
	if h, ok := f.held[name]; ok {
		lock.Revision = h.claim.ID
		lock.Holders = []driver.ClaimInfo{{Owner: h.claim.Owner, Token: h.token, Ref: "ref-" + h.claim.ID}}
	}
	return lock, nil
}

func (f *fakeStore) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		lock, err := f.Inspect(ctx, prefix)
		yield(lock, err)
	}
}

func (f *fakeStore) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	return driver.PollChange(ctx, seen, f.Inspect)
}

func (f *fakeStore) Break(context.Context, string, string, driver.Break) error {
	return driver.ErrLost
}

func (f *fakeStore) Close() error {
	f.update(func() { f.closed = true })
	return nil
}

func (f *fakeStore) readCount(n *int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *n
}

func (f *fakeStore) isHeld(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.held[name]
	return ok
}

// recorder keeps a client's events.
type recorder struct {
	mu     sync.Mutex
	events []Event
}

func (r *recorder) addEvent(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) eventsOf(kind EventKind) (some []Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Kind == kind {
			some = append(some, e)
		}
	}
	return some
}

func newClient(t *testing.T, s driver.Store, o *Options) *Client {
	t.Helper()
	c, err := New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func mustLock(t *testing.T, c *Client, name string, o *LockOptions) *Lease {
	t.Helper()
	l, err := c.Mutex(name, o).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantIs(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("error %v is not %v", err, target)
		}
	}
}

func wantLoss(t *testing.T, err error, cause LossCause) {
	t.Helper()
	var loss *LossError
	if !errors.As(err, &loss) || loss.Cause != cause {
		t.Errorf("error %v is not the loss %q", err, cause)
	}
}
