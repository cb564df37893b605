package holdfast

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// TestTimeoutCache: a shared context ends at its time or up to an eighth earlier, however many calls share it.
func TestTimeoutCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, end := context.WithCancel(t.Context())
		d := timeoutCache{base: base}
		var shared int
		var last context.Context
		for i := range 100 {
			ctx := d.contextFor(10 * time.Second)
			if at, _ := ctx.Deadline(); time.Until(at) > 10*time.Second || time.Until(at) < 8750*time.Millisecond {
				t.Fatalf("%v remain, and 10 s were requested", time.Until(at))
			}
			if ctx == last {
				shared++
			}
			last = ctx
			if d.contextFor(time.Second+time.Duration(i)*time.Millisecond) == ctx {
				t.Fatal("two different times share a context")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if shared < 80 {
			t.Errorf("only %d of 100 shared a context", shared)
		}
		end()
		if last.Err() == nil {
			t.Error("the context has not ended with its base")
		}
	})
}

// TestLateContext: a lease's context is correct even if it is requested only after the lease has ended.
func TestLateContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx := context.WithValue(t.Context(), key{}, "value")
		c := newClient(t, newFakeStore(), nil)
		l, err := c.Mutex("a", nil).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		before := l.Context()
		if before.Err() != nil || before.Value(key{}) != "value" || before != l.Context() {
			t.Errorf("the context of a lease: %v, %v", before.Err(), before.Value(key{}))
		}
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
		other, err := c.Mutex("a", nil).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Release(); err != nil {
			t.Fatal(err)
		}
		for _, ctx := range []context.Context{before, other.Context()} {
			if !errors.Is(context.Cause(ctx), ErrReleased) {
				t.Errorf("the cause is %v", context.Cause(ctx))
			}
		}
	})
}

// TestCloseEndsEndlessWait: closing a client ends a wait whose own context never ends.
func TestCloseEndsEndlessWait(t *testing.T) {
	c := &Client{waiting: driverutil.NewLifetime()}
	type key struct{}
	ctx, end := c.untilClosed(context.WithValue(context.Background(), key{}, "value"))
	defer end()
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	if ctx.Err() != nil || ctx.Value(key{}) != "value" {
		t.Errorf("before: %v, %v", ctx.Err(), ctx.Value(key{}))
	}
	c.waiting.End()
	if ctx.Err() == nil || child.Err() == nil || !errors.Is(context.Cause(child), ErrClosed) {
		t.Errorf("after: %v, %v, %v", ctx.Err(), child.Err(), context.Cause(child))
	}
}
