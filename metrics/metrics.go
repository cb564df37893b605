// Package metrics makes measurements of the events of a client. It keeps none: a [Sink] does, such as those of the
// modules otel (OpenTelemetry) and prometheus. Most programs use one of these, and not this package.
package metrics

import "github.com/holdfast-go/holdfast"

// Type says how the measurements of a metric are kept.
type Type string

const (
	Counter   Type = "counter"   // a sum that only grows
	Gauge     Type = "gauge"     // a sum that grows and shrinks
	Histogram Type = "histogram" // times in seconds, counted by Metric.Bounds
)

// Metric describes one metric. Names and labels never change.
type Metric struct {
	// Name is the name in the form of Prometheus. OpenTelemetry's has dots in place of the first underline, and neither
	// "_total" nor "_seconds" at its end.
	Name   string
	Type   Type
	Help   string
	Labels []string
	Bounds []float64 // of a Histogram: the upper bounds of its buckets
}

var (
	waitBounds    = []float64{.001, .005, .025, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 3600}
	renewalBounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

	attempts = &Metric{Name: "holdfast_acquire_attempts_total", Type: Counter, Labels: []string{"lock", "kind"},
		Help: "Attempts to acquire a lock that have begun."}
	failures = &Metric{Name: "holdfast_acquire_failures_total", Type: Counter, Labels: []string{"lock", "kind", "reason"},
		Help: "Attempts that did not acquire the lock."}
	waits = &Metric{Name: "holdfast_acquire_wait_seconds", Type: Histogram, Labels: []string{"lock", "kind", "outcome"},
		Bounds: waitBounds, Help: "How long callers waited until the lock was acquired, or until they failed."}
	waiting = &Metric{Name: "holdfast_waiting", Type: Gauge, Labels: []string{"lock", "kind"},
		Help: "Callers that are acquiring a lock at present."}
	held = &Metric{Name: "holdfast_held", Type: Gauge, Labels: []string{"lock", "kind"},
		Help: "Leases that this process holds at present."}
	holds = &Metric{Name: "holdfast_hold_seconds", Type: Histogram, Labels: []string{"lock", "kind"},
		Bounds: waitBounds, Help: "How long leases were held."}
	slowHolds = &Metric{Name: "holdfast_holds_over_expected_total", Type: Counter, Labels: []string{"lock", "kind"},
		Help: "Leases held for longer than three times LockOptions.Expected, counted while they are still held."}
	losses = &Metric{Name: "holdfast_lost_total", Type: Counter, Labels: []string{"lock", "kind", "cause"},
		Help: "Leases that ended before their holder released them."}
	requests = &Metric{Name: "holdfast_release_requests_total", Type: Counter, Labels: []string{"lock", "kind"},
		Help: "Leases whose holder was asked to release them."}
	renewals = &Metric{Name: "holdfast_renewal_seconds", Type: Histogram, Labels: []string{"outcome"},
		Bounds: renewalBounds, Help: "How long the store took to answer a renewal."}
	storeRequests = &Metric{Name: "holdfast_store_requests_total", Type: Counter, Labels: []string{"operation", "outcome"},
		Help: "Steps that needed the store: acquire, renew, release; each was answered or failed."}
	runs = &Metric{Name: "holdfast_runs_total", Type: Counter, Labels: []string{"ledger", "outcome"},
		Help: "Runs of a ledger by what became of them."}
	refusals = &Metric{Name: "holdfast_run_refusals_total", Type: Counter, Labels: []string{"ledger", "reason"},
		Help: "Runs that were not begun."}
	runTimes = &Metric{Name: "holdfast_run_seconds", Type: Histogram, Labels: []string{"ledger", "outcome"},
		Bounds: waitBounds, Help: "How long runs lasted."}
	running = &Metric{Name: "holdfast_runs_in_progress", Type: Gauge, Labels: []string{"ledger"},
		Help: "Runs of this process at present."}
	dropped = &Metric{Name: "holdfast_events_dropped_total", Type: Counter,
		Help: "Events that no metric has counted, because a receiver of events was too slow."}
)

// All returns all metrics.
func All() []*Metric {
	return []*Metric{attempts, failures, waits, waiting, held, holds, slowHolds, losses, requests, renewals,
		storeRequests, runs, refusals, runTimes, running, dropped}
}

// Sink keeps measurements. Its methods are called by one goroutine at a time, and must not block.
type Sink interface {
	// Add adds to a Counter or a Gauge. There is one value per label of the metric.
	Add(m *Metric, value float64, labels ...string)
	// Record records one time, in seconds, in a Histogram.
	Record(m *Metric, seconds float64, labels ...string)
}

// Options are the options of a Recorder. The zero value and nil are valid.
type Options struct {
	// LockLabel returns the value of the label "lock" for a lock's name. Programs with few locks can return the name;
	// others the part of it that has few values: "order" for "order/4711". It must not block. Nil: the label is empty.
	LockLabel func(lock string) string
	// MaxLabels is how many values the label "lock" has at most, and the label "ledger" as well; later ones are counted
	// as "other". Default: 100.
	MaxLabels int
}

// Recorder makes measurements of events. OnEvent is what Options.OnEvent of a client, or of several, is set to.
type Recorder struct {
	sink    Sink
	opts    Options
	locks   labelSet
	ledgers labelSet
	slow    map[string]struct{} // the ids of the leases that slowHolds has counted and that are still held
}

// NewRecorder makes a Recorder. opts may be nil.
func NewRecorder(s Sink, opts *Options) *Recorder {
	r := &Recorder{sink: s, slow: map[string]struct{}{}}
	if opts != nil {
		r.opts = *opts
	}
	if r.opts.MaxLabels <= 0 {
		r.opts.MaxLabels = 100
	}
	r.locks.max, r.ledgers.max = r.opts.MaxLabels, r.opts.MaxLabels
	return r
}

// Record makes the measurements of one event. It must be called by one goroutine at a time.
func (r *Recorder) Record(e *holdfast.Event) {
	if e.Dropped > 0 {
		r.sink.Add(dropped, float64(e.Dropped))
	}
	r.recordStore(e)
	if isRun(e) {
		r.recordRun(e)
	} else {
		r.recordLock(e)
	}
}

func (r *Recorder) recordLock(e *holdfast.Event) {
	lock, kind := "", string(e.LockKind)
	if r.opts.LockLabel != nil {
		lock = r.locks.bound(r.opts.LockLabel(e.Lock))
	}
	switch e.Kind {
	case holdfast.EventAttempt:
		r.sink.Add(attempts, 1, lock, kind)
		r.sink.Add(waiting, 1, lock, kind)
	case holdfast.EventAcquired:
		r.sink.Add(waiting, -1, lock, kind)
		r.sink.Add(held, 1, lock, kind)
		r.sink.Record(waits, e.Waited.Seconds(), lock, kind, "acquired")
	case holdfast.EventFailed:
		r.sink.Add(waiting, -1, lock, kind)
		r.sink.Add(failures, 1, lock, kind, e.Reason)
		r.sink.Record(waits, e.Waited.Seconds(), lock, kind, "failed")
	case holdfast.EventRenewed, holdfast.EventRenewalFailing:
		r.countSlow(e, lock, kind)
	case holdfast.EventReleaseRequested:
		r.sink.Add(requests, 1, lock, kind)
	case holdfast.EventLost, holdfast.EventReleased:
		r.countSlow(e, lock, kind)
		delete(r.slow, e.ID)
		r.sink.Add(held, -1, lock, kind)
		r.sink.Record(holds, e.Held.Seconds(), lock, kind)
		if e.Kind == holdfast.EventLost {
			r.sink.Add(losses, 1, lock, kind, e.Reason)
		}
	}
}

// countSlow counts a lease that is held for too long, once.
func (r *Recorder) countSlow(e *holdfast.Event, lock, kind string) {
	if _, counted := r.slow[e.ID]; e.Expected > 0 && e.Held > 3*e.Expected && !counted {
		r.slow[e.ID] = struct{}{}
		r.sink.Add(slowHolds, 1, lock, kind)
	}
}

// outcomes are the values of the label "outcome" of runs.
var outcomes = map[holdfast.EventKind]string{
	holdfast.EventRunStarted:   "started",
	holdfast.EventRunSucceeded: "succeeded",
	holdfast.EventRunFailed:    "failed",
	holdfast.EventRunLost:      "lost",
	holdfast.EventRunAbandoned: "abandoned",
}

func (r *Recorder) recordRun(e *holdfast.Event) {
	ledger, outcome := r.ledgers.bound(ledgerOf(e.Lock)), outcomes[e.Kind]
	switch {
	case e.Kind == holdfast.EventRunRefused:
		r.sink.Add(refusals, 1, ledger, e.Reason)
	case outcome == "":
		return
	case e.Kind == holdfast.EventRunStarted:
		r.sink.Add(running, 1, ledger)
		r.sink.Add(runs, 1, ledger, outcome)
	default:
		r.sink.Add(runs, 1, ledger, outcome)
		r.sink.Record(runTimes, e.Held.Seconds(), ledger, outcome)
		if !e.Late {
			r.sink.Add(running, -1, ledger)
		}
	}
}

// recordStore counts whether the store has answered. A caller that gave up says nothing about the store.
func (r *Recorder) recordStore(e *holdfast.Event) {
	count := func(operation string, failed bool) {
		outcome := "ok"
		if failed {
			outcome = "error"
		}
		r.sink.Add(storeRequests, 1, operation, outcome)
	}
	switch e.Kind {
	case holdfast.EventAcquired, holdfast.EventRunStarted:
		count("acquire", false)
	case holdfast.EventFailed, holdfast.EventRunRefused:
		switch reason := holdfast.FailureReason(e.Reason); reason {
		case holdfast.FailureTimeout, holdfast.FailureCanceled, holdfast.FailureClosed, holdfast.FailureInvalid,
			holdfast.FailureUnsupported:
		default:
			count("acquire", reason.IsStoreFailure())
		}
	case holdfast.EventRenewed, holdfast.EventRunRenewed:
		r.sink.Record(renewals, e.RoundTrip.Seconds(), "renewed")
		count("renew", false)
	case holdfast.EventRenewalFailing:
		r.sink.Record(renewals, e.RoundTrip.Seconds(), "failed")
		count("renew", true)
	case holdfast.EventReleased, holdfast.EventRunSucceeded, holdfast.EventRunFailed, holdfast.EventRunAbandoned:
		count("release", e.Err != nil)
	}
}
