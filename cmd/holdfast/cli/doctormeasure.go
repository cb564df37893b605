package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
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

// measurements are how long the steps of a lock took.
type measurements struct {
	ttl           time.Duration
	acquire       spread
	renew         spread
	release       spread
	renewalSlack  time.Duration // by how much a renewal may be late
	clockAhead    time.Duration // how far the store's clock is ahead of this machine's
	clockMaxError time.Duration
	clockUnknown  string // why the store's clock is not known
	failed        string // why there are not all measurements
}

// spread is the median and the worst of some durations.
type spread struct{ median, worst time.Duration }

// json is the spread for programs. Parts of a millisecond count as a whole one, so that nothing seems to take no time.
func (s spread) json() fields {
	return fields{"median_ms": roundUpMillis(s.median), "worst_ms": roundUpMillis(s.worst)}
}

func roundUpMillis(d time.Duration) int64 {
	return shown.Millis(d + time.Millisecond - time.Nanosecond)
}

// json is what was measured, for programs.
func (m *measurements) json() fields {
	f := fields{"ttl_ms": shown.Millis(m.ttl), "renewal_slack_ms": shown.Millis(m.renewalSlack),
		"acquire": m.acquire.json(), "renew": m.renew.json(), "release": m.release.json()}
	if m.failed != "" {
		f["message"] = m.failed
	}
	if m.clockUnknown != "" {
		f["clock_message"] = m.clockUnknown
		return f
	}
	f["clock_ahead_ms"] = m.clockAhead.Round(time.Millisecond).Milliseconds() // may be negative
	f["clock_max_error_ms"] = roundUpMillis(m.clockMaxError)
	return f
}

// formatMeasured is a duration that was measured, with few digits.
func formatMeasured(d time.Duration) string {
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
	return spread{all[len(all)/2], all[len(all)-1]}
}

// measure acquires, renews and releases a lock some times. On a store that limits the writes to one lock, each round
// has a lock of its own.
func (p *probe) measure(ctx context.Context) *measurements {
	m := &measurements{ttl: p.ttl, renewalSlack: p.ttl - driver.Margin(p.ttl) - p.ttl/3}
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
			m.failed = errorText(err)
			break
		}
		acquired, renewed, released = append(acquired, took[0]), append(renewed, took[1]), append(released, took[2])
	}
	p.forget(ctx, name)
	m.acquire, m.renew, m.release = newSpread(acquired), newSpread(renewed), newSpread(released)
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
	if info := store.Info(); !info.Abilities.Ledger || strings.HasPrefix(info.Store, "zookeeper") {
		m.clockUnknown = "it is not asked on this store"
		return
	}
	ledger, err := store.OpenLedger(ctx)
	if err != nil && isMissing(err) {
		m.clockUnknown = "not compared: this store has no run ledger yet, by which its clock is read; holdfast ledger makes one, with " +
			"create=true in the URL"
		return
	} else if err != nil {
		m.clockUnknown = errorText(err)
		return
	}
	defer ledger.Close()
	start := time.Now()
	now, maxError, err := ledger.ReadClock(ctx)
	if err != nil {
		m.clockUnknown = errorText(err)
		return
	}
	took := time.Since(start)
	m.clockAhead = now.Sub(start.Add(took / 2))
	m.clockMaxError = maxError + took/2
}

// findings are what is wrong with the figures.
func (m *measurements) findings() (all []driver.Finding) {
	worst, slack := m.renew.worst, m.renewalSlack
	if worst*slackFactor > slack {
		f := findingSlow.With("", fmt.Sprintf("a renewal took %v; with a TTL of %v it may be late by %v",
			formatMeasured(worst), formatMeasured(m.ttl), formatMeasured(slack)))
		f.Fix = fmt.Sprintf("give locks a TTL of %v or more, or use a store that is nearer",
			(worst*slackFactor*2).Round(time.Second)+time.Second)
		all = append(all, f)
	}
	if m.failed != "" {
		all = append(all, findingProbe.With("", "while measuring: "+m.failed))
	}
	if m.clockUnknown == "" && m.clockAhead.Abs()-m.clockMaxError > maxClockDifference {
		all = append(all, findingClockDifference.With("", "the store's clock is "+m.describeClock()))
	}
	return all
}

// describeClock says how far the store's clock is from this machine's.
func (m *measurements) describeClock() string {
	text := formatMeasured(m.clockAhead) + " ahead of this machine's"
	if m.clockAhead < 0 {
		text = formatMeasured(-m.clockAhead) + " behind this machine's"
	}
	return text + ", within " + formatMeasured(m.clockMaxError)
}

// rows are the figures for people.
func (m *measurements) rows() [][]string {
	if m == nil {
		return nil
	}
	row := func(what string, s spread) []string {
		return []string{what, fmt.Sprintf("%s median, %s at worst, of %d", formatMeasured(s.median),
			formatMeasured(s.worst), measuredRounds)}
	}
	clock := m.clockUnknown
	if clock == "" {
		clock = m.describeClock()
	}
	return [][]string{
		row("acquire", m.acquire), row("renew", m.renew), row("release", m.release),
		{"renewal slack", fmt.Sprintf("with a TTL of %s a renewal may be late by %s",
			formatMeasured(m.ttl), formatMeasured(m.renewalSlack))},
		{"the store's clock", printableText(clock)},
	}
}

// describeSteps lists the steps that were right, for people.
func describeSteps(steps []string) string {
	return strings.ReplaceAll(strings.Join(steps, ", "), "-", " ") + ": right"
}
