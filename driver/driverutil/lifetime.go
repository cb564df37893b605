package driverutil

import (
	"context"
	"sync"
	"sync/atomic"
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
	functions  chan func()                // given to goroutines that have nothing to do
	idle       atomic.Int32               // how many those are
	bound      map[*boundContext]struct{} // those whose end somebody waits for
}

// NewLifetime begins a lifetime. End must be called for it.
func NewLifetime() *Lifetime {
	l := &Lifetime{functions: make(chan func())}
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
	select {
	case l.functions <- f:
	default:
		l.goroutines.Go(func() { l.runFunctions(f) })
	}
	return true
}

const (
	// idleTime is how long a goroutine stays when it has nothing to do.
	idleTime = time.Second
	// maxIdle is how many such goroutines there are at most. They take turns, so a few functions at a time, but
	// thousands in a second, would keep all that one burst has started.
	maxIdle = 256
)

// runFunctions runs f, and then other functions for which there would have to be a goroutine. Requests go through many
// functions of a client library, so each new goroutine would have to grow its stack several times.
func (l *Lifetime) runFunctions(f func()) {
	timer := time.NewTimer(idleTime)
	defer timer.Stop()
	for f != nil {
		f()
		f = l.nextFunction(timer)
	}
}

// nextFunction waits for a function. It returns nil if there is none for idleTime, if enough goroutines wait for one,
// or if the lifetime has ended.
func (l *Lifetime) nextFunction(timer *time.Timer) func() {
	defer l.idle.Add(-1)
	if l.idle.Add(1) > maxIdle {
		return nil
	}
	timer.Reset(idleTime)
	select {
	case f := <-l.functions:
		return f
	case <-timer.C:
	case <-l.Done():
	}
	return nil
}

// End ends the lifetime, and returns at once. It returns true for the first call only.
func (l *Lifetime) End() (first bool) {
	bound, first := l.end()
	for b := range bound { // without mu: to end a context takes mutexes of those that it is made of
		b.endWith(driver.ErrClosed)
	}
	return first
}

// end ends the lifetime once. It returns the contexts that were bound to it, which the caller must end too.
func (l *Lifetime) end() (bound map[*boundContext]struct{}, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() != nil {
		return nil, false
	}
	l.cancel(driver.ErrClosed)
	bound, l.bound = l.bound, nil
	return bound, true
}

// Wait waits until all goroutines that Go has started have returned. Call it after End.
func (l *Lifetime) Wait() { l.goroutines.Wait() }

// Bind returns a context that ends with ctx or with the lifetime; in the second case its cause is driver.ErrClosed.
// Call the function when the context is no longer needed.
func (l *Lifetime) Bind(ctx context.Context) (bound context.Context, done func()) {
	b := &boundContext{Context: ctx, life: l}
	return b, b.release
}

// boundContext is a context of Bind. To join two contexts takes several allocations, and a call that waits for nothing
// only asks now and then whether either has ended. So they are joined when somebody wants to wait for their end in
// another way than by AfterFunc, or when there is an end to be told.
type boundContext struct {
	context.Context // the caller's
	life            *Lifetime

	mu        sync.Mutex
	joined    context.Context         // ends with both; nil until it is needed
	leave     context.CancelCauseFunc // ends joined
	afterEnd  func()                  // the function of AfterFunc; nil if there is none
	stopAfter func()                  // if afterEnd: the end of Context does not call it any more
	released  bool
}

func (b *boundContext) Done() <-chan struct{} { return b.join(true).Done() }

// Err returns why the context has ended: its parent has ended, or the lifetime. It does not wait until the
// goroutine that watches the parent has run, so a call that begins after the end always sees it.
func (b *boundContext) Err() error {
	joined := b.join(false)
	if joined == nil {
		return nil
	}
	if err := joined.Err(); err != nil {
		return err
	}
	if b.Context.Err() == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leave(context.Cause(b.Context)) // joined was not told of the end yet
	return joined.Err()
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
	if b.joined != nil || !waits && !b.released && b.life.Err() == nil && b.Context.Err() == nil {
		return b.joined
	}
	b.joined, b.leave = context.WithCancelCause(b.Context)
	switch {
	case !b.life.watch(b):
		b.leave(driver.ErrClosed)
	case b.released:
		b.leave(nil)
		b.life.unwatch(b)
	}
	return b.joined
}

// watch makes the end of the lifetime end b. It reports false if the lifetime has ended.
func (l *Lifetime) watch(b *boundContext) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() != nil {
		return false
	}
	if l.bound == nil {
		l.bound = map[*boundContext]struct{}{}
	}
	l.bound[b] = struct{}{}
	return true
}

func (l *Lifetime) unwatch(b *boundContext) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.bound, b)
}

func (b *boundContext) endWith(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endLocked(cause)
}

// endLocked ends the context, and calls what AfterFunc has registered in a goroutine.
func (b *boundContext) endLocked(cause error) {
	if b.joined != nil {
		b.leave(cause)
	}
	if b.afterEnd != nil {
		go b.afterEnd()
	}
}

// release ends the context.
func (b *boundContext) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = true
	b.endLocked(nil)
	if b.joined != nil || b.afterEnd != nil {
		b.life.unwatch(b)
	}
}

// AfterFunc calls f in its own goroutine when ctx has ended, or not at all if stop is called before. It is
// context.AfterFunc at a lower price for a context of Bind, which need not be joined for it. But f may be called twice,
// and may still run when stop has returned.
func AfterFunc(ctx context.Context, f func()) (stop func()) {
	if b, ok := ctx.(*boundContext); ok && b.setAfterEnd(f) {
		return b.dropAfterEnd
	}
	if ctx.Done() == nil {
		return func() {}
	}
	stopAfter := context.AfterFunc(ctx, f)
	return func() { stopAfter() }
}

// setAfterEnd makes the end of b call f. It returns false if b has ended or is joined, or calls a function already.
func (b *boundContext) setAfterEnd(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.released || b.joined != nil || b.afterEnd != nil || !b.life.watch(b) {
		return false
	}
	b.afterEnd, b.stopAfter = f, AfterFunc(b.Context, f)
	return true
}

// dropAfterEnd forgets the function of AfterFunc. If nobody waits for the context either, the lifetime does not
// know it any longer.
func (b *boundContext) dropAfterEnd() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopAfter()
	b.afterEnd = nil
	if b.joined == nil {
		b.life.unwatch(b)
	}
}

// Call makes one request of a store, as CallWithTimeout does. It returns driver.ErrClosed if the lifetime has ended,
// the error of ctx if that has, and otherwise what explain makes of the error of the request.
func (l *Lifetime) Call(
	ctx context.Context, d time.Duration, store string, request func(context.Context) error, explain func(error) error,
) error {
	if l.Err() != nil {
		return driver.ErrClosed
	}
	living, done := l.Bind(ctx)
	defer done()
	err := CallWithTimeout(living, d, store, request)
	switch {
	case err == nil:
		return nil
	case l.Err() != nil:
		return driver.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return explain(err)
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
