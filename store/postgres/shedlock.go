package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/shedlock"
)

// shedlockStore keeps locks in ShedLock's own table. A row is held until lock_until, by the server's clock
// in UTC.
//
// Package engine/shedlock says how our holders sign a row, and what a row says. A holder's token is locked_at in
// microseconds, which every grant raises.
//
// There is no room for a queue, so the layout supports plain mutexes only. Waiters poll, and are notified
// by other Holdfast clients.
//
// ShedLock's own clients write the name of their host into locked_by, so two holders on one host look the same. A
// signature that names the claim is what makes a late release or renewal of ours harmless.
type shedlockStore struct {
	table         *table
	info          driver.Info
	signatureRoom int // how many bytes the owner and the metadata may have in a signature

	takeStmt, renewStmt, releaseStmt, flagStmt, forceStmt, readStmt, listStmt, suspectStmt *statement

	mu           sync.Mutex
	pendingTakes map[string]*request // by claim id: takes whose callers have gone before the result arrived
}

// newShedlock makes the store, and adapts it to the widths of the table's columns: ShedLock's manual lets
// users choose them.
func newShedlock(t *table) driver.Store {
	s := &shedlockStore{table: t, info: t.info, pendingTakes: map[string]*request{}}
	step := "'1 microsecond'"
	if t.atSize >= 0 && t.atSize < 6 {
		step = "'1 millisecond'"
	}
	names := strings.NewReplacer("STEP", step, "NOW", "timezone('utc', clock_timestamp())")
	read := func(text string) *statement { return newStatement(t.fillIn(names.Replace(text))) }
	write := func(text string) *statement { return read(fmt.Sprintf(shedWrite, text)) }
	s.takeStmt, s.renewStmt, s.releaseStmt = write(shedTake), write(shedRenew), write(shedRelease)
	s.flagStmt, s.forceStmt = write(shedFlag), write(shedForce)
	s.readStmt, s.listStmt = read(shedRead), read(shedList)
	s.suspectStmt = read(shedSuspect)
	s.readStmt.standbyColumn, s.listStmt.standbyColumn = 5, 5
	i := &s.info
	i.Engine, i.ExpiredBy, i.Order, i.Detached = "script", driver.ExpiredByClaimant, driver.OrderNone, true
	i.Kinds = []driver.Kind{driver.KindMutex}
	i.MinTTL, i.MaxTTL, i.MaxName, i.MaxHolders = driver.MinTTL, driver.MaxTTL, driver.MaxName, 1
	if t.nameSize >= 0 {
		i.MaxName = min(t.nameSize-4, i.MaxName) // atttypmod is 4 more than the number of characters
	}
	s.signatureRoom = driver.MaxOwner + driver.MaxMeta
	if t.ownerSize >= 0 {
		s.signatureRoom = max(0, shedlock.SignatureRoom(t.ownerSize-4))
	}
	i.MaxMeta = min(s.signatureRoom/2, driver.MaxMeta)
	return s
}

func (s *shedlockStore) Info() driver.Info { return s.info }

func (s *shedlockStore) Close() error { return s.table.Close() }

// readResult reads the result of one statement. done is the row's locked_at if a write was done, and else 0.
func (s *shedlockStore) readResult(ctx context.Context, a result) (v shedlock.Row, done int64, err error) {
	switch {
	case a.err != nil && ctx.Err() != nil:
		return v, 0, ctx.Err()
	case a.err != nil:
		return v, 0, s.table.location.explainError(a.err)
	}
	row := a.rows[0]
	if len(row) > 6 && row[6] != nil {
		done = readMicros(row[6])
		s.table.location.hasWritten.Store(true)
	}
	return parseShedlockRow(row), done, nil
}

// parseShedlockRow reads the columns of shedColumns.
func parseShedlockRow(row [][]byte) shedlock.Row {
	if row[1] == nil {
		return shedlock.Row{}
	}
	return shedlock.ParseRow(string(row[4]), string(row[3]), readMicros(row[0]), readMicros(row[1]), readMicros(row[2]))
}

// ReadTokenFloor is one read, which shows the server's clock: a token is the time in locked_at.
func (s *shedlockStore) ReadTokenFloor(ctx context.Context) (driver.TokenFloor, error) {
	a := s.table.batcher.runStatement(ctx, s.readStmt, s.encodeParams(s.readStmt, "", nil)...)
	switch {
	case a.err != nil && ctx.Err() != nil:
		return driver.TokenFloor{}, ctx.Err()
	case a.err != nil:
		return driver.TokenFloor{}, s.table.location.explainError(a.err)
	}
	return driver.TokenFloor{Token: readMicros(a.rows[0][0]), ByClock: true}, nil
}

// RaiseToken changes nothing: ShedLock's clients would take a later time in locked_at for a clock that is wrong.
func (s *shedlockStore) RaiseToken(ctx context.Context, _ string, atLeast int64) error {
	return driverutil.CheckTokenFloor(ctx, s, atLeast)
}

// runStatement runs one statement and reads its result.
func (s *shedlockStore) runStatement(
	ctx context.Context, st *statement, name string, params ...string,
) (v shedlock.Row, done int64, err error) {
	return s.readResult(ctx, s.table.batcher.runStatement(ctx, st, s.encodeParams(st, name, params)...))
}

// encodeParams puts the name, and for all statements but reads its bucket, before the parameters. All are
// sent as text.
func (s *shedlockStore) encodeParams(st *statement, name string, params []string) [][]byte {
	ps := [][]byte{[]byte(name)}
	if st != s.readStmt {
		ps = append(ps, []byte(strconv.Itoa(int(bucketOf(name)))))
	}
	for _, p := range params {
		ps = append(ps, []byte(p))
	}
	return ps
}

// newLoop makes the loop of one Acquire or Release. Its limit counts from now on.
func (s *shedlockStore) newLoop(ttl time.Duration) *driverutil.RetryLoop {
	l := &driverutil.RetryLoop{Clock: s.info.Clock, Limit: driver.UnreachableTimeout(ttl),
		Pause: func(ctx context.Context, tries int) error {
			return s.table.batcher.life.Sleep(ctx, rand.N(10*time.Millisecond<<min(tries, 6)))
		}}
	l.Restart()
	return l
}

// Acquire takes a lock by one statement. It is idempotent by the claim's id: a claim that holds the lock is
// renewed.
func (s *shedlockStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := c.Check(s.info); err != nil {
		return driver.Grant{}, err
	}
	if c.Kind != driver.KindMutex || c.Fair || c.Limit != 1 {
		return driver.Grant{}, fmt.Errorf("%w: ShedLock's layout supports plain mutexes only", driver.ErrUnsupported)
	}
	loop := s.newLoop(c.TTL)
	head, rest := shedlock.MakeSignature(c, s.signatureRoom)
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
		r := s.table.batcher.submitRequest(ctx, s.takeStmt, s.encodeParams(s.takeStmt, c.Name, []string{
			shedlock.SignaturePrefix(c.ID), head, strconv.FormatInt(c.TTL.Milliseconds(), 10), rest})...)
		a := s.table.batcher.awaitResult(ctx, r)
		v, at, err := s.readResult(ctx, a)
		switch {
		case err == nil && at != 0:
			return driver.Grant{Claim: c, Token: at, Since: since, GrantedTTL: c.TTL, Ref: c.ID}, nil
		case err == nil && v.ClaimID == c.ID && v.Remaining > 0 && v.Claim.Broken:
			return fail(v.LossError(c.ID))
		case err == nil && !c.Wait:
			return fail(v.HeldError())
		case err == nil:
			// An earlier take that is still under way cannot succeed any more: this statement has seen the
			// row after it, on whatever connection that was sent.
			seen, loop.Uncertain = v, false
			if err := s.waitUntilFree(ctx, c.Name, &seen); err != nil {
				return fail(err)
			}
			loop.Restart()
		case errors.Is(err, record.ErrConflict):
		case driverutil.IsFinal(err):
			return fail(err)
		default:
			if a.stillPending {
				s.rememberTake(c.ID, r)
			}
			if err := loop.PauseAfterFailure(ctx, err, !a.notSent); err != nil {
				return fail(err)
			}
		}
	}
}

// rememberTake keeps a take that is under way, so that the claim's release can wait for its result. A release that
// overtook the take, on another connection, would find nothing to end, and the lock would then be held for the whole
// TTL by nobody. It forgets those whose result has arrived and whose claims were never released.
func (s *shedlockStore) rememberTake(id string, r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pendingTakes, func(_ string, r *request) bool { return len(r.result) > 0 })
	s.pendingTakes[id] = r
}

// waitUntilFree returns when the lock seems to be free. Foreign holders do not notify: they are polled more
// often.
func (s *shedlockStore) waitUntilFree(ctx context.Context, name string, seen *shedlock.Row) error {
	var notified, listening <-chan struct{}
	unsubscribe := func() {}
	defer func() { unsubscribe() }()
	for polls := 0; seen.Remaining > 0; polls++ {
		if !s.table.behindPooler && notified == nil {
			what := wanted{bucket: bucketOf(name)}
			sub, locked := s.table.listener.subscribe(what, name)
			if sub == nil {
				return driver.ErrClosed
			}
			notified, listening = sub.notified, locked
			unsubscribe = func() { s.table.listener.unsubscribe(what, name, sub) }
		}
		maxDelay := time.Second
		if seen.ClaimID != "" && !s.table.behindPooler {
			maxDelay = 5 * time.Second
		}
		delay := rand.N(maxDelay)/2 + 20*time.Millisecond<<min(polls, 8)
		poll := time.NewTimer(min(delay, maxDelay, seen.Remaining+time.Millisecond))
		select {
		case <-listening:
			listening = nil // changes are notified from now on; read once for those before
		case <-notified:
			unsubscribe()
			unsubscribe, notified, listening = func() {}, nil, nil
		case <-poll.C:
		case <-ctx.Done():
		case <-s.table.batcher.life.Done():
		}
		poll.Stop()
		v, _, err := s.runStatement(ctx, s.readStmt, name)
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

// Renew sends one statement per grant, all at once.
func (s *shedlockStore) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	var all sync.WaitGroup
	// Enough for a few full batches: more goroutines would only queue their statements sooner.
	places := make(chan struct{}, 4*maxBatch)
	for i, g := range grants {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			since := s.info.Clock.Now()
			v, err := s.extendClaim(ctx, g, g.GrantedTTL, g.Detached)
			if err != nil {
				done(i, driver.Renewal{Err: err})
				return
			}
			done(i, driver.Renewal{Since: since, GrantedTTL: g.GrantedTTL, ReleaseRequested: v.Claim.ReleaseRequested})
		})
	}
	all.Wait()
}

// extendClaim makes a grant last for d from now on.
func (s *shedlockStore) extendClaim(
	ctx context.Context, g driver.Grant, d time.Duration, detached bool,
) (shedlock.Row, error) {
	flag := ""
	if detached {
		flag = "d"
	}
	id := cmp.Or(g.ID, g.Ref)
	for {
		v, at, err := s.runStatement(ctx, s.renewStmt, g.Name, shedlock.SignaturePrefix(id), shedlock.FormatTimestamp(g.Token),
			strconv.FormatInt(d.Milliseconds(), 10), flag)
		switch {
		case errors.Is(err, record.ErrConflict):
		case err != nil:
			return v, driverutil.Uncertain(err)
		case at != 0:
			return v, nil
		case v.Claim.Detached && !detached:
			return v, v.LossError(id)
		case v.ClaimID == id && v.LockedAt == g.Token && v.Remaining > 0 && !v.Claim.Broken:
			// The statement read the row before another write, for which it then had to wait: try again.
		default:
			return v, v.LossError(id)
		}
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
	r := s.pendingTakes[id]
	delete(s.pendingTakes, id)
	s.mu.Unlock()
	if r != nil {
		if s.table.batcher.awaitResult(ctx, r).stillPending {
			s.rememberTake(id, r)
		}
	}
	loop := s.newLoop(c.TTL)
	for {
		a := s.table.batcher.runStatement(ctx, s.releaseStmt,
			s.encodeParams(s.releaseStmt, c.Name, []string{shedlock.SignaturePrefix(id)})...)
		v, at, err := s.readResult(ctx, a)
		switch {
		case err == nil && at != 0:
			return nil
		case err == nil && v.ClaimID == id && v.Remaining > 0, errors.Is(err, record.ErrConflict):
			continue // the statement read the row before another write, for which it then had to wait
		case err == nil:
			return v.ReleaseOutcome(id, loop.Uncertain)
		case driverutil.IsFinal(err):
			return err
		}
		if err := loop.PauseAfterFailure(ctx, err, !a.notSent); err != nil {
			return driverutil.Uncertain(err)
		}
	}
}

// Explain names the row of a lock.
func (s *shedlockStore) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{Keys: s.table.Keys(c.Name), TTL: c.TTL}
}
