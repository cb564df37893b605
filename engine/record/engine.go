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
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// New makes a driver.Store of a table. Closing the store closes the table.
func New(table Table) driver.Store {
	e := &engine{table: table, info: complete(table.Info()), rows: knownRows{byName: map[string]*list.Element{}}, seen: map[string]map[sighting]driver.Instant{},
		moved: map[string]driver.Instant{}, flying: flights{byClaim: map[string]flight{}}, lookouts: map[string]*lookout{}}
	e.clock, e.closed = e.info.Clock, make(chan struct{})
	e.notifier, _ = table.(Notifier)
	e.presence, _ = table.(LivenessChecker)
	e.aging, _ = table.(ClockRefresher)
	e.bounded, _ = table.(ClockBounder)
	_, e.sweptByStore = table.(SelfExpiring)
	_, e.forgets = table.(TracelessReleaser)
	e.maxRecord = MaxData
	if t, ok := table.(SizeLimiter); ok {
		e.maxRecord = min(MaxData, t.MaxRecordSize())
	}
	e.life, e.end = context.WithCancelCause(context.Background())
	e.rtt = 10 * time.Millisecond
	return e
}

type engine struct {
	table        Table
	info         driver.Info
	clock        driver.Clock
	notifier     Notifier        // nil if the table has none
	presence     LivenessChecker // nil if the table has none
	aging        ClockRefresher  // nil if the table's estimate of the clock does not age
	bounded      ClockBounder    // nil if the table's error is the same to both sides
	sweptByStore bool
	forgets      bool // nothing is left of a lock that is free
	maxRecord    int  // bytes
	life         context.Context
	end          context.CancelCauseFunc
	closing      atomic.Bool
	closed       chan struct{}
	// inBackground counts the engine's own goroutines; it is added to only with mu held and life going on.
	inBackground sync.WaitGroup

	mu        sync.Mutex
	rows      knownRows                              // so that the first swap can do without a load
	seen      map[string]map[sighting]driver.Instant // since when each claim has been watched unchanged
	moved     map[string]driver.Instant              // when each was last written, where the store wants writes paced
	rtt       time.Duration                          // smoothed round trip
	lookouts  map[string]*lookout
	flying    flights
	nextSweep driver.Instant
	swept     *sweepPlace // how far, if a sweep was cut short
}

// sighting is what must stay the same for a claim to count as silent: not its id alone, since one claim may stand, go and
// stand again, and not its token alone, since a waiting one has none.
type sighting struct {
	id    string
	token int64
	beat  int64
}

func complete(info driver.Info) driver.Info {
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
	e.end(driver.ErrClosed)
	e.mu.Unlock()
	e.inBackground.Wait()
	return e.table.Close()
}

// bind makes ctx end with the store, too.
func (e *engine) bind(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.life, func() { cancel(driver.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// fault gives an error its final form: whatever ended with the store says so.
func (e *engine) fault(err error) error {
	if err != nil && e.life.Err() != nil {
		return driver.ErrClosed
	}
	return err
}

// sight is a row as it was seen once. Nobody changes the record: a step is made on a clone.
type sight struct {
	row Row // without its data
	rec *Record
}

// known gives the row as last seen. A name never seen is taken to be absent, which costs nothing where it is true.
func (e *engine) known(name string) (Row, *Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s, ok := e.rows.get(name); ok {
		return s.row, s.rec
	}
	return Row{Name: name}, &Record{}
}

func (e *engine) remember(row Row, rec *Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if was, ok := e.rows.get(row.Name); ok && was.row.Version != row.Version {
		e.noteWrite(row.Name)
	}
	now := e.clock.Now()
	e.rows.put(sight{row, rec}, now)
	e.rows.trim(now, e.idleKeep())
}

// noteWrite notes that a row was written, just now or not long ago. It is called with mu held.
func (e *engine) noteWrite(name string) {
	if e.info.WriteInterval == 0 {
		return
	}
	e.moved[name] = e.clock.Now()
	for other := range e.moved {
		if len(e.moved) <= maxKnown {
			break
		}
		delete(e.moved, other)
	}
}

// tooSoon is how long a write that can wait should be put off, since the row was written a moment ago.
func (e *engine) tooSoon(name string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.moved[name]
	if !ok {
		return 0
	}
	return e.info.WriteInterval - e.clock.Since(at)
}

// forget drops a row that may not be what stands there.
func (e *engine) forget(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rows.drop(name)
}

// load reads a record as it is now.
func (e *engine) load(ctx context.Context, name string) (Row, *Record, error) {
	from := e.clock.Now()
	row, err := e.table.Load(ctx, name)
	if err != nil {
		return Row{}, nil, e.fault(err)
	}
	e.took(from)
	row.Name = name
	return e.saw(row)
}

// read decodes a row, and puts the foreign holder, if there is one, in the place of ours.
func read(row Row) (*Record, error) {
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

// saw decodes a row that was just read, and remembers it.
func (e *engine) saw(row Row) (Row, *Record, error) {
	rec, err := read(row)
	if err != nil {
		e.forget(row.Name)
		return row, nil, err
	}
	row.Data = nil
	e.remember(row, rec)
	return row, rec, nil
}

// swap writes a record over the row it was made from. After a refusal it gives the row that stands there, if the table
// said so, decoded; after any other error what stands there is not known.
//
// comes says that the record has a claim more, for which there must be room.
func (e *engine) swap(ctx context.Context, row Row, rec *Record, comes bool) (Row, *Record, error) {
	data, err := Encode(rec)
	if err == nil && comes {
		err = e.hasRoom(rec, len(data))
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
		e.took(from)
		if now.Token > 0 {
			rec.retoken(now.Token)
		}
		now.Name, now.Data = row.Name, nil
		e.remember(now, rec)
		return now, rec, nil
	case errors.Is(err, ErrConflict) && now.Version != "":
		e.took(from)
		now.Name = row.Name
		now, rec, derr := e.saw(now)
		if derr != nil {
			return Row{}, nil, derr
		}
		return now, rec, err
	default:
		e.forget(row.Name)
		return Row{}, nil, e.fault(err)
	}
}

// took notes how long a round trip took.
func (e *engine) took(from driver.Instant) {
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

// window is how long a called claim has to show itself: long enough for a live one that needs a few round trips, and
// short beside a TTL.
func (e *engine) window() time.Duration { return 2*time.Second + 10*e.roundTrip() }

// crowded is how many claims a lock has when so many contend for its record that they must go easy on the store.
const crowded = 8

// unlucky is after how many refusals it is not chance any more.
const unlucky = 128

// pause waits before the next try of a write that was refused because of another's, tries times before, and reports
// whether it has taken time. claims is how many the record has.
//
// The few who write one record at most times try again at once. Whoever pauses has to look again, and on a store that is
// far away loses against one who comes and goes all the time and knows the record because he wrote it. Only a crowd spreads
// itself, over a time that grows with both numbers; and whoever is refused for ever comes more and more seldom.
func (e *engine) pause(ctx context.Context, tries, claims int) (paused bool, err error) {
	n := max(min(tries, crowded)*(claims/crowded), tries/unlucky)
	if n == 0 {
		return false, ctx.Err()
	}
	return true, e.sleep(ctx, rand.N(min(time.Second, e.roundTrip()*time.Duration(n))+1))
}

// bear waits before the next request to a store that did not answer the last ones.
func (e *engine) bear(ctx context.Context, failures int) error {
	return e.sleep(ctx, rand.N(min(time.Second, max(e.roundTrip(), time.Millisecond)<<min(failures, 10))+1))
}

func (e *engine) sleep(ctx context.Context, d time.Duration) error {
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
