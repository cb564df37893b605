package sim

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// checkedStore is a host's driver.Store. It reports the client's calls to the checker.
type checkedStore struct {
	driver.Store
	host *host
}

// Renew tells the checker what is sent, when, and what is answered.
func (s *checkedStore) Renew(ctx context.Context, g []driver.Grant, done func(int, driver.Renewal)) {
	for i := range g {
		s.host.sim.checker.checkRenewal(g[i])
	}
	asked := s.host.sim.elapsed()
	s.Store.Renew(withActor(ctx, actor{call: "renew"}), g, func(i int, r driver.Renewal) {
		s.host.sim.checker.checkRenewalResult(g[i], asked, r)
		done(i, r)
	})
}

// Release tells the checker when a release begins, because from then on others may hold the lock.
func (s *checkedStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	s.host.sim.checker.noteReleaseStart(c.ID, s.host)
	s.host.sim.checker.logEvent(c.ID, "%s begins to release it", s.host.name)
	err := s.Store.Release(withActor(ctx, actor{call: "release", release: c.ID}), c, ref)
	s.host.sim.checker.logEvent(c.ID, "%s released it: %v", s.host.name, err)
	if err == nil {
		s.host.sim.checker.noteRelease(c)
	}
	return err
}

// Acquire tells the checker who waits, and what the wait has brought.
func (s *checkedStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if call, ok := ctx.Value(lockAllKey{}).(*lockAllCall); ok {
		s.host.sim.checker.noteLockAllClaim(call, c)
	}
	if c.Wait {
		s.host.sim.checker.noteWait(s.host, c)
		defer s.host.sim.checker.noteWaitEnd(c)
	}
	s.host.sim.checker.logEvent(c.ID, "%s claims it, wait %v, weight %d of %d", s.host.name, c.Wait, c.Weight, c.Limit)
	g, err := s.Store.Acquire(withActor(ctx, actor{call: "acquire"}), c)
	s.host.sim.checker.noteAcquireResult(c, g, err)
	return g, err
}

func (s *checkedStore) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	s.host.sim.checker.noteDetachStart(g.ID, s.host, keep)
	return s.Store.Detach(withActor(ctx, actor{call: "detach"}), g, keep)
}

func (s *checkedStore) SetWeight(ctx context.Context, g driver.Grant, weight int64) error {
	return s.Store.SetWeight(withActor(ctx, actor{call: "set weight"}), g, weight)
}

// actor is for whom a table writes.
type actor struct {
	host    *host  // whose table it is
	call    string // what the call is that writes; empty for a swap that steps of several calls share
	release string // the id of the claim that is released
	breaks  string // the id of the claim that an operator breaks
	retries bool   // an operator allows one more run
	forgets bool   // an operator removes a history
}

type actorKey struct{}

func withActor(ctx context.Context, a actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

func actorOf(ctx context.Context) actor {
	a, _ := ctx.Value(actorKey{}).(actor)
	return a
}
