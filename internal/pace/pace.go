// Package pace tells a slow store from a slow machine.
package pace

import (
	"sync"
	"time"
)

// Pace knows when this machine was late by itself: a timer that should have fired a while ago. On such a machine "it
// took too long" says nothing about a store. It must be watched before it is asked.
type Pace struct {
	mu   sync.Mutex
	due  time.Time // when the timer that runs now should fire
	lags []lag
}

// lag is a time in which the machine did something else.
type lag struct{ from, to time.Time }

const (
	every       = 5 * time.Millisecond
	worthNoting = time.Millisecond
)

// Watch measures until the function that it returns is called.
func (p *Pace) Watch() (stop func()) {
	p.next()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(every):
				p.next()
			}
		}
	}()
	return func() { close(quit); <-done }
}

// next notes how late the timer was that has fired, and when the next one should.
func (p *Pace) next() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !p.due.IsZero() && now.Sub(p.due) > worthNoting {
		p.lags = append(p.lags, lag{p.due, now})
	}
	p.due = now.Add(every)
}

// since gives the lags that lasted beyond a moment, with the one that may be under way: whoever asks may be the first to run
// again on a machine that stood still.
func (p *Pace) since(moment time.Time) (late []lag) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.due) > worthNoting {
		late = append(late, lag{p.due, now})
	}
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
