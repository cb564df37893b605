// Package pace tells a slow store from a slow machine.
package pace

import (
	"sync"
	"time"
)

// Pace knows when this machine was late by itself: a timer that should have fired a while ago. On such a machine "it
// took too long" says nothing about a store. It may watch something else, as servers that the fault of a test does not touch.
type Pace struct {
	mu   sync.Mutex
	lags []lag
	due  time.Time // when what is under way should be over; zero: nothing is
}

// lag is a time in which the machine did something else.
type lag struct{ from, to time.Time }

// worthNoting is what no machine is blamed for.
const worthNoting = 5 * time.Millisecond

// Watch measures until the function that it returns is called.
func (p *Pace) Watch() (stop func()) {
	const every = 5 * time.Millisecond
	return p.WatchTask(every, func(quit <-chan struct{}) {
		select {
		case <-quit:
		case <-time.After(every):
		}
	})
}

// WatchTask measures a task that should take so long, and is done again and again until the function that it returns is called.
func (p *Pace) WatchTask(usual time.Duration, task func(quit <-chan struct{})) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	p.next(time.Now().Add(usual))
	go func() {
		defer close(done)
		for {
			task(quit)
			select {
			case <-quit:
				p.next(time.Time{})
				return
			default:
				p.next(time.Now().Add(usual))
			}
		}
	}()
	return func() { close(quit); <-done }
}

// next notes how late the task was that is over, and when the next one should be.
func (p *Pace) next(due time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lags = append(p.lags, p.lateLocked()...)
	p.due = due
}

// lateLocked is the lag that is under way, if one is.
func (p *Pace) lateLocked() []lag {
	if now := time.Now(); !p.due.IsZero() && now.Sub(p.due) > worthNoting {
		return []lag{{p.due, now}}
	}
	return nil
}

// since gives the lags that lasted beyond a moment, with the one that may be under way: whoever asks may be the first to run
// again on a machine that stood still.
func (p *Pace) since(moment time.Time) []lag {
	p.mu.Lock()
	defer p.mu.Unlock()
	late := p.lateLocked()
	for i := len(p.lags) - 1; i >= 0 && p.lags[i].to.After(moment); i-- {
		late = append(late, p.lags[i])
	}
	return late
}

// Worst is the largest lag since a moment.
func (p *Pace) Worst(since time.Time) (worst time.Duration) {
	for _, l := range p.since(since) {
		worst = max(worst, l.to.Sub(l.from))
	}
	return worst
}

// Lost is how much time since a moment the machine was late: what may be added to a bound on what was done since then.
func (p *Pace) Lost(since time.Time) (lost time.Duration) {
	for _, l := range p.since(since) {
		if l.from.Before(since) {
			l.from = since
		}
		lost += l.to.Sub(l.from)
	}
	return lost
}
