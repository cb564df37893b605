package holdfast

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

const (
	maxBatch = 4096 // leases in one Renew
	// Renews under way, so many because part of a store may hang; a tick may exceed it by its classes
	maxBatches        = 128
	maxExpiredPerTick = 1024                  // leases that one tick ends, which bounds how long it holds the mutex
	maxRenewTimeout   = 10 * time.Second      // of one Renew
	minRetry          = 10 * time.Millisecond // shortest pause between two renewals of one lease
	maxRetry          = 10 * time.Second      // longest pause between two renewals of one lease after a failure
	minSleep          = 20 * time.Millisecond // of runLoop, if no deadline is nearer
	idleDelay         = time.Second           // how long runLoop may stay when nothing is held, and byID without endings
	keptCapacity      = 1024                  // of the heaps when nothing is held any more
	// a step of the wall clock that shows that the machine may have been paused
	pauseStep = time.Second
)

var (
	errNoAnswer    = fmt.Errorf("%w: the store gave no answer in time", driver.ErrUncertain)
	errStoreClosed = errors.New("the store was closed under its client") // not the client: no ErrClosed
)

// MaxHold ends a lease by the clock alone. The claim is released a moment later. The store is not asked, so this works
// on every store. So does Progress, whose end moves: noting progress sets a time in the hold and no more, because
// work may do so in its innermost loop. The renewer finds the later end when the one that it knows has come.

// renewer keeps the leases of a client renewed and ends them at their deadlines. It has two heaps and one goroutine,
// runLoop, which exists while anything is held and a moment longer. That goroutine never calls the store: batches of
// renewals are sent by goroutines of their own, at most maxBatches of them, so a store that hangs delays no deadline. A
// lease needs no goroutine and no timer of its own.
//
// Its times are on one scale that starts at 0 and advances, from one reading of the clock to the next, by the larger of
// what Monotonic and Boottime have advanced by. So it is never behind either of them, and it orders leases that were
// granted before and after the machine slept. What it finds expired is checked against the clock itself.
type renewer struct {
	client *Client

	mu           sync.Mutex
	closed       bool             // new holds are refused
	drained      chan struct{}    // nil until awaitEmpty is called; closed when there are no holds
	lastRead     driver.Instant   // the last reading of the clock
	elapsed      time.Duration    // the same moment on the renewer's scale
	wallAhead    time.Duration    // how far the wall clock was ahead of Boottime
	steppedAt    driver.Instant   // the last reading at which it was found to have stepped forward
	suspectUpTo  uint64           // number of the last batch that was under way when the wall clock stepped forward
	byID         map[string]*hold // for handleEnding: nil until an ending comes, and when none has come for a while
	lastEnding   time.Duration    // when the last one came
	ends         holdHeap         // all holds
	dues         holdHeap         // the holds that no batch is renewing
	marginCounts [64]int          // how many holds there are of each margin class
	inFlight     int              // batches under way
	lastBatch    uint64           // number of the last tick that sent batches
	running      bool             // runLoop exists
	idle         bool             // nothing was held at the last tick
	wakeAt       time.Duration    // when runLoop ticks next
	wake         chan struct{}
	watching     bool // watchEndings exists
	unwatch      context.CancelFunc
}

// init prepares the renewer. Its goroutine starts with the first hold.
func (r *renewer) init(c *Client) {
	r.client = c
	r.lastRead = c.clock.Now()
	r.wallStepped()
	r.wake = make(chan struct{}, 1)
	r.ends, r.dues = newEndHeap(), newDueHeap()
}

// readClock returns the time since the client was made. The clock that has advanced more counts, so that time in
// suspend counts, and the result never goes back.
func (r *renewer) readClock() time.Duration {
	i := r.client.clock.Now()
	r.elapsed += max(0, i.Monotonic-r.lastRead.Monotonic, i.Boottime-r.lastRead.Boottime)
	r.lastRead = i
	return r.elapsed
}

// addHold takes charge of a new hold. It returns an error if the client is closed, or if the lease has expired already
// because the answer to its grant took so long. start is when the caller began to wait, for the event, which is queued
// here so that no other event of the lease can come before it.
func (r *renewer) addHold(h *hold, start time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	now := r.readClock()
	h.begin(r.lastRead)
	if h.remainingAt(r.lastRead) <= 0 {
		return fmt.Errorf("%w: granted, but the answer took longer than the TTL of %v; the claim is released again",
			ErrUncertain, h.grantedTTL)
	}
	r.client.emitEvent(EventAcquired, h, eventDetails{start: start})
	if r.byID != nil {
		r.byID[h.id] = h
	}
	heap.Push(&r.ends, h)
	heap.Push(&r.dues, h)
	h.marginClass = marginClassOf(h.grantedTTL)
	r.marginCounts[h.marginClass]++
	p := h.planRenewal(now, r.lastRead)
	if r.steppedAt.Since(h.since) > 0 {
		p.dueAt = now // as for a renewal that was under way: see renewAllNow
	}
	r.setTimes(h, p)
	if !r.running {
		r.running = r.client.inflight.start(r.runLoop)
	}
	if r.client.store.Info().Abilities.Endings && !r.watching {
		r.watching = r.client.inflight.start(r.watchEndings)
	}
	return nil
}

// removeHold stops renewing a hold. A second call does nothing.
func (r *renewer) removeHold(h *hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(h)
}

// removeLocked forgets a hold that has ended. With the last hold it gives back memory, and ends a pause that would
// be long.
func (r *renewer) removeLocked(h *hold) {
	if h.renewal.endIndex < 0 {
		return
	}
	heap.Remove(&r.ends, int(h.renewal.endIndex))
	if h.renewal.dueIndex >= 0 {
		heap.Remove(&r.dues, int(h.renewal.dueIndex))
	}
	delete(r.byID, h.id)
	r.marginCounts[h.marginClass]--
	if r.ends.Len() > 0 {
		return
	}
	if r.drained != nil {
		close(r.drained) // once, since no hold is added any more
	}
	r.byID = nil
	if cap(r.ends.holds) > keptCapacity {
		r.ends.holds, r.dues.holds = nil, nil
	}
	if r.wakeAt-r.elapsed > idleDelay {
		// otherwise runLoop notices soon, and need not be started again for the next lease
		r.wakeUp()
	}
	if r.unwatch != nil {
		r.unwatch()
	}
}

// takeAll removes and returns all holds, and refuses new ones.
func (r *renewer) takeAll() []*hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	all := slices.Clone(r.ends.holds)
	for _, h := range all {
		r.removeLocked(h)
	}
	r.wakeUp()
	return all
}

// refuseHolds refuses new holds from now on.
func (r *renewer) refuseHolds() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// awaitEmpty waits until there are no holds or ctx ends, and returns how many there are then. It is called after
// refuseHolds.
func (r *renewer) awaitEmpty(ctx context.Context) int {
	r.mu.Lock()
	if r.drained == nil {
		r.drained = make(chan struct{})
		if r.ends.Len() == 0 {
			close(r.drained)
		}
	}
	drained := r.drained
	r.mu.Unlock()
	select {
	case <-drained:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ends.Len()
}

// renewalTimes is when a lease ends, and when it must be renewed.
type renewalTimes struct{ endsAt, dueAt time.Duration }

// dueFrom is from when on the lease may be renewed together with others.
func (t renewalTimes) dueFrom() time.Duration { return t.dueAt - (t.endsAt-t.dueAt)/20 }

// renewal is what the renewer keeps about a hold. It is guarded by the renewer's mutex.
type renewal struct {
	renewalTimes
	endIndex, dueIndex int32 // in the heaps of the renewer, or notInHeap
}

const notInHeap = -1

// planRenewal is for a hold that was granted or renewed: its next renewal is due a third of the way through the TTL, or
// a little earlier together with others.
func (h *hold) planRenewal(now time.Duration, read driver.Instant) renewalTimes {
	ttl, end := h.grantedTTL, now+h.remainingAt(read)
	if h.endsByMaxHold(read) { // no renewal would make it last longer
		return renewalTimes{endsAt: end, dueAt: now + h.renewableFor(read)}
	}
	due := now + max(ttl/3-read.Since(h.since), minRetry)
	return renewalTimes{endsAt: end, dueAt: due}
}

// planRetry is for a hold whose renewal has failed: it is tried again after a quarter of the remaining time, so ever
// more often, or a little earlier together with others. A store that is cut off for less than a third of the TTL is
// asked several times after that. Without company each lease of a batch that has failed would be sent in a batch of
// its own, and a store limits how many requests it makes at a time in each batch, not in all of them.
func (h *hold) planRetry(now time.Duration, read driver.Instant) renewalTimes {
	due := now + min(max(h.renewableFor(read)/4, minRetry), maxRetry)
	return renewalTimes{endsAt: now + h.remainingAt(read), dueAt: due}
}

// setTimes moves a hold that is in the heaps to new times, and wakes runLoop if that would sleep too long. It is called
// with mu held.
func (r *renewer) setTimes(h *hold, p renewalTimes) {
	h.renewal.renewalTimes = p
	heap.Fix(&r.ends, int(h.renewal.endIndex))
	if h.renewal.dueIndex < 0 {
		heap.Push(&r.dues, h)
	} else {
		heap.Fix(&r.dues, int(h.renewal.dueIndex))
	}
	if min(h.renewal.dueAt, h.renewal.endsAt, r.elapsed+r.maxSleep()) < r.wakeAt {
		r.wakeUp()
	}
}

// wakeUp makes the loop look at its heaps now. It never blocks.
func (r *renewer) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// runLoop ends leases at their deadlines and sends renewals when they are due, while anything is held.
func (r *renewer) runLoop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		expired, batches, sleep, more := r.tick()
		for _, h := range expired {
			r.client.handleLoss(h)
		}
		for _, b := range batches {
			r.client.inflight.start(func() { r.sendBatch(b) })
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

// tick reads the clock once. It returns what has expired, what is due, and how long nothing else will be.
func (r *renewer) tick() (expired []*hold, batches []*batch, sleep time.Duration, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.readClock()
	if r.wallStepped() {
		r.renewAllNow(now)
	}
	if r.byID != nil && now-r.lastEnding > idleDelay {
		r.byID = nil
	}
	expired = r.takeExpired(now)
	batches = r.takeDue(now)
	if r.ends.Len() == 0 {
		// It ticks once more, so that locks that are acquired one after the other need not start it each time.
		r.idle = !r.idle && !r.closed
		r.running, r.wakeAt = r.idle, now+minSleep
		return expired, batches, minSleep, r.running
	}
	r.idle = false
	r.wakeAt = min(now+r.maxSleep(), r.ends.holds[0].renewal.endsAt)
	if r.dues.Len() > 0 && r.inFlight < maxBatches {
		r.wakeAt = min(r.wakeAt, r.dues.holds[0].renewal.dueAt)
	}
	return expired, batches, r.wakeAt - now, true
}

// wallStepped reports whether the wall clock has stepped forward since the last call. It is called with mu held, after
// readClock.
func (r *renewer) wallStepped() bool {
	if r.client.clock.Wall == nil {
		return false
	}
	before := r.wallAhead
	r.wallAhead = r.client.clock.Wall() - r.lastRead.Boottime
	return r.wallAhead-before >= pauseStep
}

// renewAllNow makes all leases due. The machine may have been paused for longer than their TTL while its clocks did not
// advance, so that they seem to have time left although others may hold the locks by now: only the store knows. The
// answer to a claim or a renewal that was under way during the pause proves nothing, so those leases are renewed once
// more.
func (r *renewer) renewAllNow(now time.Duration) {
	r.steppedAt, r.suspectUpTo = r.lastRead, r.lastBatch
	for _, h := range r.dues.holds { // they stay a heap, since all times are equal
		h.renewal.dueAt = now
	}
}

// maxSleep is how long runLoop may sleep at most. Its timer does not advance while the machine sleeps, so the clock is
// read often enough to end a lease within half of its margin after the machine wakes up.
func (r *renewer) maxSleep() time.Duration {
	for class, n := range r.marginCounts {
		if n > 0 {
			return max(minSleep, time.Duration(1)<<class/4)
		}
	}
	return minSleep
}

// marginClassOf is the n for which the margin is below 2^n ns and at least half of that.
func marginClassOf(ttl time.Duration) int8 {
	return int8(bits.Len64(uint64(max(0, driver.Margin(ttl)))))
}

// takeExpired ends the holds whose time is up, at most maxExpiredPerTick of them, which bounds how long the mutex
// is held.
func (r *renewer) takeExpired(now time.Duration) (expired []*hold) {
	for r.ends.Len() > 0 && r.ends.holds[0].renewal.endsAt <= now && len(expired) < maxExpiredPerTick {
		h := r.ends.holds[0]
		left, found := h.expireIfDue()
		switch {
		case found:
			expired = append(expired, h)
			r.removeLocked(h)
		case left == 0: // another goroutine has ended it and is about to remove it
			r.removeLocked(h)
		default: // there was progress; or Boottime was set forward and back, where it is a wall clock
			h.renewal.endsAt = now + left
			heap.Fix(&r.ends, 0)
		}
	}
	return expired
}

// batch is the leases of one Renew call: they are due together, and their timeouts are alike.
type batch struct {
	number  uint64
	holds   []*hold
	timeout time.Duration // of the call: the shortest of its leases
	sentAt  time.Time
}

// takeDue puts the leases that are due into batches, one per class of timeouts, so that a lease with a day to go and
// one with a second to go do not wait for each other.
func (r *renewer) takeDue(now time.Duration) []*batch {
	if r.inFlight >= maxBatches || r.dues.Len() == 0 || r.dues.holds[0].renewal.dueAt > now {
		return nil
	}
	r.lastBatch++
	classes := map[int]*batch{}
	var batches []*batch
	for n := 0; n < maxBatch && r.dues.Len() > 0 && r.dues.holds[0].renewal.dueFrom() <= now; n++ {
		h := heap.Pop(&r.dues).(*hold)
		bound, ok := h.startRenewal(r.lastBatch, r.lastRead)
		if !ok {
			continue
		}
		class := bits.Len64(uint64(bound))
		b := classes[class]
		if b == nil {
			b = &batch{number: r.lastBatch, timeout: bound}
			classes[class], batches = b, append(batches, b)
		}
		b.holds, b.timeout = append(b.holds, h), min(b.timeout, bound)
	}
	r.inFlight += len(batches)
	return batches
}

// startRenewal marks a hold as being renewed, unless it has ended. bound limits the attempt: a third of the TTL, and
// half of the remaining time so that there is time for another attempt.
func (h *hold) startRenewal(batchNumber uint64, now driver.Instant) (bound time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != stateHeld || h.remainingAt(now) <= 0 {
		return 0, false
	}
	left := h.renewableFor(now)
	h.inBatch = batchNumber
	return min(h.grantedTTL/3, max(left/2, minRetry), left, maxRenewTimeout), true
}

// sendBatch renews the holds of a batch. Each has exactly one answer that counts: its own, or that there was none.
func (r *renewer) sendBatch(b *batch) {
	ctx, cancel := context.WithTimeout(r.client.base, b.timeout)
	defer cancel()
	// A grant has more bytes than a hold. Made at once, the grants of a batch leave no garbage of slices that have
	// grown.
	grants := make([]driver.Grant, len(b.holds))
	for i, h := range b.holds {
		h.mu.Lock()
		grants[i] = h.currentGrant()
		h.mu.Unlock()
	}
	b.sentAt = time.Now()
	r.client.store.Renew(ctx, grants, func(i int, a driver.Renewal) { r.handleAnswer(b.holds[i], b, a) })
	for _, h := range b.holds {
		r.handleAnswer(h, b, driver.Renewal{Err: errNoAnswer}) // the holds that had an answer ignore this one
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight--
	r.wakeUp()
}

// handleAnswer applies the store's answer for one hold, and plans its next renewal.
func (r *renewer) handleAnswer(h *hold, b *batch, a driver.Renewal) {
	lost, ok := h.finishRenewal(b, a)
	switch {
	case !ok:
		return
	case lost:
		r.client.handleLoss(h)
		return
	case a.ReleaseRequested:
		h.noteReleaseRequest()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.renewal.endIndex < 0 {
		return
	}
	now := r.readClock()
	h.mu.Lock()
	p := h.planRenewal(now, r.lastRead)
	if a.Err != nil {
		p = h.planRetry(now, r.lastRead)
	}
	if b.number <= r.suspectUpTo {
		p.dueAt = now
	}
	ttl := h.grantedTTL
	h.mu.Unlock()
	r.marginCounts[h.marginClass]--
	h.marginClass = marginClassOf(ttl)
	r.marginCounts[h.marginClass]++
	r.setTimes(h, p)
}

// finishRenewal applies an answer to the hold. ok is false if the hold does not wait for this answer any more. An
// answer that comes after the deadline finds the lease lost, and one that would make the deadline earlier changes
// nothing.
func (h *hold) finishRenewal(b *batch, a driver.Renewal) (lost, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != stateHeld || h.inBatch != b.number {
		return false, false
	}
	left, lost := h.expireIfDueLocked()
	if lost {
		return true, true
	}
	h.inBatch = 0
	switch {
	case a.Err == nil:
		if h.extras != nil {
			h.extras.renewalErr = nil
		}
		if now := h.client.clock.Now(); trustedFor(now, a.Since, a.GrantedTTL) > trustedFor(now, h.since,
			h.grantedTTL) {
			h.since, h.grantedTTL = a.Since, a.GrantedTTL
			left = h.remainingAt(now)
		}
		h.client.emitEvent(EventRenewed, h, eventDetails{roundTrip: time.Since(b.sentAt), remaining: left})
	case errors.Is(a.Err, ErrLost):
		h.state, h.loss = stateLost, lossOf(a.Err)
		return true, true
	default:
		h.ensureExtras().renewalErr = mergeRenewalErrors(h.renewalErr(), a.Err)
		// here, so that it comes before the event of a loss
		h.client.emitEvent(EventRenewalFailing, h,
			eventDetails{err: a.Err, roundTrip: time.Since(b.sentAt), remaining: left})
	}
	return false, true
}

// mergeRenewalErrors is the reason that a loss will have after one more renewal has failed. It is neither ErrUncertain,
// since a loss is certain, nor the end of a context of the user's. What the store has said is kept when later renewals
// have no answer: the last ones have little time.
func mergeRenewalErrors(before, now error) error {
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

// watchEndings listens to a store that reports the end of grants, one call at a time, while anything is held.
func (r *renewer) watchEndings() {
	for {
		r.mu.Lock()
		if r.ends.Len() == 0 {
			r.watching, r.unwatch = false, nil
			r.mu.Unlock()
			return
		}
		ctx, cancel := context.WithCancel(r.client.base)
		r.unwatch = cancel
		r.mu.Unlock()
		for ctx.Err() == nil {
			ending, err := r.client.store.NextEnding(ctx)
			if err == nil {
				r.handleEnding(ending)
			} else {
				sleepContext(ctx, time.Second)
			}
		}
		cancel()
	}
}

// handleEnding passes on what the store has told of a claim: that it is lost, or that its release is requested.
func (r *renewer) handleEnding(e driver.Ending) {
	r.mu.Lock()
	h := r.findHold(e.ID)
	r.mu.Unlock()
	switch {
	case h == nil:
	case e.Err != nil:
		if h.endAs(stateLost, lossOf(e.Err)) {
			r.client.handleLoss(h)
		}
	case e.ReleaseRequested:
		h.noteReleaseRequest()
	}
}

// findHold returns the hold with this id, or nil. Endings are rare, but a session that ends brings one for each of its
// claims: so the holds are indexed when one comes, until none has come for a while. It is called with mu held.
func (r *renewer) findHold(id string) *hold {
	r.lastEnding = r.readClock()
	if r.byID == nil {
		r.byID = make(map[string]*hold, r.ends.Len())
		for _, h := range r.ends.holds {
			r.byID[h.id] = h
		}
	}
	return r.byID[id]
}

// holdHeap is a heap of holds, ordered by one of their times. Each hold knows its index in it.
type holdHeap struct {
	holds []*hold
	key   func(*renewal) time.Duration
	index func(*renewal) *int32
}

// newEndHeap sorts holds by the time at which they end without a renewal.
func newEndHeap() holdHeap {
	return holdHeap{
		key:   func(r *renewal) time.Duration { return r.endsAt },
		index: func(r *renewal) *int32 { return &r.endIndex },
	}
}

// newDueHeap sorts holds by the time at which their next renewal is due.
func newDueHeap() holdHeap {
	return holdHeap{
		key:   func(r *renewal) time.Duration { return r.dueAt },
		index: func(r *renewal) *int32 { return &r.dueIndex },
	}
}

func (q *holdHeap) Len() int { return len(q.holds) }
func (q *holdHeap) Less(i, j int) bool {
	return q.key(&q.holds[i].renewal) < q.key(&q.holds[j].renewal)
}
func (q *holdHeap) Swap(i, j int) {
	q.holds[i], q.holds[j] = q.holds[j], q.holds[i]
	*q.index(&q.holds[i].renewal), *q.index(&q.holds[j].renewal) = int32(i), int32(j)
}
func (q *holdHeap) Push(x any) {
	h := x.(*hold)
	*q.index(&h.renewal) = int32(len(q.holds))
	q.holds = append(q.holds, h)
}
func (q *holdHeap) Pop() any {
	last := len(q.holds) - 1
	h := q.holds[last]
	q.holds[last], q.holds = nil, q.holds[:last]
	*q.index(&h.renewal) = notInHeap
	return h
}
