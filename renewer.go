package holdfast

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

const (
	maxBatch   = 4096                  // grants in one Renew
	maxFlights = 128                   // Renews under way, give or take one a class of bounds: so many that part of a store may hang
	maxExpired = 1024                  // leases ended under one hold of the mutex
	maxAttempt = 10 * time.Second      // of one Renew
	leastRetry = 10 * time.Millisecond // between two renewals of one lease
	mostRetry  = 10 * time.Second      //
	leastPulse = 20 * time.Millisecond // between two looks at the clock, without a deadline
	linger     = time.Second           // of a pulse, when nothing is held any more
	keptLeases = 1024                  // so many the heaps have room for though nothing is held
	pauseStep  = time.Second           // of the wall clock, from which on the machine may have been paused
)

var (
	errNoAnswer    = fmt.Errorf("%w: the store gave no answer in time", driver.ErrUncertain)
	errStoreClosed = errors.New("the store was closed under its client") // not the client: no ErrClosed
)

// renewer keeps the leases of a client alive and ends them at their deadlines. It is two heaps and one goroutine, the
// pulse, which lives while anything is held, and a moment longer, and never calls the store: batches of renewals fly in
// goroutines of their own, at most maxFlights of them, so a hanging store delays no deadline. A lease costs no goroutine
// and no timer.
//
// Times in it are on one scale that starts at 0 and runs on by the larger step of the clock's two hands from one
// reading to the next. So it is never behind either hand and orders leases taken before and after the machine slept;
// what it calls expired is checked against the clock itself.
type renewer struct {
	client *Client
	hears  driver.EndWatcher // the store, if it learns of ends by itself

	mu       sync.Mutex
	closed   bool
	read     driver.Instant     // when the clock was last read
	elapsed  time.Duration      // the scale
	ahead    time.Duration      // by how much the wall clock was ahead of the clock's hand that counts sleep
	doubted  uint64             // number of the last flight that was under way when the wall clock stepped forward
	byID     map[string]*tenure // where the store is heard
	ends     byEnd              // all that is held
	dues     byDue              // those that no renewal under way is for
	margins  [64]int
	flying   int
	flights  uint64 // number of the last pass that sent batches
	pulsing  bool
	resting  bool          // nothing was held when the pulse looked last
	wakeAt   time.Duration // when the pulse looks next
	wake     chan struct{}
	watching bool
	unwatch  context.CancelFunc
}

func (r *renewer) init(c *Client) {
	r.client = c
	r.read = c.clock.Now()
	r.wallStepped()
	if r.hears, _ = c.store.(driver.EndWatcher); r.hears != nil {
		r.byID = map[string]*tenure{}
	}
	r.wake = make(chan struct{}, 1)
}

func (r *renewer) now() time.Duration {
	i := r.client.clock.Now()
	r.elapsed += max(0, i.Monotonic-r.read.Monotonic, i.Boottime-r.read.Boottime)
	r.read = i
	return r.elapsed
}

// add takes a new lease into care. It returns an error if the client is closed, or if the lease has ended already:
// its grant was so long under way that it cannot be believed in. waited is for the event, which must be queued before
// anything else can happen to the lease.
func (r *renewer) add(t *tenure, waited time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	now := r.now()
	t.began = r.read
	if t.remaining(r.read) <= 0 {
		return fmt.Errorf("%w: granted, but the answer took longer than the TTL of %v; the claim is given back",
			ErrUncertain, t.grant.GrantedTTL)
	}
	r.client.emit(EventAcquired, t, Event{Waited: waited})
	if r.hears != nil {
		r.byID[t.grant.ID] = t
	}
	heap.Push(&r.ends, t)
	heap.Push(&r.dues, t)
	t.margin = marginClass(t.grant.GrantedTTL)
	r.margins[t.margin]++
	r.plan(t, t.plan(now, r.read))
	if !r.pulsing {
		r.pulsing = r.client.crew.spawn(r.pulse)
	}
	if r.hears != nil && !r.watching {
		r.watching = r.client.crew.spawn(r.watch)
	}
	return nil
}

// remove takes a lease out of care; a second time does nothing.
func (r *renewer) remove(t *tenure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(t)
}

func (r *renewer) drop(t *tenure) {
	if t.endPlace < 0 {
		return
	}
	heap.Remove(&r.ends, t.endPlace)
	if t.duePlace >= 0 {
		heap.Remove(&r.dues, t.duePlace)
	}
	delete(r.byID, t.grant.ID)
	r.margins[t.margin]--
	if len(r.ends) > 0 {
		return
	}
	if cap(r.ends) > keptLeases {
		r.ends, r.dues = nil, nil
	}
	if r.wakeAt-r.elapsed > linger { // else the pulse sees it soon, and the next lease need not start another
		r.poke()
	}
	if r.hears != nil {
		r.byID = map[string]*tenure{} // a map never shrinks
	}
	if r.unwatch != nil {
		r.unwatch()
	}
}

// close takes all leases out of care and lets no other in.
func (r *renewer) close() []*tenure {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	all := append([]*tenure(nil), r.ends...)
	for _, t := range all {
		r.drop(t)
	}
	r.poke()
	return all
}

// plan is when a lease ends, when it is to be renewed, and from when on it may be renewed along with others.
type plan struct{ endsAt, dueAt, dueFrom time.Duration }

// plan after a grant or a renewal: a third of the way through the TTL, or a little earlier in company.
func (t *tenure) plan(now time.Duration, read driver.Instant) plan {
	ttl, end := t.grant.GrantedTTL, now+t.remaining(read)
	if t.bounded(read) { // no renewal could make it last longer
		return plan{endsAt: end, dueAt: end, dueFrom: end}
	}
	due := now + max(ttl/3-read.Since(t.grant.Since), leastRetry)
	return plan{endsAt: end, dueAt: due, dueFrom: due - ttl/32}
}

// replan after an unknown answer: soon, the sooner the less is left. A store that is cut off for less than a third of
// the TTL is asked several times after that.
func (t *tenure) replan(now, left time.Duration) plan {
	due := now + min(max(left/4, leastRetry), mostRetry)
	return plan{endsAt: now + left, dueAt: due, dueFrom: due}
}

// plan files a lease that is in the heaps under p, and wakes the pulse if that would sleep too long. Called with mu
// held.
func (r *renewer) plan(t *tenure, p plan) {
	t.endsAt, t.dueAt, t.dueFrom = p.endsAt, p.dueAt, p.dueFrom
	heap.Fix(&r.ends, t.endPlace)
	if t.duePlace < 0 {
		heap.Push(&r.dues, t)
	} else {
		heap.Fix(&r.dues, t.duePlace)
	}
	if min(t.dueAt, t.endsAt, r.elapsed+r.period()) < r.wakeAt {
		r.poke()
	}
}

func (r *renewer) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// pulse ends leases at their deadlines and sends renewals when they are due, while anything is held.
func (r *renewer) pulse() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		expired, batches, sleep, more := r.beat()
		for _, t := range expired {
			r.client.ended(t)
		}
		for _, b := range batches {
			r.client.crew.spawn(func() { r.send(b) })
		}
		if !more {
			return
		}
		timer.Reset(sleep)
		select {
		case <-timer.C:
		case <-r.wake:
		}
	}
}

// beat is one look at the clock: what has ended, what is due, and how long nothing will be.
func (r *renewer) beat() (expired []*tenure, batches []*batch, sleep time.Duration, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if r.wallStepped() {
		r.renewAllNow(now)
	}
	expired = r.takeExpired(now)
	batches = r.takeDue(now)
	if len(r.ends) == 0 {
		// It looks once more, so that locks which are taken one after the other need no pulse each.
		r.resting = !r.resting && !r.closed
		r.pulsing, r.wakeAt = r.resting, now+leastPulse
		return expired, batches, leastPulse, r.pulsing
	}
	r.resting = false
	r.wakeAt = min(now+r.period(), r.ends[0].endsAt)
	if len(r.dues) > 0 && r.flying < maxFlights {
		r.wakeAt = min(r.wakeAt, r.dues[0].dueAt)
	}
	return expired, batches, r.wakeAt - now, true
}

// wallStepped reports whether the wall clock has stepped forward since it was last asked. Called with mu held, after now.
func (r *renewer) wallStepped() bool {
	if r.client.clock.Wall == nil {
		return false
	}
	before := r.ahead
	r.ahead = r.client.clock.Wall() - r.read.Boottime
	return r.ahead-before >= pauseStep
}

// renewAllNow makes all leases due. The machine may have been paused for longer than their TTL while its clocks stood still, so
// that they seem to have time left, although others may hold the locks by now: only the store knows. What a renewal that was under way then
// brings proves nothing.
func (r *renewer) renewAllNow(now time.Duration) {
	r.doubted = r.flights
	for _, t := range r.dues { // which stay a heap, since they are all alike
		t.dueAt, t.dueFrom = now, now
	}
}

// period is how long the pulse may sleep at most. The timer stands still while the machine sleeps, so the clock is
// looked at often enough to end a lease within half of its margin after waking.
func (r *renewer) period() time.Duration {
	for class, n := range r.margins {
		if n > 0 {
			return max(leastPulse, time.Duration(1)<<class/4)
		}
	}
	return leastPulse
}

// marginClass is the n for which the margin is below 2^n ns and not below half of that.
func marginClass(ttl time.Duration) int { return bits.Len64(uint64(max(0, driver.Margin(ttl)))) }

func (r *renewer) takeExpired(now time.Duration) (expired []*tenure) {
	for len(r.ends) > 0 && r.ends[0].endsAt <= now && len(expired) < maxExpired {
		t := r.ends[0]
		left, found := t.expire()
		switch {
		case found:
			expired = append(expired, t)
			r.drop(t)
		case left == 0: // somebody else ended it and is about to take it out
			r.drop(t)
		default: // a hand of the clock was set back and forth
			t.endsAt = now + left
			heap.Fix(&r.ends, 0)
		}
	}
	return expired
}

// batch is one Renew: leases that are due together and whose attempts are bounded alike.
type batch struct {
	flight  uint64
	tenures []*tenure
	grants  []driver.Grant
	bound   time.Duration // of the call, the least of its leases'
}

// takeDue puts the leases that are due into batches, one for each class of bounds, so that a lease with a day to go
// and one with a second to go do not wait for each other.
func (r *renewer) takeDue(now time.Duration) []*batch {
	if r.flying >= maxFlights || len(r.dues) == 0 || r.dues[0].dueAt > now {
		return nil
	}
	r.flights++
	classes := map[int]*batch{}
	var batches []*batch
	for n := 0; n < maxBatch && len(r.dues) > 0 && r.dues[0].dueFrom <= now; n++ {
		t := heap.Pop(&r.dues).(*tenure)
		grant, bound, ok := t.takeOff(r.flights, r.read)
		if !ok {
			continue
		}
		class := bits.Len64(uint64(bound))
		b := classes[class]
		if b == nil {
			b = &batch{flight: r.flights, bound: bound}
			classes[class], batches = b, append(batches, b)
		}
		b.tenures, b.grants, b.bound = append(b.tenures, t), append(b.grants, grant), min(b.bound, bound)
	}
	r.flying += len(batches)
	return batches
}

// takeOff marks a lease as being renewed, unless it has ended, and bounds the attempt: by a third of the TTL, and by
// half of what is left so that there is time for another.
func (t *tenure) takeOff(flight uint64, now driver.Instant) (g driver.Grant, bound time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := t.remaining(now)
	if t.state != stateHeld || left <= 0 {
		return g, 0, false
	}
	t.flight = flight
	return t.granted(), min(t.grant.GrantedTTL/3, max(left/2, leastRetry), left, maxAttempt), true
}

func (r *renewer) send(b *batch) {
	ctx, cancel := context.WithTimeout(r.client.base, b.bound)
	defer cancel()
	r.client.store.Renew(ctx, b.grants, func(i int, a driver.Renewal) { r.answer(b.tenures[i], b.flight, a) })
	for _, t := range b.tenures {
		r.answer(t, b.flight, driver.Renewal{Err: errNoAnswer}) // those that had an answer ignore this one
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flying--
	r.poke()
}

// answer takes in what the store says about one renewal.
func (r *renewer) answer(t *tenure, flight uint64, a driver.Renewal) {
	left, lost, ok := t.land(flight, a)
	switch {
	case !ok:
		return
	case lost:
		r.client.ended(t)
		return
	case a.ReleaseRequested:
		t.ask()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.endPlace < 0 {
		return
	}
	now := r.now()
	t.mu.Lock()
	p := t.plan(now, r.read)
	if a.Err != nil {
		p = t.replan(now, left)
	}
	if flight <= r.doubted {
		p.dueAt, p.dueFrom = now, now
	}
	ttl := t.grant.GrantedTTL
	t.mu.Unlock()
	r.margins[t.margin]--
	t.margin = marginClass(ttl)
	r.margins[t.margin]++
	r.plan(t, p)
}

// land applies an answer to the lease. It is not ok if the lease is not waiting for it any more. An answer that comes
// after the deadline finds the lease lost, and one that would bring the deadline forward changes nothing.
func (t *tenure) land(flight uint64, a driver.Renewal) (left time.Duration, lost, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != stateHeld || t.flight != flight {
		return 0, false, false
	}
	if left, lost = t.expireLocked(); lost {
		return 0, true, true
	}
	t.flight = 0
	switch {
	case a.Err == nil:
		t.failed = nil
		if now := t.client.clock.Now(); trust(now, a.Since, a.GrantedTTL) > trust(now, t.grant.Since, t.grant.GrantedTTL) {
			t.grant.Since, t.grant.GrantedTTL = a.Since, a.GrantedTTL
			left = t.remaining(now)
		}
	case errors.Is(a.Err, ErrLost):
		t.state, t.err = stateLost, lossOf(a.Err)
		return 0, true, true
	default:
		t.failed = cause(t.failed, a.Err)
		t.client.emit(EventRenewalFailing, t, Event{Err: a.Err, Remaining: left}) // here, so that it comes before that of a loss
	}
	return left, false, true
}

// cause is what a loss will be due to, after one more renewal that failed: it is certain then, and no end of a context of the
// user's. What the store has said outlives answers that did not come: the last renewals have little time.
func cause(before, now error) error {
	switch {
	case errors.Is(now, ErrClosed):
		return errStoreClosed
	case driverutil.IsFinal(before) && !driverutil.IsFinal(now):
		return before
	case isOneOf(now, ErrUncertain, context.Canceled, context.DeadlineExceeded):
		return errors.New(now.Error())
	}
	return now
}

// watch listens to a store that learns of ends by itself, one call at a time, while anything is held.
func (r *renewer) watch() {
	for {
		r.mu.Lock()
		if len(r.ends) == 0 {
			r.watching, r.unwatch = false, nil
			r.mu.Unlock()
			return
		}
		ctx, cancel := context.WithCancel(r.client.base)
		r.unwatch = cancel
		r.mu.Unlock()
		for ctx.Err() == nil {
			ending, err := r.hears.NextEnding(ctx)
			if err == nil {
				r.hear(ending)
			} else {
				sleep(ctx, time.Second)
			}
		}
		cancel()
	}
}

func (r *renewer) hear(e driver.Ending) {
	r.mu.Lock()
	t := r.byID[e.ID]
	r.mu.Unlock()
	switch {
	case t == nil:
	case e.Err != nil:
		if t.end(stateLost, lossOf(e.Err)) {
			r.client.ended(t)
		}
	case e.ReleaseRequested:
		t.ask()
	}
}

// byEnd and byDue are heaps of leases that know their places in them.
type byEnd []*tenure

func (h byEnd) Len() int           { return len(h) }
func (h byEnd) Less(i, j int) bool { return h[i].endsAt < h[j].endsAt }
func (h byEnd) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].endPlace, h[j].endPlace = i, j
}
func (h *byEnd) Push(x any) {
	t := x.(*tenure)
	t.endPlace = len(*h)
	*h = append(*h, t)
}
func (h *byEnd) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last], *h = nil, (*h)[:last]
	t.endPlace = -1
	return t
}

type byDue []*tenure

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].dueAt < h[j].dueAt }
func (h byDue) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].duePlace, h[j].duePlace = i, j
}
func (h *byDue) Push(x any) {
	t := x.(*tenure)
	t.duePlace = len(*h)
	*h = append(*h, t)
}
func (h *byDue) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last], *h = nil, (*h)[:last]
	t.duePlace = -1
	return t
}
