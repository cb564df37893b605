package metrics

import (
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

// Options are the options of a Recorder. The zero value and nil are valid.
type Options struct {
	// LockLabel returns the value of the label "lock" for a lock's name. Programs with few locks can return the name;
	// others the part of it that has few values: "order" for "order/4711". It must not block. Nil: the label is empty.
	LockLabel func(lock string) string
	// MaxLabels is how many values the label "lock" has at most, and the label "ledger" as well; later ones are counted
	// as "other". Default: 100.
	MaxLabels int
}

// NewHistogram makes a histogram that is kept elsewhere, for one set of label values. record is called once for each
// time; it must not block.
type NewHistogram func(m *Metric, labels []string) (record func(seconds float64))

// Recorder makes measurements of the events of one client or several, and keeps them. Its methods may be called by any
// number of goroutines at the same time.
type Recorder struct {
	opts      Options
	histogram NewHistogram

	mu      sync.Mutex // guards what follows
	all     []*series
	locks   labelSet
	ledgers labelSet
	byLock  map[lockKey]*lockSeries
	byRun   map[runKey]*series
	store   storeSeries
	dropped *series
	claims  claimSet // of locks
}

// NewRecorder makes a Recorder. opts may be nil. histogram makes the histograms; if it is nil, the Recorder keeps them
// itself.
func NewRecorder(opts *Options, histogram NewHistogram) *Recorder {
	r := &Recorder{histogram: histogram, byLock: map[lockKey]*lockSeries{}, byRun: map[runKey]*series{}}
	if opts != nil {
		r.opts = *opts
	}
	if r.opts.MaxLabels <= 0 {
		r.opts.MaxLabels = 100
	}
	r.locks.max, r.ledgers.max = r.opts.MaxLabels, r.opts.MaxLabels
	r.store = r.newStoreSeries()
	r.dropped = r.newSeries(dropped)
	return r
}

// Collect returns what was measured until now. Histograms that are kept elsewhere are not among it.
func (r *Recorder) Collect() []Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.measureWaits()
	samples := make([]Sample, 0, len(r.all))
	for _, s := range r.all {
		if s.record == nil {
			samples = append(samples, s.sample())
		}
	}
	return samples
}

// measureWaits sets the metric oldestWait of all locks.
func (r *Recorder) measureWaits() {
	now := time.Now()
	for _, s := range r.byLock {
		s.oldestWait.value = 0
	}
	r.claims.each(func(c *openClaim) {
		if !c.held {
			oldest := c.series.oldestWait
			oldest.value = max(oldest.value, now.Sub(c.since).Seconds())
		}
	})
}

// Record makes the measurements of one event. It does not keep the event.
func (r *Recorder) Record(e *holdfast.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Dropped > 0 {
		r.dropped.add(float64(e.Dropped))
		r.forgetClaims()
	}
	r.recordStore(e)
	if isRun(e) {
		r.recordRun(e)
	} else {
		r.recordLock(e)
	}
}

// forgetClaims is called after events were dropped: their ends may be among these, and such a claim would count as
// waiting, or as held, forever. What is held is counted again with its next renewal.
func (r *Recorder) forgetClaims() {
	r.claims.clear()
	for _, s := range r.byLock {
		s.waiting.value, s.held.value = 0, 0
	}
}

// recordLock counts an event of a lock.
func (r *Recorder) recordLock(e *holdfast.Event) {
	s := r.seriesOf(e)
	switch phase := e.Kind.Phase(); phase {
	case holdfast.PhaseAttempt:
		s.attempts.add(1)
		s.waiting.add(1)
		r.claims.add(openClaim{id: e.ID, series: s, since: e.Time})
	case holdfast.PhaseGrant:
		s.acquiredWaits.observe(e.Waited.Seconds())
		r.holdClaim(e, s)
	case holdfast.PhaseFailure:
		r.failure(s, e.Reason).add(1)
		s.failedWaits.observe(e.Waited.Seconds())
		r.closeClaim(e)
	case holdfast.PhaseRenewal:
		countSlow(e, r.holdClaim(e, s))
	case holdfast.PhaseLoss, holdfast.PhaseEnd:
		countSlow(e, r.holdClaim(e, s))
		r.closeClaim(e)
		s.holds.observe(e.Held.Seconds())
		if phase == holdfast.PhaseLoss {
			r.loss(s, e.Reason).add(1)
		}
	}
	if e.Kind == holdfast.EventReleaseRequested {
		s.requests.add(1)
	}
}

// holdClaim notes that the claim of an event is held.
func (r *Recorder) holdClaim(e *holdfast.Event, s *lockSeries) *openClaim {
	c := r.claims.find(e.ID)
	if c == nil {
		r.claims.add(openClaim{id: e.ID, series: s})
		c = r.claims.find(e.ID)
	} else if !c.held {
		c.series.waiting.add(-1)
	}
	if !c.held {
		c.held = true
		s.held.add(1)
	}
	return c
}

// closeClaim forgets the claim of an event.
func (r *Recorder) closeClaim(e *holdfast.Event) {
	c := r.claims.find(e.ID)
	if c == nil {
		return
	}
	if c.held {
		c.series.held.add(-1)
	} else {
		c.series.waiting.add(-1)
	}
	r.claims.remove(e.ID)
}

// countSlow counts a lease that is held for too long, once.
func countSlow(e *holdfast.Event, c *openClaim) {
	if e.Expected > 0 && e.Held > 3*e.Expected && !c.slow {
		c.slow = true
		c.series.slowHolds.add(1)
	}
}

// outcomeOf is the value of the label "outcome" of a kind of event that says what has become of a run, or empty.
func outcomeOf(kind holdfast.EventKind) string {
	switch kind.Phase() {
	case holdfast.PhaseGrant, holdfast.PhaseLoss, holdfast.PhaseEnd:
		return strings.TrimPrefix(string(kind), "run_")
	}
	return ""
}

// recordRun counts an event of a run. A late end has left the number of running ones when the run was lost.
func (r *Recorder) recordRun(e *holdfast.Event) {
	ledger, outcome := r.ledgers.bound(ledgerOf(e.Lock)), outcomeOf(e.Kind)
	r.startLedger(ledger)
	switch e.Kind.Phase() {
	case holdfast.PhaseFailure:
		r.runSeries(refusals, ledger, e.Reason).add(1)
	case holdfast.PhaseGrant:
		r.runSeries(running, ledger, "").add(1)
		r.runSeries(runs, ledger, outcome).add(1)
	case holdfast.PhaseLoss, holdfast.PhaseEnd:
		r.runSeries(runs, ledger, outcome).add(1)
		r.runSeries(runTimes, ledger, outcome).observe(e.Held.Seconds())
		if !e.Late {
			r.runSeries(running, ledger, "").add(-1)
		}
	}
}

// startLedger makes the counters of a ledger that may appear in an alert: see lockSeries.
func (r *Recorder) startLedger(ledger string) {
	if r.byRun[runKey{runs, ledger, "started"}] != nil {
		return
	}
	for _, kind := range holdfast.EventKinds() {
		if outcome := outcomeOf(kind); kind.OfRuns() && outcome != "" {
			r.runSeries(runs, ledger, outcome)
		}
	}
	r.runSeries(refusals, ledger, string(holdfast.FailureAttemptsUsed))
}

// recordStore counts whether the store has answered. A caller that gave up says nothing about the store.
func (r *Recorder) recordStore(e *holdfast.Event) {
	answer := func(failed bool) int {
		if failed {
			return 1
		}
		return 0
	}
	switch e.Kind.Phase() {
	case holdfast.PhaseGrant:
		r.store.acquires[answer(false)].add(1)
	case holdfast.PhaseFailure:
		switch reason := holdfast.FailureReason(e.Reason); reason {
		case holdfast.FailureTimeout, holdfast.FailureCanceled, holdfast.FailureClosed, holdfast.FailureInvalid,
			holdfast.FailureUnsupported:
		default:
			r.store.acquires[answer(reason.IsStoreFailure())].add(1)
		}
	case holdfast.PhaseRenewal:
		r.store.renewalTimes[answer(e.Err != nil)].observe(e.RoundTrip.Seconds())
		r.store.renewals[answer(e.Err != nil)].add(1)
	case holdfast.PhaseEnd:
		r.store.releases[answer(e.Err != nil)].add(1)
	}
}
