package record_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
)

// mapServer keeps the records, as the server of a real store does. It is a Go map.
type mapServer struct {
	startedAt time.Time

	mu          sync.Mutex
	lastVersion int64
	rows        map[string]record.Row
}

func newMapServer() *mapServer {
	return &mapServer{startedAt: time.Now(), rows: map[string]record.Row{}}
}

// mapTable is one client of a mapServer, and a record.Table.
type mapTable struct {
	record.Unsupported

	server *mapServer
	closed atomic.Bool
}

// Info promises little: a map is lost when its process ends. The engine adds what it promises itself.
func (t *mapTable) Info() driver.Info {
	return driver.Info{
		Store: "map:", Clock: driver.SystemClock,
		Tier: driver.TierAdvisory, ExpiryClock: driver.ExpiryClockStore,
	}
}

// TokenFloor does not fall when the wall clock is set back, because Go measures the time since startedAt by a monotonic
// clock.
func (t *mapTable) TokenFloor() int64 {
	return t.server.startedAt.Add(time.Since(t.server.startedAt)).UnixMicro()
}

// Clock is exact, because the server is in this process. A real table learns the time from replies: see ServerClock.
func (t *mapTable) Clock() record.Clock { return record.ExactClock(t.TokenFloor) }

// ReadClock asks the server what time it is.
func (t *mapTable) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	return time.UnixMicro(t.TokenFloor()), 0, t.checkCall(ctx)
}

// checkCall returns why a call must not continue. A real table sends requests here, and passes ctx to them.
func (t *mapTable) checkCall(ctx context.Context) error {
	if t.closed.Load() {
		return driver.ErrClosed
	}
	return ctx.Err()
}

// Load reads a record. If there is none, the row has a name and no version.
func (t *mapTable) Load(ctx context.Context, name string) (record.Row, error) {
	if err := t.checkCall(ctx); err != nil {
		return record.Row{}, err
	}
	t.server.mu.Lock()
	defer t.server.mu.Unlock()
	row := t.server.rows[name]
	row.Name = name
	return row, nil
}

// Swap compares and writes in one step. The versions come from one counter that never restarts, so that none is used
// twice for a name, not even after a deletion.
func (t *mapTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if err := t.checkCall(ctx); err != nil {
		return record.Row{}, err
	}
	t.server.mu.Lock()
	defer t.server.mu.Unlock()
	if t.server.rows[row.Name].Version != row.Version {
		return record.Row{}, record.ErrConflict
	}
	t.server.lastVersion++
	written := record.Row{Name: row.Name, Data: row.Data, Version: strconv.FormatInt(t.server.lastVersion, 10)}
	t.server.rows[row.Name] = written
	return written, nil
}

// Delete compares, too. To delete what does not exist is no error.
func (t *mapTable) Delete(ctx context.Context, row record.Row) error {
	if err := t.checkCall(ctx); err != nil {
		return err
	}
	t.server.mu.Lock()
	defer t.server.mu.Unlock()
	switch t.server.rows[row.Name].Version {
	case "":
		return nil
	case row.Version:
		delete(t.server.rows, row.Name)
		return nil
	}
	return record.ErrConflict
}

// List yields the records after it has unlocked the server, because the caller may use the table meanwhile.
func (t *mapTable) List(ctx context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		if err := t.checkCall(ctx); err != nil {
			yield(record.Row{}, err)
			return
		}
		var found []record.Row
		t.server.mu.Lock()
		for name, row := range t.server.rows {
			if strings.HasPrefix(name, prefix) {
				found = append(found, row)
			}
		}
		t.server.mu.Unlock()
		for _, row := range found {
			if !yield(row, nil) {
				return
			}
		}
	}
}

// Close makes later calls fail. A real table also ends the requests in flight.
func (t *mapTable) Close() error {
	t.closed.Store(true)
	return nil
}

// A store is written as a Table: seven methods that know nothing about locks. Package tabletest checks them, and the
// engine makes a store of them that has every kind of lock.
func ExampleTable() {
	ctx := context.Background()
	server := newMapServer()
	harness := tabletest.Harness{
		Open: func(context.Context) (record.Table, error) { return &mapTable{server: server}, nil },
	}
	broken := 0
	for _, r := range tabletest.Run(ctx, harness, nil) { // in a test, broken promises are passed to t.Errorf
		if r.Err != nil {
			broken++
			fmt.Printf("%s: %v\npromised: %s\n", r.Case.Name, r.Err, r.Case.Promise)
		}
	}
	fmt.Println("broken promises:", broken)

	openClient := func(owner string) *holdfast.Client {
		client, err := holdfast.New(record.New(&mapTable{server: server}), &holdfast.Options{Owner: owner})
		if err != nil {
			log.Fatal(err)
		}
		return client
	}
	first, second := openClient("the first"), openClient("the second")
	defer first.Close()
	defer second.Close()
	lease, err := first.Mutex("nightly-report", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	_, err = second.Mutex("nightly-report", nil).TryLock(ctx)
	fmt.Println(errors.Is(err, holdfast.ErrHeld), err)
	// Output:
	// broken promises: 0
	// true holdfast: try lock "nightly-report" on map: the lock is held by the first
}
