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

// Env is what a case works with: clients of the store, names and claims of its own, and steps that fail the case.
type Env struct {
	ctx     context.Context
	cancel  context.CancelFunc
	suite   *suite
	h       Harness
	info    driver.Info
	slack   time.Duration
	least   time.Duration // the shortest TTL of the case
	prefix  string        // starts the names of all locks of this case
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

// cleanupTime bounds the clean-up of one case.
const cleanupTime = 3 * time.Second

func newEnv(ctx context.Context, cancel context.CancelFunc, s *suite, folder string, g grace) *Env {
	e := &Env{ctx: ctx, cancel: cancel, suite: s, h: s.h, info: s.info, slack: g.slack, least: g.least, prefix: s.h.Prefix + folder + "/", names: map[string]bool{}}
	for i, st := range s.shared {
		e.shared = append(e.shared, newClient(e, st, fmt.Sprintf("client %d", i+1)))
	}
	return e
}

// finish waits for the case's goroutines, whose context has ended, removes what they left, and gives back the first
// failure.
func (e *Env) finish() error {
	e.work.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), cleanupTime)
	defer cancel()
	e.mu.Lock()
	own, names, err := e.own, e.names, e.err
	e.mu.Unlock()
	for _, c := range own {
		if !c.dead || e.h.Kill == nil {
			c.store.Close()
		}
	}
	janitor := e.shared[0].store
	for name := range names {
		l, err := janitor.Inspect(ctx, name)
		if err != nil {
			continue // an invalid name, or a store that is away; the TTL is there for that
		}
		for _, s := range slices.Concat(l.Waiters, l.Holders) {
			janitor.Break(ctx, name, s.Ref, driver.BreakForce)
		}
	}
	return err
}

// failf ends the case: the store has broken its promise, or had no answer in time.
func (e *Env) failf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	switch {
	case e.ctx.Err() != nil:
		err = late{error: fmt.Errorf("%w (%w)", err, context.Cause(e.ctx))}
	case errors.Is(err, driver.ErrUncertain):
		err = late{error: err}
	}
	panic(failure{err})
}

// latef ends the case: something took too long.
func (e *Env) latef(format string, args ...any) {
	panic(failure{late{error: fmt.Errorf(format, args...)}})
}

// soon fails if what has been done since start took longer than bound.
func (e *Env) soon(start driver.Instant, bound time.Duration, format string, args ...any) {
	if took := e.since(start); took > bound {
		e.latef("%s took %v, and may take %v", fmt.Sprintf(format, args...), took, bound)
	}
}

// while runs steps that count on a grant. A failure after the grant has run out may be for that alone.
func (e *Env) while(g driver.Grant, steps func()) {
	if err := guard(func() error { steps(); return nil }); err != nil {
		if e.passed(g) >= g.GrantedTTL {
			err = fmt.Errorf("%w (%v after the start of a grant of %v)", err, e.passed(g).Round(time.Millisecond), g.GrantedTTL)
			panic(failure{late{error: err, overrun: true}})
		}
		panic(failure{err})
	}
}

// kept runs steps while c renews a grant: a try may take longer to be answered than the shortest TTL, where it is in doubt whether
// a claim's time is over.
func (e *Env) kept(c *client, g driver.Grant, steps func()) {
	done := make(chan struct{})
	e.together(2, func(i int) {
		if i == 0 {
			defer close(done)
			steps()
			return
		}
		for {
			select {
			case <-done:
				return
			case <-after(g.GrantedTTL / 4):
				g = c.renew(g)
			}
		}
	})
}

// skip ends the case: it cannot be run here.
func (e *Env) skip(format string, args ...any) { panic(failure{skipped(fmt.Sprintf(format, args...))}) }

// log remarks on something that was measured.
func (e *Env) log(format string, args ...any) {
	e.suite.opts.Log(strings.TrimSuffix(strings.TrimPrefix(e.prefix, e.h.Prefix), "/") + ": " + fmt.Sprintf(format, args...))
}

// start runs f beside the case. A failure in it fails the case.
func (e *Env) start(f func()) {
	e.work.Go(func() {
		if err := guard(func() error { f(); return nil }); err != nil {
			e.fail(err)
		}
	})
}

// fail ends the case with its first failure; what the others then run into is of no interest.
func (e *Env) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
	e.cancel()
}

// together runs f(0) to f(n-1) at the same time, and goes on when all have ended; it fails if one of them has.
func (e *Env) together(n int, f func(i int)) {
	var wg sync.WaitGroup
	var failed atomic.Value
	for i := range n {
		wg.Go(func() {
			if err := guard(func() error { f(i); return nil }); err != nil {
				e.fail(err)
				failed.CompareAndSwap(nil, failure{err})
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		panic(err)
	}
}

// times is n, or fewer or more where the caller has asked for less or more effort.
func (e *Env) times(n int) int { return max(4, int(float64(n)*e.suite.opts.Effort)) }

// sleep lets time pass.
func (e *Env) sleep(d time.Duration) {
	select {
	case <-after(d):
	case <-e.ctx.Done():
		e.failf("ended while waiting")
	}
}

// until goes on when ok says so, and fails if that takes longer than within.
func (e *Env) until(within time.Duration, ok func() bool, format string, args ...any) {
	start := e.now()
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 50*time.Millisecond) {
		if e.since(start) > within {
			e.latef("%s (waited for %v)", fmt.Sprintf(format, args...), within)
		}
		e.sleep(pause)
	}
}

// now and since read the store's clock for instants.
func (e *Env) now() driver.Instant                          { return e.info.Clock.Now() }
func (e *Env) since(i driver.Instant) time.Duration         { return e.info.Clock.Since(i) }
func (e *Env) passed(g driver.Grant) time.Duration          { return e.since(g.Since) }
func (e *Env) sleepUntil(i driver.Instant, d time.Duration) { e.sleep(d - e.since(i)) }

// lock is a name for a lock of this case.
func (e *Env) lock(name string) string { return e.uses(e.prefix + name) }

// uses remembers a name for the clean-up.
func (e *Env) uses(name string) string {
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

// client is the i-th of the shared clients, round and round.
func (e *Env) client(i int) *client { return e.shared[i%len(e.shared)] }

// open is a new client for this case alone.
func (e *Env) open() *client {
	st, err := e.h.Open(e.ctx)
	if err != nil {
		e.failf("opening a client: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := newClient(e, st, fmt.Sprintf("own client %d", len(e.own)+1))
	e.own = append(e.own, c)
	return c
}

// kill makes c a dead client: its claims stand as it left them, and nobody renews them or takes them back.
func (e *Env) kill(c *client) {
	if e.h.Kill == nil && e.sessions() {
		e.skip("needs Harness.Kill, for what waits on this store lives as long as its client's session")
	}
	c.dead = true
	if e.h.Kill != nil {
		if err := e.h.Kill(c.store); err != nil {
			e.failf("Harness.Kill: %w", err)
		}
	}
	c.drop()
}

// sessions reports whether a client's claims live with its session.
func (e *Env) sessions() bool { return e.info.Engine == "sequence" }

// The claims that cases make. Each has its own id and its own owner.

func (e *Env) claim(name string, kind driver.Kind, limit, weight int64) driver.Claim {
	return driver.Claim{
		Name: e.uses(name), ID: strings.ToLower(rand.Text()), Kind: kind, Limit: limit, Weight: weight,
		TTL: e.long(), Owner: fmt.Sprintf("%s%d", e.prefix, e.count.Add(1)),
	}
}

func (e *Env) mutex(name string) driver.Claim { return e.claim(name, driver.KindMutex, 1, 1) }
func (e *Env) reader(name string) driver.Claim {
	return e.claim(name, driver.KindRW, driver.RWLimit, 1)
}
func (e *Env) writer(name string) driver.Claim {
	return e.claim(name, driver.KindRW, driver.RWLimit, driver.RWLimit)
}
func (e *Env) permits(name string, limit, weight int64) driver.Claim {
	return e.claim(name, driver.KindSemaphore, limit, weight)
}
func (e *Env) fair(name string) driver.Claim {
	c := e.mutex(name)
	c.Fair = true
	return c
}

// lined is a claim that stands in line while it waits, on stores that keep a line, and a plain one on the others.
func (e *Env) lined(name string) driver.Claim {
	c := e.mutex(name)
	c.Fair = e.info.Order != driver.OrderNone
	return c
}

// short is c with the shortest TTL of the case; lasting gives it another one.
func (e *Env) short(c driver.Claim) driver.Claim { return lasting(c, e.least) }

func lasting(c driver.Claim, ttl time.Duration) driver.Claim {
	c.TTL = ttl.Round(time.Millisecond)
	return c
}

// long is the TTL of claims in cases that are not about TTLs. It is longer than a case may take, so that no slow machine ends
// them by accident.
func (e *Env) long() time.Duration {
	return min((e.suite.opts.Limit + 10*time.Second).Round(time.Second), e.info.MaxTTL)
}

// latest is how long after the start of its last confirmation a silent claim may stand in the way of somebody who
// has waited all the while.
func (e *Env) latest(ttl time.Duration) time.Duration { return ttl + driver.Margin(ttl) + e.slack }

// window is the confirm window of a waiting claim: how long it may keep a place that it does not come to take.
func (e *Env) window(ttl time.Duration) time.Duration {
	start := e.now()
	e.a().inspect(e.lock("round-trip"))
	return min(ttl, 2*time.Second+10*e.since(start))
}

// standsInLine reports whether a claim like c is to be seen in the store while it waits.
func (e *Env) standsInLine(c driver.Claim) bool {
	return c.Fair || c.Kind != driver.KindMutex || e.info.NativeQueue
}

// empty goes on when nothing stands on the lock, and fails if that takes longer than within.
func (e *Env) empty(name string, within time.Duration) {
	var l driver.Lock
	e.until(within, func() bool {
		l = e.b().inspect(name)
		return len(l.Holders)+len(l.Waiters) == 0
	}, "%q should stand empty but %s", name, lazily(func() string { return tell(l) }))
}

// held fails unless g holds its lock, alone.
func (e *Env) held(g driver.Grant) driver.ClaimInfo {
	l := e.c().inspect(g.Name)
	e.while(g, func() {
		if len(l.Holders) != 1 || l.Holders[0].Token != g.Token || l.Holders[0].Owner != g.Owner {
			e.failf("%s with token %d should hold the lock, but %s", g.Owner, g.Token, tell(l))
		}
	})
	return l.Holders[0]
}

// rises fails unless tokens are in strictly rising order.
func (e *Env) rises(tokens ...int64) {
	for i, t := range tokens {
		if i > 0 && t <= tokens[i-1] {
			e.failf("token %d came after token %d", t, tokens[i-1])
		}
	}
}

// lazily formats when it is printed: the state at the end of a wait, not at its start.
type lazily func() string

func (l lazily) String() string { return l() }

// tell describes how a lock stands.
func tell(l driver.Lock) (told string) {
	var b strings.Builder
	const most = 8
	if n := len(l.Holders) + len(l.Waiters); n > most {
		defer func() { told += fmt.Sprintf("; of %d claims", n) }()
	}
	l.Holders, l.Waiters = l.Holders[:min(len(l.Holders), most)], l.Waiters[:min(len(l.Waiters), most)]
	for _, h := range l.Holders {
		fmt.Fprintf(&b, "%s holds it (weight %d, token %d); ", h.Owner, h.Weight, h.Token)
	}
	for _, w := range l.Waiters {
		fmt.Fprintf(&b, "%s waits (weight %d); ", w.Owner, w.Weight)
	}
	if b.Len() == 0 {
		return "nothing stands on it"
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// wants fails unless err Is target.
func (e *Env) wants(err, target error, format string, args ...any) {
	e.noSecret(err)
	switch {
	case errors.Is(err, target):
	case errors.Is(err, driver.ErrUncertain):
		e.failf("%s: got %w, want %q", fmt.Sprintf(format, args...), err, target)
	default:
		e.failf("%s: got %s, want %q", fmt.Sprintf(format, args...), show(err), target)
	}
}

// noSecret fails if an error tells what the harness said is secret.
func (e *Env) noSecret(err error) {
	for _, s := range e.h.Secrets {
		if err != nil && s != "" && strings.Contains(err.Error(), s) {
			e.failf("an error tells a secret: %s", strings.ReplaceAll(err.Error(), s, "XXXXX"))
		}
	}
}

func show(err error) string {
	if err == nil {
		return "no error"
	}
	return fmt.Sprintf("%q", err)
}

// waits is c, to wait until it is granted.
func (e *Env) waits(c driver.Claim) driver.Claim {
	c.Wait = true
	return c
}
