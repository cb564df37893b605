// Package record keeps each lock in one small record that is changed by compare-and-swap.
//
// It is the engine for stores that can keep a record and replace it if it is unchanged, but know nothing of locks, such
// as a directory of files, a database, a bucket of objects or Kubernetes. Everything particular to such a store is in
// a [Table]. Every decision about locks is made here.
//
// # The record and its steps
//
// A [Record] is the complete state of one lock: its kind, its limit, its largest token, and its claims in order of
// arrival. The table keeps it as a [Row]: its bytes under the lock's name, with a version that changes with every
// write. Holders and waiters are in one list, because one rule covers both: a claim may be granted if its weight and
// the weight of all claims ahead of it are together within the limit. A mutex has limit 1, a semaphore of n has limit
// n, and a writer of a read-write lock weighs the whole limit.
//
// A lock changes only by steps: Acquire, Renew, Release, Detach, SetWeight and Break. A step is a pure function of
// the record and a [StepInput], which holds all that may be known of time. The engine loads the row, clones the
// record, makes the step, and swaps: it replaces the row with the result if the version is still the same. If another
// client was faster, the swap is refused, and the engine makes the step again on the new record. So of all steps on one
// lock, each is made on the result of the one before.
//
// The engine remembers the rows that it saw last and makes the first attempt on the remembered one. If nothing has
// changed, taking or releasing a lock costs one round trip. If something has changed, the swap is refused and only that
// round trip is wasted. A refusal that the caller gets to see (the lock is held, or the lease is lost) is never based
// on a remembered row.
//
// # Swaps that steps share
//
// The calls of one client that want the same lock would refuse each other, so they share swaps (see writer). A call that
// is the only one of its client at the lock swaps by itself. Steps that come while that swap is under way wait for it to
// return. Then all of them are made on the record that it has left, renewals and releases first, and are written by the
// next swap. A step that is refused is not part of the swap, and its call looks at the record itself. If the outcome of
// the swap is not known, it is not known for each step in it, and each call finds out about its own, as below.
//
// A swap also grants the waiters of this client that fit after its steps. Their calls are waiting here, so they need no
// promotion.
//
// No call waits for long because of another one's request: after a tenth of a second and some round trips the next swap
// goes beside one that hangs, and the store refuses one of the two.
//
// # Lost replies
//
// If a swap has no reply, it may have taken effect, or may still take effect later. The engine finds out by the
// claim's own id: it loads the row and makes the step again. A grant counts only when a swap was acknowledged: a claim
// that is found granted is written once more. If the claim is given up while the outcome of a swap is still unknown,
// Release changes the row's version, so that the swap is refused if it arrives.
//
// # Waiting
//
// A claim that has to wait either joins the queue in the record, or only watches the lock (a plain mutex). One hub per
// lock watches it for all waiters of this client. When the turn of a waiter in the queue comes, the step that made room
// promotes it: it marks the claim, and the waiter must confirm within a short window by writing its own grant. A
// promoted claim holds nothing. So if it does not confirm, because its client is dead, it can be removed after seconds
// and not only after its TTL.
//
// # Who expires a claim, and why that is safe
//
// No server expires claims. Each step removes the claims that have expired before it does anything else, so the next
// client that comes to the lock does it. A claim has expired in one of four cases:
//
//   - The table knows that its client is dead ([LivenessChecker]).
//   - The store's clock is surely past the claim's end. The writer sets the end by the latest value that the clock
//     may have had, and others compare it with the earliest value that the clock may have now. An error in either
//     estimate makes the claim expire later, never earlier.
//   - The claim's mark is gone ([Traits].Marks, only in a ledger). The store removes the mark by itself, at the earliest when
//     the TTL has passed since the start of the swap that wrote it last.
//   - This client has watched the claim unchanged for its whole silence limit (its TTL, or the confirm window if it was
//     promoted) and a margin, on its own clock. Every renewal changes a counter in the claim, its beat, and the
//     watching began after the last renewal was started. The owner counts from the start of that renewal and stops a
//     margin early. So the owner has stopped before the watcher is done, if their clocks run at rates that differ by
//     less than the margin.
//
// The wall clocks of two clients are never compared.
//
// A holder that was paused may wake up after its claim was removed. Its next renewal is refused, since the claim or
// its token is gone: a lost claim is never added again. Whatever it writes to other systems before that is refused
// only if those systems check its token.
//
// A claim that somebody else has ended leaves a note in the record (see [EndedClaim]). By the note its owner can tell
// a lease that was taken away from one that it released itself with a reply that was lost.
package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// New makes a driver.Store of a table. Closing the store closes the table.
func New(table Table) driver.Store { return newEngine(table) }

func newEngine(table Table) *engine {
	e := &engine{
		table: table, info: completeInfo(table.Info()), closed: make(chan struct{}), traits: table.Traits(),
		rows:         newKnownRows(),
		watchedSince: map[string]map[observation]driver.Instant{},
		writtenAt:    map[string]driver.Instant{},
		pending:      pendingSwaps{byClaim: map[string]pendingSwap{}},
		hubs:         map[string]*waiterHub{},
		writers:      map[string]*writer{},
		rtt:          10 * time.Millisecond,
		life:         driverutil.NewLifetime(),
	}
	e.clock, e.retryPause = e.info.Clock, e.pauseAfterFailure
	e.watcher, e.liveness, e.storeClock = table.Watcher(), table.Liveness(), table.Clock()
	e.info.Abilities.Ledger, e.info.Abilities.LivenessFile = e.traits.Ledger, e.liveness != nil
	e.maxRecord = min(MaxData, cmp.Or(e.traits.MaxRecord, MaxData))
	return e
}

// engine is the driver.Store of one table.
type engine struct {
	driver.Unsupported

	table Table
	info  driver.Info
	clock driver.Clock

	watcher    Watcher         // nil if the engine polls
	liveness   LivenessChecker // nil if the table has none
	storeClock Clock           // nil if the store tells no time by which claims may expire
	traits     Traits          // as the table had them when the engine was made
	maxRecord  int             // bytes
	keepsRuns  bool            // it is the engine of a ledger
	room       runRoom         // of a ledger

	retryPause func(ctx context.Context, failures int) error // pauseAfterFailure, made once

	life    *driverutil.Lifetime // ends when the store is closed
	alive   aliveClients
	closing atomic.Bool
	closed  chan struct{} // closed when Close is done

	mu           sync.Mutex
	rows         knownRows                                 // as last seen, so that the first swap needs no load
	watchedSince map[string]map[observation]driver.Instant // by lock: since when each claim was seen unchanged
	watched      int                                       // how many claims that are
	writtenAt    map[string]driver.Instant                 // by lock: its last write, if the store has a WriteInterval
	rtt          time.Duration                             // smoothed round trip
	hubs         map[string]*waiterHub                     // by lock
	writers      map[string]*writer                        // by lock
	swapsBegun   int64                                     // by writers
	pending      pendingSwaps
	reading      clockReading // of a table without a Clock
	nextSweep    driver.Instant
	sweepResume  *sweepPlace // where to continue, if the last sweep was cut short
}

// completeInfo adds what the engine promises to what the table promises.
func completeInfo(info driver.Info) driver.Info {
	info.Engine = "record"
	info.ExpiredBy = driver.ExpiredByClaimant
	info.Order = driver.OrderFairOnly
	info.Kinds = []driver.Kind{driver.KindMutex, driver.KindRW, driver.KindSemaphore}
	info.Abilities = driver.Abilities{Detach: true, SetWeight: true, Reasons: true, Forget: true, Tokens: true}
	return info.Bounded()
}

func (e *engine) Info() driver.Info { return e.info }

// Close ends the calls in flight, and then the table. A second Close waits for the first.
func (e *engine) Close() error {
	if !e.closing.CompareAndSwap(false, true) {
		<-e.closed
		return nil
	}
	defer close(e.closed)
	e.sweepAtClose()
	e.life.End()
	e.life.Wait()
	return e.table.Close()
}

// errorOrClosed returns err, or ErrClosed in its place if the store was closed.
func (e *engine) errorOrClosed(err error) error {
	if err != nil && e.life.Err() != nil {
		return driver.ErrClosed
	}
	return err
}

// snapshot is a row as it was seen once. Nobody changes the record: a step is made on a clone.
type snapshot struct {
	row      Row // without its data
	rec      *Record
	written  bool   // this client has written it
	replaced string // and this version was there before
}

// follows reports whether this client has replaced the version by s.
func (s *snapshot) follows(version string) bool { return s.written && s.replaced == version }

// recallRow returns the row as last seen. A name that was never seen is taken to be absent: if that is true the first
// swap succeeds, and if not it is refused.
func (e *engine) recallRow(name string) (Row, *Record) {
	if s, ok := e.knownRow(name); ok {
		return s.row, s.rec
	}
	return Row{Name: name}, &Record{}
}

// knownRow returns the row as last seen, if this client has not forgotten it.
func (e *engine) knownRow(name string) (knownRow, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rows.getRow(name)
}

// rememberRow keeps a row that was read or written by a request that was answered at the given time.
func (e *engine) rememberRow(s snapshot, answered driver.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if version, ok := e.rows.getVersion(s.row.Name); ok && version != s.row.Version {
		e.noteWrite(s.row.Name)
	}
	e.rows.putRow(s, answered)
	e.rows.trimRows(answered, e.idleKeep())
}

// noteWrite notes that a row was written now, or not long ago, by any client. It is called with mu held.
func (e *engine) noteWrite(name string) {
	if e.info.WriteInterval == 0 {
		return
	}
	e.writtenAt[name] = e.clock.Now()
	for other := range e.writtenAt {
		if len(e.writtenAt) <= maxOwnRows {
			break
		}
		delete(e.writtenAt, other)
	}
}

// writeDelay is how long a write that can wait should be put off, because the row was written a moment ago.
func (e *engine) writeDelay(name string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.writtenAt[name]
	if !ok {
		return 0
	}
	return e.info.WriteInterval - e.clock.Since(at)
}

// forgetRow drops a row that may have changed.
func (e *engine) forgetRow(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rows.dropRow(name)
}

// loadRecord reads a record as it is now, and remembers it. If this client has replaced the row in the meantime, it returns
// the one that is there since.
func (e *engine) loadRecord(ctx context.Context, name string) (Row, *Record, error) {
	before, _ := e.knownRow(name)
	from := e.clock.Monotonic()
	row, err := e.table.Load(ctx, name)
	if err != nil {
		return Row{}, nil, e.errorOrClosed(err)
	}
	answered := e.noteRoundTrip(from)
	row.Name = name
	if now, ok := e.knownRow(name); ok && now.follows(row.Version) && now.row.Version != before.row.Version {
		return now.row, now.rec, nil
	}
	return e.acceptRow(row, answered)
}

// decodeRow decodes a row. If a foreign client holds the lock, the record has that hold in place of our claims.
func decodeRow(row Row) (*Record, error) {
	rec := &Record{}
	if row.Version != "" && (row.Foreign == 0 || len(row.Data) > 0) {
		var err error
		if rec, err = Decode(row.Name, row.Data); err != nil {
			return nil, err
		}
	}
	if row.Foreign != 0 {
		rec = &Record{Token: rec.Token, Foreign: row.Foreign}
	}
	return rec, nil
}

// acceptRow decodes a row that was read by a request that was answered at the given time, and remembers it.
func (e *engine) acceptRow(row Row, answered driver.Instant) (Row, *Record, error) {
	known, ok := e.knownRow(row.Name)
	rec, err := decodeRow(row)
	if err != nil {
		e.forgetRow(row.Name)
		return row, nil, err
	}
	if ok {
		rec.markOwn(known.rec)
	}
	row.Data = nil
	e.rememberRow(snapshot{row: row, rec: rec}, answered)
	return row, rec, nil
}

// swapRecord writes a record over the row that it was made from. If the swap is refused with ErrConflict and the table
// returned the current row, it returns that, decoded. After any other error nobody knows what the row is now.
//
// addsClaim says that the record has one claim more than the row, for which there must be room.
func (e *engine) swapRecord(ctx context.Context, seen snapshot, rec *Record, addsClaim bool) (Row, *Record, error) {
	row, err := e.encodeRow(seen.row, rec, addsClaim)
	if err != nil {
		return Row{}, nil, err
	}
	row.Notify = e.clientsToNotify(seen.rec, rec)
	from := e.clock.Monotonic()
	now, err := e.table.Swap(ctx, row)
	if err == nil || errors.Is(err, ErrConflict) {
		e.mu.Lock()
		e.noteWrite(row.Name)
		e.mu.Unlock()
	}
	switch {
	case err == nil:
		answered := e.noteRoundTrip(from)
		if now.Token > 0 {
			rec.replaceToken(now.Token)
		}
		now.Name, now.Data, now.Notify = row.Name, nil, nil
		written := snapshot{now, rec, true, row.Version}
		e.rememberRow(written, answered)
		e.showHubWrite(written)
		return now, rec, nil
	case errors.Is(err, ErrConflict) && now.Version != "":
		answered := e.noteRoundTrip(from)
		now.Name = row.Name
		now, rec, decodeErr := e.acceptRow(now, answered)
		if decodeErr != nil {
			return Row{}, nil, decodeErr
		}
		return now, rec, err
	default:
		e.forgetRow(row.Name)
		return Row{}, nil, e.errorOrClosed(err)
	}
}

// encodeRow makes the row that replaces another one.
func (e *engine) encodeRow(row Row, rec *Record, addsClaim bool) (Row, error) {
	encode := Encode
	if addsClaim {
		encode = e.encodeWithRoom
	}
	data, err := encode(rec)
	if err != nil {
		return Row{}, err
	}
	row = Row{
		Name: row.Name, Version: row.Version, Data: data, Token: rec.Token, Marked: row.Marked,
	}
	if at, ok := rec.neededUntil(); ok {
		row.KeepUntil = e.keepUntil(at)
	}
	if e.traits.Marks && len(rec.Claims) == 0 {
		row.MarkTTL = RemoveMark
	}
	for i := range rec.Claims {
		c := &rec.Claims[i]
		if c.Marked && c.renewed {
			row.MarkTTL = max(row.MarkTTL, c.TTL)
		}
		row.Durable = row.Durable || e.mustOutlive(c)
		if c.State != Waiting {
			row.ExpiresAt = max(row.ExpiresAt, c.ExpiresAt)
		}
	}
	return row, nil
}

// mustOutlive reports whether a claim must be there when the machine has been restarted: not only its client relies on it.
func (e *engine) mustOutlive(c *Claim) bool {
	return c.Detached || e.liveness != nil && c.State == Granted && c.Session == ""
}

// noteRoundTrip measures a round trip that ends now, and returns the time.
func (e *engine) noteRoundTrip(from time.Duration) (answered driver.Instant) {
	answered = e.clock.Now()
	e.mu.Lock()
	e.rtt += (answered.Monotonic - from - e.rtt) / 8
	e.mu.Unlock()
	return answered
}

func (e *engine) roundTrip() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rtt
}

// confirmWindow is how long a promoted claim has to confirm: long enough for a live client that needs a few round
// trips, and short beside a TTL.
func (e *engine) confirmWindow() time.Duration { return 2*time.Second + 10*e.roundTrip() }

// crowdSize is the number of claims from which on the clients of a lock spread their writes over time.
const crowdSize = 8

// manyConflicts is how many refusals in a row make a client slow down even if there is no crowd.
const manyConflicts = 128

// pauseAfterConflict waits before the next attempt of a write that was refused because another client's came first.
// It reports whether that took time. tries is how many attempts were refused before; claims is how many the record
// has.
//
// If few clients write one record, they try again at once. A client that pauses has to load again, and on a distant
// store it then loses against a client that comes and goes all the time and knows the record because it wrote it.
// Only a crowd spreads its writes, over a time that grows with both numbers. A client that is refused very often
// slows down, too.
func (e *engine) pauseAfterConflict(ctx context.Context, tries, claims int) (paused bool, err error) {
	n := max(min(tries, crowdSize)*(claims/crowdSize), tries/manyConflicts)
	if n == 0 {
		return false, ctx.Err()
	}
	return true, e.life.Sleep(ctx, rand.N(min(time.Second, e.roundTrip()*time.Duration(n))+1))
}

// pauseAfterFailure waits before the next request to a store that did not answer the last ones.
func (e *engine) pauseAfterFailure(ctx context.Context, failures int) error {
	base := max(e.roundTrip(), time.Millisecond)
	return e.life.Sleep(ctx, rand.N(min(time.Second, base<<min(failures, 10))+1))
}

// LivenessFile returns the table's liveness file, if it has one.
func (e *engine) LivenessFile() (*os.File, error) {
	if e.liveness == nil {
		return e.Unsupported.LivenessFile()
	}
	f, err := e.liveness.LivenessFile()
	return f, e.errorOrClosed(err)
}

// Explain says that the TTL is kept as it is, and where the record is.
func (e *engine) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{TTL: c.TTL, Keys: e.table.Keys(c.Name)}
}

// Examine returns what the table finds in its settings, if it looks for anything.
func (e *engine) Examine(ctx context.Context) ([]driver.Finding, error) {
	findings, err := e.table.Examine(ctx)
	return findings, e.errorOrClosed(err)
}

// Forget removes the record of a lock that has no claims.
func (e *engine) Forget(ctx context.Context, name string) error {
	if err := driver.CheckName(name, e.info); err != nil {
		return err
	}
	for tries := 0; ; tries++ {
		row, rec, err := e.loadRecord(ctx, name)
		switch {
		case err != nil:
			return err
		case row.Version == "":
			return nil
		case len(rec.Claims) > 0 || rec.Foreign != 0 || rec.Runs != nil:
			lock := e.describeRow(row, rec)
			return &driver.HeldError{Holders: lock.Holders, Waiting: len(lock.Waiters)}
		}
		err = e.table.Delete(ctx, row)
		e.forgetRow(name)
		if !errors.Is(err, ErrConflict) {
			return e.errorOrClosed(err)
		}
		if _, err := e.pauseAfterConflict(ctx, tries, 0); err != nil {
			return err
		}
	}
}

// OpenLedger opens the ledger of the same store, if the table has one.
func (e *engine) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	if !e.traits.Ledger {
		return e.Unsupported.OpenLedger(ctx)
	}
	table, err := e.table.OpenLedgerTable(ctx)
	if err != nil {
		return nil, e.errorOrClosed(err)
	}
	l := NewLedger(table).(*ledger)
	if l.maxRecord < minLedgerRecord {
		_ = l.Close()
		return nil, fmt.Errorf("%w: the store keeps records of at most %d bytes, and a run ledger needs %d: "+
			"raise the limit of the store", driver.ErrInvalid, l.maxRecord, minLedgerRecord)
	}
	return l, nil
}
