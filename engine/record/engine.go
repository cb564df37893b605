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
// The calls of one client that want the same lock would refuse each other, so they share swaps (see writer). A call
// that is the only one of its client at the lock swaps by itself. Steps that come while that swap is under way wait
// for it to return. Then all of them are made on the record that it has left, renewals and releases first, and are
// written by the next swap. A step that is refused is not part of the swap, and its call looks at the record itself.
// If the outcome of the swap is not known, it is not known for each step in it, and each call finds out about its
// own, as below.
//
// A swap also grants the waiters of this client that fit after its steps. Their calls are waiting here, so they need no
// promotion.
//
// No call waits for long because of another one's request: after a tenth of a second and some round trips the next swap
// goes next to one that hangs, and the store refuses one of the two.
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
//   - The store's clock is certainly past the claim's end. The writer sets the end by the latest value that the clock
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
//
// # Decisions
//
// On the file store, a client that waits is notified through a pipe (FIFO) of its own. Rejected: a file that all of
// them watch, since each hand-over woke hundreds of processes. Rejected: a file of its own that it watches: on most
// systems a user may have 128 watchers, and each process needs one. Rejected: to block in flock(2), whose queue the
// kernel keeps: Go cannot end such a call when a context ends.
//
// A refused write is repeated at once, with the record that the refusal brought, while the lock has fewer than eight
// claims; with more, clients spread their attempts. Rejected: waiting longer after each refusal. Such a client lost
// every race against one that came and went all the time. 50 ms away from the store, with four such readers, one writer
// in ten waited for 5 s or more, and some releases took longer than the TTL. With the decision one in ten waits for 1.6
// s or more, and no release takes so long.
//
// Calls of one client on one lock share swaps (writer). A call that is alone pays for that with one allocation per
// acquire and release: it has no queue, no goroutine and no closure. A swap that hangs is overtaken after 100 ms and
// eight round trips: two swaps of one client are as safe as those of two, since the store refuses one of them. So a
// renewal never waits for another call's request for longer. A shared swap that is refused is not repeated by the
// writer; each call gets the refusal and goes on by its own rules (how long to pause, whether to let a renewal go
// first). While a claim pauses, its step goes with the next swap of its client, be it the release of a holder. Without
// that, eight refused callers of one process came back one by one, each with a load and a swap; on DynamoDB's emulator,
// with eight such processes, a caller was refused up to 270 times, and had no place in the queue for 15 s. After a
// shared swap that has granted the last place of a lock, the next one waits for a round trip, 5 ms at most, if it has
// only claims that must wait anyway: a holder that releases at once takes them with it, which saves a third of the
// swaps. Rejected: to wait for more steps otherwise, which lone callers would pay for. Rejected: one goroutine per lock
// that makes all writes: two changes of goroutine per step, and a lifetime to manage. Rejected: that a caller writes
// the steps of the others under its own context. When it gave up, it would leave them all with unknown outcomes.
// Rejected: only renewals and releases overtake a swap that hangs. It needs a second kind of queue, and the claims
// would wait for nothing. Not in groups: an operator's steps, detaching and changes of weight, which are rare and load
// first; and the ledger, whose steps also write pages.
//
// A hub believes its own client's writes, and nothing else without a load. It takes a write only if that replaced the
// row which the hub knows, so what it knows never goes back. While all claims ahead of its waiters are its client's
// own, it does not even listen: it would be notified of its own writes. After 50 ms without one it listens, so that it
// notices a break, or a claim that expires. Rejected: to compare versions, which have no order; and to take a row that
// is shown again for an old read at any time. A store may have forgotten a write after a failover, so a read is old
// only if the write was acknowledged while it was under way.
//
// A client that ends another client's claim leaves a note of it in the record, for the claim's TTL and the time for
// which a release retries: at most 64 notes of about 80 bytes each. If there were more, the record says until when a
// note may be missing. So a release whose reply was lost can tell its own success from a forced break. Rejected: a note
// of each release, which every record would contain all the time.
//
// A grant that was only read is written once more, on every store, even where a read would prove enough. It costs one
// write per lost reply, and no table has to declare what its reads prove.
//
// Idle records are kept for ten minutes and ten times the error of the store's clock (Info.TokenGap), for their tokens.
// After that, a token made from the clock is larger anyway. Any client may sweep them.
//
// The store's clock decides where there is one. Watching is for stores without one. Both are sound, and the simulation
// runs both.
//
// One estimator of a server's clock (record.ServerClock) serves exact clocks, clocks in milliseconds, and the date of a
// reply. It keeps a lower and an upper bound: each reply narrows them, and passing time widens them. A reply that
// contradicts the others is believed when another one agrees with it. Until then either clock may be right: the ends of
// claims are set by the later of the two, and tokens are made from the earlier. No claim is expired by a clock that is
// ahead of one that was seen within a day, because its end was set by the other clock. So one odd reply, seconds or
// years off, expires nobody's lock.
//
// A server's clock and ours may run 1 % apart. Two good clocks differ by less than 0.05 %. But a time daemon that
// corrects a clock makes it run faster or slower for a while, including the monotonic one, and 1 % is what the margin
// of a long lease allows for. The cost is one more request after half a minute without any.
//
// A foreign holder is Row.Foreign (DynamoDB). Rejected: a claim in the record, since nothing may be written into what a
// foreign client holds.
//
// A version is never a hash of the data. After a waiter has come and gone, the record can be the same as before, and a
// swap that is still in flight would be accepted.
//
// A plain claim that waits only watches, and joins the queue when the lock has gone to others for a second. Of one
// process, one claim per lock watches; the others wait in the process (queue.go). A claim that watches writes nothing,
// and a newcomer may take the free lock before it, so a busy lock goes round with the fewest writes: on PostgreSQL with
// 16 clients, three times as often as a fair one. But a client that is far from the store would come too late forever,
// and so would one that finds fair claims in the queue, since the lock is never free then. And with 100 clients, of
// which each looks at each change, a hand-over costs 60 to 90 requests, while with a queue it costs 15. Time tells the
// cases apart: with eight processes a claim is overtaken for some milliseconds, and 100 that come once are served
// within a second. One hand-over is not enough, so that the candidates of a lock that goes to another holder once a year
// do not write the record all the time. A claim that finds the queue full, or the record, looks again after a pause, not
// at each change.
//
// On files a claim joins after 10 ms, if it has seen one client hold the lock twice. There clients take turns at
// looking, so only one claim looks, and a claim joins only when those before it have. Eight processes that come and go
// then have the lock in turn, each for some milliseconds and some 20 cycles, which makes several times as many cycles
// as a fair lock. If each client comes once, as in a herd, none can be starved by another one, and the queue would cost
// a third more.
//
// Rejected: to join at once. With eight processes on PostgreSQL that costs twice the processor time per turn, and the
// lock goes round half as often. Rejected: to count how often a claim is overtaken. When eight times were enough, most
// of 48 processes were in the queue, which cost twice the processor time of watching; and on a lock that is held for
// minutes that takes long.
//
// On tables that are polled a claim joins after 32 round trips, and not before 0.1 s. A claim that polls finds a free
// lock by chance: with eight processes of eight goroutines that hold it for a millisecond, one process had it for ten
// seconds. So a second is too long, and the queue costs little: its head learns of its turn by the pace of the lock
// (handOverPace), and those behind poll less than if they watched. Rejected: to join at once, which costs a quarter to
// a third of the turns. Rejected: never to join, since each place in the queue costs a write per third of the TTL: only
// claims that are overtaken join, and a write costs as much as 5 to 12 reads, of which a waiter makes 80 per minute. It
// remains so where a lock may be written once per second: there all clients keep away from a lock that was just
// written.
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

// newEngine asks the table once for all that it promises; these answers never change.
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
	info.Abilities = driver.Abilities{Detach: true, SetWeight: true, NewestOnly: true, Reasons: true, Forget: true, Tokens: true,
		Permits: true}
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

// forgetVersion drops a row if it still has the version that was found to be old: it may have been read since.
func (e *engine) forgetVersion(name, version string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if known, ok := e.rows.getVersion(name); ok && known == version {
		e.rows.dropRow(name)
	}
}

// loadRecord reads a record as it is now, and remembers it. If this client has replaced the row in the meantime, it
// returns the one that is there since.
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

// acceptNotice takes the row that a notice has brought, if it has, as if it had been loaded, but for the times in it. If
// this client has read that row, or has replaced it since, it takes what it knows. The rows of runs are loaded: what
// their times mean depends on the store's clock.
func (e *engine) acceptNotice(row Row) (Row, *Record, bool) {
	if row.Version == "" || e.keepsRuns {
		return row, nil, false
	}
	if known, ok := e.knownRow(row.Name); ok && (known.row.Version == row.Version || known.follows(row.Version)) {
		return known.row, known.rec, true
	}
	row.untimed = e.storeClock != nil
	row, rec, err := e.acceptRow(row, e.clock.Now())
	return row, rec, err == nil // otherwise the load that follows tells why
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
	case errors.Is(err, ErrConflict):
		e.forgetVersion(row.Name, row.Version)
		return Row{}, nil, e.errorOrClosed(err)
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

// mustOutlive reports whether a claim must be there when the machine has been restarted: not only its client relies
// on it.
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
// trips, and short compared with a TTL.
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
	d := e.conflictPause(tries, claims)
	if d == 0 {
		return false, ctx.Err()
	}
	return true, e.life.Sleep(ctx, d)
}

// conflictPause is how long pauseAfterConflict waits; 0: not at all.
func (e *engine) conflictPause(tries, claims int) time.Duration {
	n := max(min(tries, crowdSize)*(claims/crowdSize), tries/manyConflicts)
	if n == 0 {
		return 0
	}
	return 1 + rand.N(min(time.Second, e.roundTrip()*time.Duration(n))+1)
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
