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

// Bind returns a context that ends with ctx or with the lifetime; in the second case its cause is driver.ErrClosed.
// Call the function when the context is no longer needed.
func (l *Lifetime) Bind(ctx context.Context) (bound context.Context, done func()) {
	b := &boundContext{Context: ctx, life: l}
	return b, b.release
}

// boundContext is a context of Bind. To join two contexts takes six allocations, and a call that waits for nothing only
// asks now and then whether either has ended. So they are joined when somebody wants to wait for their end, or when
// there is an end to be told.
type boundContext struct {
	context.Context // the caller's
	life            *Lifetime

	mu       sync.Mutex
	joined   context.Context // ends with both; nil until it is needed
	leave    func()          // ends joined
	released bool
}

func (b *boundContext) Done() <-chan struct{} { return b.join(true).Done() }

func (b *boundContext) Err() error {
	if joined := b.join(false); joined != nil {
		return joined.Err()
	}
	return nil
}

// Value has what package context keeps in a context to find its cause and its parents: this must be that of joined.
func (b *boundContext) Value(key any) any {
	if joined := b.join(false); joined != nil {
		return joined.Value(key)
	}
	return b.Context.Value(key)
}

// join returns the joined context. It is nil if nobody has waited for an end yet, nobody does now, and there is no end.
func (b *boundContext) join(waits bool) context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed := b.life.Err() != nil
	if b.joined != nil || !waits && !closed && !b.released && b.Context.Err() == nil {
		return b.joined
	}
	joined, cancel := context.WithCancelCause(b.Context)
	stop := context.AfterFunc(b.life, func() { cancel(driver.ErrClosed) })
	b.joined, b.leave = joined, func() { stop(); cancel(nil) }
	switch {
	case closed:
		cancel(driver.ErrClosed)
	case b.released:
		b.leave()
	}
	return joined
}

// release ends the context.
func (b *boundContext) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = true
	if b.joined != nil {
		b.leave()
	}
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
