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

type lag struct {
	at   time.Time
	late time.Duration
}

// worthNoting is what no machine is blamed for.
const worthNoting = 20 * time.Millisecond

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
	go func() {
		defer close(done)
		for {
			due := time.Now().Add(usual)
			p.note(due, lag{})
			task(quit)
			select {
			case <-quit:
				p.note(time.Time{}, lag{})
				return
			default:
			}
			if d := time.Since(due); d > worthNoting {
				p.note(due, lag{due, d})
			}
		}
	}()
	return func() { close(quit); <-done }
}

func (p *Pace) note(due time.Time, l lag) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = due
	if l.late > 0 {
		p.lags = append(p.lags, l)
	}
}

// Worst is the largest lag since a moment. One that goes on counts as far as it has come: who asks may have been woken first.
func (p *Pace) Worst(since time.Time) (worst time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lags {
		if l.at.Add(l.late).After(since) {
			worst = max(worst, l.late)
		}
	}
	if late := time.Since(p.due); !p.due.IsZero() && late > worthNoting {
		worst = max(worst, late)
	}
	return worst
}
