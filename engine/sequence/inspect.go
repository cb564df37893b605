package sequence

import (
	"context"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Inspect lists the lock once, and tries again if that fails.
func (e *Engine) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	if err := driver.CheckName(name, e.info); err != nil {
		return driver.Lock{}, err
	}
	retry := e.newRetryLoop(ctx, driver.MaxTTL)
	for {
		snapshot, err := e.listLock(ctx, name)
		if err == nil {
			return describeLock(snapshot), nil
		}
		if err := retry.waitAndRetry(err); err != nil {
			return driver.Lock{}, err
		}
	}
}

// listLock lists the lock in full.
func (e *Engine) listLock(ctx context.Context, name string) (Snapshot, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	snapshot, err := e.store.List(ctx, name, true)
	snapshot.Name = name
	return snapshot, err
}

// List yields what Inspect would return for each lock.
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		ctx, stop := e.life.Bind(ctx)
		defer stop()
		if ctx.Err() != nil {
			yield(driver.Lock{}, e.contextError(ctx))
			return
		}
		limit := driver.UnreachableTimeout(driver.MaxTTL)
		walk, end := context.WithCancel(ctx)
		defer end()
		silenceTimer := time.AfterFunc(limit, end)
		defer silenceTimer.Stop()
		for snapshot, err := range e.store.Walk(walk, prefix) {
			silenceTimer.Stop() // not while the caller handles this lock
			switch {
			case err != nil:
				if !yield(driver.Lock{Name: snapshot.Name}, e.readError(ctx, err)) || snapshot.Name == "" {
					return
				}
			case len(snapshot.Nodes) > 0 && !yield(describeLock(snapshot), nil):
				return
			}
			silenceTimer.Reset(limit)
		}
	}
}

// NextChange subscribes before it reads, so that it misses no change, and also reads now and then without an event.
func (e *Engine) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	changed := make(chan struct{}, 1)
	changes := e.store.Watch(seen.Name, WatchChanges, 0, func() { wakeOne(changed) })
	defer changes.Stop()
	for {
		now, err := e.Inspect(ctx, seen.Name)
		if err != nil || now.Revision != seen.Revision {
			return now, err
		}
		timer := time.NewTimer(minPoll + rand.N(maxPoll-minPoll))
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return now, e.contextError(ctx)
		}
	}
}
