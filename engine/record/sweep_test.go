package record_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestSweep promises that the records of locks which nobody uses any more do not pile up, that what is in use stays, and
// that tokens go on rising where a record is gone.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := time.Now()
		hand := func() time.Duration { return time.Since(from) }
		m := memory.New(&memory.Options{Clock: driver.Clock{Monotonic: hand, Real: hand}})
		s := record.New(m.Table())
		take := func(name string) driver.Grant { return storetest.Acquire(t, s, storetest.Mutex(name, 24*time.Hour)) }
		give := func(g driver.Grant) { storetest.Release(t, s, g.Claim) }
		for i := range 100 {
			give(take(fmt.Sprint("once", i)))
		}
		last := take("again")
		give(last)
		held := take("held")
		time.Sleep(2 * time.Hour)
		give(take("now")) // is when it sweeps
		synctest.Wait()
		var left []string
		for row, err := range m.Table().List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			left = append(left, row.Name)
		}
		if len(left) != 2 {
			t.Errorf("what is left is %q, not what is held and what was used just now", left)
		}
		if again := take("again"); again.Token <= last.Token {
			t.Errorf("token %d after %d", again.Token, last.Token)
		}
		give(held)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
