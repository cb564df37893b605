// Package pace tells a slow store from a slow machine.
package pace

import (
	"sync"
	"time"
)

// Pace knows when this machine was late by itself: a timer that should have fired a while ago. On such a machine "it
// took too long" says nothing about a store.
type Pace struct {
	mu   sync.Mutex
	lags []lag
}

type lag struct {
	at   time.Time
	late time.Duration
}

// Watch measures until the function that it returns is called.
func (p *Pace) Watch() (stop func()) {
	const every, worthNoting = 5 * time.Millisecond, 20 * time.Millisecond
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			start := time.Now()
			select {
			case <-quit:
				return
			case <-time.After(every):
			}
			if d := time.Since(start) - every; d > worthNoting {
				p.mu.Lock()
				p.lags = append(p.lags, lag{start, d})
				p.mu.Unlock()
			}
		}
	}()
	return func() { close(quit); <-done }
}

// Worst is the largest lag since a moment.
func (p *Pace) Worst(since time.Time) (worst time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lags {
		if l.at.Add(l.late).After(since) {
			worst = max(worst, l.late)
		}
	}
	return worst
}
