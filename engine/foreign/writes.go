package foreign

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// MaxLateness is how long after its start a write may take effect whose reply did not come. It is an assumption: a
// service that works on a request for longer makes a released lock come back, until its claim expires.
const MaxLateness = 15 * time.Second

// Writes are the writes of a table in which nothing remains of a free lock. There a write that creates an object cannot
// be refused when it arrives late: its condition is that there is no object, which is true again after a release. So a
// write continues when its caller gives up, and a read of the lock waits for its reply. It waits for that of a
// creation in any case: calls that share one give it up one by one, and the last may still be there. If no reply
// tells the outcome of a creation, the lock is not released before MaxLateness has passed since it began. If the
// object turns up until then, and nobody has written it again, it is removed.
type Writes struct {
	life        *driverutil.Lifetime
	clock       driver.Clock
	maxLateness time.Duration
	remove      func(ctx context.Context, name, mark string)

	mu     sync.Mutex
	byLock map[string][]*write // those that are under way, and creations of unknown outcome
}

// write is one request that changes a lock's row, until its outcome is known.
type write struct {
	started   driver.Instant
	abandoned bool          // its caller has gone; guarded by the mutex of Writes
	ended     chan struct{} // closed when its request has ended
	// mark is in the object that it creates, and in no other but those of the same claim; empty: it replaces an object.
	mark string
	// isHolder is set when another write with this mark took effect or was seen: then the object is not removed.
	// Guarded by the mutex of Writes.
	isHolder bool
	settled  chan struct{} // closed when it cannot take effect any more, or its object was seen
}

// NewWrites makes the writes of a table that ends with life. maxLateness is MaxLateness, except in tests. remove
// removes the object of a lock if it has that mark.
func NewWrites(life *driverutil.Lifetime, clock driver.Clock, maxLateness time.Duration,
	remove func(ctx context.Context, name, mark string)) *Writes {
	return &Writes{life: life, clock: clock, maxLateness: maxLateness, remove: remove, byLock: map[string][]*write{}}
}

// Do makes a write to a lock. When ctx ends it returns at once, and the write goes on; do must end by itself. mark is
// in the object that the write creates, and in no other; it is empty if the write replaces an object.
func Do[T any](ctx context.Context, w *Writes, name, mark string, do func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, errors.Join(record.ErrUnsent, err)
	}
	answered := make(chan answer, 1)
	one := w.begin(name, mark)
	if !w.life.Go(func() {
		value, err := do(context.WithoutCancel(ctx))
		known := mark == "" || isKnown(err)
		if mark != "" && err == nil {
			w.noteHolder(name, mark)
		}
		if known {
			w.settle(name, one)
		}
		close(one.ended)
		answered <- answer{value, err}
		if !known {
			w.awaitLate(name, one)
		}
	}) {
		w.settle(name, one)
		return none, driver.ErrClosed
	}
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
		w.mu.Lock()
		one.abandoned = true
		w.mu.Unlock()
		return none, ctx.Err()
	}
}

// isKnown reports whether the error of a write tells its outcome.
func isKnown(err error) bool {
	return err == nil || errors.Is(err, record.ErrConflict) || errors.Is(err, record.ErrUnsent) || driverutil.IsFinal(err)
}

// begin notes a write before its request is sent, because a request without a reply may still take effect.
func (w *Writes) begin(name, mark string) *write {
	one := &write{started: w.clock.Now(), mark: mark, ended: make(chan struct{}), settled: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.byLock[name] = append(w.byLock[name], one)
	return one
}

// settle forgets a write.
func (w *Writes) settle(name string, one *write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.byLock[name], one)
	if i < 0 {
		return
	}
	close(one.settled)
	if w.byLock[name] = slices.Delete(w.byLock[name], i, i+1); len(w.byLock[name]) == 0 {
		delete(w.byLock, name)
	}
}

// noteHolder notes that an object with this mark exists, and that its claim is known.
func (w *Writes) noteHolder(name, mark string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.byLock[name] {
		if one.mark == mark {
			one.isHolder = true
		}
	}
}

// awaitLate waits until a creation cannot take effect any more, and removes its object if nobody has seen it.
func (w *Writes) awaitLate(name string, one *write) {
	timer := time.NewTimer(w.maxLateness - w.clock.Since(one.started))
	defer timer.Stop()
	select {
	case <-timer.C:
		w.mu.Lock()
		isHolder := one.isHolder
		w.mu.Unlock()
		if !isHolder {
			w.remove(w.life, name, one.mark)
		}
		w.settle(name, one)
	case <-one.settled:
	case <-w.life.Done():
	}
}

// find returns the first write to a lock of which ok is true, or nil.
func (w *Writes) find(name string, ok func(*write) bool) *write {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.IndexFunc(w.byLock[name], ok); i >= 0 {
		return w.byLock[name][i]
	}
	return nil
}

// Await waits for the replies to the writes to a lock that create its object, or whose callers have gone. A table
// calls it before it reads.
func (w *Writes) Await(ctx context.Context, name string) error {
	runs := func(one *write) bool {
		select {
		case <-one.ended:
			return false
		default:
			return one.abandoned || one.mark != ""
		}
	}
	for one := w.find(name, runs); one != nil; one = w.find(name, runs) {
		if err := w.wait(ctx, one.ended); err != nil {
			return err
		}
	}
	return nil
}

// Saw settles the creation with this mark: a table calls it when it has read the mark in the object of a lock.
func (w *Writes) Saw(name, mark string) {
	if one := w.find(name, func(one *write) bool { return mark != "" && one.mark == mark }); one != nil {
		w.settle(name, one)
		w.noteHolder(name, mark)
	}
}

// Settle waits until no creation of a lock's object can still take effect that nobody knows of. A table calls it before
// a lock becomes free. An error wraps record.ErrUnsent.
func (w *Writes) Settle(ctx context.Context, name string) error {
	late := func(one *write) bool { return one.mark != "" }
	for one := w.find(name, late); one != nil; one = w.find(name, late) {
		if err := w.wait(ctx, one.settled); err != nil {
			return errors.Join(record.ErrUnsent, err)
		}
	}
	return nil
}

// ResultOfAbsence is the result of a swap of no object for no object, from a read of the object. That is a conflict if
// there is one now. notFound is the error that says that there is none.
func ResultOfAbsence(read, notFound error) error {
	switch {
	case read == nil:
		return record.ErrConflict
	case errors.Is(read, notFound):
		return nil
	}
	return errors.Join(record.ErrUnsent, read)
}

// wait returns when until is closed, or with an error when the caller or the store gives up.
func (w *Writes) wait(ctx context.Context, until <-chan struct{}) error {
	select {
	case <-until:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-w.life.Done():
		return driver.ErrClosed
	}
}
