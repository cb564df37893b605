package record

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// lookout watches one lock for all claims of this client that wait for it, so that a change costs one load a client
// however many wait, and wakes only those whom it concerns. It lives while anybody waits.
type lookout struct {
	e       *engine
	name    string
	waiting map[*lookoutSeat]struct{} // guarded by the engine's mutex, like row
	row     Row                       // as last seen
	look    chan struct{}             // buffered: look now
	end     context.CancelFunc
}

type lookoutSeat struct {
	told      chan news // buffered; sent to with the engine's mutex held
	concerned func(*Record) bool
	patience  time.Duration // how long it bears with a store that does not answer
	silence   driver.Outage // guarded by the engine's mutex until the seat is left
}

// news is what a lookout tells.
type news struct {
	sight
	over bool  // a claim on it is over: whoever is awake may remove it
	err  error // nothing can be told, and the wait is to end
}

// presenceEvery is how often it is asked whether those ahead are still there, where the table can tell.
const presenceEvery = 100 * time.Millisecond

// idleLooks is after how many looks in vain a lookout does not get slower any more.
const idleLooks = 8

// join has the caller told of the next change that concerns it, as seen from the row it knows. A new lookout begins as slow
// as one that has looked idle times in vain.
func (e *engine) join(row Row, rec *Record, idle int, patience time.Duration, concerned func(*Record) bool) (seat *lookoutSeat, leave func()) {
	seat = &lookoutSeat{told: make(chan news, 1), concerned: concerned, patience: patience}
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lookouts[row.Name]
	if l == nil {
		l = &lookout{e: e, name: row.Name, row: row, waiting: map[*lookoutSeat]struct{}{}, look: make(chan struct{}, 1)}
		if e.life.Err() == nil {
			var ctx context.Context
			ctx, l.end = context.WithCancel(e.life)
			e.lookouts[row.Name] = l
			e.inBackground.Go(func() { l.run(ctx, rec, idle) })
		}
	} else if l.row.Version != row.Version {
		l.lookNow() // one of the two is old
	}
	l.waiting[seat] = struct{}{}
	return seat, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(l.waiting, seat)
		if len(l.waiting) == 0 && e.lookouts[l.name] == l {
			delete(e.lookouts, l.name)
			l.end()
		}
	}
}

func (l *lookout) lookNow() {
	select {
	case l.look <- struct{}{}:
	default:
	}
}

// run looks at the lock whenever it may have changed, until nobody waits any more.
func (l *lookout) run(ctx context.Context, rec *Record, idle int) {
	version := l.row.Version
	var failed error
	for ; ctx.Err() == nil; idle++ {
		signed := l.sleep(ctx, version, rec, idle, failed != nil)
		row, now, err := l.e.load(ctx, l.name)
		l.answered(ctx, err)
		if failed = err; err != nil {
			continue
		}
		l.e.watch(l.name, now)
		over := l.e.anyOver(row, now)
		if row.Version != version || signed {
			idle = 0
		} else if !over {
			continue
		}
		version, rec = row.Version, now
		l.tell(news{sight: sight{row, rec}, over: over})
	}
}

// sleep waits until the row may have changed, and reports whether there was a sign of it. Without signs it waits for
// longer and longer; where the table gives them, and can at present, looking without is only the second net. A table that
// did not answer the last look may not give them.
func (l *lookout) sleep(ctx context.Context, version string, rec *Record, idle int, failing bool) bool {
	poll := func(least, most time.Duration) time.Duration {
		d := min(most, max(least, 4*l.e.roundTrip())<<min(idle, idleLooks))
		d = d/2 + randomPart(d/2)
		if end, ok := l.e.nextEnd(l.name, rec); ok {
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
	changed, deaf, done := l.listen(ctx, version)
	defer done()
	defer cancel()
	tick := time.NewTicker(presenceEvery)
	defer tick.Stop()
	for {
		select {
		case <-changed:
			return true
		case <-l.look:
			return true
		case <-deaf:
			deaf = nil
			defer time.AfterFunc(short, cancel).Stop()
		case <-tick.C:
			if slices.ContainsFunc(rec.Claims, func(c Claim) bool { return l.e.gone(&c) }) {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// listen gives a channel that is closed when the table says that the row has changed, and one that is closed when it
// cannot tell at present; and a function that waits until the listening has ended, which it does with ctx.
func (l *lookout) listen(ctx context.Context, version string) (changed, deaf chan struct{}, done func()) {
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

// tell wakes those whom it concerns, once each.
func (l *lookout) tell(n news) {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	l.row = n.row
	for seat := range l.waiting {
		if n.over || seat.concerned(n.rec) {
			seat.tell(n)
		}
	}
}

// answered takes in how a look has ended. An error that is final ends all waits, since asking again cannot help; another one
// those whose patience with a store that does not answer is over. Who stands in line asks the store for nothing by himself for long.
func (l *lookout) answered(ctx context.Context, err error) {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	for seat := range l.waiting {
		switch {
		case err == nil:
			seat.silence.RequestAnswered()
		case ctx.Err() != nil: // nobody waits any more
		case driver.IsFinal(err), seat.silence.RequestFailed(l.e.clock, seat.patience):
			seat.tell(news{err: err})
		}
	}
}

func (s *lookoutSeat) tell(n news) {
	select {
	case <-s.told: // what it has not looked at yet is old
	default:
	}
	s.told <- n
}

// anyOver reports whether a claim stands that anybody may remove.
func (e *engine) anyOver(row Row, rec *Record) bool {
	m := e.moment(row)
	if rec.Foreign != 0 && m.foreign(rec) == 0 {
		return true
	}
	return slices.ContainsFunc(rec.Claims, func(c Claim) bool { return m.verdict(&c) != Alive })
}
