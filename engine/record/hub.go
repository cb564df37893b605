package record

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// waiterHub watches one lock for all claims of this client that wait for it, so that a change costs one load a client
// however many wait, and wakes only those whom it concerns. It lives while anybody waits.
type waiterHub struct {
	e           *engine
	name        string
	subscribers map[*subscription]struct{} // guarded by the engine's mutex, like row
	row         Row                        // as last seen
	loadNow     chan struct{}              // buffered: look now
	stop        context.CancelFunc
}

type subscription struct {
	updates            chan update // buffered; sent to with the engine's mutex held
	isAffected         func(*Record) bool
	unreachableTimeout time.Duration // how long it bears with a store that does not answer
	outage             driver.Outage // guarded by the engine's mutex until the seat is left
}

// update is what a lookout tells.
type update struct {
	snapshot
	expired bool  // a claim on it is over: whoever is awake may remove it
	err     error // nothing can be told, and the wait is to end
}

// livenessInterval is how often it is asked whether those ahead are still there, where the table can tell.
const livenessInterval = 100 * time.Millisecond

// maxIdleLoads is after how many looks in vain a lookout does not get slower any more.
const maxIdleLoads = 8

// subscribe has the caller told of the next change that concerns it, as seen from the row it knows. A new lookout begins as slow
// as one that has looked idle times in vain.
func (e *engine) subscribe(row Row, rec *Record, idle int, patience time.Duration, concerned func(*Record) bool) (seat *subscription, leave func()) {
	seat = &subscription{updates: make(chan update, 1), isAffected: concerned, unreachableTimeout: patience}
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.hubs[row.Name]
	if l == nil {
		l = &waiterHub{e: e, name: row.Name, row: row, subscribers: map[*subscription]struct{}{}, loadNow: make(chan struct{}, 1)}
		if e.life.Err() == nil {
			var ctx context.Context
			ctx, l.stop = context.WithCancel(e.life)
			e.hubs[row.Name] = l
			e.background.Go(func() { l.run(ctx, rec, idle) })
		}
	} else if l.row.Version != row.Version {
		l.requestLoad() // one of the two is old
	}
	l.subscribers[seat] = struct{}{}
	return seat, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(l.subscribers, seat)
		if len(l.subscribers) == 0 && e.hubs[l.name] == l {
			delete(e.hubs, l.name)
			l.stop()
		}
	}
}

func (l *waiterHub) requestLoad() {
	select {
	case l.loadNow <- struct{}{}:
	default:
	}
}

// run looks at the lock whenever it may have changed, until nobody waits any more.
func (l *waiterHub) run(ctx context.Context, rec *Record, idle int) {
	version := l.row.Version
	var failed error
	for ; ctx.Err() == nil; idle++ {
		signed := l.waitForSign(ctx, version, rec, idle, failed != nil)
		row, now, err := l.e.loadRecord(ctx, l.name)
		l.noteLoadResult(ctx, err)
		if failed = err; err != nil {
			continue
		}
		l.e.observeClaims(l.name, now)
		over := l.e.anyExpired(row, now)
		if row.Version != version || signed {
			idle = 0
		} else if !over {
			continue
		}
		version, rec = row.Version, now
		l.notifyAffected(update{snapshot: snapshot{row, rec}, expired: over})
	}
}

// waitForSign waits until the row may have changed, and reports whether there was a sign of it. Without signs it waits for
// longer and longer; where the table gives them, and can at present, looking without is only the second net. A table that
// did not answer the last look may not give them.
func (l *waiterHub) waitForSign(ctx context.Context, version string, rec *Record, idle int, failing bool) bool {
	poll := func(least, most time.Duration) time.Duration {
		d := min(most, max(least, 4*l.e.roundTrip())<<min(idle, maxIdleLoads))
		d = d/2 + randomPart(d/2)
		if end, ok := l.e.nextExpiry(l.name, rec); ok {
			d = min(d, max(end, 0)+(l.e.roundTrip()/4+time.Millisecond)<<min(idle, 10))
		}
		return d
	}
	short := poll(20*time.Millisecond, time.Second)
	limit := short
	if l.e.notifier != nil && !failing {
		limit = poll(time.Second, 5*time.Second)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	changed, deaf, done := l.startListening(ctx, version)
	defer done()
	defer cancel()
	tick := time.NewTicker(livenessInterval)
	defer tick.Stop()
	for {
		select {
		case <-changed:
			return true
		case <-l.loadNow:
			return true
		case <-deaf:
			deaf = nil
			defer time.AfterFunc(short, cancel).Stop()
		case <-tick.C:
			if slices.ContainsFunc(rec.Claims, func(c Claim) bool { return l.e.isDead(&c) }) {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// startListening gives a channel that is closed when the table says that the row has changed, and one that is closed when it
// cannot tell at present; and a function that waits until the listening has ended, which it does with ctx.
func (l *waiterHub) startListening(ctx context.Context, version string) (changed, deaf chan struct{}, done func()) {
	if l.e.notifier == nil {
		return nil, nil, func() {}
	}
	changed, deaf = make(chan struct{}), make(chan struct{})
	var listening sync.WaitGroup
	listening.Go(func() {
		if l.e.notifier.Wait(ctx, l.name, version) == nil {
			close(changed)
		} else {
			close(deaf)
		}
	})
	return changed, deaf, listening.Wait
}

// notifyAffected wakes those whom it concerns, once each.
func (l *waiterHub) notifyAffected(n update) {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	l.row = n.row
	for seat := range l.subscribers {
		if n.expired || seat.isAffected(n.rec) {
			seat.deliver(n)
		}
	}
}

// noteLoadResult takes in how a look has ended. An error that is final ends all waits, since asking again cannot help; another one
// those whose patience with a store that does not answer is over. Who stands in line asks the store for nothing by himself for long.
func (l *waiterHub) noteLoadResult(ctx context.Context, err error) {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	for seat := range l.subscribers {
		switch {
		case err == nil:
			seat.outage.RequestAnswered()
		case ctx.Err() != nil: // nobody waits any more
		case driver.IsFinal(err), seat.outage.RequestFailed(l.e.clock, seat.unreachableTimeout):
			seat.deliver(update{err: err})
		}
	}
}

func (s *subscription) deliver(n update) {
	select {
	case <-s.updates: // what it has not looked at yet is old
	default:
	}
	s.updates <- n
}

// anyExpired reports whether a claim stands that anybody may remove.
func (e *engine) anyExpired(row Row, rec *Record) bool {
	m := e.stepInput(row)
	if rec.Foreign != 0 && m.foreignEnd(rec) == 0 {
		return true
	}
	return slices.ContainsFunc(rec.Claims, func(c Claim) bool { return m.judgeClaim(&c) != Alive })
}
