package redis

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

var (
	swapRowScript = loadScript("swap_row.lua")
	loadRowScript = loadScript("load_row.lua")
)

// rowPrefix and runPrefix begin the keys of rows, before the user's template: those of a table, and those of the run
// ledger. They differ from all keys of locks, so that a row and a lock can have the same name.
const (
	rowPrefix = reserved + "-row:"
	runPrefix = reserved + "-run:"
)

// table implements record.Table: each record is a hash under a key of its own.
type table struct {
	record.Unsupported

	s      *store
	prefix string // rowPrefix or runPrefix
	clock  record.ServerClock
	closed chan struct{}
	close  sync.Once
	// With Options.Replicas, the rows that may not have reached enough replicas. The engine reads such a row to find
	// out what became of its write, so that read waits for the replicas, too.
	unconfirmed unconfirmedRows
	// closeStore closes the store that the table uses, if NewTable made it; else it does nothing.
	closeStore func() error
}

// NewTable gives access to records that are stored next to the locks, for data that is built on records but is no lock.
// Their keys begin with "holdfast-row:". The client stays open when the table is closed. ctx bounds the one request
// that reads the server's clock. It returns the errors of New, and those of that request.
func NewTable(ctx context.Context, client rueidis.Client, opts *Options) (record.Table, error) {
	s, err := newStore(client, opts)
	if err != nil {
		return nil, err
	}
	t, err := s.openTable(ctx, rowPrefix)
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	t.closeStore = s.Close
	return t, nil
}

// OpenLedger opens the run ledger next to the locks. Its keys begin with "holdfast-run:".
func (s *store) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	t, err := s.openTable(ctx, runPrefix)
	if err != nil {
		return nil, err
	}
	return record.NewLedger(t), nil
}

// openTable makes a table that uses the store. The store stays open when the table is closed. It reads a row that
// nobody needs, because every reply has the server's time, which the table's clock needs first.
func (s *store) openTable(ctx context.Context, prefix string) (*table, error) {
	t := &table{closeStore: func() error { return nil }, prefix: prefix,
		s: s, closed: make(chan struct{}), clock: record.ServerClock{Clock: s.clock}}
	if _, err := t.Load(ctx, "clock"); err != nil {
		return nil, err
	}
	return t, nil
}

// Info differs from the store's: the engine's clients end the claims of others, by the server's clock.
func (t *table) Info() driver.Info {
	i := t.s.info
	i.Engine, i.ExpiredBy, i.ExpiryClock, i.MaxWaiters = "record", driver.ExpiredByClaimant, driver.ExpiryClockStore, driver.MaxWaiters
	return i
}

func (t *table) TokenFloor() int64   { return t.clock.TokenFloor() }
func (t *table) Clock() record.Clock { return &t.clock }

// ReadClock is one read: each reply tells the time.
func (t *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	return record.ReadClockByLoad(ctx, t)
}

// Traits: the server expires the keys of rows that nobody needs.
func (t *table) Traits() record.Traits { return record.Traits{ExpiresIdle: true} }

// rowKey returns the key of a row, which is also the name of its channel.
func (t *table) rowKey(name string) string { return t.prefix + t.s.keys.lockKey(name) }

// runScript runs a script once: the engine finds out what became of a request without a reply. The times before and
// after the request bound the server's clock at the time that the reply names.
func (t *table) runScript(ctx context.Context, st *script, name string, args []string) ([]rueidis.RedisMessage, error) {
	select {
	case <-t.closed:
		return nil, driver.ErrClosed
	default:
	}
	if t.s.life.Err() != nil {
		return nil, driver.ErrClosed
	}
	if err := t.s.ensureChannelsKnown(ctx); err != nil {
		return nil, err
	}
	from := t.s.clock.Now()
	m, err := t.sendScript(ctx, st, name, args)
	if err != nil {
		if f := t.s.finalError(err); f != nil {
			return nil, f
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, explainError(err)
	}
	a, ok := readArray(m, 3)
	if !ok {
		return nil, corruptReply(name)
	}
	at := readNumber(a[1])
	if st == swapRowScript {
		at = readNumber(a[2])
	}
	// The server read its clock at some time between the two readings of ours, which bounds the difference of the
	// clocks.
	t.clock.AddReply(at, from, t.s.clock.Now())
	return a, nil
}

// sendScript sends a script, and waits for the replicas if Options.Replicas says so: a write always, and a read of a
// row whose last write was not confirmed. If too few replicas have the row, the outcome is unknown.
func (t *table) sendScript(ctx context.Context, st *script, name string, args []string) (rueidis.RedisMessage, error) {
	s, keys := t.s, []string{t.rowKey(name)}
	failure, isUnconfirmed := t.unconfirmed.find(name)
	if s.opts.Replicas == 0 || st == loadRowScript && !isUnconfirmed {
		return s.runScript(ctx, st, keys, args)
	}
	m, unconfirmed, err := s.runConfirmed(ctx, st, keys, append(args[:len(args):len(args)], touchRow))
	if err == nil && unconfirmed != nil {
		err = unconfirmed
	}
	if err != nil {
		t.unconfirmed.add(name)
	} else {
		t.unconfirmed.remove(name, failure)
	}
	return m, err
}

// touchRow makes a script write the row as it is if it does not change it, since WAIT counts the replicas that have
// what its own connection has written.
const touchRow = "1"

// unconfirmedRows remembers rows that may not have reached enough replicas. Once there were too many to remember, all
// rows count as such.
type unconfirmedRows struct {
	mu       sync.Mutex
	failures map[string]int64 // by row: the number of the last request that was not confirmed
	last     int64
	tooMany  bool // some are not in failures
}

const maxUnconfirmedRows = 1 << 14

// find returns the number of the last request for this row that was not confirmed.
func (u *unconfirmedRows) find(name string) (failure int64, found bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	failure, found = u.failures[name]
	return failure, found || u.tooMany
}

// add notes a row whose last write was not confirmed by a replica. When there are too many, all rows count as
// such.
func (u *unconfirmedRows) add(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failures == nil {
		u.failures = map[string]int64{}
	}
	if u.last++; u.failures[name] > 0 || len(u.failures) < maxUnconfirmedRows {
		u.failures[name] = u.last
	} else {
		u.tooMany = true
	}
}

// remove forgets a row that is confirmed now, unless another request for it has failed meanwhile.
func (u *unconfirmedRows) remove(name string, failure int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failures[name] == failure {
		delete(u.failures, name)
	}
}

// Load reads a row. A row that does not exist has no version.
func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	a, err := t.runScript(ctx, loadRowScript, name, nil)
	if err != nil {
		return record.Row{}, err
	}
	return newRow(name, readString(a[0]), readString(a[2])), nil
}

// newRow makes a row. One without a version does not exist, and has no data.
func newRow(name, version, data string) record.Row {
	r := record.Row{Name: name, Version: version}
	if version != "" {
		r.Data = []byte(data)
	}
	return r
}

// Swap replaces a row if its version is still r.Version. A conflict returns the current row, which saves the engine a
// request.
func (t *table) Swap(ctx context.Context, r record.Row) (record.Row, error) {
	if len(r.Data) > record.MaxData {
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes", driver.ErrInvalid, len(r.Data))
	}
	keepUntil := "" // in milliseconds, rounded up
	if r.KeepUntil > 0 {
		keepUntil = strconv.FormatInt((r.KeepUntil+999)/1000, 10)
	}
	args := []string{r.Version, string(r.Data), "", t.s.publishCommand(), keepUntil}
	a, err := t.runScript(ctx, swapRowScript, r.Name, args)
	switch {
	case err != nil:
		return record.Row{}, err
	case readNumber(a[0]) == 1:
		r.Version = readString(a[1])
		return r, nil
	case len(a) > 3:
		return newRow(r.Name, readString(a[1]), readString(a[3])), record.ErrConflict
	}
	return record.Row{}, corruptReply(r.Name)
}

// Delete removes a row. A row that is gone already counts as deleted by an earlier request.
func (t *table) Delete(ctx context.Context, r record.Row) error {
	a, err := t.runScript(ctx, swapRowScript, r.Name, []string{r.Version, "", "1", t.s.publishCommand(), ""})
	switch {
	case err != nil:
		return err
	// There is no row, so an earlier request of this deletion, or another client, has removed it.
	case readNumber(a[0]) == 1, readString(a[1]) == "":
		return nil
	}
	return record.ErrConflict
}

// Watcher notifies of each change.
func (t *table) Watcher() record.Watcher { return record.WatcherFunc(t.wait) }

// wait returns when the row may have changed. It listens to the row's channel, which has the name of its key. It
// subscribes first and reads the row afterwards, so that it misses no change in between.
func (t *table) wait(ctx context.Context, name, version string) error {
	if err := t.s.ensureChannelsKnown(ctx); err != nil {
		return err
	}
	key := t.rowKey(name)
	sub, live := t.s.subscribeToKey(key, "", key)
	if sub == nil {
		return driver.ErrClosed
	}
	defer sub.unsubscribe()
	// A hub that is only starting could miss the change. Without it the engine polls, so the error only ends this wait.
	if !live {
		timer := time.NewTimer(hubListenTimeout)
		defer timer.Stop()
		select {
		case <-sub.hub.listeningSignal():
		case <-timer.C:
			return errors.New("no news of changes from Redis at present")
		case <-ctx.Done():
			return ctx.Err()
		case <-t.closed:
			return driver.ErrClosed
		case <-t.s.life.Done():
			return driver.ErrClosed
		}
	}
	if r, err := t.Load(ctx, name); err != nil || r.Version != version {
		return err
	}
	select {
	case <-sub.notices:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.closed:
		return driver.ErrClosed
	case <-t.s.life.Done():
		return driver.ErrClosed
	}
}

// List scans all keys of the server. SCAN may return a key more than once (redis.io: "SCAN"), and a deleted row keeps
// its version for a day: both are skipped.
func (t *table) List(ctx context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		seen := map[string]bool{}
		for key, err := range t.s.scanKeys(ctx, globEscape.Replace(t.prefix+t.s.keys.prefix+prefix)+"*") {
			if err != nil {
				yield(record.Row{}, err)
				return
			}
			name, before := strings.CutPrefix(key, t.prefix+t.s.keys.prefix)
			name, after := strings.CutSuffix(name, t.s.keys.suffix)
			if !before || !after || seen[name] || !strings.HasPrefix(name, prefix) {
				continue
			}
			seen[name] = true
			r, err := t.Load(ctx, name)
			if err == nil && r.Version == "" {
				continue
			}
			if err != nil {
				r = record.Row{Name: name}
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// Close ends the waiting calls. It ends the store below only if NewTable made it.
func (t *table) Close() error {
	t.close.Do(func() { close(t.closed) })
	return t.closeStore()
}
