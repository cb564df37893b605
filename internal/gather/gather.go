// Package gather has requests that come at one time go together. A store that agrees with its peers on each write, or runs a
// script for each, does many at once at nearly the price of one; and who is alone should not wait for company.
package gather

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ErrApart is what landed says of requests that the store would not do together, perhaps for a fault of one of them: each is
// made alone then.
var ErrApart = errors.New("not to be done together")

// Lane has a few requests under way at a time. Who finds it free goes alone; what comes meanwhile gathers, and goes together
// when one of them is back. Its fields are set before it is used.
type Lane[R any] struct {
	// Abreast is how many requests are under way at a time, and those that were barred from them.
	Abreast int
	// Together is how many go as one at the most.
	Together int
	// Linger is how long a patient request waits for others to go with, whether the lane is free or not.
	Linger time.Duration
	// Bars reports whether next cannot go with those that are together already: it goes right behind them. Nil: everything goes.
	Bars func(together []R, next R) bool
	// Send sends requests as one, and returns at once. Unless it fails, in which case nothing was sent, it has landed
	// called once, by another goroutine, when all that there is to know of them is in the requests, or why there is nothing.
	// No two calls of Send run at a time, and a request that its caller has given up before is not among them.
	Send func(together []R, landed func(error)) error

	mu     sync.Mutex
	flying int
	queue  []*seat[R]
	due    bool        // what has gathered goes as soon as it can
	timer  *time.Timer // makes it due
}

type seat[R any] struct {
	request R
	landed  chan error
}

// Do makes a request, by alone or together with others. If ctx ends first, one that is still in the lane is never sent, and
// what comes of one that has been sent is not known.
func (l *Lane[R]) Do(ctx context.Context, r R, patient bool, alone func() error) error {
	l.mu.Lock()
	if !patient && l.flying < l.Abreast && len(l.queue) == 0 {
		l.flying++
		l.mu.Unlock()
		defer l.land()
		return alone()
	}
	s := &seat[R]{r, make(chan error, 1)}
	l.queue = append(l.queue, s)
	l.due = l.due || !patient
	switch {
	case l.due:
		l.departLocked()
	case l.timer == nil:
		l.timer = time.AfterFunc(l.Linger, l.ripen)
	case len(l.queue) == 1:
		l.timer.Reset(l.Linger)
	}
	l.mu.Unlock()
	select {
	case err := <-s.landed:
		if err == ErrApart {
			return alone()
		}
		return err
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		l.queue = slices.DeleteFunc(l.queue, func(o *seat[R]) bool { return o == s })
		l.due = l.due && len(l.queue) > 0
		return ctx.Err()
	}
}

// land has what is due follow a request that is over.
func (l *Lane[R]) land() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flying--
	l.departLocked()
}

// ripen sends what has waited for others for long enough.
func (l *Lane[R]) ripen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = true
	l.departLocked()
}

// departLocked sends what is due as far as there is room. What is barred does not wait for that: it would meet the same bar
// the next time, and a thousand that bar each other would come through a few at a time.
func (l *Lane[R]) departLocked() {
	for barred := false; barred || l.due && l.flying < l.Abreast && len(l.queue) > 0; {
		barred = l.sendLocked()
	}
	l.due = l.due && len(l.queue) > 0
}

// sendLocked sends what goes together, and reports whether anything was barred from that.
func (l *Lane[R]) sendLocked() (barred bool) {
	some, requests, barred := l.pickLocked()
	l.flying++
	tell := func(err error) {
		for _, s := range some {
			s.landed <- err
		}
	}
	if err := l.Send(requests, func(err error) { tell(err); l.land() }); err != nil {
		tell(err)
		l.flying--
	}
	return barred
}

// pickLocked takes from the queue what goes together, in the order in which it came.
func (l *Lane[R]) pickLocked() (some []*seat[R], requests []R, barred bool) {
	var later []*seat[R]
	for _, s := range l.queue {
		full := len(some) >= l.Together
		if full || l.Bars != nil && l.Bars(requests, s.request) {
			later = append(later, s)
			barred = barred || !full
			continue
		}
		some, requests = append(some, s), append(requests, s.request)
	}
	l.queue = later
	return some, requests, barred
}
