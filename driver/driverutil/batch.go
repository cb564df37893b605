package driverutil

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ErrSendAlone is what Batcher.Send reports to done if the store did not accept a batch as a whole, perhaps because of
// one of its requests. Each request of the batch is then made alone.
var ErrSendAlone = errors.New("the batch was not accepted; send each request alone")

// Batcher limits how many requests are in flight, and sends those that are made meanwhile together. A store that agrees
// with its peers on each write, or runs a script for each, does many at once at nearly the price of one; and a request
// that is the only one need not wait for others. Its fields are set before it is used.
type Batcher[R any] struct {
	// Concurrency is how many requests or batches are in flight at a time. Batches of requests that conflict with the
	// batch before them are sent beyond this limit.
	Concurrency int
	// MaxBatch is the largest number of requests in a batch.
	MaxBatch int
	// MaxDelay is how long a request that can wait does so for others, even if nothing is in flight.
	MaxDelay time.Duration
	// Conflicts reports whether next cannot be in one batch with the requests that are in it already: it is sent in a
	// batch right behind. Nil: nothing conflicts.
	Conflicts func(batch []R, next R) bool
	// Send sends a batch and returns at once. If it returns an error, nothing was sent. Otherwise another goroutine
	// calls done once: with nil when all that can be known of the requests is in them, with ErrSendAlone, or with the
	// reason why nothing is known. No two calls of Send run at the same time, and the batch has no request whose caller
	// gave up before.
	Send func(batch []R, done func(error)) error

	mu       sync.Mutex
	inFlight int
	queue    []*queuedRequest[R]
	due      bool        // the queue is sent as soon as there is room
	timer    *time.Timer // sets due
}

type queuedRequest[R any] struct {
	request R
	done    chan error
}

// Do makes a request, alone by calling alone, or in a batch. canWait says whether it may be delayed by MaxDelay. If ctx
// ends first, Do returns its error: a request that is still queued is never sent, and the outcome of one that was sent
// is not known.
func (b *Batcher[R]) Do(ctx context.Context, r R, canWait bool, alone func() error) error {
	b.mu.Lock()
	if !canWait && b.inFlight < b.Concurrency && len(b.queue) == 0 {
		b.inFlight++
		b.mu.Unlock()
		defer b.finish()
		return alone()
	}
	q := &queuedRequest[R]{r, make(chan error, 1)}
	b.queue = append(b.queue, q)
	b.due = b.due || !canWait
	switch {
	case b.due:
		b.sendDueLocked()
	case b.timer == nil:
		b.timer = time.AfterFunc(b.MaxDelay, b.endDelay)
	case len(b.queue) == 1:
		b.timer.Reset(b.MaxDelay)
	}
	b.mu.Unlock()
	select {
	case err := <-q.done:
		if err == ErrSendAlone {
			return alone()
		}
		return err
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		b.queue = slices.DeleteFunc(b.queue, func(o *queuedRequest[R]) bool { return o == q })
		b.due = b.due && len(b.queue) > 0
		return ctx.Err()
	}
}

// finish makes room for the next batch after a request or a batch has been answered.
func (b *Batcher[R]) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
	b.sendDueLocked()
}

// endDelay sends what has waited for MaxDelay.
func (b *Batcher[R]) endDelay() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = true
	b.sendDueLocked()
}

// sendDueLocked sends what is due as far as there is room. Requests that conflict with a batch do not wait for room:
// they would conflict again the next time, and a thousand that conflict with each other would be sent a few at a time.
func (b *Batcher[R]) sendDueLocked() {
	for conflict := false; conflict || b.due && b.inFlight < b.Concurrency && len(b.queue) > 0; {
		conflict = b.sendBatchLocked()
	}
	b.due = b.due && len(b.queue) > 0
}

// sendBatchLocked sends one batch, and reports whether any request conflicted with it.
func (b *Batcher[R]) sendBatchLocked() (conflict bool) {
	batch, requests, conflict := b.takeBatchLocked()
	b.inFlight++
	answer := func(err error) {
		for _, q := range batch {
			q.done <- err
		}
	}
	if err := b.Send(requests, func(err error) { answer(err); b.finish() }); err != nil {
		answer(err)
		b.inFlight--
	}
	return conflict
}

// takeBatchLocked takes the next batch from the queue, in order of arrival.
func (b *Batcher[R]) takeBatchLocked() (batch []*queuedRequest[R], requests []R, conflict bool) {
	var later []*queuedRequest[R]
	for _, q := range b.queue {
		full := len(batch) >= b.MaxBatch
		if full || b.Conflicts != nil && b.Conflicts(requests, q.request) {
			later = append(later, q)
			conflict = conflict || !full
			continue
		}
		batch, requests = append(batch, q), append(requests, q.request)
	}
	b.queue = later
	return batch, requests, conflict
}
