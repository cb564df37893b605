// Package places limits how much of the same work a client does at a time.
package places

import (
	"context"
	"time"
)

// Places are for work that a busy store would not finish in time if all of it were begun together. Each piece of work
// takes a place. Whoever waits for one gets it in the order of arrival.
type Places chan struct{}

// New makes so many places.
func New(n int) Places { return make(Places, n) }

// Take takes a place. It waits for one for half of the time that ctx leaves, and then does without: work that hangs and
// keeps its place must not use up the time of all other work. Without a deadline it waits until ctx ends. The caller
// calls leave when the work is done.
func (p Places) Take(ctx context.Context) (leave func()) {
	select {
	case p <- struct{}{}:
		return p.leave
	default:
	}
	var enough <-chan time.Time
	if deadline, ok := ctx.Deadline(); ok {
		timer := time.NewTimer(time.Until(deadline) / 2)
		defer timer.Stop()
		enough = timer.C
	}
	select {
	case p <- struct{}{}:
		return p.leave
	case <-enough:
	case <-ctx.Done():
	}
	return func() {}
}

func (p Places) leave() { <-p }
