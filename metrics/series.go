package metrics

import (
	"slices"

	"github.com/holdfast-go/holdfast"
)

// Sample is what a Recorder has measured of one metric, for one set of label values.
type Sample struct {
	Metric *Metric
	Labels []string // one value per label of the metric; not to be changed
	Value  float64  // of a Counter or a Gauge
	Count  uint64   // of a Histogram: how many times were recorded
	Sum    float64  // of a Histogram: their sum, in seconds
	Counts []uint64 // of a Histogram: how many times were in each bucket, and above all of them
}

// series is one metric for one set of label values.
type series struct {
	metric *Metric
	labels []string
	value  float64
	record func(seconds float64) // of a Histogram that is kept elsewhere
	count  uint64
	sum    float64
	counts []uint64
}

// newSeries adds a series with its labels. A histogram counts here, or hands its values to another library.
func (r *Recorder) newSeries(m *Metric, labels ...string) *series {
	s := &series{metric: m, labels: labels}
	switch {
	case m.Type != Histogram:
	case r.histogram != nil:
		s.record = r.histogram(m, labels)
	default:
		s.counts = make([]uint64, len(m.Bounds)+1)
	}
	r.all = append(r.all, s)
	return s
}

func (s *series) add(value float64) { s.value += value }

// observe counts a duration in its bucket.
func (s *series) observe(seconds float64) {
	if s.record != nil {
		s.record(seconds)
		return
	}
	i, _ := slices.BinarySearch(s.metric.Bounds, seconds) // the first bound that is not less
	s.counts[i]++
	s.count++
	s.sum += seconds
}

func (s *series) sample() Sample {
	return Sample{Metric: s.metric, Labels: s.labels, Value: s.value, Count: s.count, Sum: s.sum,
		Counts: slices.Clone(s.counts)}
}

// lockSeries has the series of the locks with one label and kind. A counter that may appear in an alert exists from the
// beginning, because Prometheus does not see the step from nothing to 1.
type lockSeries struct {
	lock, kind                                               string
	attempts, waiting, oldestWait, held, slowHolds, requests *series
	acquiredWaits, failedWaits, holds                        *series
	failures, losses                                         map[string]*series
}

// lockKey is the label of a lock, and its kind.
type lockKey struct {
	lock string
	kind holdfast.Kind
}

var lossCauses = []holdfast.LossCause{holdfast.LossExpired, holdfast.LossGone, holdfast.LossTaken, holdfast.LossBroken,
	holdfast.LossSessionExpired, holdfast.LossUnreachable, holdfast.LossMaxHold,
	holdfast.LossNoProgress}

// seriesOf returns the series for an event of a lock.
func (r *Recorder) seriesOf(e *holdfast.Event) *lockSeries {
	key := lockKey{kind: e.LockKind}
	if r.opts.LockLabel != nil {
		key.lock = r.opts.LockLabel(e.Lock)
	}
	if s := r.byLock[key]; s != nil {
		return s
	}
	key.lock = r.locks.bound(key.lock)
	if s := r.byLock[key]; s != nil {
		return s
	}
	lock, kind := key.lock, string(key.kind)
	s := &lockSeries{lock: lock, kind: kind,
		attempts: r.newSeries(attempts, lock, kind), waiting: r.newSeries(waiting, lock, kind),
		oldestWait: r.newSeries(oldestWait, lock, kind), held: r.newSeries(held, lock, kind),
		slowHolds: r.newSeries(slowHolds, lock, kind), requests: r.newSeries(requests, lock, kind),
		acquiredWaits: r.newSeries(waits, lock, kind, "acquired"), failedWaits: r.newSeries(waits, lock, kind, "failed"),
		holds: r.newSeries(holds, lock, kind), failures: map[string]*series{}, losses: map[string]*series{}}
	for _, cause := range lossCauses {
		s.losses[string(cause)] = r.newSeries(losses, lock, kind, string(cause))
	}
	r.byLock[key] = s
	return s
}

// failure returns the counter of failed attempts with a reason.
func (r *Recorder) failure(s *lockSeries, reason string) *series {
	counter := s.failures[reason]
	if counter == nil {
		counter = r.newSeries(failures, s.lock, s.kind, reason)
		s.failures[reason] = counter
	}
	return counter
}

// loss returns the counter of lost leases with a cause.
func (r *Recorder) loss(s *lockSeries, cause string) *series {
	counter := s.losses[cause]
	if counter == nil { // a cause that this version does not know
		counter = r.newSeries(losses, s.lock, s.kind, cause)
		s.losses[cause] = counter
	}
	return counter
}

// storeSeries has the series of the requests to the store.
type storeSeries struct {
	acquires, renewals, releases [2]*series // answered, failed
	renewalTimes                 [2]*series
}

// newStoreSeries makes the series of a store at once, so that each is exported as 0 before its first event.
func (r *Recorder) newStoreSeries() storeSeries {
	var s storeSeries
	for i, outcome := range []string{"ok", "error"} {
		s.acquires[i] = r.newSeries(storeRequests, "acquire", outcome)
		s.renewals[i] = r.newSeries(storeRequests, "renew", outcome)
		s.releases[i] = r.newSeries(storeRequests, "release", outcome)
	}
	for i, outcome := range []string{"renewed", "failed"} {
		s.renewalTimes[i] = r.newSeries(renewals, outcome)
	}
	return s
}

// runKey names a series of a ledger: the metric and its last label, if it has two.
type runKey struct {
	metric        *Metric
	ledger, value string
}

// runSeries returns the series of a metric of a ledger.
func (r *Recorder) runSeries(m *Metric, ledger, value string) *series {
	key := runKey{m, ledger, value}
	s := r.byRun[key]
	if s == nil {
		labels := []string{ledger, value}
		s = r.newSeries(m, labels[:len(m.Labels)]...)
		r.byRun[key] = s
	}
	return s
}
