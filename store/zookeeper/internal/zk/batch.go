package zk

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Write is one write and the reads that follow it. Writes that a session has at one time go together, as one
// transaction, on which the servers agree once.
type Write struct {
	Calls []*Call // the write, then the reads
	// Alone keeps it apart from others. A [Multi] must be.
	Alone bool
	// Exclusive, unless empty, keeps it apart from all others with the same key.
	Exclusive string
	// Unhurried lets it wait a little for others to go with.
	Unhurried bool
}

const (
	// maxConcurrent is how many requests with writes of one session are under way at a time.
	maxConcurrent = 4
	// maxBatch is how many writes go in one request.
	maxBatch = 64
	// maxBatchBytes is how large a request may grow by that. A server takes a megabyte, unless it is configured
	// otherwise.
	maxBatchBytes = 256 << 10
	// maxDelay is how long an unhurried write waits for another one. What comes is mostly the next release of a
	// lock that is passed on at once.
	maxDelay = time.Millisecond
)

func (c *Conn) newBatcher() *driverutil.Batcher[*Write] {
	return &driverutil.Batcher[*Write]{
		Concurrency: maxConcurrent, MaxBatch: maxBatch, MaxDelay: maxDelay, Conflicts: conflictsWith, Send: c.sendBatch,
	}
}

// conflictsWith reports whether a write cannot go in a batch: it would be too large, or has an exclusive key in
// common with it.
func conflictsWith(batch []*Write, next *Write) bool {
	size := len(next.Calls[0].body)
	for _, w := range batch {
		size += len(w.Calls[0].body)
	}
	return len(batch) > 0 && size > maxBatchBytes ||
		next.Exclusive != "" && slices.ContainsFunc(batch, func(w *Write) bool { return w.Exclusive == next.Exclusive })
}

// Write is Do for a write, which may go together with others. ZooKeeper's leader puts one transaction after the other
// to the quorum, and each costs every server a write to its log, so ten removals in one transaction cost little more
// than one.
func (c *Conn) Write(ctx context.Context, w *Write) error {
	alone := func() error { return c.Do(ctx, w.Calls...) }
	if w.Alone {
		return alone()
	}
	if err := c.WaitForLink(ctx); err != nil {
		return err
	}
	return c.batcher.Do(ctx, w, w.Unhurried, alone)
}

// sendBatch sends writes as one transaction, and their reads behind it, in one piece: so each read shows the
// effect of its write. If the servers refuse the transaction, nothing of it was done, whatever was wrong with one
// of its steps, and each write is sent again alone; its read is, too. A single write goes as it is: its own answer
// says more than that of a transaction.
func (c *Conn) sendBatch(batch []*Write, finished func(error)) error {
	c.mu.Lock()
	l, endedBy := c.link, c.endedBy
	c.mu.Unlock()
	switch {
	case endedBy != nil:
		return endedBy
	case l == nil:
		return ErrLinkBroken
	}
	var steps, reads []*Call
	for _, w := range batch {
		steps, reads = append(steps, w.Calls[0]), append(reads, w.Calls[1:]...)
	}
	first := steps[0]
	if len(steps) > 1 {
		first = Multi(steps...)
	}
	all := append([]*Call{first}, reads...)
	all[len(all)-1].done = func() {
		err := missingAnswer(all)
		if err == nil && len(steps) > 1 {
			err = first.spreadResults(steps)
		}
		if err == driverutil.ErrSendAlone {
			for _, read := range reads {
				*read = Call{op: read.op, body: read.body} // it is sent again, with its own write
			}
		}
		finished(err)
	}
	for _, step := range steps {
		step.sent = true
	}
	if !l.post(all...) {
		return ErrLinkBroken
	}
	return nil
}

// spreadResults gives the calls of which a transaction was made their own answers. It returns driverutil.ErrSendAlone
// if the transaction was refused.
func (c *Call) spreadResults(steps []*Call) error {
	results, err := c.Results()
	if err != nil {
		return err
	}
	if _, why := FailedStep(results); why != CodeOK {
		return driverutil.ErrSendAlone
	}
	if len(results) != len(steps) {
		return ErrMalformed
	}
	for i, step := range steps {
		step.Zxid, step.reply = c.Zxid, decoder{b: results[i].raw}
	}
	return nil
}
