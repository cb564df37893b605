package holdfast

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// observePause is how often a lock is looked at where the store does not tell of changes. Half of it is chance, so that
// observers do not look all at once.
const observePause = time.Second

// Election is a candidate for a leadership. Among all candidates of that name one at a time leads; the others see who
// it is, and the note that it publishes as its Meta. It is a mutex of that name whose holder can be observed, and all
// that is promised of leases holds for leaderships.
//
// A candidate that was paused, cut off or killed is succeeded by another one when its TTL is over (by the rules of the
// store; see Info.TakeoverDead), and has stopped to believe in its leadership before.
type Election struct {
	client *Client
	name   string
	opts   LockOptions
	busy   chan struct{} // holds a place while somebody campaigns

	mu    sync.Mutex
	lease *Lease // of the last leadership, nil if there was none
}

// Election makes a candidate; see [Client.Mutex] for name and o. LockOptions.Meta is what the leader publishes: an
// address, for example.
func (c *Client) Election(name string, o *LockOptions) *Election {
	return &Election{client: c, name: name, opts: o.orZero(), busy: make(chan struct{}, 1)}
}

// Campaign waits until this candidate leads, and returns its leadership: work under the lease's context, which ends at
// once with it, and give it up by Resign or Unlock. A candidate that leads gets the lease that it has. ctx bounds the
// waiting only; errors are those of Mutex.Lock.
func (e *Election) Campaign(ctx context.Context) (*Lease, error) {
	if err := checkCall(e.client, ctx); err != nil {
		return nil, e.client.wrapError("campaign", e.name, err)
	}
	select {
	case e.busy <- struct{}{}:
		defer func() { <-e.busy }()
	case <-ctx.Done():
		return nil, e.client.wrapError("campaign", e.name, contextError(ctx))
	}
	if l := e.currentLease(); l != nil && l.Valid() {
		return l, nil
	}
	l, err := e.client.takeLock(ctx, "campaign", e.lockSpec(), true)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lease = l
	return l, nil
}

// lockSpec is that of the mutex that the leader holds.
func (e *Election) lockSpec() lockSpec { return lockSpec{e.client, e.name, KindMutex, 1, 1, e.opts} }

func (e *Election) currentLease() *Lease {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lease
}

// IsLeader reports whether this candidate leads, by the clock and now: [Lease.Valid] of its leadership.
func (e *Election) IsLeader() bool {
	l := e.currentLease()
	return l != nil && l.Valid()
}

// Resign gives the leadership up. Without one it does nothing and returns nil; else it is the lease's Unlock. It does not
// end a Campaign under way: its context does.
func (e *Election) Resign() error {
	e.mu.Lock()
	l := e.lease
	e.lease = nil
	e.mu.Unlock()
	if l == nil || errors.Is(l.Err(), ErrReleased) {
		return nil
	}
	return l.Release()
}

// Run campaigns, calls lead under the leadership, and campaigns again whenever that was lost: until lead returns by
// itself, ctx ends, or campaigning fails for good. A store that cannot be reached is asked again.
//
// lead's context ends at once when the leadership does. Run waits for lead to return before it campaigns again or
// returns, so no two of them run at a time; but another candidate may lead while a lead that does not heed its context
// goes on. The leadership is given up when lead is gone, be it by a panic.
//
// It returns what lead returned, unless the leadership was lost meanwhile; ctx's error if that has ended; or Campaign's.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context, l *Lease) error) error {
	if lead == nil {
		return e.client.wrapError("campaign", e.name, errNilFunction)
	}
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		l, err := e.Campaign(ctx)
		switch {
		case err == nil:
			pause = minPause
			err = l.runUnder(ctx, lead)
			if !errors.Is(l.Err(), ErrLost) {
				return err
			}
		case ctx.Err() != nil || isOneOf(err, lastingErrors...) || errors.Is(err, ErrMismatch):
			return err
		default:
			sleepContext(ctx, pause)
		}
	}
}

// Leader tells who leads, as the store sees it now: the zero Standing if nobody does. It is a matter of the past when it
// arrives. Its Token fences; its Meta is what the leader publishes.
func (e *Election) Leader(ctx context.Context) (ClaimInfo, error) {
	lock, err := e.client.inspectLock(ctx, "inspect", e.name)
	if err != nil {
		return ClaimInfo{}, err
	}
	return leaderOf(lock), nil
}

func leaderOf(lock driver.Lock) ClaimInfo {
	if len(lock.Holders) == 0 {
		return ClaimInfo{}
	}
	return ClaimInfo(lock.Holders[0])
}

// Observe yields who leads, first as it is and then at each change, until ctx ends: the zero Standing while nobody does. A
// leadership that passes quickly may be left out, and the last one never is. Where the store does not tell of changes it
// is asked about once a second.
//
// An error is yielded and observing goes on, with pauses; who leads is not known then, and is yielded again when it is.
// After an error that trying again does not help against, and after that of ctx, observing ends. Any number of
// goroutines may observe, candidates or not.
func (e *Election) Observe(ctx context.Context) iter.Seq2[ClaimInfo, error] {
	return func(yield func(ClaimInfo, error) bool) {
		if err := checkCall(e.client, ctx); err != nil {
			yield(ClaimInfo{}, e.client.wrapError("observe", e.name, err))
			return
		}
		var seen driver.Lock
		known := false
		for pause := minPause; ; pause = min(2*pause, maxPause) {
			lock, err := e.client.nextChange(ctx, "observe", e.name, seen, known)
			if ctx.Err() != nil {
				yield(ClaimInfo{}, e.client.wrapError("observe", e.name, contextError(ctx)))
				return
			}
			if err != nil {
				known = false
				if !yield(ClaimInfo{}, err) || isOneOf(err, lastingErrors...) {
					return
				}
				sleepContext(ctx, pause)
				continue
			}
			pause = minPause
			now, before := leaderOf(lock), leaderOf(seen)
			news := !known || now.Ref != before.Ref || now.Token != before.Token || now.Meta != before.Meta
			seen, known = lock, true
			if news && !yield(now, nil) {
				return
			}
		}
	}
}
