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
	newCase("close", "After Close, every call returns ErrClosed, and a second Close does nothing.", func(e *Env) {
		c := e.openClient()
		g := c.mustTry(e.mutexClaim(e.lockName("m")))
		for range 2 {
			if err := c.store.Close(); err != nil {
				e.failf("Close: %w", err)
			}
		}
		e.callEverything(e.ctx, c, g, func(method string, err error) {
			e.requireError(err, driver.ErrClosed, "%s after Close", method)
		})
	}),
	newCase("close-waiting", "Close ends all waiting calls at once.", func(e *Env) {
		c := e.openClient()
		plain, queued := e.lockName("plain"), e.lockName("queued")
		e.a().mustTry(e.mutexClaim(plain))
		e.a().mustTry(e.mutexClaim(queued))
		w1 := c.startWaiting(e.mutexClaim(plain)).requireQueued()
		w2 := c.startWaiting(e.queuedClaim(queued)).requireQueued()
		start := e.now()
		c.store.Close()
		w1.mustFail(driver.ErrClosed)
		w2.mustFail(driver.ErrClosed)
		e.requireWithin(start, e.slack, "Close")
	}),
	newCase("close-while-holding", "When a client is closed, the claims that it holds end as those of a dead client "+
		"do, and not later.", func(e *Env) {
		c := e.openClient()
		g := c.mustTry(e.withMinTTL(e.mutexClaim(e.lockName("m"))))
		var w *waitingCall
		e.whileGranted(g, func() { w = e.a().startWaiting(e.queuedClaim(g.Name)).requireQueued() })
		c.store.Close()
		e.requireRising(g.Token, w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL)).Token)
		if e.info.DeadHolderTimeout == 0 {
			e.requireNotEarly(g, w.returned)
		}
	}),
	newCase("close-for-others", "A claim that a client holds for others outside of its process lasts for its TTL, also if "+
		"the store can tell that the client has died.", func(e *Env) {
		c := e.openClient()
		claim := e.withMinTTL(e.mutexClaim(e.lockName("m")))
		claim.ForOthers = true
		g := c.mustTry(claim)
		c.store.Close()
		w := e.a().startWaiting(e.queuedClaim(g.Name))
		e.requireRising(g.Token, w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL)).Token)
		e.requireNotEarly(g, w.returned)
	}),
	newCase("close-stops", "No goroutine of a client continues after its Close.", func(e *Env) {
		var c *client
		var w *waitingCall
		// the goroutines of this client need a label of their own: shared clients may start others at any time
		label := e.prefix + "close-stops"
		pprof.Do(e.ctx, pprof.Labels(goroutineLabel, label), func(context.Context) {
			c = e.openClient()
			g := c.mustRenew(c.mustTry(e.mutexClaim(e.lockName("m"))))
			w = c.startWaiting(e.queuedClaim(g.Name))
		})
		w.requireQueued()
		c.store.Close()
		w.mustFail(driver.ErrClosed)
		n := 0
		e.waitUntil(e.slack, func() bool { n = countGoroutines(label); return n == 0 }, "%s", lazyString(func() string {
			return fmt.Sprintf("%d goroutines of the client still run", n)
		}))
	}),
	newCase("ended-context", "Every call whose context has already ended returns promptly, with an error.",
		func(e *Env) {
			ctx, cancel := context.WithCancel(e.ctx)
			cancel()
			g := e.a().mustTry(e.mutexClaim(e.lockName("m")))
			start := e.now()
			e.callEverything(ctx, e.a(), g, func(method string, err error) {
				if err == nil {
					e.failf("%s has not noticed that its context has ended", method)
				}
				e.requireWithin(start, e.slack, "%s", method)
				start = e.now()
			})
		}),
}

// callEverything calls every method that takes a context, and passes each error to report.
func (e *Env) callEverything(ctx context.Context, c *client, g driver.Grant,
	report func(method string, err error),
) {
	s := c.store
	cl := e.queuedClaim(e.lockName("calls"))
	var err error
	for range 10 { // a store that waits for ctx and for its answer at the same time fails only sometimes
		_, err = s.Acquire(ctx, cl)
		report("Acquire", err)
	}
	cl.Wait = true
	_, err = s.Acquire(ctx, cl)
	report("Acquire (waiting)", err)
	for _, r := range c.renewBatch(ctx, g) {
		report("Renew", r.Err)
	}
	_, err = s.Inspect(ctx, g.Name)
	report("Inspect", err)
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
	report("List", err)
	report("Break", s.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakRequestRelease}))
	if e.info.Abilities.Detach {
		report("Detach", s.Detach(ctx, g, time.Minute))
	}
	_, err = s.NextChange(ctx, driver.Lock{Name: e.lockName("calls")})
	report("NextChange", err)
	if e.info.Abilities.Endings {
		_, err = s.NextEnding(ctx)
		report("NextEnding", err)
	}
	report("Release", s.Release(ctx, g.Claim, ""))
}

// countGoroutines counts the goroutines with a label. A goroutine inherits its label from the one that starts it.
func countGoroutines(label string) (n int) {
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
