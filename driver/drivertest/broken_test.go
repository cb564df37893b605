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

// brokenStore is a correct store with one defect: a function that is set replaces the method.
type brokenStore struct {
	driver.Store
	info      func(i driver.Info) driver.Info
	acquire   func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error)
	renew     func(b *brokenStore, ctx ctx, g []driver.Grant, done func(int, driver.Renewal))
	release   func(b *brokenStore, ctx ctx, c driver.Claim, ref string) error
	inspect   func(b *brokenStore, ctx ctx, name string) (driver.Lock, error)
	list      func(b *brokenStore, ctx ctx, prefix string) iter.Seq2[driver.Lock, error]
	breaks    func(b *brokenStore, ctx ctx, name, ref string, how driver.Break) error
	close     func(b *brokenStore) error
	detach    func(b *brokenStore, ctx ctx, g driver.Grant, keep time.Duration) error
	setWeight func(b *brokenStore, ctx ctx, g driver.Grant, weight int64) error
	change    func(b *brokenStore, ctx ctx, seen driver.Lock) (driver.Lock, error)
	ending    func(b *brokenStore, ctx ctx) (driver.Ending, error)
	floor     func(b *brokenStore, ctx ctx) (driver.TokenFloor, error)
	raise     func(b *brokenStore, ctx ctx, name string, atLeast int64) error
	restart   func(s driver.Store)
	lower     func(b *brokenStore)
	ledger    func(l driver.Ledger) driver.Ledger
	noKill    bool // the harness has no Kill

	shared *sync.Map // state of all clients
	mine   *sync.Map // state of this client
}

// harness opens clients of one store. All have the same defect.
func (b *brokenStore) harness() drivertest.Harness {
	h := harness(nil)
	open, shared := h.Open, &sync.Map{}
	h.Open = func(ctx ctx) (driver.Store, error) {
		s, err := open(ctx)
		c := *b
		c.Store, c.shared, c.mine = s, shared, &sync.Map{}
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
		h.Lower = func(s driver.Store, _ time.Duration) error { b.lower(s.(*brokenStore)); return nil }
	}
	if b.noKill {
		h.Kill = nil
	}
	h.Secrets = []string{"hunter2"}
	return h
}

func (b *brokenStore) Info() driver.Info {
	if b.info != nil {
		return b.info(b.Store.Info())
	}
	return b.Store.Info()
}

func (b *brokenStore) Acquire(ctx ctx, c driver.Claim) (driver.Grant, error) {
	if b.acquire != nil {
		return b.acquire(b, ctx, c)
	}
	return b.Store.Acquire(ctx, c)
}

func (b *brokenStore) Renew(ctx ctx, g []driver.Grant, done func(int, driver.Renewal)) {
	if b.renew != nil {
		b.renew(b, ctx, g, done)
		return
	}
	b.Store.Renew(ctx, g, done)
}

func (b *brokenStore) Release(ctx ctx, c driver.Claim, ref string) error {
	if b.release != nil {
		return b.release(b, ctx, c, ref)
	}
	return b.Store.Release(ctx, c, ref)
}

func (b *brokenStore) Inspect(ctx ctx, name string) (driver.Lock, error) {
	if b.inspect != nil {
		return b.inspect(b, ctx, name)
	}
	return b.Store.Inspect(ctx, name)
}

func (b *brokenStore) List(ctx ctx, prefix string) iter.Seq2[driver.Lock, error] {
	if b.list != nil {
		return b.list(b, ctx, prefix)
	}
	return b.Store.List(ctx, prefix)
}

func (b *brokenStore) Break(ctx ctx, name, ref string, how driver.Break) error {
	if b.breaks != nil {
		return b.breaks(b, ctx, name, ref, how)
	}
	return b.Store.Break(ctx, name, ref, how)
}

func (b *brokenStore) Close() error {
	if b.close != nil {
		return b.close(b)
	}
	return b.Store.Close()
}

func (b *brokenStore) OpenLedger(ctx ctx) (driver.Ledger, error) {
	l, err := b.Store.OpenLedger(ctx)
	if err == nil && b.ledger != nil {
		l = b.ledger(l)
	}
	return l, err
}

func (b *brokenStore) ReadTokenFloor(ctx ctx) (driver.TokenFloor, error) {
	if b.floor != nil {
		return b.floor(b, ctx)
	}
	return b.Store.ReadTokenFloor(ctx)
}

func (b *brokenStore) RaiseToken(ctx ctx, name string, atLeast int64) error {
	if b.raise != nil {
		return b.raise(b, ctx, name, atLeast)
	}
	return b.Store.RaiseToken(ctx, name, atLeast)
}

func (b *brokenStore) Detach(ctx ctx, g driver.Grant, keep time.Duration) error {
	if b.detach != nil {
		return b.detach(b, ctx, g, keep)
	}
	if !b.Info().Abilities.Detach {
		return driver.ErrUnsupported
	}
	return b.Store.Detach(ctx, g, keep)
}

func (b *brokenStore) SetWeight(ctx ctx, g driver.Grant, weight int64) error {
	if b.setWeight != nil {
		return b.setWeight(b, ctx, g, weight)
	}
	return b.Store.SetWeight(ctx, g, weight)
}

func (b *brokenStore) NextChange(ctx ctx, seen driver.Lock) (driver.Lock, error) {
	if b.change != nil {
		return b.change(b, ctx, seen)
	}
	return b.Store.NextChange(ctx, seen)
}

func (b *brokenStore) NextEnding(ctx ctx) (driver.Ending, error) {
	if b.ending != nil {
		return b.ending(b, ctx)
	}
	return b.Store.NextEnding(ctx)
}

// The following functions make the defects of the stores below.

// acquireChanged makes another claim than it was given, and returns the grant as that of the given claim.
func acquireChanged(change func(c *driver.Claim)) func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
	return func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
		other := c
		change(&other)
		g, err := b.Store.Acquire(ctx, other)
		g.Claim, g.GrantedTTL = c, c.TTL
		return g, err
	}
}

// changeGrant changes the grants that Acquire returns.
func changeGrant(change func(g *driver.Grant)) func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
	return func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
		g, err := b.Store.Acquire(ctx, c)
		if err == nil {
			change(&g)
		}
		return g, err
	}
}

// changeRenewal changes the results of renewals.
func changeRenewal(change func(g driver.Grant, r *driver.Renewal)) func(*brokenStore, ctx, []driver.Grant,
	func(int, driver.Renewal)) {
	return func(b *brokenStore, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
		b.Store.Renew(ctx, gs, func(i int, r driver.Renewal) {
			change(gs[i], &r)
			done(i, r)
		})
	}
}

// inventGrant returns a grant that does not exist in the store.
func (b *brokenStore) inventGrant(c driver.Claim) driver.Grant {
	clock := b.Info().Clock
	return driver.Grant{Claim: c, Token: time.Now().UnixMicro() + 1e9, Since: clock.Now(), GrantedTTL: c.TTL, Ref: c.ID}
}

// overtakeWaiters grants a claim that fits next to the holders, even if others wait.
func overtakeWaiters(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
	l, err := b.Store.Inspect(ctx, c.Name)
	room := c.Limit
	for _, h := range l.Holders {
		room -= h.Weight
	}
	if err == nil && len(l.Waiters) > 0 && room >= c.Weight {
		return b.inventGrant(c), nil
	}
	return b.Store.Acquire(ctx, c)
}

func newID() string { return strings.ToLower(rand.Text()) }

// removeAll empties a lock by force.
func removeAll(ctx ctx, s driver.Store, name string) {
	l, _ := s.Inspect(ctx, name)
	for _, h := range l.Holders {
		s.Break(ctx, name, h.Ref, driver.Break{Mode: driver.BreakForce})
	}
}

// firstHolder returns the first holder of a lock.
func firstHolder(ctx ctx, s driver.Store, name string) (h driver.ClaimInfo) {
	if l, _ := s.Inspect(ctx, name); len(l.Holders) > 0 {
		h = l.Holders[0]
	}
	return h
}

// mutant is a broken store, with the cases that must detect its defect.
type mutant struct {
	name  string // what the store does wrong
	cases string // names, separated by spaces
	want  string // part of the error of each of these cases
	b     *brokenStore
}

var mutants = []mutant{
	{"contains its password in Info", "info", "password", &brokenStore{
		info: func(i driver.Info) driver.Info { i.Store = "x://me:hunter2@host/"; return i },
	}},
	{"has no limit for waiters", "info", "a limit is not set", &brokenStore{
		info: func(i driver.Info) driver.Info { i.MaxWaiters = 0; return i },
	}},
	{"has a clock that goes back", "clock", "the clock went back", &brokenStore{info: func(i driver.Info) driver.Info {
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
	{"grants every claim that has waited for 2 ms", "mutex-contended fair-contended mixed-load", "", &brokenStore{
		acquire: func(b *brokenStore, c ctx, cl driver.Claim) (driver.Grant, error) {
			short, cancel := context.WithTimeout(c, 2*time.Millisecond)
			defer cancel()
			g, err := b.Store.Acquire(short, cl)
			if err != nil && short.Err() != nil && c.Err() == nil {
				return b.inventGrant(cl), nil
			}
			return g, err
		},
		release: func(b *brokenStore, ctx ctx, c driver.Claim,
			ref string) error {
			b.Store.Release(ctx, c, ref)
			return nil
		},
		renew: changeRenewal(func(g driver.Grant,
			r *driver.Renewal) {
			*r = driver.Renewal{Since: g.Since, GrantedTTL: g.GrantedTTL}
		}),
	}},
	{"keeps only one claim per client and lock", "one-client-two-claims", "where it does not fit", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
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
	{"does not name the holder", "try-refused", "as the holder", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if errors.Is(err, driver.ErrHeld) {
				err = &driver.HeldError{}
			}
			return g, err
		},
	}},
	{"leaves a waiting claim after a refused try", "try-refused", "", &brokenStore{
		acquire: func(b *brokenStore, c ctx, cl driver.Claim) (driver.Grant, error) {
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
	{"grants every claim that fits next to the holders", "try-never-overtakes reader-behind-writer semaphore-big-claim",
		"",
		&brokenStore{acquire: overtakeWaiters}},
	{"grants plain claims before fair ones", "plain-never-overtakes-fair", "", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			for !c.Fair && c.Wait {
				l, err := b.Store.Inspect(ctx, c.Name)
				if err != nil || len(l.Holders) == 0 {
					return b.inventGrant(c), err
				}
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"ends a grant with the context of its Acquire", "context-bounds-the-call", "should hold", &brokenStore{
		acquire: func(b *brokenStore, c ctx, cl driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(c, cl)
			context.AfterFunc(c, func() { b.Store.Release(context.Background(), cl, "") })
			return g, err
		},
	}},
	{"restarts tokens on an idle lock", "token-rises token-rises-after-idle", "came after token", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if err == nil {
				n, _ := b.shared.LoadOrStore(c.Name, int64(0))
				g.Token = n.(int64) + 1
				b.shared.Store(c.Name, g.Token)
			}
			return g, err
		},
		release: func(b *brokenStore, ctx ctx, c driver.Claim, ref string) error {
			b.shared.Delete(c.Name)
			return b.Store.Release(ctx, c, ref)
		},
	}},
	{"always grants the same token", "token-rises-after-expiry token-unique", "came after token", &brokenStore{
		acquire: changeGrant(func(g *driver.Grant) { g.Token = 7 }),
	}},
	{"grants tokens that are too large", "token-rises", "2^53", &brokenStore{
		acquire: changeGrant(func(g *driver.Grant) { g.Token += 1 << 53 }),
	}},
	{"shows another token than it grants", "token-kept", "should hold", &brokenStore{
		acquire: changeGrant(func(g *driver.Grant) { g.Token++ }),
		renew: func(b *brokenStore, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			gs = slices.Clone(gs)
			for i := range gs {
				gs[i].Token--
			}
			b.Store.Renew(ctx, gs, done)
		},
	}},
	{"tells a floor above its tokens", "token-floor", "granted next", &brokenStore{
		floor: func(b *brokenStore, ctx ctx) (driver.TokenFloor, error) {
			floor, err := b.Store.ReadTokenFloor(ctx)
			floor.Token += time.Hour.Microseconds()
			return floor, err
		},
	}},
	{"does not raise tokens", "token-raised", "came after token", &brokenStore{
		raise: func(*brokenStore, ctx, string, int64) error { return nil },
	}},
	{"refuses to raise tokens that are large enough", "token-raised", "raising the tokens", &brokenStore{
		raise: func(*brokenStore, ctx, string, int64) error { return driver.ErrUnsupported },
	}},
	{"counts a grant from the start of the wait", "since", "old when Acquire returned", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			from := b.Info().Clock.Now()
			g, err := b.Store.Acquire(ctx, c)
			g.Since = from
			return g, err
		},
	}},
	{"counts a grant from long ago", "since", "before the call", &brokenStore{
		acquire: changeGrant(func(g *driver.Grant) { g.Since = g.Since.Add(-time.Second) }),
	}},
	{"counts a grant from the future", "since", "after the return", &brokenStore{
		acquire: changeGrant(func(g *driver.Grant) { g.Since = g.Since.Add(time.Second) }),
	}},
	{"changes a TTL that is out of bounds", "ttl-bounds", "refused", &brokenStore{
		acquire: acquireChanged(func(c *driver.Claim) { c.TTL = min(max(c.TTL, driver.MinTTL), driver.MaxTTL) }),
	}},
	{"reports its own timeout as the caller's", "mutex-contended mixed-load", "the call's context has not ended",
		&brokenStore{
			acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
				if b.Info().Clock.Monotonic()%3 == 0 {
					return driver.Grant{}, context.DeadlineExceeded
				}
				return b.Store.Acquire(ctx, c)
			},
		}},
	{"grants a shorter TTL than requested", "ttl-granted", "was requested", &brokenStore{
		acquire: changeGrant(func(g *driver.Grant) { g.GrantedTTL -= time.Millisecond }),
	}},
	{"renews for a shorter TTL than requested", "ttl-granted", "was requested", &brokenStore{
		renew: changeRenewal(func(g driver.Grant, r *driver.Renewal) { r.GrantedTTL -= time.Millisecond }),
	}},
	{"never expires a claim that is not renewed",
		"holder-stops-renewing dead-permits detached detached-broken dead-reader killed-holder " +
			"dead-holder-and-queue close-while-holding close-for-others inspect-expired break-graceful-expired", "",
		&brokenStore{acquire: acquireChanged(func(c *driver.Claim) { c.TTL = time.Hour })}},
	{"expires a claim early", "holder-stops-renewing last-renewal-counts detached detached-broken close-while-holding " +
		"close-for-others dead-holder-and-queue dead-permits dead-reader break-graceful-expired inspect-expired", "", &brokenStore{
		info:    func(i driver.Info) driver.Info { i.MinTTL *= 2; return i },
		acquire: acquireChanged(func(c *driver.Claim) { c.TTL /= 2 }),
		renew:   changeRenewal(func(g driver.Grant, r *driver.Renewal) { r.GrantedTTL = g.GrantedTTL }),
	}},
	{"reports renewals that it does not make",
		"renewal-keeps-claim last-renewal-counts renew-late renew-from-another-process", "",
		&brokenStore{
			renew: func(b *brokenStore, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
				for i, g := range gs {
					done(i, driver.Renewal{Since: b.Info().Clock.Now(), GrantedTTL: g.GrantedTTL})
				}
			},
		}},
	{"removes a waiting claim after a TTL", "waiting-outlives-ttl", "", &brokenStore{
		acquire: func(b *brokenStore, c ctx, cl driver.Claim) (driver.Grant, error) {
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
	{"creates a lost claim again at its renewal", "renew-ended renew-unknown", "want a *LossError", &brokenStore{
		renew: func(b *brokenStore, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
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
	{"reports a loss, and creates the claim again", "renew-ended renew-taken", "", &brokenStore{
		renew: func(b *brokenStore, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
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
	{"renews without a check of id and token", "renew-stale-token renew-unknown renew-taken", "", &brokenStore{
		renew: changeRenewal(func(g driver.Grant, r *driver.Renewal) {
			if r.Err != nil {
				*r = driver.Renewal{Since: driver.SystemClock.Now(), GrantedTTL: g.GrantedTTL}
			}
		}),
	}},
	{"answers no renewal after the first loss", "renew-batch", "got 0 answers", &brokenStore{
		renew: func(b *brokenStore, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			lost := false
			for i := range gs {
				b.Store.Renew(ctx, gs[i:i+1], func(_ int, r driver.Renewal) {
					if !lost {
						done(i, r)
					}
					lost = lost || r.Err != nil
				})
			}
		},
	}},
	{"answers each renewal twice", "renew-batch", "got 2 answers", &brokenStore{
		renew: func(b *brokenStore, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			b.Store.Renew(ctx, gs, func(i int, r driver.Renewal) { done(i, r); done(i, r) })
		},
	}},
	{"reports an unknown outcome as lost", "renew-without-time cut cut-renewal", "", &brokenStore{
		renew: changeRenewal(func(g driver.Grant, r *driver.Renewal) {
			if r.Err != nil && !errors.Is(r.Err, driver.ErrLost) {
				r.Err = &driver.LossError{Cause: driver.LossUnreachable, Err: r.Err}
			}
		}),
	}},
	{"reports an unknown outcome as renewed", "cut cut-renewal", "", &brokenStore{
		renew: changeRenewal(func(g driver.Grant, r *driver.Renewal) {
			if r.Err != nil && !errors.Is(r.Err, driver.ErrLost) {
				*r = driver.Renewal{Since: driver.SystemClock.Now(), GrantedTTL: g.GrantedTTL}
			}
		}),
	}},
	{"reports an unknown outcome as granted", "cut cut-acquire", "", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if errors.Is(err, driver.ErrUncertain) {
				return b.inventGrant(c), nil
			}
			return g, err
		},
	}},
	{"releases every holder of the lock", "release-stale release-twice release-unknown release-from-another-client", "",
		&brokenStore{
			release: func(b *brokenStore, ctx ctx, c driver.Claim, ref string) error {
				removeAll(ctx, b.Store, c.Name)
				return nil
			},
		}},
	{"reports a claim that others have ended as released", "cut-release", "was broken by force", &brokenStore{
		release: func(b *brokenStore, ctx ctx, c driver.Claim, ref string) error {
			err := b.Store.Release(ctx, c, ref)
			if errors.Is(err, driver.ErrLost) {
				err = nil
			}
			return err
		},
	}},
	{"does not notify the holder of a shortened session", "session-lowered", "was not notified",
		&brokenStore{lower: func(*brokenStore) {}}},
	{"ends a shortened session, and notifies the holder late", "session-lowered", "before the holder was notified",
		&brokenStore{
			lower: func(b *brokenStore) { b.mine.Store("lowered", time.Now()) },
			renew: func(b *brokenStore, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
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
	{"reports a missing claim, and releases every holder", "release-stale release-twice release-unknown", "should hold",
		&brokenStore{
			release: func(b *brokenStore, ctx ctx, c driver.Claim, ref string) error {
				err := b.Store.Release(ctx, c, ref)
				if errors.Is(err, driver.ErrLost) {
					removeAll(ctx, b.Store, c.Name)
				}
				return err
			},
		}},
	{"does not clean up a claim that was not granted", "cancel-at-random cancel-waiting release-waiting", "",
		&brokenStore{
			acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
				g, err := b.Store.Acquire(ctx, c)
				if err == nil {
					b.mine.Store(c.ID, true)
				}
				return g, err
			},
			release: func(b *brokenStore, ctx ctx, c driver.Claim, ref string) error {
				if _, granted := b.mine.Load(c.ID); !granted && ref == "" {
					return nil
				}
				return b.Store.Release(ctx, c, ref)
			},
		}},
	{"ignores refs of other clients' claims", "release-from-another-client detached-released", "", &brokenStore{
		release: func(b *brokenStore, ctx ctx, c driver.Claim, ref string) error {
			if ref != "" {
				return nil
			}
			return b.Store.Release(ctx, c, ref)
		},
	}},
	{"does not notify waiters", "release-grants-next", "did not return", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			from := time.Now()
			g, err := b.Store.Acquire(ctx, c)
			if time.Since(from) > time.Millisecond {
				time.Sleep(1500 * time.Millisecond)
			}
			return g, err
		},
	}},
	{"continues to wait after the context has ended", "deadline-waiting cancel-waiting", "", &brokenStore{
		acquire: func(b *brokenStore, c ctx, cl driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(c, cl)
			if c.Err() != nil {
				time.Sleep(1700 * time.Millisecond)
			}
			return g, err
		},
	}},
	{"grants under an ended context", "cancel-before ended-context", "", &brokenStore{
		acquire: func(b *brokenStore, c ctx, cl driver.Claim) (driver.Grant, error) {
			return b.Store.Acquire(context.WithoutCancel(c), cl)
		},
	}},
	{"makes a new grant when a claim is acquired again", "acquire-again", "became", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			if _, again := b.mine.LoadOrStore(c.ID, true); again {
				b.Store.Release(ctx, c, "")
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"creates a second claim when a claim is acquired again", "acquire-again-after-cancel", "", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			other := c
			if _, again := b.mine.LoadOrStore(c.ID, true); again {
				other.ID = newID()
			}
			g, err := b.Store.Acquire(ctx, other)
			g.Claim = c
			return g, err
		},
	}},
	{"keeps the waiting claims of dead clients", "dead-waiter dead-waiters", "delayed the next claim", &brokenStore{
		noKill: true,
		acquire: func(b *brokenStore, c ctx, cl driver.Claim) (driver.Grant, error) {
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
	{"moves the first waiter to the end of the queue", "first-come-first-served newcomer-never-first", "", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if l, _ := b.Store.Inspect(ctx, c.Name); err == nil && c.Wait && len(l.Waiters) > 0 {
				if _, done := b.shared.LoadOrStore(c.Name, true); done {
					return g, err
				}
				b.Store.Release(ctx, c, "")
				return b.Store.Acquire(ctx, c)
			}
			return g, err
		},
	}},
	{"makes a claim again that gave up for a newer one", "newest-only", "did not return", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			for {
				if g, err := b.Store.Acquire(ctx, c); !errors.Is(err, driver.ErrSuperseded) {
					return g, err
				}
			}
		},
	}},
	{"releases another reader, too", "readers-share rw-contended", "", &brokenStore{
		release: func(b *brokenStore, ctx ctx, c driver.Claim, ref string) error {
			err := b.Store.Release(ctx, c, ref)
			if c.Kind == driver.KindRW && c.Weight == 1 {
				b.Store.Break(ctx, c.Name, firstHolder(ctx, b.Store, c.Name).Ref, driver.Break{Mode: driver.BreakForce})
			}
			return err
		},
	}},
	{"grants a writer as a reader", "readers-share rw-contended", "", &brokenStore{
		acquire: acquireChanged(func(c *driver.Claim) { c.Weight = min(c.Weight, 1) }),
	}},
	{"lets a writer wait outside the queue", "readers-share writer-not-starved", "", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			wait := c.Wait
			for c.Wait = c.Wait && c.Weight < c.Limit; ; time.Sleep(30 * time.Millisecond) {
				g, err := b.Store.Acquire(ctx, c)
				if !wait || !errors.Is(err, driver.ErrHeld) || ctx.Err() != nil {
					return g, err
				}
			}
		},
	}},
	{"grants one permit too many", "semaphore-limit semaphore-contended", "", &brokenStore{
		acquire: acquireChanged(func(c *driver.Claim) {
			if c.Kind == driver.KindSemaphore {
				c.Limit++
			}
		}),
	}},
	{"grants one permit too few", "semaphore-limit semaphore-grants-all-that-fit", "", &brokenStore{
		acquire: acquireChanged(func(c *driver.Claim) {
			if c.Limit > 1 && c.Kind == driver.KindSemaphore {
				c.Limit--
				c.Weight = min(c.Weight, c.Limit)
			}
		}),
	}},
	{"gives the first permits to all", "permits permits-contended", "held twice", &brokenStore{
		acquire: changeGrant(func(g *driver.Grant) {
			for i := range g.Permits {
				g.Permits[i] = int64(i)
			}
		}),
	}},
	{"gives one permit to each claim", "permits permits-contended", "has the permits", &brokenStore{
		acquire: changeGrant(func(g *driver.Grant) { g.Permits = g.Permits[:min(1, len(g.Permits))] }),
	}},
	{"counts every claim as one permit", "semaphore-weight semaphore-contended inspect-holders", "", &brokenStore{
		acquire: acquireChanged(func(c *driver.Claim) { c.Weight = 1 }),
	}},
	{"does not name the kind of the lock", "mismatch", "does not name", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if errors.Is(err, driver.ErrMismatch) {
				err = driver.ErrMismatch
			}
			return g, err
		},
	}},
	{"waits for a lock of another kind", "mismatch", "", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := b.Store.Acquire(ctx, c)
			if errors.Is(err, driver.ErrMismatch) {
				err = &driver.HeldError{}
			}
			return g, err
		},
	}},
	{"keeps the kind of an idle lock", "idle-lock-takes-any-kind token-rises-after-idle", "", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			if k, _ := b.shared.LoadOrStore(c.Name, c.Kind); k != c.Kind {
				return driver.Grant{}, driver.ErrMismatch
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"allows more waiters than Info says", "queue-full", "", &brokenStore{
		info: func(i driver.Info) driver.Info { i.MaxWaiters = 8; return i },
	}},
	{"keeps a claim in the queue that it refuses", "queue-full", "releasing a claim on", &brokenStore{
		info: func(i driver.Info) driver.Info { i.MaxWaiters = 8; return i },
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			if l, err := b.Store.Inspect(ctx, c.Name); err != nil || !c.Wait || len(l.Waiters) < 8 {
				return b.Store.Acquire(ctx, c)
			}
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			_, _ = b.Store.Acquire(ctx, c)
			return driver.Grant{}, driver.ErrQueueFull
		},
	}},
	{"allows more holders than Info says", "holders-full", "", &brokenStore{
		info: func(i driver.Info) driver.Info { i.MaxHolders = 8; return i },
	}},
	{"shortens meta texts", "owner-and-meta", "shown as",
		&brokenStore{acquire: acquireChanged(func(c *driver.Claim) { c.Meta = c.Meta[:min(len(c.Meta), 100)] })}},
	{"folds case", "names", "", &brokenStore{
		acquire: acquireChanged(func(c *driver.Claim) { c.Name = strings.ToLower(c.Name) }),
	}},
	{"cleans names like paths", "names names-that-start-oddly", "", &brokenStore{
		acquire: acquireChanged(func(c *driver.Claim) { c.Name = strings.ReplaceAll(c.Name, "//", "/") }),
	}},
	{"trims names", "names names-that-start-oddly", "",
		&brokenStore{acquire: acquireChanged(func(c *driver.Claim) { c.Name = strings.TrimSpace(c.Name) })}},
	{"lists by pattern", "names", "the listing of", &brokenStore{
		list: func(b *brokenStore, ctx ctx, prefix string) iter.Seq2[driver.Lock, error] {
			return b.Store.List(ctx, strings.TrimSuffix(prefix, "*"))
		},
	}},
	{"lists folders", "list names", "", &brokenStore{
		list: func(b *brokenStore, ctx ctx, prefix string) iter.Seq2[driver.Lock, error] {
			return b.Store.List(ctx, prefix[:strings.LastIndex(prefix[:len(prefix)-1], "/")+1])
		},
	}},
	{"lists idle locks", "list inspect-idle", "", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			b.shared.Store(c.Name, true)
			return b.Store.Acquire(ctx, c)
		},
		list: func(b *brokenStore, ctx ctx, prefix string) iter.Seq2[driver.Lock, error] {
			return func(yield func(driver.Lock, error) bool) {
				for name := range b.shared.Range {
					l, err := b.Store.Inspect(ctx, name.(string))
					if strings.HasPrefix(l.Name, prefix) && !yield(l, err) {
						return
					}
				}
			}
		},
	}},
	{"shows the queue in reverse order", "inspect first-come-first-served", "", &brokenStore{
		inspect: func(b *brokenStore, ctx ctx, name string) (driver.Lock, error) {
			l, err := b.Store.Inspect(ctx, name)
			slices.Reverse(l.Waiters)
			return l, err
		},
	}},
	{"shows times in another unit", "inspect", "shown as since", &brokenStore{
		inspect: func(b *brokenStore, ctx ctx, name string) (driver.Lock, error) {
			l, err := b.Store.Inspect(ctx, name)
			for i := range l.Holders {
				l.Holders[i].Since = time.Unix(l.Holders[i].Since.UnixMilli(), 0)
			}
			return l, err
		},
	}},
	{"always has the same revision", "revision", "as it was before", &brokenStore{
		inspect: func(b *brokenStore, ctx ctx, name string) (driver.Lock, error) {
			l, err := b.Store.Inspect(ctx, name)
			l.Revision = "1"
			return l, err
		},
	}},
	{"inspects under an ended context", "ended-context", "Inspect has not noticed", &brokenStore{
		inspect: func(b *brokenStore, c ctx, name string) (driver.Lock, error) {
			return b.Store.Inspect(context.WithoutCancel(c), name)
		},
	}},
	{"breaks the holder if the ref is stale", "break-stale", "", &brokenStore{
		breaks: func(b *brokenStore, ctx ctx, name, ref string, how driver.Break) error {
			err := b.Store.Break(ctx, name, ref, how)
			if h := firstHolder(ctx, b.Store, name); errors.Is(err, driver.ErrLost) && h.Ref != "" {
				b.Store.Break(ctx, name, h.Ref, how)
			}
			return err
		},
	}},
	{"forgets the reason of a break", "break-reason", "is not passed on", &brokenStore{
		breaks: func(b *brokenStore, ctx ctx, name, ref string, how driver.Break) error {
			return b.Store.Break(ctx, name, ref, driver.Break{Mode: how.Mode})
		},
	}},
	{"breaks the first of several holders", "break-one", "", &brokenStore{
		breaks: func(b *brokenStore, ctx ctx, name, ref string, how driver.Break) error {
			return b.Store.Break(ctx, name, firstHolder(ctx, b.Store, name).Ref, how)
		},
	}},
	{"always breaks by force", "break-graceful break-graceful-expired request-release", "", &brokenStore{
		breaks: func(b *brokenStore, ctx ctx, name, ref string, how driver.Break) error {
			return b.Store.Break(ctx, name, ref, driver.Break{Mode: driver.BreakForce})
		},
	}},
	{"never breaks by force", "break-force break-one ref-of-grant", "", &brokenStore{
		breaks: func(b *brokenStore, ctx ctx, name, ref string, how driver.Break) error {
			return b.Store.Break(ctx, name, ref, driver.Break{Mode: min(how.Mode, driver.BreakGraceful)})
		},
	}},
	{"breaks nothing", "break-graceful break-waiting request-release break-force next-ending", "", &brokenStore{
		breaks: func(b *brokenStore, ctx ctx, name, ref string, how driver.Break) error { return nil },
	}},
	{"renews a broken claim", "break-graceful", "want a *LossError", &brokenStore{
		renew: changeRenewal(func(g driver.Grant, r *driver.Renewal) {
			if errors.Is(r.Err, driver.ErrLost) {
				*r = driver.Renewal{Since: driver.SystemClock.Now(), GrantedTTL: g.GrantedTTL}
			}
		}),
	}},
	{"reports a release request to the next holder", "request-release break-stale", "", &brokenStore{
		breaks: func(b *brokenStore, ctx ctx, name, ref string, how driver.Break) error {
			if how.Mode == driver.BreakRequestRelease {
				b.shared.Store(name, true)
			}
			return b.Store.Break(ctx, name, ref, how)
		},
		renew: func(b *brokenStore, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			b.Store.Renew(ctx, gs, func(i int, r driver.Renewal) {
				_, r.ReleaseRequested = b.shared.Load(gs[i].Name)
				done(i, r)
			})
		},
	}},
	{"ignores release requests to waiting claims", "request-release-waiting request-release-waiting-semaphore", "",
		&brokenStore{
			breaks: func(b *brokenStore, ctx ctx, name, ref string, how driver.Break) error {
				l, err := b.Store.Inspect(ctx, name)
				waits := slices.ContainsFunc(l.Waiters, func(w driver.ClaimInfo) bool { return w.Ref == ref })
				if err == nil && how.Mode == driver.BreakRequestRelease && waits {
					return nil
				}
				return b.Store.Break(ctx, name, ref, how)
			},
		}},
	{"returns a ref that names no claim", "ref-of-grant release-from-another-client", "", &brokenStore{
		acquire: changeGrant(func(g *driver.Grant) { g.Ref = "x" + g.Ref }),
	}},
	{"releases detached claims at Close", "detached detached-released", "should hold", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			b.mine.Store(c.ID, c)
			return b.Store.Acquire(ctx, c)
		},
		close: func(b *brokenStore) error {
			for _, c := range b.mine.Range {
				b.Store.Release(context.Background(), c.(driver.Claim), "")
			}
			return b.Store.Close()
		},
	}},
	{"keeps detached claims for their own TTL", "detach", "did not return", &brokenStore{
		detach: func(b *brokenStore, ctx ctx, g driver.Grant, keep time.Duration) error {
			return b.Store.Detach(ctx, g, g.Claim.TTL)
		},
	}},
	{"detaches for a shorter time than requested", "detach", "detached for", &brokenStore{
		detach: func(b *brokenStore, ctx ctx, g driver.Grant, keep time.Duration) error {
			return b.Store.Detach(ctx, g, keep/2)
		},
	}},
	{"reports success when it detaches a claim that has ended", "detach-lost", "want a *LossError", &brokenStore{
		detach: func(b *brokenStore, ctx ctx, g driver.Grant, keep time.Duration) error { return nil },
	}},
	{"does not renew detached claims", "detach-renewed", "", &brokenStore{
		detach: func(b *brokenStore, ctx ctx, g driver.Grant, keep time.Duration) error {
			b.shared.Store(g.ID, true)
			return b.Store.Detach(ctx, g, keep)
		},
		renew: func(b *brokenStore, ctx ctx, gs []driver.Grant, done func(int, driver.Renewal)) {
			for i, g := range gs {
				if _, detached := b.shared.Load(g.ID); detached {
					done(i, driver.Renewal{Since: b.Info().Clock.Now(), GrantedTTL: g.GrantedTTL})
					continue
				}
				b.Store.Renew(ctx, gs[i:i+1], func(_ int, r driver.Renewal) { done(i, r) })
			}
		},
	}},
	{"releases a writer and makes a new reader", "downgrade", "", &brokenStore{
		setWeight: func(b *brokenStore, ctx ctx, g driver.Grant, weight int64) error {
			if weight >= g.Weight {
				return b.Store.SetWeight(ctx, g, weight)
			}
			b.Store.Release(ctx, g.Claim, "")
			other := g.Claim
			other.Weight, other.ID, other.Wait = weight, newID(), true
			_, err := b.Store.Acquire(ctx, other)
			return err
		},
	}},
	{"reports weight changes that it does not make", "downgrade upgrade set-weight-lost", "", &brokenStore{
		setWeight: func(b *brokenStore, ctx ctx, g driver.Grant, weight int64) error { return nil },
	}},
	{"accepts claims that Info does not support", "semaphore-limit readers-share detached first-come-first-served",
		"should be refused", &brokenStore{
			info: func(i driver.Info) driver.Info {
				i.Kinds, i.Order, i.Abilities.Detach = []driver.Kind{driver.KindMutex}, driver.OrderNone, false
				return i
			},
		}},
	{"hides that it can forget locks", "abilities", "Info says of Forget: false", &brokenStore{
		info: func(i driver.Info) driver.Info { i.Abilities.Forget = false; return i },
	}},
	{"announces that it changes weights, and refuses to", "abilities", "Info says of SetWeight: true", &brokenStore{
		setWeight: func(b *brokenStore, ctx ctx, g driver.Grant, weight int64) error { return driver.ErrUnsupported },
	}},
	{"never reports a change", "next-change", "did not report a change", &brokenStore{
		change: func(b *brokenStore, ctx ctx, seen driver.Lock) (driver.Lock, error) {
			<-ctx.Done()
			return seen, ctx.Err()
		},
	}},
	{"reports changes that did not happen", "next-change next-change-ends", "", &brokenStore{
		change: func(b *brokenStore, ctx ctx,
			seen driver.Lock) (driver.Lock, error) {
			return b.Inspect(ctx, seen.Name)
		},
	}},
	{"reports endings that did not happen", "next-ending", "", &brokenStore{
		ending: func(b *brokenStore, ctx ctx) (driver.Ending, error) { return driver.Ending{Name: "x"}, nil },
	}},
	{"does not close", "close close-waiting", "", &brokenStore{close: func(*brokenStore) error { return nil }}},
	{"cannot be closed twice", "close", "Close", &brokenStore{close: func(b *brokenStore) error {
		if _, again := b.mine.LoadOrStore("", true); again {
			return errors.New("closed already")
		}
		return b.Store.Close()
	}}},
	{"leaves a goroutine running", "close-stops", "still run", &brokenStore{
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			go time.Sleep(3 * time.Second)
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"loses claims at a restart", "restart", "should hold", &brokenStore{
		info: func(i driver.Info) driver.Info { i.Survives.Restart = true; return i },
		restart: func(s driver.Store) {
			for l := range s.List(context.Background(), "") {
				removeAll(context.Background(), s, l.Name)
			}
		},
	}},
}

// mutantTries is how often a case may run on a broken store before it must have detected the defect. Some defects show
// only if two clients call at the wrong moment, and on a slow machine a case may fail for another reason first.
const mutantTries = 4

// TestMutants: every check can fail. Each broken store is detected by the cases that should detect it, for the right
// reason.
func TestMutants(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	places := make(chan struct{}, 24) // they sleep most of the time
	for _, m := range slices.Concat(mutants, ledgerMutants) {
		for name := range strings.FieldsSeq(m.cases) {
			wg.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				var missed []string
				for range mutantTries {
					failure, caught := m.runCase(t, name)
					if caught && strings.Contains(failure, m.want) {
						t.Logf("%s: %s: %.300s", m.name, name, failure)
						return
					}
					missed = append(missed, failure)
				}
				t.Errorf("%s does not detect that the store %s: %q", name, m.name, missed)
			})
		}
	}
	wg.Wait()
}

// runCase runs one case on the broken store, and returns its error, and whether it has failed.
func (m mutant) runCase(t *testing.T, name string) (failure string, caught bool) {
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

// TestEveryCaseCatches: every case detects the defect of at least one broken store.
func TestEveryCaseCatches(t *testing.T) {
	t.Parallel()
	var caught []string
	for _, m := range slices.Concat(mutants, ledgerMutants) {
		caught = append(caught, strings.Fields(m.cases)...)
	}
	for _, c := range drivertest.Cases() {
		if !slices.Contains(caught, c.Name) {
			t.Errorf("no broken store shows that %q can fail", c.Name)
		}
	}
}
