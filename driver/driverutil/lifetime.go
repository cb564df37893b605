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
// the function when the context is no longer needed.
func (l *Lifetime) Bind(ctx context.Context) (bound context.Context, done func()) {
	bound, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l, func() { cancel(driver.ErrClosed) })
	return bound, func() { stop(); cancel(nil) }
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
