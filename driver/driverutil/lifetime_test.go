package driverutil

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestLifetimeEnd: End ends the context once, after it nothing starts, and Wait waits for all that was started before.
func TestLifetimeEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLifetime()
		began := time.Now()
		var cleanedUp atomic.Bool
		if !l.Go(func() {
			<-l.Done()
			time.Sleep(time.Second)
			cleanedUp.Store(true)
		}) {
			t.Error("a goroutine does not start before End")
		}
		time.Sleep(time.Minute)
		if l.Err() != nil {
			t.Errorf("before End: %v", l.Err())
		}
		if !l.End() || l.End() {
			t.Error("End must return true once")
		}
		if !errors.Is(context.Cause(l), driver.ErrClosed) || time.Since(began) != time.Minute {
			t.Errorf("%v, after %v", context.Cause(l), time.Since(began))
		}
		if l.Go(func() { t.Error("a goroutine runs after End") }) {
			t.Error("a goroutine starts after End")
		}
		l.Wait()
		if !cleanedUp.Load() {
			t.Error("Wait does not wait for a goroutine")
		}
	})
}

// TestGoroutinesStay: functions that are run one after the other share a goroutine, which has ended when nothing was to
// be done for idleTime, or when the lifetime ends.
func TestGoroutinesStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLifetime()
		run := func() (goroutine string) {
			l.Go(func() {
				first, _, _ := strings.Cut(string(debug.Stack()), "[")
				goroutine = first
			})
			synctest.Wait()
			return goroutine
		}
		first := run()
		for range 3 {
			time.Sleep(idleTime - time.Millisecond)
			if again := run(); again != first {
				t.Errorf("%s and %s", first, again)
			}
		}
		time.Sleep(idleTime + time.Millisecond)
		if next := run(); next == first {
			t.Error("it stays for longer than idleTime")
		}
		from := time.Now()
		l.End()
		l.Wait()
		if took := time.Since(from); took > 0 {
			t.Errorf("Wait took %v", took)
		}
	})
}

// TestBurstOfGoroutines: of the goroutines that a burst has started, only maxIdle stay.
func TestBurstOfGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLifetime()
		burst := func() map[string]bool {
			var mu sync.Mutex
			goroutines, end := map[string]bool{}, make(chan struct{})
			for range 3 * maxIdle {
				l.Go(func() {
					name, _, _ := strings.Cut(string(debug.Stack()), "[")
					mu.Lock()
					goroutines[name] = true
					mu.Unlock()
					<-end
				})
			}
			synctest.Wait()
			close(end)
			synctest.Wait()
			return goroutines
		}
		first, stayed := burst(), 0
		for name := range burst() {
			if first[name] {
				stayed++
			}
		}
		if stayed != maxIdle {
			t.Errorf("%d of %d goroutines stay, not %d", stayed, len(first), maxIdle)
		}
		l.End()
		l.Wait()
	})
}

// TestLifetimeRace: of goroutines that are started while the lifetime ends, each one either does not run, or has ended
// when Wait returns. The race detector checks the rest.
func TestLifetimeRace(t *testing.T) {
	for range 200 {
		l := NewLifetime()
		var started, ended atomic.Int64
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for l.Go(func() { ended.Add(1) }) {
					started.Add(1)
				}
			})
		}
		time.Sleep(time.Duration(started.Load()%5) * 10 * time.Microsecond)
		l.End()
		l.Wait()
		atEnd := ended.Load()
		callers.Wait()
		if ended.Load() != atEnd || started.Load() != atEnd {
			t.Fatalf("%d started; %d had ended when Wait returned, and %d later", started.Load(), atEnd, ended.Load())
		}
	}
}

// TestLifetimeBind: a bound context ends with its parent, with the lifetime, and when it is done with, and its cause
// says which.
func TestLifetimeBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLifetime()
		parent, cancel := context.WithCancelCause(context.Background())
		gaveUp := errors.New("the caller gave up")
		a, aDone := l.Bind(parent)
		defer aDone()
		b, bDone := l.Bind(context.Background())
		defer bDone()
		c, cDone := l.Bind(context.Background())
		cDone()
		if a.Err() != nil || b.Err() != nil || c.Err() == nil {
			t.Errorf("%v, %v, %v", a.Err(), b.Err(), c.Err())
		}
		cancel(gaveUp)
		synctest.Wait()
		if context.Cause(a) != gaveUp || b.Err() != nil {
			t.Errorf("the parent has ended: %v, %v", context.Cause(a), b.Err())
		}
		l.End()
		synctest.Wait()
		if context.Cause(a) != gaveUp || !errors.Is(context.Cause(b), driver.ErrClosed) {
			t.Errorf("the lifetime has ended: %v, %v", context.Cause(a), context.Cause(b))
		}
		d, dDone := l.Bind(context.Background())
		defer dDone()
		synctest.Wait()
		if !errors.Is(context.Cause(d), driver.ErrClosed) {
			t.Errorf("bound after the end: %v", context.Cause(d))
		}
	})
}

// TestLifetimeBindUnasked: a bound context of which nobody has asked anything when its end comes tells that end, and no
// later one. One that nobody waits for costs two allocations.
func TestLifetimeBindUnasked(t *testing.T) {
	gaveUp := errors.New("the caller gave up")
	type key struct{}
	for name, test := range map[string]struct {
		end  func(l *Lifetime, cancel context.CancelCauseFunc, done func())
		want error
	}{
		"parent":   {func(_ *Lifetime, cancel context.CancelCauseFunc, _ func()) { cancel(gaveUp) }, gaveUp},
		"lifetime": {func(l *Lifetime, _ context.CancelCauseFunc, _ func()) { l.End() }, driver.ErrClosed},
		"done":     {func(_ *Lifetime, _ context.CancelCauseFunc, done func()) { done() }, context.Canceled},
	} {
		for first, ask := range map[string]func(ctx context.Context) error{
			"Err":   func(ctx context.Context) error { return ctx.Err() },
			"Cause": context.Cause,
			"Done":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			"child": func(ctx context.Context) error {
				child, cancel := context.WithCancel(ctx)
				defer cancel()
				<-child.Done()
				return context.Cause(child)
			},
		} {
			t.Run(name+"/"+first, func(t *testing.T) {
				l := NewLifetime()
				defer l.End()
				parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
				defer cancel(nil)
				bound, done := l.Bind(parent)
				defer done()
				test.end(l, cancel, done)
				if err := ask(bound); err == nil {
					t.Error("the end is not told")
				}
				cancel(errors.New("a later end"))
				l.End()
				if err := context.Cause(bound); !errors.Is(err, test.want) || bound.Err() != context.Canceled {
					t.Errorf("cause %v, error %v", err, bound.Err())
				}
				if bound.Value(key{}) != "value" {
					t.Error("the values of the parent are lost")
				}
			})
		}
	}
	l := NewLifetime()
	defer l.End()
	if n := testing.AllocsPerRun(100, func() {
		bound, done := l.Bind(t.Context())
		if bound.Err() != nil {
			t.Error("an end without reason")
		}
		done()
	}); n > 2 {
		t.Errorf("%v allocations", n)
	}
}

// TestAfterFunc: a function is called when a bound context ends, by whatever end, even if that came before, and not
// after stop.
func TestAfterFunc(t *testing.T) {
	testAfterFunc(t, 1)
	testAfterFunc(t, 2) // only the first is cheaper
	l := NewLifetime()
	defer l.End()
	if n := testing.AllocsPerRun(100, func() {
		bound, done := l.Bind(t.Context())
		AfterFunc(bound, func() {})()
		done()
	}); n > 8 {
		t.Errorf("%v allocations", n)
	}
	if len(l.bound) > 0 {
		t.Errorf("%d contexts are kept", len(l.bound))
	}
}

func testAfterFunc(t *testing.T, functions int32) {
	for name, end := range map[string]func(outer, inner *Lifetime, cancel, done func()){
		"parent":   func(_, _ *Lifetime, cancel, _ func()) { cancel() },
		"lifetime": func(_, inner *Lifetime, _, _ func()) { inner.End() },
		"outer":    func(outer, _ *Lifetime, _, _ func()) { outer.End() },
		"done":     func(_, _ *Lifetime, _, done func()) { done() },
	} {
		t.Run(fmt.Sprint(name, functions), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				outer, inner := NewLifetime(), NewLifetime()
				defer outer.End()
				defer inner.End()
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				middle, outerDone := outer.Bind(ctx)
				defer outerDone()
				bound, done := inner.Bind(middle)
				defer done()
				var stopped, late atomic.Bool
				var called atomic.Int32
				AfterFunc(bound, func() { stopped.Store(true) })()
				for range functions {
					defer AfterFunc(bound, sync.OnceFunc(func() {
						if bound.Err() != nil {
							called.Add(1)
						}
					}))()
				}
				synctest.Wait()
				if called.Load() > 0 {
					t.Error("called before the end")
				}
				end(outer, inner, cancel, done)
				synctest.Wait()
				defer AfterFunc(bound, func() { late.Store(true) })()
				synctest.Wait()
				if stopped.Load() || called.Load() != functions || !late.Load() {
					t.Errorf("stopped %v, called %d of %d, late %v", stopped.Load(), called.Load(), functions, late.Load())
				}
			})
		})
	}
}

// TestLifetimeCall: of the ends of a call, the lifetime's comes first, then the caller's, and only another error is
// explained. No request is made after the end of the lifetime.
func TestLifetimeCall(t *testing.T) {
	t.Parallel()
	broken, explained := errors.New("broken"), errors.New("explained")
	for _, c := range []struct {
		name              string
		ended             bool // before the call
		ends, cancels     bool // during it
		err, want         error
		requests, explain int
	}{
		{name: "success", ends: true, cancels: true, requests: 1},
		{name: "failure", err: broken, want: explained, requests: 1, explain: 1},
		{name: "canceled", cancels: true, err: broken, want: context.Canceled, requests: 1},
		{name: "closed", ends: true, cancels: true, err: broken, want: driver.ErrClosed, requests: 1},
		{name: "closed before", ended: true, want: driver.ErrClosed},
	} {
		l := NewLifetime()
		ctx, cancel := context.WithCancel(t.Context())
		if c.ended {
			l.End()
		}
		requests, explain := 0, 0
		err := l.Call(ctx, time.Hour, "the store", func(context.Context) error {
			requests++
			if c.ends {
				l.End()
			}
			if c.cancels {
				cancel()
			}
			return c.err
		}, func(err error) error {
			explain++
			return explained
		})
		if err != c.want || requests != c.requests || explain != c.explain {
			t.Errorf("%s: %v after %d requests, explained %d times; want %v, %d, %d",
				c.name, err, requests, explain, c.want, c.requests, c.explain)
		}
		cancel()
		l.End()
	}
}

// TestLifetimeSleep: Sleep returns after its time, or at once when one of its contexts ends, and says which.
func TestLifetimeSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLifetime()
		began := time.Now()
		if err := l.Sleep(t.Context(), time.Second); err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Sleep(short, time.Hour); err != context.DeadlineExceeded || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		time.AfterFunc(time.Second, func() { l.End() })
		bound, done := l.Bind(t.Context())
		defer done()
		if err := l.Sleep(bound, time.Hour); !errors.Is(err, driver.ErrClosed) || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := l.Sleep(short, time.Hour); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("both have ended: %v", err)
		}
	})
}

// endingContext is a context whose end reaches those that are made of it one by one, when the test says so.
type endingContext struct {
	context.Context
	done  chan struct{}
	err   error
	after []func()
}

func (c *endingContext) Done() <-chan struct{} { return c.done }
func (c *endingContext) Err() error            { return c.err }
func (c *endingContext) AfterFunc(f func()) (stop func() bool) {
	c.after = append(c.after, f)
	return func() bool { return false }
}

// TestAfterFuncKnowsTheEnd: when the function is called, the context has an error, although a context that somebody
// else waits for has not been told of the end yet.
func TestAfterFuncKnowsTheEnd(t *testing.T) {
	l := NewLifetime()
	defer l.End()
	parent := &endingContext{Context: context.Background(), done: make(chan struct{})}
	bound, release := l.Bind(parent)
	defer release()
	seen := make(chan error, 2)
	AfterFunc(bound, func() { seen <- bound.Err() })
	_ = bound.Done()
	parent.err = context.Canceled
	close(parent.done)
	if len(parent.after) != 2 {
		t.Fatalf("%d functions wait for the end", len(parent.after))
	}
	parent.after[0]()
	if err := <-seen; err != context.Canceled {
		t.Errorf("the function saw the error %v", err)
	}
	parent.after[1]()
}
