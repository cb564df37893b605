package zookeeper

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/gather"
)

// write is one write and the reads that follow it. What the claims of a session add and remove at one time goes together, as
// one transaction, on which the servers agree once.
type write struct {
	calls   []*call
	alone   bool   // it does not go together with others
	adds    string // the path of the lock to which it adds a claim
	patient bool   // it may wait for another to go with
}

const (
	// abreast is how many requests with writes of a session are under way at a time.
	abreast = 4
	// together is how many writes go in one request.
	together = 64
	// togetherBytes is how large a request may grow by that; a server takes a megabyte unless it is told otherwise.
	togetherBytes = 256 << 10
	// linger is how long a patient write waits for another one to go with: the next release of a lock that is passed on at
	// once, mostly.
	linger = time.Millisecond
)

func (c *conn) newLane() *gather.Lane[*write] {
	return &gather.Lane[*write]{Abreast: abreast, Together: together, Linger: linger, Bars: barred, Send: c.send}
}

// barred reports whether a write has to go later: all nodes that one transaction makes have the same token, so no lock gets two.
func barred(some []*write, next *write) bool {
	size := len(next.calls[0].body)
	for _, w := range some {
		size += len(w.calls[0].body)
	}
	return len(some) > 0 && size > togetherBytes ||
		next.adds != "" && slices.ContainsFunc(some, func(w *write) bool { return w.adds == next.adds })
}

// write is do for a write, which may go together with others.
func (c *conn) write(ctx context.Context, w *write) error {
	alone := func() error { return c.do(ctx, w.calls...) }
	if w.alone {
		return alone()
	}
	if _, err := c.up(ctx); err != nil {
		return err
	}
	return c.lane.Do(ctx, w, w.patient, alone)
}

// send sends writes as one transaction, and their reads behind it. One that is left to itself goes as it is: its own answer
// says more than a transaction's.
func (c *conn) send(some []*write, landed func(error)) error {
	c.mu.Lock()
	l, over := c.link, c.over
	c.mu.Unlock()
	switch {
	case over != nil:
		return over
	case l == nil:
		return errBroken
	}
	var steps, reads []*call
	for _, w := range some {
		steps, reads = append(steps, w.calls[0]), append(reads, w.calls[1:]...)
	}
	first := steps[0]
	if len(steps) > 1 {
		first = multiCall(steps...)
	}
	all := append([]*call{first}, reads...)
	all[len(all)-1].done = func() {
		err := outcome(all)
		if err == nil && len(steps) > 1 {
			err = first.spread(steps)
		}
		if err == gather.ErrApart {
			for _, read := range reads {
				*read = call{op: read.op, body: read.body} // it is asked anew
			}
		}
		landed(err)
	}
	for _, step := range steps {
		step.sent = true
	}
	if !l.post(all...) {
		return errBroken
	}
	return nil
}

// spread gives the answers to the steps of a multi to the calls that it was made of.
func (c *call) spread(steps []*call) error {
	results, err := c.results()
	if err != nil {
		return err
	}
	if _, why := refused(results); why != codeOK {
		return gather.ErrApart
	}
	if len(results) != len(steps) {
		return errShort
	}
	for i, step := range steps {
		step.zxid, step.rest = c.zxid, reader{b: results[i].rest}
	}
	return nil
}
