package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// tenure is a granted claim as its client keeps it: from the grant to the end, whoever ends it. Callers have handles on
// it, Leases, one each time they locked: a single one unless the lock is re-entrant.
type tenure struct {
	client  *Client
	queued  bool           // it has its name's turn in the client's queue
	began   driver.Instant // when its caller was given it; MinHold and MaxHold count from here
	minHold time.Duration
	maxHold time.Duration // 0: no bound

	reweighing chan struct{} // of a read-write lock: a place for whoever asks the store for another weight

	mu      sync.Mutex   // guards what follows; no other lock is taken under it
	grant   driver.Grant // Since and TTL move with renewals, Weight is as claimed; the rest stays and may be read without mu
	weight  int64        // what it weighs now
	handles []*Lease     // those that have not been given up
	first   Lease        // the first of them, in the same piece of memory,
	one     [1]*Lease    // and the list for as long as it is the only one
	state   tenureState
	asked   bool          // its holder was told that somebody asks for the lock
	askedC  chan struct{} // closed then; nil while nobody listens
	lapse   time.Duration // how long the claim shall stand when it has been given up
	swept   bool          // a clean-up was started after the loss
	flight  uint64        // the renewal under way, 0 if none is
	failed  error         // why the last renewal got no answer
	err     error         // why it ended

	// The renewer's, guarded by its mutex. Times are on its scale.
	endsAt, dueAt, dueFrom time.Duration
	endPlace, duePlace     int // in its heaps, -1 if not in there
	margin                 int // class of the margin
}

type tenureState uint8

const (
	stateHeld     tenureState = iota
	stateReleased             // the last Unlock has begun
	stateLost
	stateClosed
)

// newTenure makes a tenure with its first handle. It begins when the renewer takes it into care.
func (c *Client) newTenure(ctx context.Context, g driver.Grant, queued bool, o LockOptions) (*tenure, *Lease) {
	t := &tenure{client: c, grant: g, weight: g.Weight, queued: queued, minHold: o.MinHold, maxHold: o.MaxHold, endPlace: -1, duePlace: -1}
	if g.Kind == KindRW {
		t.reweighing = make(chan struct{}, 1)
	}
	if o.Reentrant {
		ctx = carry(ctx, t)
	}
	t.first = Lease{tenure: t, values: ctx}
	t.one[0] = &t.first
	t.handles = t.one[:]
	return t, &t.first
}

func (t *tenure) name() string { return t.grant.Name }

// granted is the grant as it is now. Called with mu held.
func (t *tenure) granted() driver.Grant {
	g := t.grant
	g.Weight = t.weight
	return g
}

// standing is the claim as its own process knows it. It is one of a mutex.
func (t *tenure) standing() ClaimInfo {
	g := &t.grant
	return ClaimInfo{Ref: g.Ref, Owner: g.Owner, Meta: g.Meta, Weight: g.Weight, Token: g.Token, TTL: g.Claim.TTL}
}

// remaining is how long the lease may be believed in. Called with mu held.
func (t *tenure) remaining(now driver.Instant) time.Duration {
	left := trust(now, t.grant.Since, t.grant.GrantedTTL)
	if t.maxHold > 0 {
		left = min(left, t.maxHold-now.Since(t.began))
	}
	return left
}

// bounded reports whether the lease will end by its MaxHold, however it is renewed. Called with mu held.
func (t *tenure) bounded(now driver.Instant) bool {
	return t.maxHold > 0 && t.remaining(now) < trust(now, t.grant.Since, t.grant.GrantedTTL)
}

// trust is how long a grant may be believed in that a request started at since has confirmed for ttl.
func trust(now, since driver.Instant, ttl time.Duration) time.Duration {
	return ttl - driver.Margin(ttl) - now.Since(since)
}

// look reads the clock, sees to what follows if the lease has ended, and returns what is left of it.
func (t *tenure) look() time.Duration {
	left, expired := t.expire()
	if expired {
		t.client.ended(t)
	}
	return left
}

// expire reads the clock. It returns what is left, 0 if the lease has ended, and whether it was this call that found
// the end: the caller then owes it [Client.ended].
func (t *tenure) expire() (left time.Duration, expired bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.expireLocked()
}

func (t *tenure) expireLocked() (left time.Duration, expired bool) {
	if t.state != stateHeld {
		return 0, false
	}
	now := t.client.clock.Now()
	if left = t.remaining(now); left > 0 {
		return left, false
	}
	loss := &LossError{Cause: LossExpired}
	switch {
	case t.maxHold > 0 && now.Since(t.began) >= t.maxHold:
		loss = &LossError{Cause: LossMaxHold}
	case t.failed != nil || t.flight != 0:
		loss = &LossError{Cause: LossUnreachable, Err: t.failed}
	}
	t.state, t.err = stateLost, loss
	return 0, true
}

// end moves a held lease to another state, and reports whether it was held: the caller then owes it what follows.
func (t *tenure) end(state tenureState, err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != stateHeld {
		return false
	}
	t.state, t.err = state, err
	return true
}

// cancel ends the contexts of the handles that have not been given up.
func (t *tenure) cancel(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.handles {
		l.endContext(err)
	}
}

// ask notes that somebody asks for the lock, and says so once.
func (t *tenure) ask() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != stateHeld || t.asked {
		return
	}
	t.asked = true
	if t.askedC != nil {
		close(t.askedC)
	}
	t.client.emit(EventReleaseRequested, t, Event{})
}

// depart gives one handle up. It is the last if that ends the tenure, and the claim then has to be released. Else it
// returns why there is nothing to give up, and whether a clean-up is due: a lost claim may still stand, and was left
// alone until now because the work under it may have gone on until now.
func (t *tenure) depart(l *Lease, lapse time.Duration) (last, sweep bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.err != nil {
		return false, false, l.err
	}
	if lapse > 0 && t.state == stateHeld && len(t.handles) > 1 {
		return false, false, invalid("a lock that was entered %d times cannot be left to lapse", len(t.handles))
	}
	t.handles = slices.DeleteFunc(t.handles, func(h *Lease) bool { return h == l })
	if t.state != stateHeld {
		l.err = t.err
		l.endContext(l.err)
		return false, len(t.handles) == 0 && t.mustSweep(), t.err
	}
	l.err = ErrReleased
	l.endContext(l.err)
	if len(t.handles) > 0 {
		return false, false, nil
	}
	t.state, t.err, t.lapse = stateReleased, ErrReleased, lapse
	return true, false, nil
}

// mustSweep reports whether a lost claim has to be cleaned up, once. Called with mu held.
func (t *tenure) mustSweep() bool {
	must := t.state == stateLost && !t.swept
	t.swept = t.swept || must
	return must
}

// release gives back a claim whose state says that it was. It is called once.
func (t *tenure) release(ctx context.Context) error {
	c := t.client
	c.renewer.remove(t)
	err := t.leave(ctx)
	if t.queued {
		defer c.queue.pass(t.name()) // behind the event: those of the next holder come after it
	}
	switch {
	case err == nil:
		c.emit(EventReleased, t, Event{})
		return nil
	case errors.Is(err, ErrLost):
		loss := lossOf(err)
		c.emit(EventLost, t, Event{Err: loss})
		return loss
	case errors.Is(err, ErrUncertain) || !isOneOf(err, lastingErrors...):
		c.cleanUp(t.grant.Claim.TTL, t.leave)
		err = fmt.Errorf("%w: the lock ends by its TTL at the latest: %w", ErrUncertain, err)
	}
	c.emit(EventReleased, t, Event{Err: err})
	return err
}

// leave is one try to take the claim away, or to leave it standing alone for as long as it shall. A claim that was broken
// is let go all the same.
func (t *tenure) leave(ctx context.Context) error {
	c := t.client
	t.mu.Lock()
	grant, keep := t.granted(), t.keep()
	t.mu.Unlock()
	if keep > 0 {
		err := c.detacher().Detach(ctx, grant, keep)
		if !errors.Is(err, ErrLost) {
			return err
		}
		if err := c.store.Release(ctx, grant.Claim, ""); err != nil && !errors.Is(err, ErrLost) {
			return err
		}
		return err
	}
	return c.store.Release(ctx, grant.Claim, "")
}

// keep is how long the claim shall go on standing from now on, in whole milliseconds. Called with mu held.
func (t *tenure) keep() time.Duration {
	if t.lapse == 0 && t.minHold == 0 {
		return 0
	}
	keep := max(t.lapse, t.minHold-max(t.client.clock.SinceAtLeast(t.began), 0)) // a wall clock may have been set back
	return (keep + time.Millisecond - 1).Truncate(time.Millisecond)
}

// ended does what follows a loss, once, by whoever found it. The claim is not released now: the work under it may not
// have stopped yet, and its TTL keeps others out until it should have. Only a lease that has come to its MaxHold, and
// whose TTL may have far to go, is released, a margin later.
func (c *Client) ended(t *tenure) {
	c.renewer.remove(t)
	t.cancel(t.err)
	c.emit(EventLost, t, Event{Err: t.err})
	if t.queued {
		c.queue.pass(t.name())
	}
	var loss *LossError
	if errors.As(t.err, &loss) && loss.Cause == LossMaxHold {
		c.crew.spawn(func() {
			sleep(c.waiting, maxHoldGrace(t.grant.Claim.TTL))
			t.mu.Lock()
			sweep := t.mustSweep()
			t.mu.Unlock()
			if sweep {
				c.cleanUp(t.grant.Claim.TTL, t.leave)
			}
		})
	}
}

// maxHoldGrace is the time between the end of a lease by its MaxHold and the release of its claim. It is for the work to
// hear of it; both ends are by the same clock, so that nothing is due to clocks that differ.
func maxHoldGrace(ttl time.Duration) time.Duration { return min(driver.Margin(ttl), time.Second) }
