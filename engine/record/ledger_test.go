package record_test

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

func newRun(key string) driver.Claim {
	c := storetest.Mutex(key, time.Minute)
	c.Run = &driver.RunTerms{}
	return c
}

func succeeded(result string) driver.RunOutcome {
	return driver.RunOutcome{State: driver.RunSucceeded, Result: []byte(result)}
}

// TestLedgerRoundTrips promises what a run costs: one round trip to begin it if its key was never run, one to renew it
// and one to end it; and one read more for a key that has succeeded, where a refused swap does not bring the row.
func TestLedgerRoundTrips(t *testing.T) {
	m := memory.New(nil)
	one, two := &countingTable{Table: m.Table()}, &countingTable{Table: m.Table()}
	ours, theirs := record.NewLedger(one), record.NewLedger(two)
	expect := func(table *countingTable, what, want string) {
		t.Helper()
		if got := table.takeLog(); got != want {
			t.Errorf("%s took %s, not %s", what, got, want)
		}
	}
	g := storetest.Acquire(t, ours, newRun("k"))
	expect(one, "beginning a run", "0 loads, 1 swaps")
	if err := storetest.Renew(t, ours, g).Err; err != nil {
		t.Fatal(err)
	}
	expect(one, "renewing a run", "0 loads, 1 swaps")
	if err := ours.FinishRun(t.Context(), g, succeeded("")); err != nil {
		t.Fatal(err)
	}
	expect(one, "ending a run", "0 loads, 1 swaps")
	if _, err := theirs.Acquire(t.Context(), newRun("k")); !errors.Is(err, driver.ErrSucceeded) {
		t.Fatal(err)
	}
	expect(two, "asking for a key that has succeeded", "1 loads, 1 swaps")
	failRuns(t, theirs, "many", 60)
	if _, err := ours.ReadRuns(t.Context(), "many", 1); err != nil {
		t.Fatal(err)
	}
	expect(one, "reading the last run of many", "1 loads, 0 swaps")
}

// TestLedgerPages: the older runs of a key are in pages, each of which is written once.
func TestLedgerPages(t *testing.T) {
	m := memory.New(nil)
	table := m.Table()
	l := record.NewLedger(table)
	const attempts = 500
	for i := range attempts {
		g := storetest.Acquire(t, l, newRun("k"))
		o := driver.RunOutcome{State: driver.RunFailed, Error: fmt.Sprint(i)}
		if err := l.FinishRun(t.Context(), g, o); err != nil {
			t.Fatal(err)
		}
	}
	row, err := table.Load(t.Context(), "k")
	if err != nil || len(row.Data) > 16<<10 {
		t.Errorf("after %d runs the record has %d bytes, %v", attempts, len(row.Data), err)
	}
	h, err := l.ReadRuns(t.Context(), "k", 0)
	if err != nil || len(h.Runs) != attempts {
		t.Fatalf("there are %d runs, %v", len(h.Runs), err)
	}
	for i, r := range h.Runs {
		if r.Attempt != int64(i+1) || r.Error != fmt.Sprint(i) {
			t.Errorf("run %d is %+v", i, r)
		}
	}
	if err := l.ForgetRuns(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	for row, err := range table.List(t.Context(), "", "") {
		if err != nil || strings.Contains(row.Name, "\x1f") {
			t.Errorf("after the history was removed there is %q, %v", row.Name, err)
		}
	}
}

// TestLedgerRetention: a history is removed when the time has passed for which it is kept, with its pages. One that is
// kept forever is not.
func TestLedgerRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New(nil)
		table := m.Table()
		l := record.NewLedger(table)
		defer l.Close()
		for _, key := range []string{"kept", "dropped"} {
			for range 60 {
				c := newRun(key)
				if key == "dropped" {
					c.Run.KeepFor = time.Hour
				}
				g := storetest.Acquire(t, l, c)
				if err := l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed, Error: "no"}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range 4 { // each end of a run may start a sweep
			time.Sleep(time.Hour)
			g := storetest.Acquire(t, l, newRun(fmt.Sprint("later", i)))
			if err := l.FinishRun(t.Context(), g, succeeded("")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for key, want := range map[string]int{"kept": 60, "dropped": 0} {
			if h, err := l.ReadRuns(t.Context(), key, 0); err != nil || len(h.Runs) != want {
				t.Errorf("%s: %d runs, %v", key, len(h.Runs), err)
			}
		}
		for row := range table.List(t.Context(), "dropped", "") {
			t.Errorf("%q is left", row.Name)
		}
	})
}

// failRuns runs a key that often, and each run fails.
func failRuns(t *testing.T, l driver.Ledger, key string, times int) {
	t.Helper()
	for range times {
		g := storetest.Acquire(t, l, newRun(key))
		if err := l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed, Error: "no"}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLedgerForgetInProgress: an operator who may not remove a history, because a run is in progress, removes no part
// of it.
func TestLedgerForgetInProgress(t *testing.T) {
	l := record.NewLedger(memory.New(nil).Table())
	failRuns(t, l, "k", 60)
	storetest.Acquire(t, l, newRun("k"))
	if err := l.ForgetRuns(t.Context(), "k"); !errors.Is(err, driver.ErrInProgress) {
		t.Errorf("the history was removed: %v", err)
	}
	if h, err := l.ReadRuns(t.Context(), "k", 0); err != nil || len(h.Runs) != 61 {
		t.Errorf("there are %d runs, %v", len(h.Runs), err)
	}
}

// TestLedgerPageNames: the name of a page is no key, so nothing that is done to it changes a history.
func TestLedgerPageNames(t *testing.T) {
	l := record.NewLedger(memory.New(nil).Table())
	failRuns(t, l, "k", 60)
	const page = "k\x1f0"
	_, readErr := l.ReadRuns(t.Context(), page, 0)
	_, beginErr := l.Acquire(t.Context(), newRun(page))
	for what, err := range map[string]error{
		"reading": readErr, "beginning": beginErr,
		"retrying": l.RetryRun(t.Context(), page), "forgetting": l.ForgetRuns(t.Context(), page),
	} {
		if !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if h, err := l.ReadRuns(t.Context(), "k", 0); err != nil || len(h.Runs) != 60 {
		t.Errorf("there are %d runs, %v", len(h.Runs), err)
	}
}

// TestLedgerLateReportEndsRun: the report of a worker whose TTL has passed ends the run as abandoned, and is noted,
// even if nobody else has come to the key.
func TestLedgerLateReportEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := record.NewLedger(memory.New(nil).Table())
		defer l.Close()
		g := storetest.Acquire(t, l, newRun("k"))
		time.Sleep(2 * time.Minute)
		for range 2 {
			if err := l.FinishRun(t.Context(), g, succeeded("late")); !errors.Is(err, driver.ErrLost) {
				t.Errorf("a late report: %v", err)
			}
		}
		h, err := l.ReadRuns(t.Context(), "k", 0)
		if err != nil || len(h.Runs) != 1 || h.Runs[0].State != driver.RunAbandoned ||
			h.Runs[0].LateReport != driver.RunSucceeded {
			t.Errorf("the history is %+v, %v", h.Runs, err)
		}
	})
}

// TestLedgerOrphanPages: a client that removes a history and dies before it has removed the pages leaves them to a
// later sweep.
func TestLedgerOrphanPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := memory.New(nil).Table()
		l := record.NewLedger(table)
		defer l.Close()
		failRuns(t, l, "k", 60)
		row, err := table.Load(t.Context(), "k")
		if err == nil {
			err = table.Delete(t.Context(), row)
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // each end of a run may start a sweep
			time.Sleep(time.Hour)
			failRuns(t, l, "later", 1)
			synctest.Wait()
		}
		for row := range table.List(t.Context(), "k", "") {
			t.Errorf("%q is left", row.Name)
		}
	})
}

var manyAttempts = flag.Int("attempts", 500, "how many runs of one key TestLedgerManyAttempts makes")

// TestLedgerManyAttempts: however many runs a key has had, the next one costs the same: two swaps, one that is refused
// because the key is not new, and one more for a page of sixteen runs.
func TestLedgerManyAttempts(t *testing.T) {
	table := &countingTable{Table: memory.New(nil).Table()}
	l := record.NewLedger(table)
	defer l.Close()
	storetest.CheckManyAttempts(t, l, *manyAttempts)
	if n := table.swaps.Load(); n > int64(*manyAttempts*3+*manyAttempts/16) {
		t.Errorf("%d runs took %d swaps", *manyAttempts, n)
	}
	row, err := table.Load(t.Context(), "many")
	if err != nil || len(row.Data) > 16<<10 {
		t.Errorf("the record has %d bytes, %v", len(row.Data), err)
	}
}

// TestLedgerSweepIsBounded: behind very many finished keys, a sweep stops after its time, and runs do not wait for it.
func TestLedgerSweepIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := &slowList{Table: m.Table()}
		l := record.NewLedger(table)
		defer l.Close()
		run := func(key string) {
			before := time.Now()
			g := storetest.Acquire(t, l, newRun(key))
			if err := l.FinishRun(t.Context(), g, succeeded("")); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(before); took > 0 {
				t.Errorf("a run took %v", took)
			}
		}
		for n := range 2000 {
			run(fmt.Sprint("done", n))
		}
		time.Sleep(2 * time.Hour)
		run("last") // this makes the engine sweep, and each row takes it 15 ms
		run("beside")
		time.Sleep(6 * time.Second)
		if n := table.listed.Load(); n == 0 || n > 400 {
			t.Errorf("%d rows were read in one sweep", n)
		}
	})
}
