// Package metrics makes and keeps measurements of the events of a client. The modules otel (OpenTelemetry) and
// prometheus export them. Most programs use one of these, and not this package.
//
// Package metrics decides what is measured of which event, and keeps it: to call a metrics library for each event would
// cost more than the event. It has no dependencies; modules otel and prometheus export the measurements with the
// libraries of their users, when these collect. Only histograms of OpenTelemetry cannot be read, and are told each
// time. Spans are made after the fact, of the grant's event and of the end's, with the times of the events. So no
// exporter is called by a caller of Lock.
package metrics

import "strings"

// Type says how the measurements of a metric are kept.
type Type string

const (
	Counter   Type = "counter"   // a sum that only grows
	Gauge     Type = "gauge"     // a value that grows and shrinks
	Histogram Type = "histogram" // times in seconds, counted by Metric.Bounds
)

// Metric describes one metric. Names and labels never change.
type Metric struct {
	// Name is the name in the form of Prometheus. OpenTelemetry's has dots in place of the first underscore, and
	// neither "_total" nor "_seconds" at its end.
	Name   string
	Type   Type
	Help   string
	Labels []string
	Bounds []float64 // of a Histogram: the upper bounds of its buckets
}

// IsTime reports whether the values of a metric are times in seconds.
func (m *Metric) IsTime() bool { return strings.HasSuffix(m.Name, "_seconds") }

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
	oldestWait = &Metric{Name: "holdfast_oldest_wait_seconds", Type: Gauge, Labels: []string{"lock", "kind"},
		Help: "How long the caller that waits longest has been waiting, or 0 if none waits."}
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
	return []*Metric{attempts, failures, waits, waiting, oldestWait, held, holds, slowHolds, losses, requests, renewals,
		storeRequests, runs, refusals, runTimes, running, dropped}
}
