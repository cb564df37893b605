package record_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestSweep promises that the records of locks which nobody uses any more do not pile up, that what is in use stays,
// and that tokens go on rising where a record is gone.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := time.Now()
		hand := func() time.Duration { return time.Since(from) }
		m := memory.New(&memory.Options{Clock: driver.Clock{Monotonic: hand, Boottime: hand}})
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

// slowList is a table that takes its time to list, and on which a foreign client has taken some of the records.
type slowList struct {
	record.Table
	listed atomic.Int64
}

func (s *slowList) List(ctx context.Context, _ string) iter.Seq2[record.Row, error] {
	return s.ListAfter(ctx, "")
}

func (s *slowList) ListAfter(ctx context.Context, after string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		for row, err := range s.Table.(record.ResumableLister).ListAfter(ctx, after) {
			time.Sleep(15 * time.Millisecond)
			s.listed.Add(1)
			if ctx.Err() != nil {
				yield(record.Row{}, ctx.Err())
				return
			}
			if strings.HasPrefix(row.Name, "foreign") {
				row.Foreign = record.NoEnd
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

// TestSweepGoesOn promises that idle records are swept though so many are held that no sweep comes to its end in its
// time, and that after the last of them the next one is an hour away; and that nothing is swept on which a foreign
// client may stand.
func TestSweepGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := &slowList{Table: m.Table()}
		others, s := m.Open(), record.New(table)
		defer others.Close()
		defer s.Close()
		use := func(by driver.Store, name string) {
			g := storetest.Acquire(t, by, storetest.Mutex(name, driver.MaxTTL))
			storetest.Release(t, by, g.Claim)
		}
		for n := range 1000 {
			storetest.Acquire(t, others, storetest.Mutex(fmt.Sprintf("held%04d", n), driver.MaxTTL))
		}
		for n := range 10 {
			use(others, fmt.Sprint("a", n))
			use(others, fmt.Sprint("foreign", n))
			use(others, fmt.Sprint("held0500/", n))
			use(others, fmt.Sprint("z", n))
		}
		use(s, "held")
		time.Sleep(time.Hour)
		for range 10 {
			use(s, "held")
			time.Sleep(time.Minute + time.Second)
		}
		left := map[byte]int{}
		for row, err := range m.Table().List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			left[row.Name[0]]++
		}
		if left['a'] != 0 || left['z'] != 0 || left['f'] != 10 || left['h'] != 1001 {
			t.Errorf("what is left is %v", left)
		}
		if n := table.listed.Load(); n > 2100 {
			t.Errorf("%d records were read, of a thousand", n)
		}
	})
}
