package storetest

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// CheckPrefixes checks that two stores with prefixes in the same place do not see each other's locks and runs. all is a
// store without a prefix there, which sees those of both.
func CheckPrefixes(t *testing.T, one, two, all driver.Store) {
	t.Helper()
	c := Mutex("m", time.Minute)
	Acquire(t, one, c)
	Acquire(t, two, Mutex("m", time.Minute))
	if n := countLocks(t, all); n != 2 {
		t.Errorf("%d locks without a prefix, want 2", n)
	}
	for _, s := range []driver.Store{one, two} {
		if n := countLocks(t, s); n != 1 {
			t.Errorf("%d locks with a prefix, want 1", n)
		}
	}
	Release(t, one, c)
	if l, err := two.Inspect(t.Context(), "m"); err != nil || len(l.Holders) != 1 {
		t.Errorf("the lock of the other prefix was released: %v, %v", l.Holders, err)
	}
	first, second := OpenLedger(t, one), OpenLedger(t, two)
	run := Mutex("nightly", time.Minute)
	run.Run = &driver.RunTerms{}
	if _, err := first.Acquire(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	for _, err := range second.ListRuns(t.Context(), "") {
		t.Errorf("a run of the other prefix is listed: %v", err)
	}
}

func countLocks(t *testing.T, s driver.Store) (n int) {
	t.Helper()
	for l, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Holders) > 0 {
			n++
		}
	}
	return n
}
