package record

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// writer makes the writes of this client on one lock, one swap at a time.
//
// A step that comes while nothing else of this client is going on at the lock is alone: its call swaps, in its own
// goroutine and under its own context, and the writer only notes that. Steps that come meanwhile queue. When the swap
// returns, all of them are made on the record that it has left, and go as one swap, in a goroutine of the engine, so
// that no caller can end it for the others. Otherwise the calls of one client would refuse each other.
//
// The waiters of this client are here too. The swap that makes room for them grants them, which saves one swap for
// each: they need no promotion, since they are evidently alive and waiting.
//
// A writer exists while a swap is under way or a claim waits. It is guarded by the engine's mutex.
type writer struct {
	name    string
	current int64                 // number of the swap for which the queue waits; 0 if none is under way
	queue   []*groupStep          // in order of arrival
	waiters map[string]*groupStep // by claim id: to be made when the claim fits
	timer   *time.Timer           // lets the queue overtake a swap that hangs
	hurry   chan struct{}         // buffered: an urgent step has queued; nil while nobody waits for that
}

// groupStep is what one call hands in to a writer: one step at a time, which may share a swap with others.
type groupStep struct {
	claim  string // the id of the claim that the step adds, if it is not in the record
	urgent bool   // it is made before the others: a renewal, a release, or the answer to a promotion
	call   stepMaker

	first writer // used if the call finds no writer of its lock

	// All that follows is guarded by the engine's mutex.
	state    stepState
	make     stepFunc
	lock     string        // its name; empty if the step was never handed in
	replaces string        // once sent: the version that the swap expects
	done     chan struct{} // buffered: it has an outcome
	outcome  *stepOutcome  // if done
	made     bool          // used by the swap only
}

// stepMaker is a call that hands in steps.
type stepMaker interface {
	// stepFunc returns the call's next step, for a writer to make on other records than the one that the call knows.
	stepFunc() stepFunc
}

// stepFunc makes a step on a record, and reports whether there is anything to write. It does not run in the goroutine
// of its call, which may have returned, so it uses nothing that the call changes before it has the outcome.
type stepFunc func(rec *Record, in StepInput) bool

// stepState says where a step is.
type stepState int

const (
	stepIdle    stepState = iota // with its call, which may be writing it alone
	stepWaiting                  // it will be made when its claim fits
	stepQueued                   // it will go with the next swap
	stepPausing                  // so it will, but it begins none: its call pauses
	stepSent                     // the swap may be on its way to the store
	stepDone                     // it has an outcome, which its call has not taken yet
)

// stepOutcome is what became of a step.
type stepOutcome struct {
	// made reports whether the step was part of the swap. Otherwise there was nothing to write, on the record that it
	// was made on. Then its call has to look at the row: this one if rec is not nil, and otherwise one that it loads.
	made      bool
	row       Row
	rec       *Record        // from the swap, or from its refusal; nil if that brought none
	refusedOn snapshot       // what this client knew, if no step of the group could be made on that; it may be old
	since     driver.Instant // before the swap, and before the steps read any clock
	replaces  string         // the version that the swap expected
	err       error          // what swapRecord returned; the outcome is unknown as for a swap of the call's own
}

// groupSwap is one swap and the steps that it writes.
type groupSwap struct {
	w         *writer
	number    int64 // no other swap of the engine has it
	mustLoad  bool  // this client does not know the row, and loads it first; the steps still wait in the queue
	steps     []*groupStep
	seen      snapshot // the row that it replaces
	next      *Record
	since     driver.Instant // read before anything else that the steps know of time
	in        StepInput
	addsClaim bool
}

// minHang is how long the queue waits for a swap that does not return, and some round trips. Then the next swap
// goes without its result, and one of the two is refused. So a swap that hangs holds up no renewal for longer.
const minHang = 100 * time.Millisecond

// overtakeAfter is called with mu held.
func (e *engine) overtakeAfter() time.Duration { return minHang + 8*e.rtt }

// writeStep writes the step of a call, which has made it already: next is the record after it, and since is when it was
// started. If the step is not alone, it is made again, with those of others. When ctx ends, writeStep returns at once.
// The swap goes on if others have a part in it.
//
// A ledger's steps go alone: they write pages as well.
func (e *engine) writeStep(ctx context.Context, s *groupStep, seen snapshot, next *Record, since driver.Instant) stepOutcome {
	number := int64(0)
	if !e.keepsRuns {
		if number = e.beginAlone(s, seen.row.Name); number == 0 {
			return e.shareStep(ctx, s, seen.row.Name)
		}
	}
	o := stepOutcome{made: true, since: since, replaces: seen.row.Version}
	o.row, o.rec, o.err = e.swapRecord(ctx, seen, next, s.addsTo(seen.rec))
	if !e.keepsRuns {
		e.startGroup(e.nextSwap(&s.first, number))
	}
	return o
}

// isShared reports whether a step on a lock would not be alone. A call then need not make it on a row that it
// remembers.
func (e *engine) isShared(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.writers[name] != nil
}

// shareStep hands in a step, and returns its outcome.
func (e *engine) shareStep(ctx context.Context, s *groupStep, name string) stepOutcome {
	e.handIn(s, stepQueued, s.call.stepFunc(), name)
	select {
	case <-s.done:
		return e.takeOutcome(s)
	case <-ctx.Done():
		return e.leaveStep(ctx.Err(), s)
	}
}

// pauseStep waits for d, or until a swap of this client that began meanwhile has made the step. If none has begun, ok is
// false, and the step was not sent.
//
// Without that, the calls whose swap was refused would come back one by one, each with a load and a swap of its own,
// and would refuse each other as the calls of as many clients.
func (e *engine) pauseStep(ctx context.Context, d time.Duration, s *groupStep, name string) (o stepOutcome, ok bool) {
	e.handIn(s, stepPausing, s.call.stepFunc(), name)
	pause := time.NewTimer(d)
	defer pause.Stop()
	for {
		select {
		case <-s.done:
			return e.takeOutcome(s), true
		case <-ctx.Done():
			return e.leaveStep(ctx.Err(), s), true
		case <-pause.C: // if it is under way, it is awaited
			if e.withdrawStep(s) {
				return stepOutcome{}, false
			}
		}
	}
}

// withdrawStep takes the step of a pausing call back, and reports whether it was not sent.
func (e *engine) withdrawStep(s *groupStep) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.state != stepPausing {
		return false
	}
	s.state = stepIdle
	e.leaveGroup(s)
	return true
}

// leaveGroup takes a step out of the writer's queue. It is called with mu held.
func (e *engine) leaveGroup(s *groupStep) {
	w := e.writers[s.lock]
	w.queue = slices.DeleteFunc(w.queue, func(q *groupStep) bool { return q == s })
	e.dropIfIdle(w)
}

func (s *groupStep) addsTo(rec *Record) bool { return s.claim != "" && rec.findClaim(s.claim) == nil }

// beginAlone notes that a call writes its step by itself. It returns the number of the swap, or 0 if the step is not
// alone.
func (e *engine) beginAlone(s *groupStep, name string) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.writers[name] != nil || s.state != stepIdle {
		return 0
	}
	e.swapsBegun++
	s.first = writer{name: name, current: e.swapsBegun}
	e.writers[name] = &s.first
	return s.first.current
}

// handIn queues a step, and begins a swap if none is under way, unless the step's call pauses. If the step is under way
// already, as a waiter's that is being granted, there is nothing to do but to await its outcome.
func (e *engine) handIn(s *groupStep, as stepState, step stepFunc, name string) {
	e.mu.Lock()
	w := e.writerOf(name)
	switch s.state {
	case stepWaiting:
		w.removeWaiter(s)
	case stepSent, stepDone:
		e.mu.Unlock()
		return
	}
	s.state, s.make, s.lock, s.done = as, step, name, s.doneChannel()
	w.queue = append(w.queue, s)
	var begun *groupSwap
	switch {
	case as == stepPausing:
	case w.current == 0:
		begun = e.beginSwap(w)
	case w.timer == nil:
		hanging := w.current
		w.timer = time.AfterFunc(e.overtakeAfter(), func() { e.startGroup(e.overtake(w, hanging)) })
	}
	if s.urgent {
		w.signalHurry()
	}
	e.mu.Unlock()
	e.startGroup(begun)
}

// doneChannel returns the step's own channel, or a new one for a step that has not waited yet.
func (s *groupStep) doneChannel() chan struct{} {
	if s.done == nil {
		return make(chan struct{}, 1)
	}
	return s.done
}

// signalHurry makes the writer send its group now. It never blocks.
func (w *writer) signalHurry() {
	select {
	case w.hurry <- struct{}{}:
	default:
	}
}

// writerOf returns the writer of a lock. It is called with mu held.
func (e *engine) writerOf(name string) *writer {
	w := e.writers[name]
	if w == nil {
		w = &writer{name: name}
		e.writers[name] = w
	}
	return w
}

// needsSwap reports whether a step in the queue needs a swap.
func needsSwap(s *groupStep) bool { return s.state != stepPausing }

// hasNext reports whether there is another swap to make. It is called with mu held.
func (w *writer) hasNext() bool { return slices.ContainsFunc(w.queue, needsSwap) }

// dropIfIdle forgets a writer that has nothing to do. It is called with mu held.
func (e *engine) dropIfIdle(w *writer) {
	if w.current == 0 && len(w.queue) == 0 && len(w.waiters) == 0 && e.writers[w.name] == w {
		delete(e.writers, w.name)
	}
}

// removeWaiter removes a waiter's step, unless another call for the same claim has replaced it.
func (w *writer) removeWaiter(s *groupStep) {
	if w.waiters[s.claim] == s {
		delete(w.waiters, s.claim)
	}
}

// standBy makes the step of a claim that waits in the store's queue ready to be made by the swap that makes room for
// it.
func (e *engine) standBy(s *groupStep, step stepFunc, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.state != stepIdle {
		return // it stands by already, or is being granted
	}
	w := e.writerOf(name)
	if w.waiters == nil {
		w.waiters = map[string]*groupStep{}
	}
	s.state, s.make, s.lock, s.done = stepWaiting, step, name, s.doneChannel()
	w.waiters[s.claim] = s
}

// beginSwap takes the queue for the next swap. That begins with the row as this client last saw it. If it has forgotten
// it, the swap loads it first: what one of the calls knew is as old as the swap before, which may have been refused, and
// so would be this one. It is called with mu held.
func (e *engine) beginSwap(w *writer) *groupSwap {
	e.swapsBegun++
	g := &groupSwap{w: w, number: e.swapsBegun}
	w.current = g.number
	if known, ok := e.rows.getRow(w.name); ok {
		g.takeQueue(known.snapshot)
	} else {
		g.mustLoad = true
	}
	return g
}

// takeQueue takes the steps that wait, to be made on the record that was seen. It is called with mu held.
func (g *groupSwap) takeQueue(seen snapshot) {
	g.mustLoad, g.seen, g.steps = false, seen, g.w.queue
	g.w.queue = nil
	slices.SortStableFunc(g.steps, compareUrgency)
	for _, s := range g.steps {
		g.take(s)
	}
}

// loadFirst loads the row if a swap needs that, and takes the queue then. If the load fails, or takes so long that a swap
// would be overtaken, each call finds out by one of its own. It reports whether there is a swap to make: it may have been
// overtaken, or all calls have left.
func (e *engine) loadFirst(g *groupSwap) bool {
	if !g.mustLoad {
		return true
	}
	e.mu.Lock()
	limit := e.overtakeAfter()
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(e.life, limit)
	row, rec, err := e.loadForStep(ctx, g.w.name)
	cancel()
	e.mu.Lock()
	mine := g.w.current == g.number && g.w.hasNext()
	if mine {
		g.takeQueue(snapshot{row: row, rec: rec})
	}
	e.mu.Unlock()
	if mine && err != nil {
		e.settleSteps(g, stepOutcome{})
	}
	return mine && err == nil
}

// compareUrgency sorts urgent steps before others.
func compareUrgency(a, b *groupStep) int {
	switch {
	case a.urgent == b.urgent:
		return 0
	case a.urgent:
		return -1
	}
	return 1
}

func (g *groupSwap) take(s *groupStep) {
	s.state, s.replaces, s.made = stepSent, g.seen.row.Version, false
}

// overtake begins the next swap although the current one has not returned. It returns nil if it has returned.
func (e *engine) overtake(w *writer, hanging int64) *groupSwap {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.current != hanging {
		return nil
	}
	w.timer = nil
	if !w.hasNext() {
		return nil
	}
	return e.beginSwap(w)
}

// startGroup makes a swap, and those that follow it, in a goroutine of its own.
func (e *engine) startGroup(g *groupSwap) {
	for g != nil {
		begun := g // a function that used g itself would make each call allocate it, also for nil
		if e.life.Go(func() { e.runGroup(begun) }) {
			return
		}
		if g.mustLoad {
			e.mu.Lock()
			g.takeQueue(snapshot{row: Row{Name: g.w.name}})
			e.mu.Unlock()
		}
		e.settleSteps(g, stepOutcome{made: true, err: driver.ErrClosed})
		g = e.nextSwap(g.w, g.number)
	}
}

// runGroup writes one group of steps after another to a row, until no step is waiting for it. Between two groups
// it lets a release pass if the lock is full, because only that lets the others go on.
func (e *engine) runGroup(g *groupSwap) {
	for ; g != nil; g = e.nextSwap(g.w, g.number) {
		if !e.loadFirst(g) {
			continue
		}
		e.makeSteps(g)
		ctx, cancel := context.WithTimeout(e.life, maxSettleTime)
		o := e.sendSwap(ctx, g)
		cancel()
		full := o.err == nil && g.fillsLock()
		e.settleSteps(g, o)
		if full {
			e.awaitRelease(g)
		}
	}
}

// makeSteps makes the steps of a swap, each on the result of the one before, and those of the waiters that then fit.
// The clock is read first: a lease is counted from then, and the claims' ends are set by what is read of the store's
// clock after it.
func (e *engine) makeSteps(g *groupSwap) {
	g.since, g.addsClaim = e.clock.Now(), false
	g.in = e.stepInput(g.seen.row, g.seen.rec)
	for _, s := range g.steps {
		if s.claim != "" {
			g.in.Sharing = append(g.in.Sharing, s.claim)
		}
	}
	g.next = g.seen.rec.clone()
	g.makeEach(g.steps)
	waiters := e.takeWaiters(g)
	g.makeEach(waiters)
	g.steps = append(g.steps, waiters...)
}

// makeEach applies the steps to the next record, in their order.
func (g *groupSwap) makeEach(steps []*groupStep) {
	for _, s := range steps {
		s.made = s.make(g.next, g.in)
		g.addsClaim = g.addsClaim || s.made && s.addsTo(g.seen.rec)
	}
}

// takeWaiters takes the steps of this client's waiters that fit, in the order of the record.
func (e *engine) takeWaiters(g *groupSwap) (steps []*groupStep) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var sum int64
	for i := range g.next.Claims {
		if sum += g.next.Claims[i].Weight; sum > g.next.Limit || len(g.w.waiters) == 0 {
			break
		}
		if s := g.w.waiters[g.next.Claims[i].ID]; s != nil {
			delete(g.w.waiters, s.claim)
			g.take(s)
			steps = append(steps, s)
		}
	}
	return steps
}

// sendSwap swaps, if there is anything to write. If the record has no room for all steps, the first one goes alone, so
// that each caller gets the answer to its own.
func (e *engine) sendSwap(ctx context.Context, g *groupSwap) stepOutcome {
	if !slices.ContainsFunc(g.steps, func(s *groupStep) bool { return s.made }) {
		return stepOutcome{refusedOn: g.seen}
	}
	o := stepOutcome{since: g.since, replaces: g.seen.row.Version}
	o.row, o.rec, o.err = e.swapRecord(ctx, g.seen, g.next, g.addsClaim)
	if errors.Is(o.err, driver.ErrQueueFull) && len(g.steps) > 1 {
		e.splitSwap(g)
		return e.sendSwap(ctx, g)
	}
	return o
}

// splitSwap leaves the first step in the swap; the others are told to look again.
func (e *engine) splitSwap(g *groupSwap) {
	e.mu.Lock()
	for _, s := range g.steps[1:] {
		s.settle(stepOutcome{})
	}
	e.mu.Unlock()
	g.steps = g.steps[:1]
	e.makeSteps(g)
}

// settleSteps tells the steps of a swap what became of them.
func (e *engine) settleSteps(g *groupSwap, o stepOutcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range g.steps {
		switch {
		case s.made:
			made := o
			made.made = true
			s.settle(made)
		case o.err == nil || o.made:
			s.settle(o)
		case errors.Is(o.err, ErrConflict) && o.rec != nil: // what the refusal has brought spares it a read
			s.settle(stepOutcome{row: o.row, rec: o.rec})
		default:
			s.settle(stepOutcome{})
		}
	}
}

// maxReleaseWait limits the time for which claims that cannot be granted wait for a release.
const maxReleaseWait = 5 * time.Millisecond

// awaitRelease puts the next swap off for a round trip if this one has granted a claim, the lock is full, and only
// claims wait for the next swap. They cannot be granted, so they are in no hurry. A holder that releases at once
// takes them with it, and a turn costs one swap and not two. An urgent step ends the wait.
func (e *engine) awaitRelease(g *groupSwap) {
	e.mu.Lock()
	w, hurry := g.w, make(chan struct{}, 1)
	if w.current != g.number || slices.ContainsFunc(w.queue, func(s *groupStep) bool { return s.urgent }) {
		e.mu.Unlock()
		return
	}
	w.hurry = hurry
	timer := time.NewTimer(min(e.rtt, maxReleaseWait))
	e.mu.Unlock()
	defer timer.Stop()
	select {
	case <-hurry:
	case <-timer.C:
	case <-e.life.Done():
	}
}

// fillsLock reports whether the swap has granted a claim, and has left room for no other one.
func (g *groupSwap) fillsLock() bool {
	return g.next.totalWeight() >= g.next.Limit && slices.ContainsFunc(g.steps, func(s *groupStep) bool {
		if s.claim == "" || !s.made {
			return false
		}
		c := g.next.findClaim(s.claim)
		return c != nil && c.State == Granted
	})
}

// nextSwap ends a swap. It begins the next one and returns it, if steps wait for that.
func (e *engine) nextSwap(w *writer, number int64) *groupSwap {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.current != number {
		return nil // it was overtaken
	}
	w.current, w.hurry = 0, nil
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if w.hasNext() {
		return e.beginSwap(w)
	}
	e.dropIfIdle(w)
	return nil
}

// settle gives a step its outcome, unless its call has left. It is called with mu held.
func (s *groupStep) settle(o stepOutcome) {
	if s.state == stepSent {
		s.state, s.outcome = stepDone, &o
		s.done <- struct{}{}
	}
}

// takeOutcome takes the outcome of a step whose done has been received from.
func (e *engine) takeOutcome(s *groupStep) stepOutcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.state = stepIdle
	return *s.outcome
}

// leaveStep ends a call's part in its step because of err. A step that was not sent is withdrawn, and certainly has no
// effect. The outcome of one that was sent is unknown, as if its reply were lost.
func (e *engine) leaveStep(err error, s *groupStep) stepOutcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := s.state
	s.state = stepIdle
	switch was {
	case stepWaiting:
		if w := e.writers[s.lock]; w != nil { // another call for the claim may have taken its place, and ended
			w.removeWaiter(s)
			e.dropIfIdle(w)
		}
	case stepQueued, stepPausing:
		e.leaveGroup(s)
	case stepSent:
		return stepOutcome{made: true, replaces: s.replaces, err: err}
	case stepDone:
		<-s.done
		return *s.outcome
	}
	return stepOutcome{made: true, err: fmt.Errorf("%w: %w", ErrUnsent, err)}
}
