package drivertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Env is what a case works with: clients of the store, lock names and claims of its own, and steps that fail the case.
type Env struct {
	ctx     context.Context
	cancel  context.CancelFunc
	suite   *suite
	harness Harness
	info    driver.Info
	slack   time.Duration
	minTTL  time.Duration // the shortest TTL of the case
	prefix  string        // the beginning of the names of all locks of this case
	refused atomic.Bool
	count   atomic.Int64
	work    sync.WaitGroup

	mu     sync.Mutex
	err    error           // the first failure of the case
	own    []*client       // opened for this case alone
	names  map[string]bool // locks that the case has used
	shared []*client
}

// goroutineLabel marks all goroutines that a case and its clients start.
const goroutineLabel = "drivertest"

// cleanupTime bounds the cleanup of one case.
const cleanupTime = 3 * time.Second

func newEnv(ctx context.Context, cancel context.CancelFunc, s *suite, folder string, g tolerance) *Env {
	e := &Env{ctx: ctx, cancel: cancel, suite: s, harness: s.harness, info: s.info, slack: g.slack, minTTL: g.minTTL,
		prefix: s.harness.Prefix + folder + "/", names: map[string]bool{}}
	for i, st := range s.shared {
		e.shared = append(e.shared, newClient(e, st, fmt.Sprintf("client %d", i+1)))
	}
	return e
}

// cleanUp waits for the case's goroutines, whose context has ended, removes the claims that they left, and returns
// the first failure.
func (e *Env) cleanUp() error {
	e.work.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), cleanupTime)
	defer cancel()
	e.mu.Lock()
	own, names, err := e.own, e.names, e.err
	e.mu.Unlock()
	for _, c := range own {
		if !c.dead || e.harness.Kill == nil {
			c.store.Close()
		}
	}
	janitor := e.shared[0].store
	for name := range names {
		l, err := janitor.Inspect(ctx, name)
		if err != nil {
			continue // the name is invalid or the store cannot be reached; then the claims expire
		}
		for _, s := range slices.Concat(l.Waiters, l.Holders) {
			janitor.Break(ctx, name, s.Ref, driver.Break{Mode: driver.BreakForce})
		}
	}
	return err
}

// failf ends the case: the store has broken its promise, or did not answer in time, as the error may say.
func (e *Env) failf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	switch {
	case e.ctx.Err() != nil:
		err = lateError{error: fmt.Errorf("%w (%w)", err, context.Cause(e.ctx))}
	case errors.Is(err, driver.ErrUncertain), errors.As(err, new(*driver.SilentError)):
		err = lateError{error: err}
	}
	panic(failurePanic{err})
}

// latef ends the case: something was too slow.
func (e *Env) latef(format string, args ...any) {
	panic(failurePanic{lateError{error: fmt.Errorf(format, args...)}})
}

// overrunf ends the case: the times that it allows were too short for the store, so it has shown nothing. They follow
// the slack, which is longer when the case runs again.
func (e *Env) overrunf(format string, args ...any) {
	panic(failurePanic{lateError{error: fmt.Errorf(format, args...), overrun: true}})
}

// requireWithin fails the case if more than bound has passed since start.
func (e *Env) requireWithin(start driver.Instant, bound time.Duration, format string, args ...any) {
	if took := e.since(start); took > bound {
		e.latef("%s took %v, and may take %v", fmt.Sprintf(format, args...), took, bound)
	}
}

// whileGranted runs steps that rely on a grant. A failure after the grant's TTL has passed may have no other cause,
// so it proves nothing.
func (e *Env) whileGranted(g driver.Grant, steps func()) {
	if err := recoverError(func() error { steps(); return nil }); err != nil {
		if e.sinceGrant(g) >= g.GrantedTTL {
			e.overrunf("%w (%v after the start of a grant of %v)", err, e.sinceGrant(g).Round(time.Millisecond),
				g.GrantedTTL)
		}
		panic(failurePanic{err})
	}
}

// whileRenewed runs steps while c renews a grant. The steps may take longer than the shortest TTL: a store may need
// time to answer a try if it is not certain whether a claim has expired. A failure of the steps proves nothing if a
// renewal came too late.
func (e *Env) whileRenewed(c *client, g driver.Grant, steps func()) {
	done := make(chan struct{})
	var last atomic.Pointer[driver.Grant]
	last.Store(&g)
	e.runConcurrently(2, func(i int) {
		if i == 0 {
			defer close(done)
			err := recoverError(func() error { steps(); return nil })
			if err != nil {
				e.whileGranted(*last.Load(), func() { panic(failurePanic{err}) })
			}
			return
		}
		for {
			select {
			case <-done:
				return
			case <-closedAfter(g.GrantedTTL / 4):
				next := c.mustRenew(*last.Load())
				last.Store(&next)
			}
		}
	})
}

// skip ends the case because it cannot be run on this store.
func (e *Env) skip(format string, args ...any) {
	panic(failurePanic{skippedError(fmt.Sprintf(format, args...))})
}

// logRemark logs something that was measured.
func (e *Env) logRemark(format string, args ...any) {
	e.suite.opts.Log(strings.TrimSuffix(strings.TrimPrefix(e.prefix, e.harness.Prefix), "/") + ": " +
		fmt.Sprintf(format,
			args...))
}

// runInBackground runs f concurrently with the case. A failure in it fails the case.
func (e *Env) runInBackground(f func()) {
	e.work.Go(func() {
		if err := recoverError(func() error { f(); return nil }); err != nil {
			e.recordFailure(err)
		}
	})
}

// recordFailure ends the case with its first failure. Later failures are consequences and are ignored.
func (e *Env) recordFailure(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
	e.cancel()
}

// runConcurrently runs f(0) to f(n-1) at the same time and returns when all have ended. It fails if one of them has
// failed.
func (e *Env) runConcurrently(n int, f func(i int)) {
	var wg sync.WaitGroup
	var failed atomic.Value
	for i := range n {
		wg.Go(func() {
			if err := recoverError(func() error { f(i); return nil }); err != nil {
				e.recordFailure(err)
				failed.CompareAndSwap(nil, failurePanic{err})
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		panic(err)
	}
}

// scaleEffort scales n by Options.Effort.
func (e *Env) scaleEffort(n int) int { return max(4, int(float64(n)*e.suite.opts.Effort)) }

// sleep lets time pass.
func (e *Env) sleep(d time.Duration) {
	select {
	case <-closedAfter(d):
	case <-e.ctx.Done():
		e.failf("the case's context ended during a pause")
	}
}

// waitUntil returns when ok returns true, and fails if that takes longer than within.
func (e *Env) waitUntil(within time.Duration, ok func() bool, format string, args ...any) {
	start := e.now()
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 50*time.Millisecond) {
		if e.since(start) > within {
			e.latef("%s (waited for %v)", fmt.Sprintf(format, args...), within)
		}
		e.sleep(pause)
	}
}

// now and since read the store's clock.
func (e *Env) now() driver.Instant                          { return e.info.Clock.Now() }
func (e *Env) since(i driver.Instant) time.Duration         { return e.info.Clock.Since(i) }
func (e *Env) sinceGrant(g driver.Grant) time.Duration      { return e.since(g.Since) }
func (e *Env) sleepUntil(i driver.Instant, d time.Duration) { e.sleep(d - e.since(i)) }

// halfTime returns when half of the time that the case still has will have passed. A case may do less from then on.
func (e *Env) halfTime() time.Time {
	end, ok := e.ctx.Deadline()
	if !ok {
		return time.Now().Add(time.Hour)
	}
	return time.Now().Add(time.Until(end) / 2)
}

// lockName returns the name of a lock of this case.
func (e *Env) lockName(name string) string { return e.registerName(e.prefix + name) }

// registerName adds a name to those that the cleanup visits.
func (e *Env) registerName(name string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.names[name] = true
	return name
}

// a, b, c and d are clients that other cases use at the same time.
func (e *Env) a() *client { return e.shared[0] }
func (e *Env) b() *client { return e.shared[1] }
func (e *Env) c() *client { return e.shared[2] }
func (e *Env) d() *client { return e.shared[3] }

// client returns the i-th shared client, modulo their number.
func (e *Env) client(i int) *client { return e.shared[i%len(e.shared)] }

// openClient opens a new client for this case alone.
func (e *Env) openClient() *client {
	st, err := e.harness.Open(e.ctx)
	if err != nil {
		e.failf("opening a client: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := newClient(e, st, fmt.Sprintf("own client %d", len(e.own)+1))
	e.own = append(e.own, c)
	return c
}

// killClient makes c a dead client: its claims are no longer renewed, and are not released.
func (e *Env) killClient(c *client) {
	if e.harness.Kill == nil && e.hasSessions() {
		e.skip("needs Harness.Kill, because waiting claims of this store exist until their client's session ends")
	}
	c.dead = true
	if e.harness.Kill != nil {
		if err := e.harness.Kill(c.opened); err != nil {
			e.failf("Harness.Kill: %w", err)
		}
	}
	c.endCalls()
}

// hasSessions reports whether a client's claims end with its session.
func (e *Env) hasSessions() bool { return e.info.Engine == "sequence" }

// The following methods return claims. Each claim has its own id and its own owner.

func (e *Env) newClaim(name string, kind driver.Kind, limit, weight int64) driver.Claim {
	return driver.Claim{
		Name: e.registerName(name), ID: strings.ToLower(rand.Text()), Kind: kind, Limit: limit, Weight: weight,
		TTL: e.longTTL(), Owner: fmt.Sprintf("%s%d", e.prefix, e.count.Add(1)),
	}
}

func (e *Env) mutexClaim(name string) driver.Claim { return e.newClaim(name, driver.KindMutex, 1, 1) }
func (e *Env) readerClaim(name string) driver.Claim {
	return e.newClaim(name, driver.KindRW, driver.RWLimit, 1)
}
func (e *Env) writerClaim(name string) driver.Claim {
	return e.newClaim(name, driver.KindRW, driver.RWLimit, driver.RWLimit)
}
func (e *Env) semaphoreClaim(name string, limit, weight int64) driver.Claim {
	return e.newClaim(name, driver.KindSemaphore, limit, weight)
}
func (e *Env) fairClaim(name string) driver.Claim {
	c := e.mutexClaim(name)
	c.Fair = true
	return c
}

// queuedClaim returns a claim that waits in the store's queue if the store has one, and otherwise a plain one.
func (e *Env) queuedClaim(name string) driver.Claim {
	c := e.mutexClaim(name)
	c.Fair = e.info.Order != driver.OrderNone
	return c
}

// withMinTTL returns c with the shortest TTL of the case.
func (e *Env) withMinTTL(c driver.Claim) driver.Claim { return withTTL(c, e.minTTL) }

func withTTL(c driver.Claim, ttl time.Duration) driver.Claim {
	c.TTL = ttl.Round(time.Millisecond)
	return c
}

// longTTL is the TTL of claims in cases that are not about TTLs. It is longer than the time limit of a case, so that
// no slow machine ends them.
func (e *Env) longTTL() time.Duration {
	return min((e.suite.opts.Limit + 10*time.Second).Round(time.Second), e.info.MaxTTL)
}

// latestExpiry is the longest time, from the start of its last confirmation, for which an expired claim may block a
// claim that has waited during all of it.
func (e *Env) latestExpiry(ttl time.Duration) time.Duration {
	return ttl + driver.Margin(ttl) + e.slack
}

// confirmWindow is how long a promoted waiting claim may keep its turn without confirming it.
func (e *Env) confirmWindow(ttl time.Duration) time.Duration {
	start := e.now()
	e.a().mustInspect(e.lockName("round-trip"))
	return min(ttl, 2*time.Second+10*e.since(start))
}

// isQueuedInStore reports whether a claim like c can be seen in the store while it waits.
func (e *Env) isQueuedInStore(c driver.Claim) bool {
	return c.Fair || c.Kind != driver.KindMutex || e.info.NativeQueue
}

// requireEmpty returns when there is no claim on the lock, and fails if that takes longer than within.
func (e *Env) requireEmpty(name string, within time.Duration) {
	var l driver.Lock
	e.waitUntil(within, func() bool {
		l = e.b().mustInspect(name)
		return len(l.Holders)+len(l.Waiters) == 0
	}, "%q should have no claims but %s", name, lazyString(func() string { return describeLock(l) }))
}

// requireHolder fails unless g is the only holder of its lock, and returns how it is shown.
func (e *Env) requireHolder(g driver.Grant) driver.ClaimInfo {
	l := e.c().mustInspect(g.Name)
	e.whileGranted(g, func() {
		if len(l.Holders) != 1 || l.Holders[0].Token != g.Token || l.Holders[0].Owner != g.Owner {
			e.failf("%s with token %d should hold the lock, but %s", g.Owner, g.Token, describeLock(l))
		}
	})
	return l.Holders[0]
}

// requireRising fails unless each token is larger than the one before.
func (e *Env) requireRising(tokens ...int64) {
	for i, t := range tokens {
		if i > 0 && t <= tokens[i-1] {
			e.failf("token %d came after token %d", t, tokens[i-1])
		}
	}
}

// lazyString is formatted when it is printed: it shows the state at the end of a wait, not at its start.
type lazyString func() string

func (l lazyString) String() string { return l() }

// describeLock describes the claims on a lock.
func describeLock(l driver.Lock) (text string) {
	var b strings.Builder
	const maxShown = 8
	if n := len(l.Holders) + len(l.Waiters); n > maxShown {
		defer func() { text += fmt.Sprintf("; of %d claims", n) }()
	}
	l.Holders, l.Waiters = l.Holders[:min(len(l.Holders), maxShown)], l.Waiters[:min(len(l.Waiters), maxShown)]
	for _, h := range l.Holders {
		fmt.Fprintf(&b, "%s holds it (weight %d, token %d); ", h.Owner, h.Weight, h.Token)
	}
	for _, w := range l.Waiters {
		fmt.Fprintf(&b, "%s waits (weight %d); ", w.Owner, w.Weight)
	}
	if b.Len() == 0 {
		return "there are no claims"
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// requireError fails unless errors.Is(err, target).
func (e *Env) requireError(err, target error, format string, args ...any) {
	e.requireNoSecret(err)
	switch {
	case errors.Is(err, target):
	case errors.Is(err, driver.ErrUncertain):
		e.failf("%s: got %w, want %q", fmt.Sprintf(format, args...), err, target)
	default:
		e.failf("%s: got %s, want %q", fmt.Sprintf(format, args...), describeError(err), target)
	}
}

// requireNoSecret fails if an error contains one of Harness.Secrets.
func (e *Env) requireNoSecret(err error) {
	for _, s := range e.harness.Secrets {
		if err != nil && s != "" && strings.Contains(err.Error(), s) {
			e.failf("an error contains a secret: %s", strings.ReplaceAll(err.Error(), s, "XXXXX"))
		}
	}
}

func describeError(err error) string {
	if err == nil {
		return "no error"
	}
	return fmt.Sprintf("%q", err)
}

// waitingClaim returns c as a claim that waits until it is granted.
func (e *Env) waitingClaim(c driver.Claim) driver.Claim {
	c.Wait = true
	return c
}
