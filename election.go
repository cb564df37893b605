package holdfast

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
)

// Election is a candidate for a leadership. Of all candidates of that name one at a time leads; the others can see
// which one, and what it publishes as its Meta. An election is a mutex of that name whose holder can be observed: all
// that is promised of leases is true of leaderships.
//
// If a leader is paused, cut off or killed, another candidate succeeds it when its TTL has expired (by the rules of the
// store; see Info.DeadHolderTimeout). The old leader has stopped treating the leadership as its own before that.
type Election struct {
	client *Client
	name   string
	opts   LockOptions
	busy   chan struct{} // has an element while a Campaign is under way
	runs   chan struct{} // has an element while a Run is under way

	mu    sync.Mutex
	lease *Lease // of the last leadership, nil if there was none
}

// Election makes a candidate; see [Client.Mutex] for name and opts. LockOptions.Meta is what the leader publishes,
// such as its address.
func (c *Client) Election(name string, opts *LockOptions) *Election {
	return &Election{client: c, name: name, opts: opts.orZero(), busy: make(chan struct{}, 1),
		runs: make(chan struct{}, 1)}
}

// Campaign waits until this candidate leads, and returns its leadership. Work under the lease's context, which ends at
// once when the leadership does, and end it by Resign or Release. A candidate that leads already gets the lease that it
// has. ctx bounds the waiting only. It returns the errors of Mutex.Lock.
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

// lockSpec describes the mutex that the leader holds.
func (e *Election) lockSpec() lockSpec { return lockSpec{e.client, e.name, KindMutex, 1, 1, e.opts} }

func (e *Election) currentLease() *Lease {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lease
}

// IsLeader reports whether this candidate leads, by the clock and at this moment: [Lease.Valid] of its leadership.
func (e *Election) IsLeader() bool {
	l := e.currentLease()
	return l != nil && l.Valid()
}

// Resign ends the leadership. A candidate that does not lead gets nil; otherwise Resign is [Lease.Release]. It does not
// end a Campaign under way: the context of that does.
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

// Run campaigns, calls lead under the leadership, and campaigns again each time the leadership is lost. It returns
// when lead returns while this candidate still leads, when ctx ends, or when campaigning fails for good. A store that
// cannot be reached is asked again.
//
// lead's context ends at once when the leadership does. Run waits for lead to return before it campaigns again or
// returns, and a second Run of this candidate is refused with ErrInvalid meanwhile, so the candidate never runs lead
// twice at the same time; but another candidate may lead while a lead that ignores its context goes on. Run ends the
// leadership when lead returns or panics, also one that a Campaign has won before.
//
// It returns what lead returned, unless the leadership was lost meanwhile; ctx's error if ctx has ended; or Campaign's.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context, l *Lease) error) error {
	err := checkCall(e.client, ctx)
	if err == nil && lead == nil {
		err = errNilFunction
	}
	if err != nil {
		return e.client.wrapError("campaign", e.name, err)
	}
	select {
	case e.runs <- struct{}{}:
		defer func() { <-e.runs }()
	default:
		return e.client.wrapError("campaign", e.name, newInvalidError(
			"this candidate's Run is under way: wait until it has returned, or make another candidate with Client.Election"))
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
		case ctx.Err() != nil || isOneOf(err, lastingErrors...) || isOneOf(err, ErrMismatch, ErrSuperseded):
			return err
		default:
			sleepContext(ctx, pause)
		}
	}
}

// Leader returns who leads, as the store sees it now: the zero ClaimInfo if nobody does. The answer may be out of date
// by the time the caller gets it. Its Token fences; its Meta is what the leader publishes.
func (e *Election) Leader(ctx context.Context) (ClaimInfo, error) {
	lock, err := e.client.inspectLock(ctx, "inspect", e.name)
	if err != nil {
		return ClaimInfo{}, err
	}
	return leaderOf(lock), nil
}

// leaderOf returns the leader that a lock shows, or nothing if there is none. An election is a mutex, so it has at
// most one holder.
func leaderOf(lock driver.Lock) ClaimInfo {
	if len(lock.Holders) == 0 {
		return ClaimInfo{}
	}
	return ClaimInfo(lock.Holders[0])
}

// Observe yields who leads, first as it is and then after each change, until ctx ends: the zero ClaimInfo while nobody
// does. A leadership that passes quickly may be left out; the last one never is. A store that does not report changes
// is asked about once a second.
//
// An error is yielded and observing goes on, after a pause; who leads is then not known, and is yielded again when it
// is. An error that another attempt would return again, and ctx's own, ends the sequence. Any number of goroutines may
// observe, candidates or not.
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
