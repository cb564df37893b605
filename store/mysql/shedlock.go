package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/shedlock"
)

// shedlockStore keeps locks in ShedLock's own table. A row is held until lock_until, by the server's clock in UTC.
//
// Package engine/shedlock says how our holders sign a row, and what a row says. There is no room for a queue, so the
// layout supports plain mutexes only. Waiters poll.
type shedlockStore struct {
	table         *table
	info          driver.Info
	signatureRoom int // how many bytes the owner and the metadata may have in a signature

	takeStmt, insertStmt, renewStmt, releaseStmt, flagStmt, forceStmt, readStmt, listStmt, suspectStmt *sql.Stmt

	mu           sync.Mutex
	pendingTakes map[string]*pendingTake // by claim id: takes whose callers have gone before the result arrived
}

// newShedlock makes the store, and adapts it to the widths of the table's columns: ShedLock's manual lets users choose
// them.
func newShedlock(ctx context.Context, t *table) (driver.Store, error) {
	s := &shedlockStore{table: t, info: t.info, pendingTakes: map[string]*pendingTake{}}
	texts := map[**sql.Stmt]string{&s.takeStmt: shedTake, &s.insertStmt: shedInsert, &s.renewStmt: shedRenew,
		&s.releaseStmt: shedRelease, &s.flagStmt: shedFlag, &s.forceStmt: shedForce, &s.readStmt: shedRead,
		&s.listStmt: shedList, &s.suspectStmt: shedSuspect}
	for to, text := range texts {
		texts[to] = expandShedlock(text)
	}
	if err := t.prepareStatements(ctx, texts); err != nil {
		return nil, err
	}
	i := &s.info
	i.Engine, i.ExpiredBy, i.Order, i.Detached = "script", driver.ExpiredByClaimant, driver.OrderNone, true
	i.Kinds = []driver.Kind{driver.KindMutex}
	i.MinTTL, i.MaxTTL, i.MaxHolders = driver.MinTTL, driver.MaxTTL, 1
	i.MaxName = min(t.nameSize, driver.MaxName)
	s.signatureRoom = min(shedlock.SignatureRoom(t.ownerSize), driver.MaxOwner+driver.MaxMeta)
	i.MaxMeta = min(s.signatureRoom/2, driver.MaxMeta)
	return s, nil
}

func (s *shedlockStore) Info() driver.Info { return s.info }

func (s *shedlockStore) Close() error { return s.table.Close() }

// Explain names the row of a lock.
func (s *shedlockStore) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{Keys: s.table.Keys(c.Name), TTL: c.TTL}
}

// writeRow runs a statement that writes one row, and returns its result, or 0 if it has written none: see
// shedlock_sql.go.
func (s *shedlockStore) writeRow(ctx context.Context, statement *sql.Stmt, args ...any) (result int64, err error) {
	err = s.table.callServer(ctx, func(ctx context.Context) error {
		done, err := statement.ExecContext(ctx, args...)
		if err != nil {
			return err
		}
		result, err = done.LastInsertId()
		return err
	})
	return result, err
}

// seenRows are the rows that a statement has returned.
type seenRows struct {
	rows []shedlock.Row
	now  int64 // the server's clock, in microseconds
}

// first returns the first row, or the zero Row if there is none.
func (r seenRows) first() shedlock.Row {
	if len(r.rows) == 0 {
		return shedlock.Row{}
	}
	return r.rows[0]
}

// readRows runs a statement that returns shedColumns, and once more if the connection broke.
func (s *shedlockStore) readRows(ctx context.Context, statement *sql.Stmt, args ...any) (seen seenRows, err error) {
	for range 2 {
		err = s.table.callServer(ctx, func(ctx context.Context) error {
			seen = seenRows{}
			result, err := statement.QueryContext(ctx, args...)
			if err != nil {
				return err
			}
			defer result.Close()
			for result.Next() {
				var readOnly string
				var name, lockedBy sql.NullString
				var at, until sql.NullInt64
				if err := result.Scan(&seen.now, &readOnly, &name, &lockedBy, &at, &until); err != nil {
					return err
				}
				if isReadOnly(readOnly) {
					return errReadOnly
				}
				if name.Valid {
					seen.rows = append(seen.rows,
						shedlock.ParseRow(name.String, lockedBy.String, seen.now, at.Int64, until.Int64))
				}
			}
			return result.Err()
		})
		if !isBrokenConn(err) {
			break
		}
	}
	return seen, err
}

// readRow reads the row of a lock. It fails if the row is that of another name: to most collations, names that differ in
// case, accents or a space at the end are equal. A caller that holds both locks would wait for itself.
func (s *shedlockStore) readRow(ctx context.Context, name string) (shedlock.Row, error) {
	seen, err := s.readRows(ctx, s.readStmt, name)
	row := seen.first()
	if err == nil && row.Name != "" && row.Name != name {
		return shedlock.Row{}, fmt.Errorf("%w: the table %s takes %q and %q for one name: use the other one",
			driver.ErrInvalid, s.table.quotedName, name, row.Name)
	}
	return row, err
}

// ReadTokenFloor is one read, which shows the server's clock: a token is the time in locked_at.
func (s *shedlockStore) ReadTokenFloor(ctx context.Context) (driver.TokenFloor, error) {
	seen, err := s.readRows(ctx, s.readStmt, "")
	if err != nil {
		return driver.TokenFloor{}, err
	}
	return driver.TokenFloor{Token: seen.now, ByClock: true}, nil
}

// RaiseToken changes nothing: ShedLock's clients would take a later time in locked_at for a clock that is wrong.
func (s *shedlockStore) RaiseToken(ctx context.Context, _ string, atLeast int64) error {
	return driverutil.CheckTokenFloor(ctx, s, atLeast)
}

// newLoop makes the loop of one Acquire or Release. Its limit counts from now on.
func (s *shedlockStore) newLoop(ttl time.Duration) *driverutil.RetryLoop {
	l := &driverutil.RetryLoop{Clock: s.info.Clock, Limit: driver.UnreachableTimeout(ttl),
		Pause: func(ctx context.Context, tries int) error {
			return s.table.life.Sleep(ctx, rand.N(10*time.Millisecond<<min(tries, 6)))
		}}
	l.Restart()
	return l
}

// pendingTake is an attempt to take a lock, and its result once done is closed: a token, or the row that was seen.
type pendingTake struct {
	done  chan struct{}
	token int64 // 0: the lock was not taken
	seen  shedlock.Row
	err   error
}

// startTake begins an attempt, which goes on after the end of ctx: its statement cannot be called back, and the release
// of the claim must wait for it.
func (s *shedlockStore) startTake(ctx context.Context, c driver.Claim) *pendingTake {
	p := &pendingTake{done: make(chan struct{})}
	if !s.table.life.Go(func() {
		defer close(p.done)
		p.token, p.seen, p.err = s.takeRow(ctx, c)
	}) {
		p.err = driver.ErrClosed
		close(p.done)
	}
	return p
}

// takeRow takes a lock by one statement. If that finds nothing to take, it reads the row, and makes it if there is none.
func (s *shedlockStore) takeRow(caller context.Context, c driver.Claim) (token int64, seen shedlock.Row, err error) {
	ctx := context.WithoutCancel(caller)
	prefix, ms := shedlock.SignaturePrefix(c.ID), c.TTL.Milliseconds()
	head, rest := shedlock.MakeSignature(c, s.signatureRoom)
	token, err = s.writeRow(ctx, s.takeStmt, prefix, head, prefix, rest, ms, c.Name, []byte(c.Name), prefix)
	if err != nil || token != 0 || caller.Err() != nil {
		return token, seen, err
	}
	seen, err = s.readRow(ctx, c.Name)
	if err != nil || seen.Name != "" || caller.Err() != nil {
		return 0, seen, err
	}
	token, err = s.writeRow(ctx, s.insertStmt, c.Name, ms, head+rest)
	return token, seen, err
}

// rememberTake keeps a take that is under way, so that the claim's release can wait for its result. A release that
// overtook the take, on another connection, would find nothing to end, and the lock would then be held for the whole
// TTL by nobody. It forgets those whose result has arrived and whose claims were never released.
func (s *shedlockStore) rememberTake(id string, p *pendingTake) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pendingTakes, func(_ string, p *pendingTake) bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
	s.pendingTakes[id] = p
}

// Acquire is idempotent by the claim's id: a claim that holds the lock is renewed.
func (s *shedlockStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := c.Check(s.info); err != nil {
		return driver.Grant{}, err
	}
	if c.Kind != driver.KindMutex || c.Fair || c.Limit != 1 {
		return driver.Grant{}, fmt.Errorf("%w: ShedLock's layout supports plain mutexes only", driver.ErrUnsupported)
	}
	loop := s.newLoop(c.TTL)
	var seen shedlock.Row
	fail := func(err error) (driver.Grant, error) {
		if ctx.Err() != nil && !driverutil.IsFinal(err) {
			err = ctx.Err()
			if seen.Remaining > 0 {
				err = fmt.Errorf("%w; %w", err, seen.HeldError())
			}
		}
		if loop.Uncertain {
			err = fmt.Errorf("%w: %w", driver.ErrUncertain, err)
		}
		return driver.Grant{}, err
	}
	for {
		since := s.info.Clock.Now()
		p := s.startTake(ctx, c)
		select {
		case <-p.done:
		case <-ctx.Done():
			s.rememberTake(c.ID, p)
			loop.Uncertain = true
			return fail(ctx.Err())
		}
		v, err := p.seen, p.err
		switch {
		case err == nil && p.token != 0:
			return driver.Grant{Claim: c, Token: p.token, Since: since, GrantedTTL: c.TTL, Ref: c.ID}, nil
		case err == nil && v.ClaimID == c.ID && v.Remaining > 0 && v.Claim.Broken:
			return fail(v.LossError(c.ID))
		case errors.Is(err, record.ErrConflict), err == nil && v.Remaining <= 0:
			// Another client was faster, and may have ended its claim since: try again.
			if err := loop.PauseAfterAnswer(ctx); err != nil {
				return fail(err)
			}
		case err == nil && !c.Wait:
			return fail(v.HeldError())
		case err == nil:
			seen = v
			if err := s.waitUntilFree(ctx, c.Name, &seen); err != nil {
				return fail(err)
			}
			loop.Restart()
		case driverutil.IsFinal(err):
			return fail(err)
		default:
			if err := loop.PauseAfterFailure(ctx, err, !errors.Is(err, record.ErrUnsent)); err != nil {
				return fail(err)
			}
		}
	}
}

// waitUntilFree polls until the lock seems to be free.
func (s *shedlockStore) waitUntilFree(ctx context.Context, name string, seen *shedlock.Row) error {
	for polls := 0; seen.Remaining > 0; polls++ {
		delay := min(rand.N(time.Second)/2+20*time.Millisecond<<min(polls, 8), time.Second)
		if err := s.table.life.Sleep(ctx, min(delay, seen.Remaining+time.Millisecond)); err != nil {
			return err
		}
		v, err := s.readRow(ctx, name)
		switch {
		case err == nil:
			*seen = v
		case ctx.Err() != nil || driverutil.IsFinal(err):
			return err
		default:
			return nil // the next take gets the same error, and decides what to do
		}
	}
	return nil
}

// maxRenewals is how many renewals wait for their answers at once. The pool sends fewer.
const maxRenewals = 64

// Renew sends one statement per grant.
func (s *shedlockStore) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
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
func (s *shedlockStore) extendClaim(ctx context.Context, g driver.Grant, d time.Duration, detached bool) (bool, error) {
	flag := ""
	if detached {
		flag = "d"
	}
	id := cmp.Or(g.ID, g.Ref)
	for {
		result, err := s.writeRow(ctx, s.renewStmt, d.Milliseconds(), flag, flag, g.Name, shedlock.SignaturePrefix(id),
			shedlock.FormatTimestamp(g.Token), flag)
		switch {
		case errors.Is(err, record.ErrConflict):
			continue
		case err != nil:
			return false, driverutil.Uncertain(err)
		case result != 0:
			return result == 2, nil
		}
		v, err := s.readRow(ctx, g.Name)
		switch {
		case err != nil:
			return false, driverutil.Uncertain(err)
		case v.ClaimID != id || v.LockedAt != g.Token || v.Remaining <= 0 || v.Claim.Broken || v.Claim.Detached && !detached:
			return false, v.LossError(id)
		}
		// The lock was taken between the two statements: try again.
	}
}

// Detach keeps the row locked for as long as the caller wants, without a holder that renews it. To ShedLock's clients
// it is a lock with a long lockAtMostFor.
func (s *shedlockStore) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	_, err := s.extendClaim(ctx, g, keep, true)
	return err
}

// Release waits for a take of the same claim that is under way, and then ends the claim.
func (s *shedlockStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	if c.ID != "" && ref != "" && c.ID != ref {
		return &driver.LossError{Cause: driver.LossGone}
	}
	id := cmp.Or(c.ID, ref)
	s.mu.Lock()
	p := s.pendingTakes[id]
	delete(s.pendingTakes, id)
	s.mu.Unlock()
	if p != nil {
		select {
		case <-p.done:
		case <-ctx.Done():
			s.rememberTake(id, p)
			return driverutil.Uncertain(ctx.Err())
		}
	}
	loop := s.newLoop(c.TTL)
	for {
		ended, err := s.writeRow(ctx, s.releaseStmt, c.Name, shedlock.SignaturePrefix(id))
		if ended != 0 {
			return nil
		}
		var v shedlock.Row
		if err == nil {
			if v, err = s.readRow(ctx, c.Name); err == nil && (v.ClaimID != id || v.Remaining <= 0) {
				return v.ReleaseOutcome(id, loop.Uncertain)
			}
		}
		switch {
		case err == nil, errors.Is(err, record.ErrConflict):
			err = loop.PauseAfterAnswer(ctx)
		case driverutil.IsFinal(err):
			return err
		default:
			err = loop.PauseAfterFailure(ctx, err, !errors.Is(err, record.ErrUnsent))
		}
		if err != nil {
			return driverutil.Uncertain(err)
		}
	}
}
