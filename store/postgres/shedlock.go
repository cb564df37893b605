package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// shedlockStore keeps locks in the rows of ShedLock: held until lock_until, by the server's clock in UTC. Our holders sign as
// holdfast/ID/FLAGS/TTL/LENGTH/NOTE OWNER META, which no other client ever does, so that nobody releases or extends what is not his;
// the note says how the holder before was ended, if it was one of ours. Their token is locked_at in microseconds, which every grant
// raises. There is no room for a line, so it carries plain mutexes only; who waits looks, and listens to its like.
type shedlockStore struct {
	table         *table
	info          driver.Info
	signatureRoom int // for the owner and the note

	takeStmt, renewStmt, releaseStmt, flagStmt, forceStmt, readStmt, listStmt, suspectStmt *statement

	mu           sync.Mutex
	pendingTakes map[string]*request // by claim id: a take whose answer nobody has waited for
}

// How a holder of ours stands, by the first of its flags, and how it has been ended. One that was not ended when its time was over
// has expired.
const (
	flagBroken   = "b" // it is not renewed any more
	flagForced   = "f" // ended by force
	flagReleased = "r" // ended by its own release
)

// The statements. $1 is the name, $2 its bucket, $3 the first 35 characters of a holder's signature. Of the flags the first
// says how it stands, the second detached, the third asked to give up. Who takes the lock puts a note into his signature of
// how the holder before was ended: that one's release may have got no answer, and ask for it.
const (
	shedTake = `insert into LOCKS as l (name, lock_until, locked_at, locked_by) values ($1, NOW + $5::int8 * interval '1 millisecond', NOW, $4 || $6)
		on conflict (name) do update set lock_until = NOW + $5::int8 * interval '1 millisecond',
		locked_by = $4 || case when left(l.locked_by, 9) <> 'holdfast/' then ''
			when left(l.locked_by, 35) <> $3 then '/' || substr(l.locked_by, 37, 1) || substr(l.locked_by, 10, 26)
			else coalesce(substring(l.locked_by from '^holdfast/[^/]*/[^/]*/[^/]*/[0-9]+(/.[a-z0-9]{26}) '), '') end || $6,
		locked_at = case when left(l.locked_by, 35) = $3 and l.lock_until > NOW then l.locked_at
			else greatest(NOW, l.locked_at + interval STEP) end
		where l.lock_until <= NOW or left(l.locked_by, 35) = $3 and substr(l.locked_by, 37, 1) <> 'b'`
	shedOwnRow = ` where name = $1 and left(locked_by, 35) = $3 and lock_until > NOW`
	shedRenew  = `update LOCKS as l set lock_until = NOW + $5::int8 * interval '1 millisecond',
		locked_by = case when $6 = 'd' then overlay(locked_by placing 'd' from 38 for 1) else locked_by end` +
		shedOwnRow + ` and locked_at = $4::timestamp and substr(locked_by, 37, 1) <> 'b'`
	shedRelease = `update LOCKS as l set lock_until = NOW, locked_by = overlay(locked_by placing 'r' from 37 for 1)` + shedOwnRow
	shedFlag    = `update LOCKS as l set locked_by = overlay(locked_by placing $4 from $5 for 1)` + shedOwnRow
	// A foreign holder is found by when it came.
	shedForce = `update LOCKS as l set lock_until = NOW,
		locked_by = case when left(locked_by, 9) = 'holdfast/' then overlay(locked_by placing 'f' from 37 for 1) else locked_by end where name = $1 and lock_until > NOW and
		(left(locked_by, 35) = $3 or left(locked_by, 9) <> 'holdfast/' and locked_at = nullif($4, '')::timestamp)`

	shedColumns = `select clock_timestamp(), l.locked_at, l.lock_until, l.locked_by, l.name, pg_is_in_recovery()`
	shedRead    = shedColumns + ` from (values (0)) v left join LOCKS l on l.name = $1`
	shedList    = shedColumns + ` from (values (0)) v left join (select * from LOCKS where lock_until > NOW and starts_with(name, $1) and name collate "C" > $2
		order by name collate "C" limit 200) l on true order by l.name collate "C"`
	// Rows that may be astray: see shedView.wrongTimes.
	shedSuspect = shedColumns + ` from LOCKS l where l.locked_at > NOW or l.lock_until < l.locked_at order by l.locked_at desc limit 100`
	// A write answers with the row as it was before, and if it was done, with locked_at as it is now.
	shedWrite = `with done as (%s returning pg_try_advisory_xact_lock(CLASS, $2::int4) as alone, l.locked_at) ` + shedColumns +
		`, (select locked_at from done), (select pg_notify('CHANNEL', $1) from done where not alone)
		from (values (0)) v left join LOCKS l on l.name = $1`
)

func newShedlock(t *table) driver.Store {
	s := &shedlockStore{table: t, info: t.info, pendingTakes: map[string]*request{}}
	step := "'1 microsecond'"
	if t.atSize >= 0 && t.atSize < 6 {
		step = "'1 millisecond'"
	}
	names := strings.NewReplacer("STEP", step, "LOCKS", t.location.locksTable, "CHANNEL", t.location.channel, "CLASS", strconv.Itoa(int(t.location.lockClass)),
		"NOW", "timezone('utc', clock_timestamp())")
	read := func(text string) *statement { return newStatement(names.Replace(text)) }
	write := func(text string) *statement { return read(fmt.Sprintf(shedWrite, text)) }
	s.takeStmt, s.renewStmt, s.releaseStmt, s.flagStmt, s.forceStmt = write(shedTake), write(shedRenew), write(shedRelease), write(shedFlag), write(shedForce)
	s.readStmt, s.listStmt = read(shedRead), read(shedList)
	s.suspectStmt = read(shedSuspect)
	s.readStmt.standbyColumn, s.listStmt.standbyColumn = 5, 5
	i := &s.info
	i.Engine, i.ExpiredBy, i.Order, i.Kinds, i.Detached = "script", driver.ExpiredByClaimant, driver.OrderNone, []driver.Kind{driver.KindMutex}, true
	i.MinTTL, i.MaxTTL, i.MaxName, i.MaxHolders = driver.MinTTL, driver.MaxTTL, driver.MaxName, 1
	if t.nameSize >= 0 {
		i.MaxName = min(t.nameSize-4, i.MaxName) // PostgreSQL counts 4 bytes of its own, and then characters
	}
	s.signatureRoom = driver.MaxOwner + driver.MaxMeta
	if t.ownerSize >= 0 {
		s.signatureRoom = max(0, t.ownerSize-4-len(signaturePrefix(""))-26-len("/---/86400000/256 ")-len("/-")-26)
	}
	i.MaxMeta = min(s.signatureRoom/2, driver.MaxMeta)
	return s
}

func (s *shedlockStore) Info() driver.Info { return s.info }

func (s *shedlockStore) Close() error { return s.table.Close() }

func signaturePrefix(id string) string { return "holdfast/" + id }

// makeSignature is what stands in locked_by before the note, and after it. An owner that does not fit is cut.
func (s *shedlockStore) makeSignature(c driver.Claim) (head, rest string) {
	detached := "-"
	if c.Detached {
		detached = "d"
	}
	owner := c.Owner
	for len(owner) > s.signatureRoom-len(c.Meta) {
		_, n := utf8.DecodeLastRuneInString(owner)
		owner = owner[:len(owner)-n]
	}
	return fmt.Sprintf("%s/-%s-/%d/%d", signaturePrefix(c.ID), detached, c.TTL.Milliseconds(), len(owner)), " " + owner + c.Meta
}

var signaturePattern = regexp.MustCompile(`(?s)^holdfast/([a-z0-9]{26})/(.)(.)(.)/(\d+)/(\d+)(?:/(.)([a-z0-9]{26}))? (.*)$`)

// shedlockRow is a row as a statement has seen it.
type shedlockRow struct {
	name      string
	lockedAt  int64 // locked_at, in microseconds
	remaining time.Duration
	lockedBy  string
	claim     driver.ClaimInfo
	claimID   string // of our holder; empty for a foreign one
	stateFlag string // how that one has been ended
	timeFault string // why the row's times cannot be right; empty: they may be
	// The holder before, if it was ours, and how it was ended.
	formerID, formerFlag string
}

func (s *shedlockStore) parseRow(row [][]byte) (v shedlockRow) {
	if row[1] == nil {
		return v
	}
	v.name, v.lockedAt, v.lockedBy = string(row[4]), readMicros(row[1]), string(row[3])
	now, end := readMicros(row[0]), readMicros(row[2])
	v.remaining = timeUntil(now, end)
	v.claim = driver.ClaimInfo{Ref: foreignRefPrefix + formatTimestamp(v.lockedAt), Owner: v.lockedBy, Weight: 1, Since: time.UnixMicro(v.lockedAt), Remaining: v.remaining, Foreign: true}
	if m := signaturePattern.FindStringSubmatch(v.lockedBy); m != nil {
		ms, _ := strconv.ParseInt(m[5], 10, 64)
		length, _ := strconv.Atoi(m[6])
		length = min(length, len(m[9]))
		v.claimID, v.stateFlag, v.formerFlag, v.formerID = m[1], m[2], m[7], m[8]
		v.claim = driver.ClaimInfo{Ref: m[1], Owner: m[9][:length], Meta: m[9][length:], Weight: 1, Token: v.lockedAt, TTL: time.Duration(ms) * time.Millisecond, Since: time.UnixMicro(v.lockedAt),
			Remaining: v.remaining, Broken: m[2] == flagBroken, Detached: m[3] == "d", ReleaseRequested: m[4] == "a"}
	}
	v.timeFault = v.findTimeFault(now, end)
	return v
}

// The clocks of clients of ShedLock's that do not use the database's are hardly further apart than leastZone, and time zones are.
const (
	minZoneOffset = 10 * time.Minute
	maxZoneOffset = 14 * time.Hour
)

// findTimeFault says by what a row shows that a client writes local time where UTC belongs: it has come in the future, or what stands
// ended long before it came. Such a client and the others do not exclude each other. Where it is behind UTC, nothing shows,
// unless it ends what somebody else holds. A release of our own writes the server's time, whatever became of that.
func (v shedlockRow) findTimeFault(now, end int64) string {
	zone := func(d time.Duration) bool { return d > minZoneOffset && d < maxZoneOffset+minZoneOffset }
	switch ahead, back := timeUntil(now, v.lockedAt), timeUntil(end, v.lockedAt); {
	case zone(ahead):
		return fmt.Sprintf("locked_at is %v ahead of the server's clock", ahead.Round(time.Minute))
	case v.stateFlag == flagReleased, v.stateFlag == flagForced, timeUntil(v.lockedAt, now) > 24*time.Hour:
	case zone(back):
		return fmt.Sprintf("lock_until is %v before locked_at", back.Round(time.Minute))
	}
	return ""
}

// describeTimeFault tells of such a row.
func (v shedlockRow) describeTimeFault() string {
	return fmt.Sprintf("the row of %q is odd: %s; if the server's clock was not set back, a client of ShedLock's writes local time in place of UTC, "+
		"and excludes nobody who does not: have all of them use usingDbTime()", v.name, v.timeFault)
}

// foreignRefPrefix begins the ref of a foreign holder, and the time at which it came follows.
const foreignRefPrefix = "at/"

// formatTimestamp writes a time as PostgreSQL reads it, whatever the session's settings.
func formatTimestamp(micros int64) string {
	if micros == math.MaxInt64 {
		return "infinity"
	}
	return time.UnixMicro(micros).UTC().Format(timestampForm)
}

const timestampForm = "2006-01-02 15:04:05.999999"

func isTimestamp(text string) bool {
	_, err := time.Parse(timestampForm, text)
	return err == nil || text == formatTimestamp(math.MaxInt64)
}

// maxRemaining is longer than anybody waits.
const maxRemaining = 100 * 365 * 24 * time.Hour

// timeUntil is how long it is from now to an end, which an operator may have set to where no Duration reaches; 0: it is over.
func timeUntil(now, end int64) time.Duration {
	if end <= now {
		return 0
	}
	return time.Duration(min(end-now, maxRemaining.Microseconds())) * time.Microsecond
}

func (v shedlockRow) heldError() error {
	switch {
	case v.remaining <= 0:
		return &driver.HeldError{}
	case v.timeFault != "":
		return fmt.Errorf("%w: %s", &driver.HeldError{Holders: []driver.ClaimInfo{v.claim}}, v.describeTimeFault())
	}
	return &driver.HeldError{Holders: []driver.ClaimInfo{v.claim}}
}

// toLock is the view as others see it.
func (v shedlockRow) toLock(name string) driver.Lock {
	l := driver.Lock{Name: name, Token: v.lockedAt, Revision: "free"}
	if v.remaining > 0 {
		l.Kind, l.Limit, l.Holders = driver.KindMutex, 1, []driver.ClaimInfo{v.claim}
		l.Revision = strconv.FormatInt(v.lockedAt, 10) + v.lockedBy
	}
	return l
}

// flagOf tells how a claim that does not stand was ended, as far as the row knows.
func (v shedlockRow) flagOf(id string) (how string, known bool) {
	switch id {
	case v.claimID:
		return v.stateFlag, true
	case v.formerID:
		return v.formerFlag, true
	}
	return "", false
}

// releaseOutcome says what became of a claim that its release does not find, and unknown that another try of that release may have ended
// it. Then only the row can tell.
func (v shedlockRow) releaseOutcome(id string, unknown bool) error {
	how, known := v.flagOf(id)
	switch {
	case !unknown:
		return v.lossError(id)
	case !known:
		return driver.Uncertain(errors.New("others have had the lock since, and left no trace of how this claim was ended"))
	case how == flagReleased:
		return nil
	case how == flagForced:
		return &driver.LossError{Cause: driver.LossBroken}
	}
	return &driver.LossError{Cause: driver.LossExpired}
}

// lossError says why a claim does not stand, or is not what it was.
func (v shedlockRow) lossError(id string) *driver.LossError {
	how, _ := v.flagOf(id)
	switch {
	case how == flagForced:
		return &driver.LossError{Cause: driver.LossBroken}
	case v.remaining > 0 && v.claimID != id:
		return &driver.LossError{Cause: driver.LossTaken}
	case v.claimID == id && v.remaining > 0 && v.claim.Broken:
		return &driver.LossError{Cause: driver.LossBroken}
	}
	if v.timeFault != "" {
		return &driver.LossError{Cause: driver.LossGone, Err: errors.New(v.describeTimeFault())}
	}
	return &driver.LossError{Cause: driver.LossGone}
}

// readResult reads the answer to one statement. done is locked_at if a write was done.
func (s *shedlockStore) readResult(ctx context.Context, a result) (v shedlockRow, done int64, err error) {
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
	return s.parseRow(row), done, nil
}

func (s *shedlockStore) runStatement(ctx context.Context, st *statement, name string, params ...string) (v shedlockRow, done int64, err error) {
	return s.readResult(ctx, s.table.batcher.runStatement(ctx, st, s.encodeParams(st, name, params)...))
}

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

// Acquire takes a lock by one statement. It is idempotent by the claim's id: a claim that stands is renewed by it.
func (s *shedlockStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := c.Check(s.info); err != nil {
		return driver.Grant{}, err
	}
	if c.Kind != driver.KindMutex || c.Fair || c.Limit != 1 {
		return driver.Grant{}, fmt.Errorf("%w: ShedLock's layout carries plain mutexes only", driver.ErrUnsupported)
	}
	answered, unknown := s.info.Clock.Now(), false
	head, rest := s.makeSignature(c)
	var seen shedlockRow
	fail := func(err error) (driver.Grant, error) {
		if ctx.Err() != nil && !driver.IsFinal(err) {
			err = ctx.Err()
			if seen.remaining > 0 {
				err = fmt.Errorf("%w; %w", err, seen.heldError())
			}
		}
		if unknown {
			err = fmt.Errorf("%w: %w", driver.ErrUncertain, err)
		}
		return driver.Grant{}, err
	}
	for tries := 0; ; tries++ {
		since := s.info.Clock.Now()
		r := s.table.batcher.submitRequest(ctx, s.takeStmt, s.encodeParams(s.takeStmt, c.Name, []string{signaturePrefix(c.ID), head, strconv.FormatInt(c.TTL.Milliseconds(), 10), rest})...)
		a := s.table.batcher.awaitResult(ctx, r)
		v, at, err := s.readResult(ctx, a)
		switch {
		case err == nil && at != 0:
			return driver.Grant{Claim: c, Token: at, Since: since, GrantedTTL: c.TTL, Ref: c.ID}, nil
		case err == nil && v.claimID == c.ID && v.remaining > 0 && v.claim.Broken:
			return fail(v.lossError(c.ID))
		case err == nil && !c.Wait:
			return fail(v.heldError())
		case err == nil:
			seen, unknown, tries = v, false, -1 // what was under way before has been overtaken, on whatever connection
			if err := s.waitUntilFree(ctx, c.Name, &seen); err != nil {
				return fail(err)
			}
			answered = s.info.Clock.Now()
		case errors.Is(err, record.ErrConflict):
		case driver.IsFinal(err):
			return fail(err)
		default:
			unknown = unknown || !a.notSent
			if a.stillPending {
				s.rememberTake(c.ID, r)
			}
			if ctx.Err() != nil || s.info.Clock.Since(answered) > driver.UnreachableTimeout(c.TTL) {
				return fail(err)
			}
			if err := s.sleepFor(ctx, rand.N(10*time.Millisecond<<min(tries, 6))); err != nil {
				return fail(err)
			}
		}
	}
}

// rememberTake keeps a take that is under way, for its release. Those that have come to their end meanwhile, for which there was none,
// are forgotten.
func (s *shedlockStore) rememberTake(id string, r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pendingTakes, func(_ string, r *request) bool { return len(r.result) > 0 })
	s.pendingTakes[id] = r
}

// waitUntilFree returns when the lock looks free. Foreign holders tell nobody when they leave: they are looked at more often.
func (s *shedlockStore) waitUntilFree(ctx context.Context, name string, seen *shedlockRow) error {
	var told, live <-chan struct{}
	leave := func() {}
	defer func() { leave() }()
	for idle := 0; seen.remaining > 0; idle++ {
		if !s.table.behindPooler && told == nil {
			seat, l := s.table.listener.subscribe(name)
			if seat == nil {
				return driver.ErrClosed
			}
			told, live = seat.notified, l
			leave = func() { s.table.listener.unsubscribe(name, seat) }
		}
		most := time.Second
		if seen.claimID != "" && !s.table.behindPooler {
			most = 5 * time.Second
		}
		poll := time.NewTimer(min(rand.N(most)/2+20*time.Millisecond<<min(idle, 8), most, seen.remaining+time.Millisecond))
		select {
		case <-live:
			live = nil // now that changes are heard of, look
		case <-told:
			leave()
			leave, told, live = func() {}, nil, nil
		case <-poll.C:
		case <-ctx.Done():
		case <-s.table.batcher.life.Done():
		}
		poll.Stop()
		v, _, err := s.runStatement(ctx, s.readStmt, name)
		switch {
		case err == nil:
			*seen = v
		case ctx.Err() != nil || driver.IsFinal(err):
			return err
		default:
			return nil // the next try meets the error, and bears with it
		}
	}
	return nil
}

func (s *shedlockStore) sleepFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.table.batcher.life.Done():
		return driver.ErrClosed
	}
}

// Renew sends a statement for each grant, all at once.
func (s *shedlockStore) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	var all sync.WaitGroup
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
			done(i, driver.Renewal{Since: since, GrantedTTL: g.GrantedTTL, ReleaseRequested: v.claim.ReleaseRequested})
		})
	}
	all.Wait()
}

// extendClaim has a grant last for d from now on.
func (s *shedlockStore) extendClaim(ctx context.Context, g driver.Grant, d time.Duration, detached bool) (shedlockRow, error) {
	flag := ""
	if detached {
		flag = "d"
	}
	id := cmp.Or(g.ID, g.Ref)
	for {
		v, at, err := s.runStatement(ctx, s.renewStmt, g.Name, signaturePrefix(id), formatTimestamp(g.Token),
			strconv.FormatInt(d.Milliseconds(), 10), flag)
		switch {
		case errors.Is(err, record.ErrConflict):
		case err != nil:
			return v, driver.Uncertain(err)
		case at != 0:
			return v, nil
		case v.claimID == id && v.lockedAt == g.Token && v.remaining > 0 && !v.claim.Broken: // it saw the row before another's write
		default:
			return v, v.lossError(id)
		}
	}
}

// Detach lets the row stand for as long as it is told.
func (s *shedlockStore) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	_, err := s.extendClaim(ctx, g, keep, true)
	return err
}

// Release waits for a take of the same claim that is under way, and then ends what stands.
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
	unknown := false
	asked := s.info.Clock.Now()
	for tries := 0; ; tries++ {
		a := s.table.batcher.runStatement(ctx, s.releaseStmt, s.encodeParams(s.releaseStmt, c.Name, []string{signaturePrefix(id)})...)
		v, at, err := s.readResult(ctx, a)
		switch {
		case err == nil && at != 0:
			return nil
		case err == nil && v.claimID == id && v.remaining > 0, errors.Is(err, record.ErrConflict):
			continue // it saw the row before another's write
		case err == nil:
			return v.releaseOutcome(id, unknown)
		case driver.IsFinal(err):
			return err
		}
		unknown = unknown || !a.notSent
		if ctx.Err() == nil && s.info.Clock.Since(asked) <= driver.UnreachableTimeout(c.TTL) {
			err = cmp.Or(s.sleepFor(ctx, rand.N(10*time.Millisecond<<min(tries, 6))), nil)
			if err == nil {
				continue
			}
		}
		return driver.Uncertain(err)
	}
}

// Explain tells where a lock stands.
func (s *shedlockStore) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{Keys: s.table.Keys(c.Name), TTL: c.TTL}
}
