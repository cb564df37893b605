package sequence

import (
	"context"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Inspect is one listing.
func (e *Engine) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	ctx, stop := e.bindContext(ctx)
	defer stop()
	if err := driver.CheckName(name, e.info); err != nil {
		return driver.Lock{}, err
	}
	p := e.newRetryLoop(ctx, driver.UnreachableTimeout(driver.MaxTTL))
	for {
		look, err := e.listLock(ctx, name)
		if err == nil {
			return describeLock(look), nil
		}
		if driver.IsFinal(err) || ctx.Err() != nil {
			return driver.Lock{}, e.readError(ctx, err)
		}
		if p.noteFailure() {
			return driver.Lock{}, hideContextError(err)
		}
		if err := e.sleep(ctx, rand.N(10*time.Millisecond<<min(p.failures, 6))); err != nil {
			return driver.Lock{}, err
		}
	}
}

func (e *Engine) listLock(ctx context.Context, name string) (Snapshot, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	look, err := e.store.List(ctx, name, true)
	look.Name = name
	return look, err
}

// List shows what Inspect would show.
func (e *Engine) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		ctx, stop := e.bindContext(ctx)
		defer stop()
		if ctx.Err() != nil {
			yield(driver.Lock{}, e.contextError(ctx))
			return
		}
		limit := driver.UnreachableTimeout(driver.MaxTTL)
		walk, end := context.WithCancel(ctx)
		defer end()
		silence := time.AfterFunc(limit, end)
		defer silence.Stop()
		for look, err := range e.store.Walk(walk, prefix) {
			silence.Stop() // the caller may take his time
			switch {
			case err != nil:
				if !yield(driver.Lock{Name: look.Name}, e.readError(ctx, err)) || look.Name == "" {
					return
				}
			case len(look.Nodes) > 0 && !yield(describeLock(look), nil):
				return
			}
			silence.Reset(limit)
		}
	}
}

// NextChange subscribes first and looks second, and polls behind that.
func (e *Engine) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	ctx, stop := e.bindContext(ctx)
	defer stop()
	changed := make(chan struct{}, 1)
	unwatch := e.store.Watch(seen.Name, WatchChanges, 0, func() { wakeOne(changed) })
	defer unwatch()
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
