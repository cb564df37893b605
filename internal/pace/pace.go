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
	lags []delay
	due  time.Time // when what is under way should be over; zero: nothing is
}

// delay is a time in which the machine did something else.
type delay struct{ from, to time.Time }

// minDelay is what no machine is blamed for.
const minDelay = 5 * time.Millisecond

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
	p.noteTask(time.Now().Add(usual))
	go func() {
		defer close(done)
		for {
			task(quit)
			select {
			case <-quit:
				p.noteTask(time.Time{})
				return
			default:
				p.noteTask(time.Now().Add(usual))
			}
		}
	}()
	return func() { close(quit); <-done }
}

// noteTask notes how late the task was that is over, and when the next one should be.
func (p *Pace) noteTask(due time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lags = append(p.lags, p.currentDelays()...)
	p.due = due
}

// currentDelays is the lag that is under way, if one is.
func (p *Pace) currentDelays() []delay {
	if now := time.Now(); !p.due.IsZero() && now.Sub(p.due) > minDelay {
		return []delay{{p.due, now}}
	}
	return nil
}

// delaysSince gives the lags that lasted beyond a moment, with the one that may be under way: whoever asks may be the first to run
// again on a machine that stood still.
func (p *Pace) delaysSince(moment time.Time) []delay {
	p.mu.Lock()
	defer p.mu.Unlock()
	late := p.currentDelays()
	for i := len(p.lags) - 1; i >= 0 && p.lags[i].to.After(moment); i-- {
		late = append(late, p.lags[i])
	}
	return late
}

// Worst is the largest lag since a moment.
func (p *Pace) Worst(since time.Time) (worst time.Duration) {
	for _, l := range p.delaysSince(since) {
		worst = max(worst, l.to.Sub(l.from))
	}
	return worst
}

// Lost is how much time since a moment the machine was late: what may be added to a bound on what was done since then.
func (p *Pace) Lost(since time.Time) (lost time.Duration) {
	for _, l := range p.delaysSince(since) {
		if l.from.Before(since) {
			l.from = since
		}
		lost += l.to.Sub(l.from)
	}
	return lost
}
