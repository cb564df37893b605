package record_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// keepingTable notes until when each row is to be kept, as a store that removes rows by itself does.
type keepingTable struct {
	record.Table
	until map[string]time.Time // zero: forever
}

func (*keepingTable) Watcher() record.Watcher { return nil }

func (k *keepingTable) Traits() record.Traits { return record.Traits{ExpiresIdle: true} }

func (k *keepingTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	now, err := k.Table.Swap(ctx, row)
	if err == nil {
		k.until[row.Name] = time.Time{}
		if row.KeepUntil != 0 {
			k.until[row.Name] = time.UnixMicro(row.KeepUntil)
		}
	}
	return now, err
}

// TestKeepUntil: a store that removes rows by itself may do so when the history has been kept for its time, and its
// token is not needed any more. A row with a run in progress is never removed, nor one whose history is kept forever.
func TestKeepUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &keepingTable{Table: memory.New(nil).Table(), until: map[string]time.Time{}}
		l := record.NewLedger(table)
		defer l.Close()
		run := func(key string, keepFor time.Duration, o driver.RunOutcome) {
			c := newRun(key)
			c.Run.KeepFor = keepFor
			g := storetest.Acquire(t, l, c)
			if until := table.until[key]; !until.IsZero() {
				t.Errorf("a run of %q is in progress, and its row is kept until %v", key, until)
			}
			time.Sleep(time.Second)
			if err := l.FinishRun(t.Context(), g, o); err != nil {
				t.Fatal(err)
			}
		}
		isKeptFor := func(key string, want time.Duration) {
			t.Helper()
			if got := time.Until(table.until[key]); got < want || got > want+2*time.Hour {
				t.Errorf("%q is kept for %v, want %v and what its token needs", key, got, want)
			}
		}
		failed := driver.RunOutcome{State: driver.RunFailed, Error: "no"}
		for range 60 { // the first runs are in a page
			run("k", 24*time.Hour, failed)
		}
		isKeptFor("k", 24*time.Hour)
		isKeptFor("k\x1f0", 24*time.Hour-time.Minute)
		if n := len(table.until); n != 2 {
			t.Errorf("there are %d rows", n)
		}
		run("k", 0, succeeded(""))
		run("other", 0, succeeded(""))
		for _, key := range []string{"k", "other"} {
			if until := table.until[key]; !until.IsZero() {
				t.Errorf("%q is kept until %v", key, until)
			}
		}
		if err := l.ForgetRuns(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		isKeptFor("k", 0)
	})
}

// raceTable is a table in which something happens right before the next row is deleted.
type raceTable struct {
	record.Table
	beforeDelete func()
}

func (*raceTable) Watcher() record.Watcher { return nil }

func (r *raceTable) Delete(ctx context.Context, row record.Row) error {
	if before := r.beforeDelete; before != nil && !strings.Contains(row.Name, "\x1f") {
		r.beforeDelete = nil
		before()
	}
	return r.Table.Delete(ctx, row)
}

// TestRetentionWhileRunBegins: a run that begins while the old history of its key is being removed is not removed.
func TestRetentionWhileRunBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		race := &raceTable{Table: store.Table()}
		l, worker := record.NewLedger(race), record.NewLedger(store.Table())
		defer worker.Close()
		old := newRun("k")
		old.Run.KeepFor = time.Hour
		g := storetest.Acquire(t, l, old)
		if err := l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed, Error: "no"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		var next driver.Grant
		race.beforeDelete = func() { next = storetest.Acquire(t, worker, newRun("k")) }
		for i := 0; race.beforeDelete != nil && i < 10; i++ { // the end of a run may start a sweep
			g := storetest.Acquire(t, l, newRun("other"))
			if err := l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed, Error: "no"}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			time.Sleep(time.Hour)
			if next.Token != 0 {
				break
			}
		}
		l.Close()
		h, err := worker.ReadRuns(t.Context(), "k", 0)
		if err != nil || next.Token == 0 || len(h.Runs) == 0 || h.Runs[len(h.Runs)-1].Token != next.Token {
			t.Errorf("the run with token %d has gone: %+v, %v", next.Token, h.Runs, err)
		}
	})
}
