package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// OpenLedger opens the ledger of a store. It is closed at the end of the test.
func OpenLedger(t testing.TB, s driver.Store) driver.Ledger {
	t.Helper()
	l, err := s.OpenLedger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// NewRun returns a claim that begins a run of a key.
func NewRun(key string) driver.Claim {
	c := Mutex(key, 30*time.Second)
	c.Run = &driver.RunTerms{}
	return c
}

// CountedLedger is a ledger of a client of its own. Take returns what the client has sent since the last call.
type CountedLedger struct {
	driver.Ledger
	Take func() string
}

// LedgerCosts are the requests that each step of a run may send, in the words of CountedLedger.Take.
type LedgerCosts struct {
	Begin   string // of a key that was never run
	Renew   string
	Succeed string
	// Ask is what the question for a key that has succeeded, and that the client has not seen, may take: one of these.
	Ask []string
}

// CheckLedgerCosts checks what the steps of a run cost.
func CheckLedgerCosts(t *testing.T, worker, other CountedLedger, want LedgerCosts) {
	t.Helper()
	expect := func(l CountedLedger, what string, want ...string) {
		t.Helper()
		got := l.Take()
		t.Logf("%s: %s", what, got)
		if !slices.Contains(want, got) {
			t.Errorf("%s took %s, not one of %q", what, got, want)
		}
	}
	for i, l := range []CountedLedger{worker, other} { // what a client does only once, such as to open a session
		g := Acquire(t, l, NewRun(fmt.Sprint("first of ", i)))
		CheckFinish(t, l, g)
		l.Take()
	}
	for i := range 2 {
		g := Acquire(t, worker, NewRun(fmt.Sprint("key", i)))
		expect(worker, "beginning a run of a new key", want.Begin)
		if err := Renew(t, worker, g).Err; err != nil {
			t.Fatal(err)
		}
		expect(worker, "renewing a run", want.Renew)
		CheckFinish(t, worker, g)
		expect(worker, "ending a run", want.Succeed)
		if _, err := other.Acquire(t.Context(), NewRun(g.Name)); !errors.Is(err, driver.ErrSucceeded) {
			t.Fatal(err)
		}
		expect(other, "asking for a key that has succeeded", want.Ask...)
	}
}

// CheckFinish reports the success of a run.
func CheckFinish(t testing.TB, l driver.Ledger, g driver.Grant) {
	t.Helper()
	if err := l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunSucceeded, Result: []byte("done")}); err != nil {
		t.Fatal(err)
	}
}

// CheckManyAttempts fails runs of one key, and requires that all of them are kept.
func CheckManyAttempts(t *testing.T, l driver.Ledger, attempts int) {
	t.Helper()
	began, half := time.Now(), time.Time{}
	for n := range attempts {
		if n == attempts/2 {
			half = time.Now()
		}
		g := Acquire(t, l, NewRun("many"))
		o := driver.RunOutcome{State: driver.RunFailed, Error: fmt.Sprint("attempt ", n+1)}
		if err := l.FinishRun(t.Context(), g, o); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the first %d runs took %v, and the others %v", attempts/2, half.Sub(began), time.Since(half))
	h, err := l.ReadRuns(t.Context(), "many", 0)
	if err != nil || len(h.Runs) != attempts {
		t.Fatalf("the history has %d of %d runs, %v", len(h.Runs), attempts, err)
	}
	for n, r := range h.Runs {
		if r.Attempt != int64(n+1) || r.Error != fmt.Sprint("attempt ", n+1) {
			t.Fatalf("run %d is %+v", n+1, r)
		}
	}
}

// BenchmarkLedger measures a run of a new key from its Begin to its success, next to a floor: one conditional write
// that makes a record of a key and one that changes it, by the store's own client.
func BenchmarkLedger(b *testing.B, s driver.Store, floor func(key string) error) {
	l := OpenLedger(b, s)
	run := func(key string) error {
		g, err := l.Acquire(b.Context(), NewRun("events/"+key))
		if err == nil {
			err = l.FinishRun(b.Context(), g, driver.RunOutcome{State: driver.RunSucceeded, Result: []byte("done")})
		}
		return err
	}
	var keys atomic.Int64
	for _, workers := range []int{1, 16} {
		for _, what := range []struct {
			name string
			do   func(key string) error
		}{{"floor", floor}, {"run", run}} {
			b.Run(fmt.Sprintf("%s/%d", what.name, workers), func(b *testing.B) {
				var left atomic.Int64
				left.Store(int64(b.N))
				var all sync.WaitGroup
				b.ResetTimer()
				for range workers {
					all.Go(func() {
						for left.Add(-1) >= 0 {
							if err := what.do(fmt.Sprint(keys.Add(1))); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "keys/s")
			})
		}
	}
}
