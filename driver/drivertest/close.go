package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var closeCases = []Case{
	promise("close", "After Close every call says that the store is closed, and closing again does nothing.", func(e *Env) {
		c := e.open()
		g := c.try(e.mutex(e.lock("m")))
		for range 2 {
			if err := c.store.Close(); err != nil {
				e.failf("Close: %w", err)
			}
		}
		e.calls(e.ctx, c, g, func(method string, err error) {
			e.wants(err, driver.ErrClosed, "%s after Close", method)
		})
	}),
	promise("close-waiting", "Close ends the waits that are under way, at once.", func(e *Env) {
		c := e.open()
		plain, lined := e.lock("plain"), e.lock("lined")
		e.a().try(e.mutex(plain))
		e.a().try(e.mutex(lined))
		w1, w2 := c.queue(e.mutex(plain)).stands(), c.queue(e.lined(lined)).stands()
		start := e.now()
		c.store.Close()
		w1.refused(driver.ErrClosed)
		w2.refused(driver.ErrClosed)
		e.soon(start, e.slack, "Close")
	}),
	promise("close-leaves", "What a closed client leaves standing ends as the claims of a dead one do, and holds nobody up for longer.", func(e *Env) {
		c := e.open()
		g := c.try(e.short(e.mutex(e.lock("m"))))
		w := e.a().queue(e.lined(g.Name)).stands()
		c.store.Close()
		e.rises(g.Token, w.grantedWithin(e.latest(g.GrantedTTL)).Token)
		if e.info.DeadHolderTimeout == 0 {
			e.notEarly(g, w.returned)
		}
	}),
	promise("close-stops", "Nothing that a client has started goes on after its Close.", func(e *Env) {
		var c *client
		var w *waiting
		label := e.prefix + "close-stops" // of what this client starts: the shared clients may start something at any time
		pprof.Do(e.ctx, pprof.Labels(goroutineLabel, label), func(context.Context) {
			c = e.open()
			g := c.renew(c.try(e.mutex(e.lock("m"))))
			w = c.queue(e.lined(g.Name))
		})
		w.stands()
		c.store.Close()
		w.refused(driver.ErrClosed)
		n := 0
		e.until(e.slack, func() bool { n = goroutines(label); return n == 0 }, "%s", lazily(func() string {
			return fmt.Sprintf("%d goroutines of the client live on", n)
		}))
	}),
	promise("ended-context", "Every call under a context that has ended returns promptly, with an error.", func(e *Env) {
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		g := e.a().try(e.mutex(e.lock("m")))
		start := e.now()
		e.calls(ctx, e.a(), g, func(method string, err error) {
			if err == nil {
				e.failf("%s has not noticed that its context has ended", method)
			}
			e.soon(start, e.slack, "%s", method)
			start = e.now()
		})
	}),
}

// calls calls every method that takes a context, and tells of each error.
func (e *Env) calls(ctx context.Context, c *client, g driver.Grant, told func(method string, err error)) {
	s := c.store
	cl := e.lined(e.lock("calls"))
	var err error
	for range 10 { // a store that looks at ctx only beside its answer fails now and then
		_, err = s.Acquire(ctx, cl)
		told("Acquire", err)
	}
	cl.Wait = true
	_, err = s.Acquire(ctx, cl)
	told("Acquire (waiting)", err)
	for _, r := range c.renewals(ctx, g) {
		told("Renew", r.Err)
	}
	_, err = s.Inspect(ctx, g.Name)
	told("Inspect", err)
	err = errors.New("the listing has ended")
	listed := false
	for _, err = range s.List(ctx, e.prefix) {
		listed = true
		if err != nil {
			break
		}
	}
	if !listed {
		err = nil
	}
	told("List", err)
	told("Break", s.Break(ctx, g.Name, g.Ref, driver.BreakRequestRelease))
	if d, ok := s.(driver.Detacher); ok && e.info.Detached {
		told("Detach", d.Detach(ctx, g, time.Minute))
	}
	if w, ok := s.(driver.LockWatcher); ok {
		_, err = w.NextChange(ctx, driver.Lock{Name: e.lock("calls")})
		told("NextChange", err)
	}
	if w, ok := s.(driver.EndWatcher); ok {
		_, err = w.NextEnding(ctx)
		told("NextEnding", err)
	}
	told("Release", s.Release(ctx, g.Claim, ""))
}

// goroutines counts those under a label, which goroutines inherit from whoever starts them.
func goroutines(label string) (n int) {
	var b bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&b, 1)
	label = fmt.Sprintf("%q:%q", goroutineLabel, label)
	for block := range strings.SplitSeq(b.String(), "\n\n") {
		if strings.Contains(block, label) {
			count, _, _ := strings.Cut(block, " @")
			k, _ := strconv.Atoi(count[strings.LastIndex(count, "\n")+1:])
			n += k
		}
	}
	return n
}
