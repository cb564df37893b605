package shedlock

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// store keeps locks in ShedLock's table. There is no room for a queue, so the layout supports plain mutexes only.
// Waiters poll, and where the database notifies, other clients of ours notify them.
type store struct {
	driver.Unsupported

	table         Table
	info          driver.Info
	signatureRoom int // see SignatureRoom

	mu           sync.Mutex
	pendingTakes map[string]<-chan struct{} // by claim id: TakeResult.Pending of takes that may still be made
}

// New makes the store of a table. nameSize and ownerSize are the widths of the columns name and locked_by, in
// characters: ShedLock's manual lets users choose them.
func New(t Table, nameSize, ownerSize int) driver.Store {
	s := &store{table: t, info: t.Info(), signatureRoom: max(0, SignatureRoom(ownerSize)),
		pendingTakes: map[string]<-chan struct{}{}}
	i := &s.info
	i.Engine, i.ExpiredBy, i.Order = "script", driver.ExpiredByClaimant, driver.OrderNone
	i.Abilities = driver.Abilities{Detach: true, Tokens: true}
	i.Kinds = []driver.Kind{driver.KindMutex}
	i.MinTTL, i.MaxTTL, i.MaxHolders = driver.MinTTL, driver.MaxTTL, 1
	i.MaxName, i.MaxMeta = min(nameSize, driver.MaxName), min(s.signatureRoom/2, driver.MaxMeta)
	return s
}

func (s *store) Info() driver.Info { return s.info }

func (s *store) Close() error { return s.table.Close() }

// NextChange reads the lock about once per second.
func (s *store) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	return driver.PollChange(ctx, seen, s.Inspect)
}

// Explain names the row of a lock.
func (s *store) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{Keys: s.table.Keys(c.Name), TTL: c.TTL}
}

func (s *store) Examine(ctx context.Context) ([]driver.Finding, error) { return s.table.Examine(ctx) }

// ReadTokenFloor reads the server's clock: a token is the time in locked_at.
func (s *store) ReadTokenFloor(ctx context.Context) (driver.TokenFloor, error) {
	now, err := s.table.ReadClock(ctx)
	if err != nil {
		return driver.TokenFloor{}, err
	}
	return driver.TokenFloor{Token: now, ByClock: true}, nil
}

// RaiseToken changes nothing: ShedLock's clients would take a later time in locked_at for a clock that is wrong.
func (s *store) RaiseToken(ctx context.Context, _ string, atLeast int64) error {
	return driverutil.CheckTokenFloor(ctx, s, atLeast)
}

// newLoop makes the loop of one call. Its limit counts from now on.
func (s *store) newLoop(ttl time.Duration) *driverutil.RetryLoop {
	l := &driverutil.RetryLoop{Clock: s.info.Clock, Limit: driver.UnreachableTimeout(ttl),
		Pause: func(ctx context.Context, tries int) error {
			return s.table.Sleep(ctx, rand.N(10*time.Millisecond<<min(tries, 6)))
		}}
	l.Restart()
	return l
}

// maxRenewals is how many renewals wait for their answers at once. The stores send fewer.
const maxRenewals = 64

// Renew sends one statement per grant.
func (s *store) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	var all sync.WaitGroup
	places := make(chan struct{}, maxRenewals)
	for i, g := range grants {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			since := s.info.Clock.Now()
			requested, err := s.extendClaim(ctx, g, g.GrantedTTL, g.Detached)
			if err != nil {
				done(i, driver.Renewal{Err: err})
				return
			}
			done(i, driver.Renewal{Since: since, GrantedTTL: g.GrantedTTL, ReleaseRequested: requested})
		})
	}
	all.Wait()
}

// extendClaim makes a grant last for d from now on, and reports whether its release was requested.
func (s *store) extendClaim(
	ctx context.Context, g driver.Grant, d time.Duration, detach bool,
) (requested bool, err error) {
	id := cmp.Or(g.ID, g.Ref)
	loop := s.newLoop(d)
	for {
		v, done, err := s.table.RenewRow(ctx, g.Name, SignaturePrefix(id), FormatTimestamp(g.Token), d, detach)
		switch {
		case err != nil && !errors.Is(err, record.ErrConflict):
			if !detach { // the client renews again
				return false, driverutil.Uncertain(err)
			}
			err = loop.PauseAfterFailure(ctx, err, !errors.Is(err, record.ErrUnsent))
		case done:
			return v.Claim.ReleaseRequested, nil
		case err == nil && (v.ClaimID != id || v.LockedAt != g.Token || v.Remaining <= 0 || v.Claim.Broken ||
			v.Claim.Detached && !detach):
			return false, v.LossError(id)
		default:
			err = loop.PauseAfterAnswer(ctx)
		}
		if err != nil {
			return false, err
		}
	}
}

// Detach keeps the row locked for as long as the caller wants, without a holder that renews it. To ShedLock's clients
// it is a lock with a long lockAtMostFor.
func (s *store) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	_, err := s.extendClaim(ctx, g, keep, true)
	return err
}

// Release waits for a take of the same claim that is under way, and then ends the claim.
func (s *store) Release(ctx context.Context, c driver.Claim, ref string) error {
	if c.ID != "" && ref != "" && c.ID != ref {
		return &driver.LossError{Cause: driver.LossGone}
	}
	id := cmp.Or(c.ID, ref)
	if err := s.awaitTake(ctx, id); err != nil {
		return driverutil.Uncertain(err)
	}
	loop := s.newLoop(c.TTL)
	for {
		v, done, err := s.table.ReleaseRow(ctx, c.Name, SignaturePrefix(id))
		switch {
		case done:
			return nil
		case err != nil && !errors.Is(err, record.ErrConflict):
			err = loop.PauseAfterFailure(ctx, err, !errors.Is(err, record.ErrUnsent))
		case err == nil && (v.ClaimID != id || v.Remaining <= 0):
			return v.ReleaseOutcome(id, loop.Uncertain)
		default:
			err = loop.PauseAfterAnswer(ctx)
		}
		if err != nil {
			return err
		}
	}
}
