package holdfast_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/memory"
)

// slowTable is a table whose next swap of a known record arrives late, or whose answer does. The caller may have gone
// by then.
type slowTable struct {
	record.Table
	request, reply *atomic.Int64 // of the next swap: durations; a renewal may be under way
}

func (slowTable) Watcher() record.Watcher { return nil }

func (t slowTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if row.Version == "" { // a client that does not know the record begins with a swap that is refused
		return t.Table.Swap(ctx, row)
	}
	request, reply := time.Duration(t.request.Swap(0)), time.Duration(t.reply.Swap(0))
	answer := make(chan func() (record.Row, error), 1)
	go func() {
		time.Sleep(request)
		now, err := t.Table.Swap(context.WithoutCancel(ctx), row)
		time.Sleep(reply)
		answer <- func() (record.Row, error) { return now, err }
	}()
	select {
	case result := <-answer:
		return result()
	case <-ctx.Done():
		return record.Row{}, ctx.Err()
	}
}

func (slowTable) Close() error { return nil } // others use it

// slowLedger is a store whose ledger is on a slowTable.
type slowLedger struct {
	driver.Store
	table slowTable
}

func (s slowLedger) OpenLedger(context.Context) (driver.Ledger, error) {
	return record.NewLedger(s.table), nil
}

// TestLedgerCancelledBegin: a Begin that is given up leaves no run, whether its request arrives before that or later:
// no attempt is used up, and no pause begins. So it is if the client is closed.
func TestLedgerCancelledBegin(t *testing.T) {
	for name, c := range map[string]struct {
		request, reply time.Duration
		limit          time.Duration // 0: none
		closes         bool
	}{
		"the answer is late":   {reply: time.Minute, limit: time.Second},
		"the request is late":  {request: 3 * time.Second, limit: time.Second},
		"the client is closed": {reply: time.Minute, closes: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := slowTable{memory.New(nil).Table(), new(atomic.Int64), new(atomic.Int64)}
				open := func() (*holdfast.Client, *holdfast.Ledger) {
					client, err := holdfast.New(slowLedger{memory.New(nil).Open(), slow}, nil)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = client.Close() })
					return client, client.Ledger("l", &holdfast.LedgerOptions{MaxAttempts: 2, Pause: time.Hour})
				}
				client, l := open()
				run, err := l.Begin(t.Context(), "k", nil)
				if err == nil {
					err = run.Fail(t.Context(), errors.New("no"))
				}
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour + time.Minute)
				ctx := t.Context()
				if c.limit > 0 {
					limited, cancel := context.WithTimeout(ctx, c.limit)
					defer cancel()
					ctx = limited
				}
				slow.request.Store(int64(c.request))
				slow.reply.Store(int64(c.reply))
				if c.closes {
					go func() {
						time.Sleep(time.Second)
						_ = client.Close()
					}()
				}
				if run, err := l.Begin(ctx, "k", nil); err == nil {
					t.Fatalf("%v was begun", run)
				}
				time.Sleep(10 * time.Second)
				_, l = open()
				runs, err := l.History(t.Context(), "k")
				if err != nil || len(runs) != 1 {
					t.Errorf("the history is %+v, %v", runs, err)
				}
				if run, err = l.Begin(t.Context(), "k", nil); err != nil || run.Attempt() != 2 {
					t.Errorf("the next delivery: %v, %v", run, err)
				}
				time.Sleep(5 * time.Minute) // until all answers have come
			})
		})
	}
}

// TestRunWithdraw: a run that is withdrawn leaves nothing. A run that is released by the end of its client has failed.
func TestRunWithdraw(t *testing.T) {
	m := memory.New(nil)
	open := func() (*holdfast.Client, *holdfast.Ledger) {
		c, err := holdfast.New(m.Open(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return c, c.Ledger("l", nil)
	}
	client, l := open()
	reader, readLedger := open()
	defer reader.Close()
	run, err := l.Begin(t.Context(), "k", nil)
	if err == nil {
		err = run.Withdraw(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Withdraw(t.Context()); !errors.Is(err, holdfast.ErrReleased) {
		t.Errorf("a second withdrawal: %v", err)
	}
	if runs, err := l.History(t.Context(), "k"); err != nil || len(runs) != 0 {
		t.Errorf("the history is %+v, %v", runs, err)
	}
	if run, err = l.Begin(t.Context(), "k", nil); err != nil || run.Attempt() != 1 {
		t.Errorf("the next run: %v, %v", run, err)
	}
	_ = client.Close()
	if runs, err := readLedger.History(t.Context(), "k"); err != nil || len(runs) != 1 || runs[0].State != holdfast.RunFailed {
		t.Errorf("the history is %+v, %v", runs, err)
	}
}

// TestSmallResults: on a store with small records, a result that has no room is refused before anything is sent, and
// the run goes on.
func TestSmallResults(t *testing.T) {
	client, err := holdfast.New(smallLedger{memory.New(nil).Open(), memory.New(nil).Table()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	l := client.Ledger("l", nil)
	info, err := l.Info(t.Context())
	if err != nil || info.MaxRunResult < 1000 || info.MaxRunResult > 8<<10 {
		t.Fatalf("the largest result has %d bytes, %v", info.MaxRunResult, err)
	}
	run, err := l.Begin(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	err = run.Succeed(t.Context(), make([]byte, info.MaxRunResult+1))
	if !errors.Is(err, holdfast.ErrInvalid) || errors.Is(err, holdfast.ErrUncertain) || !run.Valid() {
		t.Errorf("a result that is too large: %v", err)
	}
	if err := run.Succeed(t.Context(), make([]byte, info.MaxRunResult)); err != nil {
		t.Errorf("a result of the largest size: %v", err)
	}
}

// smallLedger is a store whose ledger has records of 8 KiB.
type smallLedger struct {
	driver.Store
	table record.Table
}

type smallRecords struct{ record.Table }

func (smallRecords) Watcher() record.Watcher { return nil }

func (smallRecords) Traits() record.Traits { return record.Traits{MaxRecord: 8 << 10, Ledger: true} }

func (s smallLedger) OpenLedger(context.Context) (driver.Ledger, error) {
	return record.NewLedger(smallRecords{s.table}), nil
}
