package drivertest_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
)

type ctx = context.Context

// broken is a sound store with something broken about it: a function that is set stands in for the method.
type broken struct {
	driver.Store
	info      func(i driver.Info) driver.Info
	acquire   func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error)
	renew     func(b *broken, ctx ctx, g []driver.Grant, done func(int, driver.Renewal))
	release   func(b *broken, ctx ctx, c driver.Claim, ref string) error
	inspect   func(b *broken, ctx ctx, name string) (driver.Lock, error)
	list      func(b *broken, ctx ctx, prefix string) iter.Seq2[driver.Lock, error]
	breaks    func(b *broken, ctx ctx, name, ref string, mode driver.BreakMode) error
	close     func(b *broken) error
	detach    func(b *broken, ctx ctx, g driver.Grant, keep time.Duration) error
	setWeight func(b *broken, ctx ctx, g driver.Grant, weight int64) error
	change    func(b *broken, ctx ctx, seen driver.Lock) (driver.Lock, error)
	ending    func(b *broken, ctx ctx) (driver.Ending, error)
	restart   func(s driver.Store)
	lower     func(b *broken)
	noKill    bool // the harness leaves dead clients alone

	memo *sync.Map // of all clients
	mine *sync.Map // of this client
}

// harness is one store, all of whose clients are broken in the same way.
func (b *broken) harness() drivertest.Harness {
	h := harness(nil)
	open, memo := h.Open, &sync.Map{}
	h.Open = func(ctx ctx) (driver.Store, error) {
		s, err := open(ctx)
		c := *b
		c.Store, c.memo, c.mine = s, memo, &sync.Map{}
		return &c, err
	}
	if b.restart != nil {
		h.Restart = func(ctx ctx) error {
			s, err := open(ctx)
			b.restart(s)
			return err
		}
	}
	if b.lower != nil {
		h.Lower = func(s driver.Store, _ time.Duration) error { b.lower(s.(*broken)); return nil }
	}
	if b.noKill {
		h.Kill = nil
	}
	h.Secrets = []string{"hunter2"}
	return h
}

func (b *broken) Info() driver.Info {
	if b.info != nil {
		return b.info(b.Store.Info())
	}
	return b.Store.Info()
}

func (b *broken) Acquire(ctx ctx, c driver.Claim) (driver.Grant, error) {
	if b.acquire != nil {
		return b.acquire(b, ctx, c)
	}
	return b.Store.Acquire(ctx, c)
}

func (b *broken) Renew(ctx ctx, g []driver.Grant, done func(int, driver.Renewal)) {
	if b.renew != nil {
		b.renew(b, ctx, g, done)
		return
	}
	b.Store.Renew(ctx, g, done)
}

func (b *broken) Release(ctx ctx, c driver.Claim, ref string) error {
	if b.release != nil {
		return b.release(b, ctx, c, ref)
	}
	return b.Store.Release(ctx, c, ref)
}

func (b *broken) Inspect(ctx ctx, name string) (driver.Lock, error) {
	if b.inspect != nil {
		return b.inspect(b, ctx, name)
	}
	return b.Store.Inspect(ctx, name)
}

func (b *broken) List(ctx ctx, prefix string) iter.Seq2[driver.Lock, error] {
	if b.list != nil {
		return b.list(b, ctx, prefix)
	}
	return b.Store.List(ctx, prefix)
}

func (b *broken) Break(ctx ctx, name, ref string, mode driver.BreakMode) error {
	if b.breaks != nil {
		return b.breaks(b, ctx, name, ref, mode)
	}
	return b.Store.Break(ctx, name, ref, mode)
}

func (b *broken) Close() error {
	if b.close != nil {
		return b.close(b)
	}
	return b.Store.Close()
}

func (b *broken) Detach(ctx ctx, g driver.Grant, keep time.Duration) error {
	if b.detach != nil {
		return b.detach(b, ctx, g, keep)
	}
	if !b.Info().Detached {
		return driver.ErrUnsupported
	}
	return b.Store.(driver.Detacher).Detach(ctx, g, keep)
}

func (b *broken) SetWeight(ctx ctx, g driver.Grant, weight int64) error {
	if b.setWeight != nil {
		return b.setWeight(b, ctx, g, weight)
	}
	return b.Store.(driver.WeightChanger).SetWeight(ctx, g, weight)
}

func (b *broken) NextChange(ctx ctx, seen driver.Lock) (driver.Lock, error) {
	if b.change != nil {
		return b.change(b, ctx, seen)
	}
	return b.Store.(driver.LockWatcher).NextChange(ctx, seen)
}

func (b *broken) NextEnding(ctx ctx) (driver.Ending, error) {
	if b.ending != nil {
		return b.ending(b, ctx)
	}
	return b.Store.(driver.EndWatcher).NextEnding(ctx)
}

// What the broken parts below are made of.

// as makes the claim in another form, and gives the grant out as if it had been asked for so.
func as(change func(c *driver.Claim)) func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
	return func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
		other := c
		change(&other)
		g, err := b.Store.Acquire(ctx, other)
		g.Claim, g.GrantedTTL = c, c.TTL
		return g, err
	}
}

// granted changes what comes back.
func granted(change func(g *driver.Grant)) func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
	return func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
		g, err := b.Store.Acquire(ctx, c)
		if err == nil {
			change(&g)
		}
		return g, err
	}
}

// answers changes the answers to renewals.
func answers(change func(g driver.Grant, r *driver.Renewal)) func(*broken, ctx, []driver.Grant,
	func(int, driver.Renewal)) {
	return func(b *broken, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
		b.Store.Renew(ctx, gs, func(i int, r driver.Renewal) {
			change(gs[i], &r)
			done(i, r)
		})
	}
}

// invented is a grant of which the store knows nothing.
func (b *broken) invented(c driver.Claim) driver.Grant {
	clock := b.Info().Clock
	return driver.Grant{Claim: c, Token: time.Now().UnixMicro() + 1e9, Since: clock.Now(), GrantedTTL: c.TTL, Ref: c.ID}
}

// jumps grants a claim that fits beside the holders, whoever waits.
func jumps(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
	l, err := b.Store.Inspect(ctx, c.Name)
	room := c.Limit
	for _, h := range l.Holders {
		room -= h.Weight
	}
	if err == nil && len(l.Waiters) > 0 && room >= c.Weight {
		return b.invented(c), nil
	}
	return b.Store.Acquire(ctx, c)
}

func newID() string { return strings.ToLower(rand.Text()) }

// removeAll empties a lock by force.
func removeAll(ctx ctx, s driver.Store, name string) {
	l, _ := s.Inspect(ctx, name)
	for _, h := range l.Holders {
		s.Break(ctx, name, h.Ref, driver.BreakForce)
	}
}

// first gives the first holder.
func first(ctx ctx, s driver.Store, name string) (h driver.ClaimInfo) {
	if l, _ := s.Inspect(ctx, name); len(l.Holders) > 0 {
		h = l.Holders[0]
	}
	return h
}

// mutants are the broken stores, each with the cases that must catch it and a part of what they say.
// mutant is a broken store.
type mutant struct {
	name  string
	cases string
	says  string
	b     *broken
}

var mutants = []mutant{
	{"tells its password", "info", "password", &broken{
		info: func(i driver.Info) driver.Info { i.Store = "x://me:hunter2@host/"; return i },
	}},
	{"has no limit for waiters", "info", "a limit is not set", &broken{
		info: func(i driver.Info) driver.Info { i.MaxWaiters = 0; return i },
	}},
	{"has a clock that jumps", "clock", "the clock went back", &broken{info: func(i driver.Info) driver.Info {
		n := time.Duration(0)
		var mu sync.Mutex
		i.Clock.Boottime = func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			n++
			return n % 100
		}
		return i
	}}},
	{"lets in whoever has waited for 2 ms", "mutex-contended fair-contended mixed-load", "", &broken{
		acquire: func(b *broken, c ctx, cl driver.Claim) (driver.Grant, error) {
			short, cancel := context.WithTimeout(c, 2*time.Millisecond)
			defer cancel()
			g, err := b.Store.Acquire(short, cl)
			if err != nil && short.Err() != nil && c.Err() == nil {
				return b.invented(cl), nil
			}
			return g, err
		},
		release: func(b *broken, ctx ctx, c driver.Claim,
			ref string) error {
			b.Store.Release(ctx, c, ref)
			return nil
		},
		renew: answers(func(g driver.Grant,
			r *driver.Renewal) {
			*r = driver.Renewal{Since: g.Since, GrantedTTL: g.GrantedTTL}
		}),
	}},
	{"keeps one place for a client and lock", "one-client-two-claims", "where it does not fit", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			if g, ok := b.mine.Load(c.Name); ok {
				g := g.(driver.Grant)
				g.Claim, g.Since = c, b.Info().Clock.Now()
				return g, nil
			}
			g, err := b.Store.Acquire(ctx, c)
			b.mine.Store(c.Name, g)
			return g, err
		},
	}},
	{"does not say who holds it", "try-refused", "as the holder", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if errors.Is(err, driver.ErrHeld) {
				err = &driver.HeldError{}
			}
			return g, err
		},
	}},
	{"leaves a waiting claim where a try was refused", "try-refused", "", &broken{
		acquire: func(b *broken, c ctx, cl driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(c, cl)
			if errors.Is(err, driver.ErrHeld) {
				short, cancel := context.WithTimeout(c, 5*time.Millisecond)
				defer cancel()
				cl.Wait, cl.Fair = true, true
				b.Store.Acquire(short, cl)
			}
			return g, err
		},
	}},
	{"lets in whoever fits beside the holders", "try-never-overtakes reader-behind-writer semaphore-big-claim", "",
		&broken{acquire: jumps}},
	{"lets plain claims push in", "plain-never-overtakes-fair", "", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			for !c.Fair && c.Wait {
				l, err := b.Store.Inspect(ctx, c.Name)
				if err != nil || len(l.Holders) == 0 {
					return b.invented(c), err
				}
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"ends a grant with the context of its Acquire", "context-bounds-the-call", "should hold", &broken{
		acquire: func(b *broken, c ctx, cl driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(c, cl)
			context.AfterFunc(c, func() { b.Store.Release(context.Background(), cl, "") })
			return g, err
		},
	}},
	{"counts tokens again on an idle lock", "token-rises token-rises-after-idle", "came after token", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if err == nil {
				n, _ := b.memo.LoadOrStore(c.Name, int64(0))
				g.Token = n.(int64) + 1
				b.memo.Store(c.Name, g.Token)
			}
			return g, err
		},
		release: func(b *broken, ctx ctx, c driver.Claim, ref string) error {
			b.memo.Delete(c.Name)
			return b.Store.Release(ctx, c, ref)
		},
	}},
	{"gives the same token to everybody", "token-rises-after-expiry token-unique", "came after token", &broken{
		acquire: granted(func(g *driver.Grant) { g.Token = 7 }),
	}},
	{"gives tokens that are too large", "token-rises", "2^53", &broken{
		acquire: granted(func(g *driver.Grant) { g.Token += 1 << 53 }),
	}},
	{"shows another token than it grants", "token-kept", "should hold", &broken{
		acquire: granted(func(g *driver.Grant) { g.Token++ }),
		renew: func(b *broken, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			gs = slices.Clone(gs)
			for i := range gs {
				gs[i].Token--
			}
			b.Store.Renew(ctx, gs, done)
		},
	}},
	{"counts a grant from the start of the wait", "since", "old when it came", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			from := b.Info().Clock.Now()
			g, err := b.Store.Acquire(ctx, c)
			g.Since = from
			return g, err
		},
	}},
	{"counts a grant from long ago", "since", "before the call", &broken{
		acquire: granted(func(g *driver.Grant) { g.Since = g.Since.Add(-time.Second) }),
	}},
	{"counts a grant from the future", "since", "after the return", &broken{
		acquire: granted(func(g *driver.Grant) { g.Since = g.Since.Add(time.Second) }),
	}},
	{"takes any TTL for one that it can keep", "ttl-bounds", "refused", &broken{
		acquire: as(func(c *driver.Claim) { c.TTL = min(max(c.TTL, driver.MinTTL), driver.MaxTTL) }),
	}},
	{"takes a timeout of its own for the caller's", "mutex-contended mixed-load", "the call's context goes on",
		&broken{
			acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
				if b.Info().Clock.Monotonic()%3 == 0 {
					return driver.Grant{}, context.DeadlineExceeded
				}
				return b.Store.Acquire(ctx, c)
			},
		}},
	{"grants less time than asked", "ttl-granted", "was asked", &broken{
		acquire: granted(func(g *driver.Grant) { g.GrantedTTL -= time.Millisecond }),
	}},
	{"renews for less time than asked", "ttl-granted", "was asked", &broken{
		renew: answers(func(g driver.Grant, r *driver.Renewal) { r.GrantedTTL -= time.Millisecond }),
	}},
	{"never ends a silent holder",
		"holder-stops-renewing dead-permits detached detached-broken dead-reader killed-holder dead-holder-and-queue close-while-holding inspect-expired break-graceful-expired", "",
		&broken{acquire: as(func(c *driver.Claim) { c.TTL = time.Hour })}},
	{"ends a holder early", "holder-stops-renewing last-renewal-counts detached detached-broken close-while-holding dead-holder-and-queue dead-permits dead-reader break-graceful-expired inspect-expired", "", &broken{
		info:    func(i driver.Info) driver.Info { i.MinTTL *= 2; return i },
		acquire: as(func(c *driver.Claim) { c.TTL /= 2 }),
		renew:   answers(func(g driver.Grant, r *driver.Renewal) { r.GrantedTTL = g.GrantedTTL }),
	}},
	{"renews in words only", "renewal-keeps-claim last-renewal-counts renew-late renew-from-another-process", "",
		&broken{
			renew: func(b *broken, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
				for i, g := range gs {
					done(i, driver.Renewal{Since: b.Info().Clock.Now(), GrantedTTL: g.GrantedTTL})
				}
			},
		}},
	{"forgets who waits for longer than a TTL", "waiting-outlives-ttl", "", &broken{
		acquire: func(b *broken, c ctx, cl driver.Claim) (driver.Grant, error) {
			for {
				short, cancel := context.WithTimeout(c, cl.TTL)
				g, err := b.Store.Acquire(short, cl)
				cancel()
				if err == nil || short.Err() == nil || c.Err() != nil {
					return g, err
				}
				b.Store.Release(c, cl, "")
				time.Sleep(2 * cl.TTL)
			}
		},
	}},
	{"renewal makes the claim again", "renew-ended renew-unknown", "want a *LossError", &broken{
		renew: func(b *broken, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			b.Store.Renew(ctx, gs, func(i int, r driver.Renewal) {
				if errors.Is(r.Err, driver.ErrLost) {
					if g, err := b.Store.Acquire(ctx, gs[i].Claim); err == nil {
						r = driver.Renewal{Since: g.Since, GrantedTTL: g.GrantedTTL}
					}
				}
				done(i, r)
			})
		},
	}},
	{"says lost, and makes the claim again", "renew-ended renew-taken", "", &broken{
		renew: func(b *broken, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			b.Store.Renew(ctx, gs, func(i int, r driver.Renewal) {
				if b.Info().Clock.Since(gs[i].Since) > gs[i].GrantedTTL {
					r.Err = &driver.LossError{Cause: driver.LossExpired}
				}
				if errors.Is(r.Err, driver.ErrLost) {
					b.Store.Acquire(ctx, gs[i].Claim)
				}
				done(i, r)
			})
		},
	}},
	{"renews whoever holds the lock", "renew-stale-token renew-unknown renew-taken", "", &broken{
		renew: answers(func(g driver.Grant, r *driver.Renewal) {
			if r.Err != nil {
				*r = driver.Renewal{Since: driver.SystemClock.Now(), GrantedTTL: g.GrantedTTL}
			}
		}),
	}},
	{"answers no further than the first loss", "renew-batch", "got 0 answers", &broken{
		renew: func(b *broken, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			over := false
			for i := range gs {
				b.Store.Renew(ctx, gs[i:i+1], func(_ int, r driver.Renewal) {
					if !over {
						done(i, r)
					}
					over = over || r.Err != nil
				})
			}
		},
	}},
	{"answers twice", "renew-batch", "got 2 answers", &broken{
		renew: func(b *broken, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			b.Store.Renew(ctx, gs, func(i int, r driver.Renewal) { done(i, r); done(i, r) })
		},
	}},
	{"calls unknown lost", "renew-without-time cut cut-renewal", "", &broken{
		renew: answers(func(g driver.Grant, r *driver.Renewal) {
			if r.Err != nil && !errors.Is(r.Err, driver.ErrLost) {
				r.Err = &driver.LossError{Cause: driver.LossUnreachable, Err: r.Err}
			}
		}),
	}},
	{"calls unknown renewed", "cut cut-renewal", "", &broken{
		renew: answers(func(g driver.Grant, r *driver.Renewal) {
			if r.Err != nil && !errors.Is(r.Err, driver.ErrLost) {
				*r = driver.Renewal{Since: driver.SystemClock.Now(), GrantedTTL: g.GrantedTTL}
			}
		}),
	}},
	{"calls unknown granted", "cut cut-acquire", "", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if errors.Is(err, driver.ErrUncertain) {
				return b.invented(c), nil
			}
			return g, err
		},
	}},
	{"releases whoever holds the lock", "release-stale release-twice release-unknown release-from-another-client", "",
		&broken{
			release: func(b *broken, ctx ctx, c driver.Claim, ref string) error {
				removeAll(ctx, b.Store, c.Name)
				return nil
			},
		}},
	{"takes what others have ended for its own release", "cut-release", "was broken by force", &broken{
		release: func(b *broken, ctx ctx, c driver.Claim, ref string) error {
			err := b.Store.Release(ctx, c, ref)
			if errors.Is(err, driver.ErrLost) {
				err = nil
			}
			return err
		},
	}},
	{"does not tell of a session that is lowered", "session-lowered", "is not told of it",
		&broken{lower: func(*broken) {}}},
	{"ends a session that is lowered, and tells a second later", "session-lowered", "before the holder was told",
		&broken{
			lower: func(b *broken) { b.mine.Store("lowered", time.Now()) },
			renew: func(b *broken, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
				b.Store.Renew(ctx, gs, func(i int, r driver.Renewal) {
					if at, ok := b.mine.Load("lowered"); ok {
						removeAll(ctx, b.Store, gs[i].Name)
						if time.Since(at.(time.Time)) > time.Second {
							r = driver.Renewal{Err: &driver.LossError{Cause: driver.LossSessionExpired}}
						}
					}
					done(i, r)
				})
			},
		}},
	{"says lost, and releases whoever holds the lock", "release-stale release-twice release-unknown", "should hold",
		&broken{
			release: func(b *broken, ctx ctx, c driver.Claim, ref string) error {
				err := b.Store.Release(ctx, c, ref)
				if errors.Is(err, driver.ErrLost) {
					removeAll(ctx, b.Store, c.Name)
				}
				return err
			},
		}},
	{"does not clean up what was not granted", "cancel-at-random cancel-waiting release-waiting", "", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if err == nil {
				b.mine.Store(c.ID, true)
			}
			return g, err
		},
		release: func(b *broken, ctx ctx, c driver.Claim, ref string) error {
			if _, granted := b.mine.Load(c.ID); !granted && ref == "" {
				return nil
			}
			return b.Store.Release(ctx, c, ref)
		},
	}},
	{"knows refs of its own claims only", "release-from-another-client detached-released", "", &broken{
		release: func(b *broken, ctx ctx, c driver.Claim, ref string) error {
			if ref != "" {
				return nil
			}
			return b.Store.Release(ctx, c, ref)
		},
	}},
	{"wakes nobody", "release-grants-next", "did not return", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			from := time.Now()
			g, err := b.Store.Acquire(ctx, c)
			if time.Since(from) > time.Millisecond {
				time.Sleep(1500 * time.Millisecond)
			}
			return g, err
		},
	}},
	{"waits on when the context has ended", "deadline-waiting cancel-waiting", "", &broken{
		acquire: func(b *broken, c ctx, cl driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(c, cl)
			if c.Err() != nil {
				time.Sleep(1700 * time.Millisecond)
			}
			return g, err
		},
	}},
	{"grants under an ended context", "cancel-before ended-context", "", &broken{
		acquire: func(b *broken, c ctx, cl driver.Claim) (driver.Grant, error) {
			return b.Store.Acquire(context.WithoutCancel(c), cl)
		},
	}},
	{"grants again when asked again", "acquire-again", "became", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			if _, again := b.mine.LoadOrStore(c.ID, true); again {
				b.Store.Release(ctx, c, "")
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"stands twice when asked again", "acquire-again-after-cancel", "", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			other := c
			if _, again := b.mine.LoadOrStore(c.ID, true); again {
				other.ID = newID()
			}
			g, err := b.Store.Acquire(ctx, other)
			g.Claim = c
			return g, err
		},
	}},
	{"goes on waiting for the dead", "dead-waiter dead-waiters", "held up the next", &broken{
		noKill: true,
		acquire: func(b *broken, c ctx, cl driver.Claim) (driver.Grant, error) {
			var g driver.Grant
			var err error
			done := make(chan struct{})
			go func() {
				defer close(done)
				g, err = b.Store.Acquire(context.WithoutCancel(c), cl)
			}()
			select {
			case <-done:
				return g, err
			case <-c.Done():
				return driver.Grant{}, c.Err()
			}
		},
	}},
	{"sends the first to the back of the line", "first-come-first-served newcomer-never-first", "", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if l, _ := b.Store.Inspect(ctx, c.Name); err == nil && c.Wait && len(l.Waiters) > 0 {
				if _, done := b.memo.LoadOrStore(c.Name, true); done {
					return g, err
				}
				b.Store.Release(ctx, c, "")
				return b.Store.Acquire(ctx, c)
			}
			return g, err
		},
	}},
	{"takes a reader for two", "readers-share rw-contended", "", &broken{
		release: func(b *broken, ctx ctx, c driver.Claim, ref string) error {
			err := b.Store.Release(ctx, c, ref)
			if c.Kind == driver.KindRW && c.Weight == 1 {
				b.Store.Break(ctx, c.Name, first(ctx, b.Store, c.Name).Ref, driver.BreakForce)
			}
			return err
		},
	}},
	{"takes a writer for a reader", "readers-share rw-contended", "", &broken{
		acquire: as(func(c *driver.Claim) { c.Weight = min(c.Weight, 1) }),
	}},
	{"lets a writer wait outside of the line", "readers-share writer-not-starved", "", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			wait := c.Wait
			for c.Wait = c.Wait && c.Weight < c.Limit; ; time.Sleep(30 * time.Millisecond) {
				g, err := b.Store.Acquire(ctx, c)
				if !wait || !errors.Is(err, driver.ErrHeld) || ctx.Err() != nil {
					return g, err
				}
			}
		},
	}},
	{"lets in one permit more", "semaphore-limit semaphore-contended", "", &broken{
		acquire: as(func(c *driver.Claim) {
			if c.Kind == driver.KindSemaphore {
				c.Limit++
			}
		}),
	}},
	{"lets in one permit less", "semaphore-limit semaphore-grants-all-that-fit", "", &broken{
		acquire: as(func(c *driver.Claim) {
			if c.Limit > 1 && c.Kind == driver.KindSemaphore {
				c.Limit--
				c.Weight = min(c.Weight, c.Limit)
			}
		}),
	}},
	{"takes every claim for one permit", "semaphore-weight semaphore-contended inspect-holders", "", &broken{
		acquire: as(func(c *driver.Claim) { c.Weight = 1 }),
	}},
	{"does not say what the lock stands as", "mismatch", "does not name", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if errors.Is(err, driver.ErrMismatch) {
				err = driver.ErrMismatch
			}
			return g, err
		},
	}},
	{"waits where the lock stands as another kind", "mismatch", "", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if errors.Is(err, driver.ErrMismatch) {
				err = &driver.HeldError{}
			}
			return g, err
		},
	}},
	{"stays of one kind for ever", "idle-lock-takes-any-kind token-rises-after-idle", "", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			if k, _ := b.memo.LoadOrStore(c.Name, c.Kind); k != c.Kind {
				return driver.Grant{}, driver.ErrMismatch
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"lets more wait than it says", "queue-full", "", &broken{
		info: func(i driver.Info) driver.Info { i.MaxWaiters = 8; return i },
	}},
	{"lets more hold than it says", "holders-full", "", &broken{
		info: func(i driver.Info) driver.Info { i.MaxHolders = 8; return i },
	}},
	{"cuts notes", "owner-and-meta", "shown as",
		&broken{acquire: as(func(c *driver.Claim) { c.Meta = c.Meta[:min(len(c.Meta), 100)] })}},
	{"folds case", "names", "", &broken{acquire: as(func(c *driver.Claim) { c.Name = strings.ToLower(c.Name) })}},
	{"cleans paths", "names names-that-start-oddly", "", &broken{
		acquire: as(func(c *driver.Claim) { c.Name = strings.ReplaceAll(c.Name, "//", "/") }),
	}},
	{"trims names", "names names-that-start-oddly", "",
		&broken{acquire: as(func(c *driver.Claim) { c.Name = strings.TrimSpace(c.Name) })}},
	{"lists by pattern", "names", "the listing of", &broken{
		list: func(b *broken, ctx ctx, prefix string) iter.Seq2[driver.Lock, error] {
			return b.Store.List(ctx, strings.TrimSuffix(prefix, "*"))
		},
	}},
	{"lists folders", "list names", "", &broken{
		list: func(b *broken, ctx ctx, prefix string) iter.Seq2[driver.Lock, error] {
			return b.Store.List(ctx, prefix[:strings.LastIndex(prefix[:len(prefix)-1], "/")+1])
		},
	}},
	{"lists idle locks", "list inspect-idle", "", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			b.memo.Store(c.Name, true)
			return b.Store.Acquire(ctx, c)
		},
		list: func(b *broken, ctx ctx, prefix string) iter.Seq2[driver.Lock, error] {
			return func(yield func(driver.Lock, error) bool) {
				for name := range b.memo.Range {
					l, err := b.Store.Inspect(ctx, name.(string))
					if strings.HasPrefix(l.Name, prefix) && !yield(l, err) {
						return
					}
				}
			}
		},
	}},
	{"shows the line from behind", "inspect first-come-first-served", "", &broken{
		inspect: func(b *broken, ctx ctx, name string) (driver.Lock, error) {
			l, err := b.Store.Inspect(ctx, name)
			slices.Reverse(l.Waiters)
			return l, err
		},
	}},
	{"shows times in another unit", "inspect", "shown as since", &broken{
		inspect: func(b *broken, ctx ctx, name string) (driver.Lock, error) {
			l, err := b.Store.Inspect(ctx, name)
			for i := range l.Holders {
				l.Holders[i].Since = time.Unix(l.Holders[i].Since.UnixMilli(), 0)
			}
			return l, err
		},
	}},
	{"has one revision", "revision", "as it was before", &broken{
		inspect: func(b *broken, ctx ctx, name string) (driver.Lock, error) {
			l, err := b.Store.Inspect(ctx, name)
			l.Revision = "1"
			return l, err
		},
	}},
	{"looks on under an ended context", "ended-context", "Inspect has not noticed", &broken{
		inspect: func(b *broken, c ctx, name string) (driver.Lock, error) {
			return b.Store.Inspect(context.WithoutCancel(c), name)
		},
	}},
	{"breaks whoever holds the lock", "break-stale", "", &broken{
		breaks: func(b *broken, ctx ctx, name, ref string, mode driver.BreakMode) error {
			err := b.Store.Break(ctx, name, ref, mode)
			if h := first(ctx, b.Store, name); errors.Is(err, driver.ErrLost) && h.Ref != "" {
				b.Store.Break(ctx, name, h.Ref, mode)
			}
			return err
		},
	}},
	{"breaks the first of several", "break-one", "", &broken{
		breaks: func(b *broken, ctx ctx, name, ref string, mode driver.BreakMode) error {
			return b.Store.Break(ctx, name, first(ctx, b.Store, name).Ref, mode)
		},
	}},
	{"breaks by force always", "break-graceful break-graceful-expired request-release", "", &broken{
		breaks: func(b *broken, ctx ctx, name, ref string, mode driver.BreakMode) error {
			return b.Store.Break(ctx, name, ref, driver.BreakForce)
		},
	}},
	{"breaks by marks only", "break-force break-one ref-of-grant", "", &broken{
		breaks: func(b *broken, ctx ctx, name, ref string, mode driver.BreakMode) error {
			return b.Store.Break(ctx, name, ref, min(mode, driver.BreakGraceful))
		},
	}},
	{"breaks nothing", "break-graceful break-waiting request-release break-force next-ending", "", &broken{
		breaks: func(b *broken, ctx ctx, name, ref string, mode driver.BreakMode) error { return nil },
	}},
	{"renews the broken", "break-graceful", "want a *LossError", &broken{
		renew: answers(func(g driver.Grant, r *driver.Renewal) {
			if errors.Is(r.Err, driver.ErrLost) {
				*r = driver.Renewal{Since: driver.SystemClock.Now(), GrantedTTL: g.GrantedTTL}
			}
		}),
	}},
	{"tells the next that it was asked", "request-release break-stale", "", &broken{
		breaks: func(b *broken, ctx ctx, name, ref string, mode driver.BreakMode) error {
			if mode == driver.BreakRequestRelease {
				b.memo.Store(name, true)
			}
			return b.Store.Break(ctx, name, ref, mode)
		},
		renew: func(b *broken, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			b.Store.Renew(ctx, gs, func(i int, r driver.Renewal) {
				_, r.ReleaseRequested = b.memo.Load(gs[i].Name)
				done(i, r)
			})
		},
	}},
	{"asks only those who hold", "request-release-waiting request-release-waiting-semaphore", "", &broken{
		breaks: func(b *broken, ctx ctx, name, ref string, mode driver.BreakMode) error {
			l, err := b.Store.Inspect(ctx, name)
			waits := slices.ContainsFunc(l.Waiters, func(w driver.ClaimInfo) bool { return w.Ref == ref })
			if err == nil && mode == driver.BreakRequestRelease && waits {
				return nil
			}
			return b.Store.Break(ctx, name, ref, mode)
		},
	}},
	{"gives a ref that names nothing", "ref-of-grant release-from-another-client", "", &broken{
		acquire: granted(func(g *driver.Grant) { g.Ref = "x" + g.Ref }),
	}},
	{"releases the detached at Close", "detached detached-released", "should hold", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			b.mine.Store(c.ID, c)
			return b.Store.Acquire(ctx, c)
		},
		close: func(b *broken) error {
			for _, c := range b.mine.Range {
				b.Store.Release(context.Background(), c.(driver.Claim), "")
			}
			return b.Store.Close()
		},
	}},
	{"keeps the detached for their own TTL", "detach", "did not return", &broken{
		detach: func(b *broken, ctx ctx, g driver.Grant, keep time.Duration) error {
			return b.Store.(driver.Detacher).Detach(ctx, g, g.Claim.TTL)
		},
	}},
	{"detaches for less than asked", "detach", "kept for", &broken{
		detach: func(b *broken, ctx ctx, g driver.Grant, keep time.Duration) error {
			return b.Store.(driver.Detacher).Detach(ctx, g, keep/2)
		},
	}},
	{"detaches what is gone", "detach-lost", "want a *LossError", &broken{
		detach: func(b *broken, ctx ctx, g driver.Grant, keep time.Duration) error { return nil },
	}},
	{"does not renew the detached", "detach-renewed", "", &broken{
		detach: func(b *broken, ctx ctx, g driver.Grant, keep time.Duration) error {
			b.memo.Store(g.ID, true)
			return b.Store.(driver.Detacher).Detach(ctx, g, keep)
		},
		renew: func(b *broken, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			for i, g := range gs {
				if _, detached := b.memo.Load(g.ID); detached {
					done(i, driver.Renewal{Since: b.Info().Clock.Now(), GrantedTTL: g.GrantedTTL})
					continue
				}
				b.Store.Renew(ctx, gs[i:i+1], func(_ int, r driver.Renewal) { done(i, r) })
			}
		},
	}},
	{"makes a reader of a writer by giving up and coming again", "downgrade", "", &broken{
		setWeight: func(b *broken, ctx ctx, g driver.Grant, weight int64) error {
			if weight >= g.Weight {
				return b.Store.(driver.WeightChanger).SetWeight(ctx, g, weight)
			}
			b.Store.Release(ctx, g.Claim, "")
			other := g.Claim
			other.Weight, other.ID, other.Wait = weight, newID(), true
			_, err := b.Store.Acquire(ctx, other)
			return err
		},
	}},
	{"changes weights in words only", "downgrade upgrade set-weight-lost", "", &broken{
		setWeight: func(b *broken, ctx ctx, g driver.Grant, weight int64) error { return nil },
	}},
	{"carries what it says that it does not", "semaphore-limit readers-share detached first-come-first-served",
		"should be refused", &broken{
			info: func(i driver.Info) driver.Info {
				i.Kinds, i.Order, i.Detached = []driver.Kind{driver.KindMutex}, driver.OrderNone, false
				return i
			},
		}},
	{"never tells of a change", "next-change", "was not told", &broken{
		change: func(b *broken, ctx ctx, seen driver.Lock) (driver.Lock, error) {
			<-ctx.Done()
			return seen, ctx.Err()
		},
	}},
	{"tells of changes that are none", "next-change next-change-ends", "", &broken{
		change: func(b *broken, ctx ctx, seen driver.Lock) (driver.Lock, error) { return b.Inspect(ctx, seen.Name) },
	}},
	{"tells of endings that are none", "next-ending", "", &broken{
		ending: func(b *broken, ctx ctx) (driver.Ending, error) { return driver.Ending{Name: "x"}, nil },
	}},
	{"does not close", "close close-waiting", "", &broken{close: func(*broken) error { return nil }}},
	{"cannot be closed twice", "close", "Close", &broken{close: func(b *broken) error {
		if _, again := b.mine.LoadOrStore("", true); again {
			return errors.New("closed already")
		}
		return b.Store.Close()
	}}},
	{"leaves something running", "close-stops", "live on", &broken{
		acquire: func(b *broken, ctx ctx, c driver.Claim) (driver.Grant, error) {
			go time.Sleep(3 * time.Second)
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"forgets claims at a restart", "restart", "should hold", &broken{
		info: func(i driver.Info) driver.Info { i.Survives.Restart = true; return i },
		restart: func(s driver.Store) {
			for l := range s.List(context.Background(), "") {
				removeAll(context.Background(), s, l.Name)
			}
		},
	}},
}

// mutantTries is how often a case may meet a broken store before it must have caught it: some of what is broken shows
// only when two clients meet at the wrong moment, and on a slow machine a store may look broken in another way first.
const mutantTries = 4

// Every check can fail: each broken store is caught by the cases that should catch it, for the right reason.
func TestMutants(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	places := make(chan struct{}, 24) // they sleep most of the time
	for _, m := range mutants {
		for name := range strings.FieldsSeq(m.cases) {
			wg.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				var missed []string
				for range mutantTries {
					said, caught := m.meets(t, name)
					if caught && strings.Contains(said, m.says) {
						t.Logf("%s: %s: %.300s", m.name, name, said)
						return
					}
					missed = append(missed, said)
				}
				t.Errorf("%s does not see that the store %s; it says %q", name, m.name, missed)
			})
		}
	}
	wg.Wait()
}

// meets runs one case over the broken store, and returns what it says, and whether it sees that anything is wrong.
func (m mutant) meets(t *testing.T, name string) (said string, caught bool) {
	o := &drivertest.Options{Match: func(c drivertest.Case) bool { return c.Name == name }, Limit: 25 * time.Second,
		Once: true}
	results := drivertest.Run(t.Context(), m.b.harness(), o)
	switch {
	case len(results) != 1:
		return "there is no such case", false
	case results[0].Err == nil:
		return fmt.Sprintf("nothing; skipped: %q", results[0].Skipped), false
	}
	return results[0].Err.Error(), true
}

// No case is without a store that it catches.
func TestEveryCaseCatches(t *testing.T) {
	t.Parallel()
	var caught []string
	for _, m := range mutants {
		caught = append(caught, strings.Fields(m.cases)...)
	}
	for _, c := range drivertest.Cases() {
		if !slices.Contains(caught, c.Name) {
			t.Errorf("no broken store shows that %q can fail", c.Name)
		}
	}
}
