package holdfast

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/store/memory"
)

// cycle acquires a lock in memory and releases it, n times.
func cycle(b *testing.B, m *Mutex, n int) time.Duration {
	start := time.Now()
	for range n {
		l, err := m.Lock(context.Background())
		if err == nil {
			err = l.Release()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}

// BenchmarkNoEvents: what the events cost a lock in memory when nobody receives them, in percent of an acquire and a
// release. Less than 1 is promised, and no allocation.
func BenchmarkNoEvents(b *testing.B) {
	c, err := New(memory.New(nil).Open(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	held, err := c.Mutex("held", nil).Lock(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	m, claim, o := c.Mutex("a", nil), held.hold.claim(), LockOptions{}
	const n = 1000
	var locks, events []time.Duration
	for b.Loop() {
		start := time.Now()
		for range n {
			c.emitAttempt(b.Context(), &claim, &o, start)
			c.emitEvent(EventAcquired, held.hold, eventDetails{})
			c.emitEvent(held.hold.endEvent(nil), held.hold, eventDetails{})
		}
		events = append(events, time.Since(start))
		locks = append(locks, cycle(b, m, n))
	}
	b.ReportMetric(100*float64(lowQuarter(events))/float64(lowQuarter(locks)), "overhead-%")
}

// BenchmarkEvents: what the events cost a lock in memory when they are received, in percent of an acquire and a
// release.
func BenchmarkEvents(b *testing.B) {
	for name, o := range map[string]*Options{
		"OnEvent": {OnEvent: func(Event) {}},
		"Logger":  {Logger: slog.New(slog.DiscardHandler)},
	} {
		b.Run(name, func(b *testing.B) { compareWithPlain(b, o) })
	}
}

// compareWithPlain compares clients with and without receivers, in turns, so that a busy machine slows down both.
func compareWithPlain(b *testing.B, o *Options) {
	var mutexes [2]*Mutex
	for i, opts := range []*Options{nil, o} {
		c, err := New(memory.New(nil).Open(), opts)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		mutexes[i] = c.Mutex("a", nil)
	}
	const n = 1000
	var times [2][]time.Duration
	for b.Loop() {
		for i, m := range mutexes {
			times[i] = append(times[i], cycle(b, m, n))
		}
	}
	b.ReportMetric(100*(float64(lowQuarter(times[1]))/float64(lowQuarter(times[0]))-1), "overhead-%")
	b.ReportMetric(float64(lowQuarter(times[0]))/n, "ns/plain-cycle")
}

// lowQuarter is a time that a quarter of the measurements do not exceed: those that nothing else has disturbed.
func lowQuarter(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/4]
}
