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
// A call hands in a step. If no swap is under way, it goes at once, in the caller's own goroutine. Steps that come while
// one is under way queue, and when it returns, all of them are made on the record that it has left, and go as one swap.
// Otherwise the calls of one client would refuse each other.
//
// The waiters of this client are here too. The swap that makes room for them grants them, which saves one swap for each:
// they need no promotion, since they are evidently alive and waiting.
//
// A writer exists while a swap is under way or a claim waits. It is guarded by the engine's mutex.
type writer struct {
	name    string
	current *groupSwap            // the swap for which the queue waits; nil if none is under way
	queue   []*groupStep          // in order of arrival
	waiters map[string]*groupStep // by claim id: to be made when the claim fits
	timer   *time.Timer           // lets the queue overtake a swap that hangs
}

// groupStep is the step of one call, which may share a swap with others.
type groupStep struct {
	claim  string // the id of the claim that the step adds, if it is not in the record
	urgent bool   // it is made before the others: a renewal, or a release

	make stepMaker
	// prepared is the step as its call has made it already, on the row that it knew. It is used if that is the row still,
	// and no other step is made with it.
	prepared preparedStep

	state    stepState     // guarded by the engine's mutex, like replaces and outcome
	replaces string        // once sent: the version that the swap expects
	done     chan struct{} // buffered: it has an outcome; nil if the call makes the swap itself
	outcome  stepOutcome
	made     bool // used by the swap only
}

// stepMaker makes a step on a record, and reports whether there is anything to write. It does not run in the goroutine of
// its call, which may have returned, so it uses nothing that the call changes.
type stepMaker func(rec *Record, in StepInput) bool

// preparedStep is the record before and after a step, and what the step knew of time.
type preparedStep struct {
	row   Row
	rec   *Record
	next  *Record
	since driver.Instant // when the step was started
	in    StepInput
}

// stepState says where a step is.
type stepState int

const (
	stepIdle    stepState = iota // with its call
	stepWaiting                  // it will be made when its claim fits
	stepQueued                   // it will go with the next swap
	stepSent                     // the swap may be on its way to the store
	stepDone                     // it has an outcome, which its call has not taken yet
)

// stepOutcome is what became of a step.
type stepOutcome struct {
	// made reports whether the step was part of the swap. Otherwise there was nothing to write, on the record that it was
	// made on. Then its call has to look at the row: this one if rec is not nil, and otherwise one that it loads.
	made     bool
	row      Row
	rec      *Record        // from the swap, or from its refusal; nil if that brought none
	since    driver.Instant // before the swap, and before the steps read any clock
	replaces string         // the version that the swap expected
	err      error          // what swapRecord returned; the outcome is unknown as for a swap of the call's own
}

// groupSwap is one swap and the steps that it writes.
type groupSwap struct {
	w     *writer
	steps []*groupStep
	only  [1]*groupStep // of a call that is alone
	preparedStep
	addsClaim bool
}

// minHang is how long the queue waits for a swap that does not return, beside some round trips. Then the next swap
// goes without its result, and one of the two is refused. So a swap that hangs holds up no renewal for longer.
const minHang = 100 * time.Millisecond

// overtakeAfter is called with mu held.
func (e *engine) overtakeAfter() time.Duration { return minHang + 8*e.rtt }

// writeStep writes the step of a call, alone or with those of others. When ctx ends it returns at once. The swap goes on
// if others have a part in it.
//
// A ledger's steps go alone: they write pages as well.
func (e *engine) writeStep(ctx context.Context, s *groupStep, maker stepMaker, p preparedStep) stepOutcome {
	if e.keepsRuns {
		o := stepOutcome{made: true, since: p.since, replaces: p.row.Version}
		o.row, o.rec, o.err = e.swapRecord(ctx, p.row, p.next, s.addsTo(p.rec))
		return o
	}
	if g := e.handIn(s, maker, p); g != nil {
		if e.makeSteps(g); len(g.steps) == 1 {
			g = e.endSwap(g, e.sendSwap(ctx, g))
		} else {
			s.done = s.doneChannel()
		}
		e.startGroup(g)
	}
	return e.awaitOutcome(ctx, s)
}

func (s *groupStep) addsTo(rec *Record) bool { return s.claim != "" && rec.findClaim(s.claim) == nil }

// handIn begins a swap for the step, or queues the step and returns nil. If the step is under way already, as a waiter's
// that is being granted, there is nothing to do but to await its outcome.
func (e *engine) handIn(s *groupStep, maker stepMaker, p preparedStep) *groupSwap {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.writerOf(p.row.Name)
	switch s.state {
	case stepWaiting:
		w.removeWaiter(s)
	case stepSent, stepDone:
		return nil
	}
	s.make, s.prepared = maker, p
	w.queue = append(w.queue, s)
	if w.current == nil {
		return e.beginSwap(w)
	}
	s.state, s.done = stepQueued, s.doneChannel()
	if w.timer == nil {
		hanging := w.current
		w.timer = time.AfterFunc(e.overtakeAfter(), func() { e.startGroup(e.overtake(hanging)) })
	}
	return nil
}

func (s *groupStep) doneChannel() chan struct{} {
	if s.done == nil {
		return make(chan struct{}, 1)
	}
	return s.done
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

// dropIfIdle forgets a writer that has nothing to do. It is called with mu held.
func (e *engine) dropIfIdle(w *writer) {
	if w.current == nil && len(w.queue) == 0 && len(w.waiters) == 0 && e.writers[w.name] == w {
		delete(e.writers, w.name)
	}
}

// removeWaiter removes a waiter's step, unless another call for the same claim has replaced it.
func (w *writer) removeWaiter(s *groupStep) {
	if w.waiters[s.claim] == s {
		delete(w.waiters, s.claim)
	}
}

// standBy makes the step of a claim that waits in the store's queue ready to be made by the swap that makes room for it.
func (e *engine) standBy(name string, s *groupStep, maker stepMaker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.state != stepIdle {
		return // it stands by already, or is being granted
	}
	w := e.writerOf(name)
	if w.waiters == nil {
		w.waiters = map[string]*groupStep{}
	}
	s.state, s.done, s.make, s.prepared.next = stepWaiting, s.doneChannel(), maker, nil
	w.waiters[s.claim] = s
}

// beginSwap takes the queue for the next swap. That begins with the row as this client last saw it, or if it has
// forgotten it, as the first call knows it. It is called with mu held.
func (e *engine) beginSwap(w *writer) *groupSwap {
	g := &groupSwap{w: w}
	g.steps = append(g.only[:0], w.queue...)
	clear(w.queue)
	w.queue, w.current = w.queue[:0], g
	if len(g.steps) > 1 {
		slices.SortStableFunc(g.steps, compareUrgency)
	}
	g.row, g.rec = g.steps[0].prepared.row, g.steps[0].prepared.rec
	if known, ok := e.rows.getRow(w.name); ok {
		g.row, g.rec = known.row, known.rec
	}
	for _, s := range g.steps {
		g.take(s)
	}
	return g
}

func compareUrgency(a, b *groupStep) int {
	switch {
	case a.urgent == b.urgent:
		return 0
	case a.urgent:
		return -1
	}
	return 1
}

func (g *groupSwap) take(s *groupStep) { s.state, s.replaces = stepSent, g.row.Version }

// overtake begins the next swap although the current one has not returned. It returns nil if it has returned.
func (e *engine) overtake(hanging *groupSwap) *groupSwap {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := hanging.w
	if w.current != hanging {
		return nil
	}
	w.timer = nil
	if len(w.queue) == 0 {
		return nil
	}
	return e.beginSwap(w)
}

// makeSteps makes the steps of a swap, each on the result of the one before, and those of the waiters that then fit.
func (e *engine) makeSteps(g *groupSwap) {
	if p := &g.steps[0].prepared; len(g.steps) == 1 && p.next != nil && p.row.Version == g.row.Version {
		g.preparedStep, p.next = *p, nil
		g.note(g.steps[0], true)
	} else {
		e.makeOnRow(g)
	}
	waiters := e.takeWaiters(g)
	for _, s := range waiters {
		g.note(s, s.make(g.next, g.in))
	}
	g.steps = append(g.steps, waiters...)
}

// makeOnRow makes the steps on the row with which the swap begins. The clock is read first: a lease is counted from then,
// and the claims' ends are set by what is read of the store's clock after it.
func (e *engine) makeOnRow(g *groupSwap) {
	g.since, g.addsClaim = e.clock.Now(), false
	g.in = e.stepInput(g.row)
	for _, s := range g.steps {
		if s.claim != "" {
			g.in.Sharing = append(g.in.Sharing, s.claim)
		}
	}
	g.next = g.rec.clone()
	for _, s := range g.steps {
		g.note(s, s.make(g.next, g.in))
	}
}

// note notes whether a step was made.
func (g *groupSwap) note(s *groupStep, made bool) {
	s.made = made
	g.addsClaim = g.addsClaim || made && s.addsTo(g.rec)
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

// startGroup makes a swap, and those that follow it, in a goroutine of its own: the caller of one step must not end it
// for the others. The steps of the first swap have been made if it was begun by a call.
func (e *engine) startGroup(g *groupSwap) {
	if g == nil {
		return
	}
	run := func() {
		for g != nil {
			if g.next == nil {
				e.makeSteps(g)
			}
			ctx, cancel := context.WithTimeout(e.life, maxSettleTime)
			g = e.endSwap(g, e.sendSwap(ctx, g))
			cancel()
		}
	}
	if !e.life.Go(run) {
		e.endSwap(g, stepOutcome{made: true, err: driver.ErrClosed})
	}
}

// sendSwap swaps, if there is anything to write. If the record has no room for all steps, the first one goes alone, so
// that each caller gets the answer to its own.
func (e *engine) sendSwap(ctx context.Context, g *groupSwap) stepOutcome {
	if !slices.ContainsFunc(g.steps, func(s *groupStep) bool { return s.made }) {
		return stepOutcome{}
	}
	o := stepOutcome{since: g.since, replaces: g.row.Version}
	o.row, o.rec, o.err = e.swapRecord(ctx, g.row, g.next, g.addsClaim)
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
	e.makeOnRow(g)
}

// endSwap tells the steps of a swap what became of them. It begins the next swap and returns it, if steps wait for that.
func (e *engine) endSwap(g *groupSwap, o stepOutcome) (next *groupSwap) {
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
		default:
			s.settle(stepOutcome{})
		}
	}
	w := g.w
	if w.current != g {
		return nil // it was overtaken
	}
	w.current = nil
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if len(w.queue) > 0 {
		return e.beginSwap(w)
	}
	e.dropIfIdle(w)
	return nil
}

// settle gives a step its outcome, unless its call has left. It is called with mu held.
func (s *groupStep) settle(o stepOutcome) {
	if s.state != stepSent {
		return
	}
	s.state, s.outcome = stepDone, o
	if s.done != nil {
		s.done <- struct{}{}
	}
}

// awaitOutcome waits until the step has an outcome, or ctx ends.
func (e *engine) awaitOutcome(ctx context.Context, s *groupStep) stepOutcome {
	if s.done == nil { // the call has made the swap itself
		s.state = stepIdle
		return s.outcome
	}
	select {
	case <-s.done:
		return e.takeOutcome(s)
	case <-ctx.Done():
		return e.leaveStep(ctx.Err(), s)
	}
}

// takeOutcome takes the outcome of a step whose done has been received from.
func (e *engine) takeOutcome(s *groupStep) stepOutcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.state = stepIdle
	return s.outcome
}

// leaveStep ends a call's part in its step because of err. A step that was not sent is withdrawn, and surely has no
// effect. The outcome of one that was sent is unknown, as if its reply were lost.
func (e *engine) leaveStep(err error, s *groupStep) stepOutcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	was, w := s.state, e.writers[s.prepared.row.Name]
	s.state = stepIdle
	switch was {
	case stepWaiting:
		w.removeWaiter(s)
		e.dropIfIdle(w)
	case stepQueued:
		w.queue = slices.DeleteFunc(w.queue, func(q *groupStep) bool { return q == s })
	case stepSent:
		return stepOutcome{made: true, replaces: s.replaces, err: err}
	case stepDone:
		<-s.done
		return s.outcome
	}
	return stepOutcome{made: true, err: fmt.Errorf("%w: %w", ErrUnsent, err)}
}
