package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var (
	findingSlow = driver.Finding{Code: "store-slow", Severity: driver.SeverityWarning,
		Why: "a renewal that is a few times slower loses the lock"}
	findingClockDifference = driver.Finding{Code: "clock-difference", Severity: driver.SeverityWarning,
		Why: "the time slots of jobs follow the store's clock, and times of the store and of this machine do not fit together; " +
			"no lock depends on this machine's clock",
		Fix: "run a time daemon (chrony, ntpd) on the store's machines and on this one"}
)

// measuredRounds is how often each step is measured.
const measuredRounds = 10

// maxClockDifference is how far the store's clock may be from this machine's.
const maxClockDifference = 2 * time.Second

// slackFactor is how many times the slowest renewal must fit into the time by which a renewal may be late.
const slackFactor = 4

// measurements are how long the steps of a lock took. Programs read them as JSON, so the keys stay.
type measurements struct {
	TTL           milliseconds `json:"ttl_ms"`
	Acquire       spread       `json:"acquire"`
	Renew         spread       `json:"renew"`
	Release       spread       `json:"release"`
	RenewalSlack  milliseconds `json:"renewal_slack_ms"`         // by how much a renewal may be late
	ClockAhead    milliseconds `json:"clock_ahead_ms,omitempty"` // how far the store's clock is ahead of this machine's
	ClockMaxError milliseconds `json:"clock_max_error_ms,omitempty"`
	ClockUnknown  string       `json:"clock_unknown,omitempty"` // why the store's clock is not known
	Failed        string       `json:"failed,omitempty"`        // why there are not all measurements
}

// spread is the median and the worst of some durations.
type spread struct {
	Median milliseconds `json:"median_ms"`
	Worst  milliseconds `json:"worst_ms"`
}

// milliseconds is a duration that is written in milliseconds, with a fraction.
type milliseconds time.Duration

func (m milliseconds) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(m).Seconds()*1000), nil
}

func (m milliseconds) String() string {
	d := time.Duration(m)
	switch {
	case d.Abs() < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d.Abs() < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

func newSpread(all []time.Duration) spread {
	if len(all) == 0 {
		return spread{}
	}
	slices.Sort(all)
	return spread{Median: milliseconds(all[len(all)/2]), Worst: milliseconds(all[len(all)-1])}
}

// measure acquires, renews and releases a lock some times. On a store that limits the writes to one lock, each round
// has a lock of its own.
func (p *probe) measure(ctx context.Context) *measurements {
	m := &measurements{TTL: milliseconds(p.ttl),
		RenewalSlack: milliseconds(p.ttl - driver.Margin(p.ttl) - p.ttl/3)}
	info := p.stores[0].Info()
	name := newScratchName()
	var acquired, renewed, released []time.Duration
	for range measuredRounds {
		if info.WriteInterval > 0 {
			name = newScratchName()
		}
		took, err := p.measureRound(ctx, name)
		if info.WriteInterval > 0 || err != nil {
			p.forget(ctx, name)
		}
		if err != nil {
			m.Failed = errorText(err)
			break
		}
		acquired, renewed, released = append(acquired, took[0]), append(renewed, took[1]), append(released, took[2])
	}
	p.forget(ctx, name)
	m.Acquire, m.Renew, m.Release = newSpread(acquired), newSpread(renewed), newSpread(released)
	m.readClock(ctx, p.stores[0])
	return m
}

// measureRound measures an acquire, a renewal and a release.
func (p *probe) measureRound(ctx context.Context, name string) (took [3]time.Duration, err error) {
	store := p.stores[0]
	c := p.newClaim(name)
	start := time.Now()
	g, err := store.Acquire(ctx, c)
	took[0] = time.Since(start)
	if err == nil {
		start = time.Now()
		err = errors.New("there was no answer to a renewal")
		store.Renew(ctx, []driver.Grant{g}, func(_ int, r driver.Renewal) { err = r.Err })
		took[1] = time.Since(start)
	}
	start = time.Now()
	releaseErr := store.Release(ctx, c, "")
	took[2] = time.Since(start)
	if err == nil {
		err = releaseErr
	}
	return took, err
}

// readClock compares the store's clock with this machine's. ZooKeeper tells the time only with a node that would
// remain, so it is not asked.
func (m *measurements) readClock(ctx context.Context, store driver.Store) {
	opener, ok := store.(driver.LedgerOpener)
	if !ok || strings.HasPrefix(store.Info().Store, "zookeeper") {
		m.ClockUnknown = "it is not asked on this store"
		return
	}
	ledger, err := opener.OpenLedger(ctx)
	if err != nil {
		m.ClockUnknown = errorText(err)
		return
	}
	defer ledger.Close()
	start := time.Now()
	now, maxError, err := ledger.ReadClock(ctx)
	if err != nil {
		m.ClockUnknown = errorText(err)
		return
	}
	took := time.Since(start)
	m.ClockAhead = milliseconds(now.Sub(start.Add(took / 2)))
	m.ClockMaxError = milliseconds(maxError + took/2)
}

// findings are what is wrong with the figures.
func (m *measurements) findings() (all []driver.Finding) {
	worst, slack := time.Duration(m.Renew.Worst), time.Duration(m.RenewalSlack)
	if worst*slackFactor > slack {
		f := findingSlow.With("", fmt.Sprintf("a renewal took %v; with a TTL of %v it may be late by %v", m.Renew.Worst, m.TTL,
			m.RenewalSlack))
		f.Fix = fmt.Sprintf("give locks a TTL of %v or more, or use a store that is nearer",
			(worst*slackFactor*2).Round(time.Second)+time.Second)
		all = append(all, f)
	}
	if m.Failed != "" {
		all = append(all, findingProbe.With("", "while measuring: "+m.Failed))
	}
	if m.ClockUnknown == "" && time.Duration(m.ClockAhead).Abs()-time.Duration(m.ClockMaxError) > maxClockDifference {
		all = append(all, findingClockDifference.With("", "the store's clock is "+m.describeClock()))
	}
	return all
}

// describeClock says how far the store's clock is from this machine's.
func (m *measurements) describeClock() string {
	text := fmt.Sprintf("%v ahead of this machine's", m.ClockAhead)
	if m.ClockAhead < 0 {
		text = fmt.Sprintf("%v behind this machine's", -m.ClockAhead)
	}
	return text + fmt.Sprintf(", within %v", m.ClockMaxError)
}

// rows are the figures for people.
func (m *measurements) rows() [][]string {
	if m == nil {
		return nil
	}
	row := func(what string, s spread) []string {
		return []string{what, fmt.Sprintf("%v median, %v at worst, of %d", s.Median, s.Worst, measuredRounds)}
	}
	clock := m.ClockUnknown
	if clock == "" {
		clock = m.describeClock()
	}
	return [][]string{
		row("acquire", m.Acquire), row("renew", m.Renew), row("release", m.Release),
		{"renewal slack", fmt.Sprintf("with a TTL of %v a renewal may be late by %v", m.TTL, m.RenewalSlack)},
		{"the store's clock", printableText(clock)},
	}
}

// joinWords is a list for people.
func joinWords(words []string) string { return strings.Join(words, ", ") + ": right" }
