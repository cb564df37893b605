package driverutil

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Lifetime is the time from the opening of a store to its Close: a context that ends when the store is closed, and the
// goroutines that Close has to wait for. As a context it bounds requests that no caller waits for.
//
// A WaitGroup alone is not enough for that, since it must not be added to while it is waited for. Go and End exclude
// each other, so after End no goroutine starts, and Wait waits for all there are. Close therefore calls End first, Wait
// next, and only then frees what the goroutines use:
//
//	if !s.life.End() {
//		return nil
//	}
//	s.life.Wait()
//	return s.connection.Close()
//
// The methods may be called concurrently, and with any mutex of the store held. Only Wait may not: a mutex that a
// goroutine still needs must not be held then.
type Lifetime struct {
	context.Context // ends with End; its cause is driver.ErrClosed

	cancel     context.CancelCauseFunc
	mu         sync.Mutex // makes Go and End exclude each other
	goroutines sync.WaitGroup
}

// NewLifetime begins a lifetime. End must be called for it.
func NewLifetime() *Lifetime {
	l := &Lifetime{}
	l.Context, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// Go runs f in a goroutine that Wait waits for; f should return soon after the lifetime has ended. If it has ended
// already, Go does not run f, and returns false.
func (l *Lifetime) Go(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() != nil {
		return false
	}
	l.goroutines.Go(f)
	return true
}

// End ends the lifetime, and returns at once. It returns true for the first call only.
func (l *Lifetime) End() (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() != nil {
		return false
	}
	l.cancel(driver.ErrClosed)
	return true
}

// Wait waits until all goroutines that Go has started have returned. Call it after End.
func (l *Lifetime) Wait() { l.goroutines.Wait() }

// Bind returns a context that ends with ctx or with the lifetime; in the second case its cause is driver.ErrClosed. Call
// the function when the context is no longer needed. A request that only asks for Err costs next to nothing.
func (l *Lifetime) Bind(ctx context.Context) (bound context.Context, done func()) {
	b := &boundContext{Context: ctx, life: l}
	return b, b.end
}

// boundContext is what Bind returns. What it takes to be told of the end, and not only to ask, is made when somebody
// wants that.
type boundContext struct {
	context.Context // the caller's
	life            *Lifetime

	mu     sync.Mutex
	ended  bool            // it is no longer needed
	full   context.Context // nil until somebody wants to be told
	cancel context.CancelCauseFunc
	stop   func() bool
}

// needFull returns a context of package context that ends when this one does.
func (b *boundContext) needFull() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full != nil {
		return b.full
	}
	b.full, b.cancel = context.WithCancelCause(b.Context)
	switch { // what Err has said already is so at once
	case b.ended:
		b.cancel(nil)
	case b.life.Err() != nil:
		b.cancel(driver.ErrClosed)
	default:
		b.stop = context.AfterFunc(b.life, func() { b.cancel(driver.ErrClosed) })
	}
	return b.full
}

func (b *boundContext) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if b.stop != nil {
		b.stop()
	}
	if b.cancel != nil {
		b.cancel(nil)
	}
}

func (b *boundContext) Done() <-chan struct{} { return b.needFull().Done() }

// Value asks the full context, which package context finds by it: for the cause, and to end what is derived from it.
func (b *boundContext) Value(key any) any { return b.needFull().Value(key) }

func (b *boundContext) Err() error {
	b.mu.Lock()
	full, ended := b.full, b.ended
	b.mu.Unlock()
	switch {
	case full != nil:
		return full.Err()
	case b.Context.Err() != nil:
		return b.Context.Err()
	case ended || b.life.Err() != nil:
		return context.Canceled
	}
	return nil
}

// Sleep waits for d. It returns driver.ErrClosed if the lifetime ends first, or the error of ctx if that ends first.
// When both have ended, it returns driver.ErrClosed, so a context that Bind has made may be given.
func (l *Lifetime) Sleep(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-l.Done():
		case <-ctx.Done():
		}
	}
	if l.Err() != nil {
		return driver.ErrClosed
	}
	return ctx.Err()
}
