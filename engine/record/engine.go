// Package record keeps locks as small records that are moved by compare-and-swap.
//
// It is for stores that can keep a record and replace it if it is unchanged, and that know nothing of locks: memory, a
// directory of files, DynamoDB, Google Cloud Storage, PostgreSQL. All that is particular to such a store is a [Table];
// every decision about locks is made here, by the steps of [Record], which are pure. Around them this package does what
// a store cannot: it looks first at the version that it saw last, so that taking a lock costs one round trip where
// nothing has changed; it settles lost replies by the claim's own id, and by a write that is acknowledged; it waits, and it judges who has fallen silent.
//
// A silent claim is ended by whoever comes next, in one of three ways: the table knows that its client is gone; the
// store's own clock is past its end; or the one who comes has watched it unchanged for as long as it may be silent, and
// a margin, on its own clock. Two clients' wall clocks are never compared.
package record

import (
	"container/list"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// New makes a driver.Store of a table. Closing the store closes the table.
func New(table Table) driver.Store {
	e := &engine{table: table, info: completeInfo(table.Info()), rows: knownRows{byName: map[string]*list.Element{}}, watchedSince: map[string]map[observation]driver.Instant{},
		writtenAt: map[string]driver.Instant{}, pending: pendingSwaps{byClaim: map[string]pendingSwap{}}, hubs: map[string]*waiterHub{}}
	e.clock, e.closed = e.info.Clock, make(chan struct{})
	e.notifier, _ = table.(Notifier)
	e.liveness, _ = table.(LivenessChecker)
	e.clockRefresher, _ = table.(ClockRefresher)
	e.clockBounder, _ = table.(ClockBounder)
	_, e.storeExpiresIdle = table.(SelfExpiring)
	_, e.tracelessRelease = table.(TracelessReleaser)
	e.maxRecord = MaxData
	if t, ok := table.(SizeLimiter); ok {
		e.maxRecord = min(MaxData, t.MaxRecordSize())
	}
	e.life, e.cancelLife = context.WithCancelCause(context.Background())
	e.rtt = 10 * time.Millisecond
	return e
}

type engine struct {
	table            Table
	info             driver.Info
	clock            driver.Clock
	notifier         Notifier        // nil if the table has none
	liveness         LivenessChecker // nil if the table has none
	clockRefresher   ClockRefresher  // nil if the table's estimate of the clock does not age
	clockBounder     ClockBounder    // nil if the table's error is the same to both sides
	storeExpiresIdle bool
	tracelessRelease bool // nothing is left of a lock that is free
	maxRecord        int  // bytes
	life             context.Context
	cancelLife       context.CancelCauseFunc
	closing          atomic.Bool
	closed           chan struct{}
	// background counts the engine's own goroutines; it is added to only with mu held and life going on.
	background sync.WaitGroup

	mu           sync.Mutex
	rows         knownRows                                 // so that the first swap can do without a load
	watchedSince map[string]map[observation]driver.Instant // since when each claim has been watched unchanged
	writtenAt    map[string]driver.Instant                 // when each was last written, where the store wants writes paced
	rtt          time.Duration                             // smoothed round trip
	hubs         map[string]*waiterHub
	pending      pendingSwaps
	nextSweep    driver.Instant
	sweepResume  *sweepPlace // how far, if a sweep was cut short
}

// observation is what must stay the same for a claim to count as silent: not its id alone, since one claim may stand, go and
// stand again, and not its token alone, since a waiting one has none.
type observation struct {
	id    string
	token int64
	beat  int64
}

func completeInfo(info driver.Info) driver.Info {
	info.Engine = "record"
	info.ExpiredBy = driver.ExpiredByClaimant
	info.Order = driver.OrderFairOnly
	info.Kinds = []driver.Kind{driver.KindMutex, driver.KindRW, driver.KindSemaphore}
	info.Detached = true
	return info.Bounded()
}

func (e *engine) Info() driver.Info { return e.info }

// Close ends the calls under way, and then the table. A second Close waits for the first.
func (e *engine) Close() error {
	if !e.closing.CompareAndSwap(false, true) {
		<-e.closed
		return nil
	}
	defer close(e.closed)
	e.sweepAtClose()
	e.mu.Lock() // so that nothing starts once we wait
	e.cancelLife(driver.ErrClosed)
	e.mu.Unlock()
	e.background.Wait()
	return e.table.Close()
}

// bindContext makes ctx end with the store, too.
func (e *engine) bindContext(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.life, func() { cancel(driver.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// errorOrClosed gives an error its final form: whatever ended with the store says so.
func (e *engine) errorOrClosed(err error) error {
	if err != nil && e.life.Err() != nil {
		return driver.ErrClosed
	}
	return err
}

// snapshot is a row as it was seen once. Nobody changes the record: a step is made on a clone.
type snapshot struct {
	row Row // without its data
	rec *Record
}

// recallRow gives the row as last seen. A name never seen is taken to be absent, which costs nothing where it is true.
func (e *engine) recallRow(name string) (Row, *Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s, ok := e.rows.getRow(name); ok {
		return s.row, s.rec
	}
	return Row{Name: name}, &Record{}
}

func (e *engine) rememberRow(row Row, rec *Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if was, ok := e.rows.getRow(row.Name); ok && was.row.Version != row.Version {
		e.noteWrite(row.Name)
	}
	now := e.clock.Now()
	e.rows.putRow(snapshot{row, rec}, now)
	e.rows.trimRows(now, e.idleKeep())
}

// noteWrite notes that a row was written, just now or not long ago. It is called with mu held.
func (e *engine) noteWrite(name string) {
	if e.info.WriteInterval == 0 {
		return
	}
	e.writtenAt[name] = e.clock.Now()
	for other := range e.writtenAt {
		if len(e.writtenAt) <= maxUsedRows {
			break
		}
		delete(e.writtenAt, other)
	}
}

// writeDelay is how long a write that can wait should be put off, since the row was written a moment ago.
func (e *engine) writeDelay(name string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.writtenAt[name]
	if !ok {
		return 0
	}
	return e.info.WriteInterval - e.clock.Since(at)
}

// forgetRow drops a row that may not be what stands there.
func (e *engine) forgetRow(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rows.dropRow(name)
}

// loadRecord reads a record as it is now.
func (e *engine) loadRecord(ctx context.Context, name string) (Row, *Record, error) {
	from := e.clock.Now()
	row, err := e.table.Load(ctx, name)
	if err != nil {
		return Row{}, nil, e.errorOrClosed(err)
	}
	e.noteRoundTrip(from)
	row.Name = name
	return e.acceptRow(row)
}

// decodeRow decodes a row, and puts the foreign holder, if there is one, in the place of ours.
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

// acceptRow decodes a row that was just read, and remembers it.
func (e *engine) acceptRow(row Row) (Row, *Record, error) {
	rec, err := decodeRow(row)
	if err != nil {
		e.forgetRow(row.Name)
		return row, nil, err
	}
	row.Data = nil
	e.rememberRow(row, rec)
	return row, rec, nil
}

// swapRecord writes a record over the row it was made from. After a refusal it gives the row that stands there, if the table
// said so, decoded; after any other error what stands there is not known.
//
// comes says that the record has a claim more, for which there must be room.
func (e *engine) swapRecord(ctx context.Context, row Row, rec *Record, comes bool) (Row, *Record, error) {
	data, err := Encode(rec)
	if err == nil && comes {
		err = e.checkRoom(rec, len(data))
	}
	if err != nil {
		return Row{}, nil, err
	}
	row = Row{Name: row.Name, Version: row.Version, Data: data, Token: rec.Token}
	for i := range rec.Claims {
		c := &rec.Claims[i]
		row.Durable = row.Durable || c.Detached
		if c.State != Waiting {
			row.ExpiresAt = max(row.ExpiresAt, c.ExpiresAt)
		}
	}
	from := e.clock.Now()
	now, err := e.table.Swap(ctx, row)
	if err == nil || errors.Is(err, ErrConflict) {
		e.mu.Lock()
		e.noteWrite(row.Name)
		e.mu.Unlock()
	}
	switch {
	case err == nil:
		e.noteRoundTrip(from)
		if now.Token > 0 {
			rec.replaceToken(now.Token)
		}
		now.Name, now.Data = row.Name, nil
		e.rememberRow(now, rec)
		return now, rec, nil
	case errors.Is(err, ErrConflict) && now.Version != "":
		e.noteRoundTrip(from)
		now.Name = row.Name
		now, rec, derr := e.acceptRow(now)
		if derr != nil {
			return Row{}, nil, derr
		}
		return now, rec, err
	default:
		e.forgetRow(row.Name)
		return Row{}, nil, e.errorOrClosed(err)
	}
}

// noteRoundTrip notes how long a round trip took.
func (e *engine) noteRoundTrip(from driver.Instant) {
	d := e.clock.Since(from)
	e.mu.Lock()
	e.rtt += (d - e.rtt) / 8
	e.mu.Unlock()
}

func (e *engine) roundTrip() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rtt
}

// confirmWindow is how long a called claim has to show itself: long enough for a live one that needs a few round trips, and
// short beside a TTL.
func (e *engine) confirmWindow() time.Duration { return 2*time.Second + 10*e.roundTrip() }

// crowdSize is how many claims a lock has when so many contend for its record that they must go easy on the store.
const crowdSize = 8

// manyConflicts is after how many refusals it is not chance any more.
const manyConflicts = 128

// pauseAfterConflict waits before the next try of a write that was refused because of another's, tries times before, and reports
// whether it has taken time. claims is how many the record has.
//
// The few who write one record at most times try again at once. Whoever pauses has to look again, and on a store that is
// far away loses against one who comes and goes all the time and knows the record because he wrote it. Only a crowd spreads
// itself, over a time that grows with both numbers; and whoever is refused for ever comes more and more seldom.
func (e *engine) pauseAfterConflict(ctx context.Context, tries, claims int) (paused bool, err error) {
	n := max(min(tries, crowdSize)*(claims/crowdSize), tries/manyConflicts)
	if n == 0 {
		return false, ctx.Err()
	}
	return true, e.sleepFor(ctx, rand.N(min(time.Second, e.roundTrip()*time.Duration(n))+1))
}

// pauseAfterFailure waits before the next request to a store that did not answer the last ones.
func (e *engine) pauseAfterFailure(ctx context.Context, failures int) error {
	return e.sleepFor(ctx, rand.N(min(time.Second, max(e.roundTrip(), time.Millisecond)<<min(failures, 10))+1))
}

func (e *engine) sleepFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-e.life.Done():
		return driver.ErrClosed
	}
}

// LivenessFile passes on what the table offers.
func (e *engine) LivenessFile() (*os.File, error) {
	h, ok := e.table.(LivenessFiler)
	if !ok {
		return nil, driver.ErrUnsupported
	}
	f, err := h.LivenessFile()
	return f, e.errorOrClosed(err)
}

// Explain: the TTL is kept as it is.
func (e *engine) Explain(c driver.Claim) driver.Plan {
	plan := driver.Plan{TTL: c.TTL}
	if t, ok := e.table.(KeyLister); ok {
		plan.Keys = t.Keys(c.Name)
	}
	return plan
}

// Warnings passes on what the table warns of.
func (e *engine) Warnings(ctx context.Context) ([]string, error) {
	w, ok := e.table.(driver.Warner)
	if !ok {
		return nil, nil
	}
	ws, err := w.Warnings(ctx)
	return ws, e.errorOrClosed(err)
}
