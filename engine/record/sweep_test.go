package record_test

import (
	"context"
	"errors"
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

// TestSweep: records of locks that are not used any more are removed, records in use are kept, and tokens continue to
// rise after a record was removed.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := time.Now()
		sinceStart := func() time.Duration { return time.Since(from) }
		m := memory.New(&memory.Options{Clock: driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}})
		s := record.New(m.Table())
		take := func(name string) driver.Grant { return storetest.Acquire(t, s, storetest.Mutex(name, 24*time.Hour)) }
		release := func(g driver.Grant) { storetest.Release(t, s, g.Claim) }
		for i := range 100 {
			release(take(fmt.Sprint("once", i)))
		}
		last := take("again")
		release(last)
		held := take("held")
		time.Sleep(2 * time.Hour)
		release(take("now")) // this makes the engine sweep
		synctest.Wait()
		var left []string
		for row, err := range m.Table().List(t.Context(), "", "") {
			if err != nil {
				t.Fatal(err)
			}
			left = append(left, row.Name)
		}
		if len(left) != 2 {
			t.Errorf("the records left are %q, want the held one and the one just used", left)
		}
		if again := take("again"); again.Token <= last.Token {
			t.Errorf("token %d after %d", again.Token, last.Token)
		}
		release(held)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestRaisedTokenSwept: the record of an idle lock whose token an operator has raised above the clock is kept until the
// clock has passed it.
func TestRaisedTokenSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := time.Now()
		sinceStart := func() time.Duration { return time.Since(from) }
		m := memory.New(&memory.Options{Clock: driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}})
		s := record.New(m.Table())
		floor, err := s.ReadTokenFloor(t.Context())
		if err != nil || !floor.ByClock {
			t.Fatal(floor, err)
		}
		raised := floor.Token + (30 * 24 * time.Hour).Microseconds()
		for _, call := range []struct {
			name    string
			atLeast int64
			want    error
		}{
			{"raised", raised, nil}, {"raised", raised, nil}, {"raised", 1, nil}, // again, and smaller
			{"", floor.Token, nil}, {"", raised, driver.ErrUnsupported},
		} {
			if err := s.RaiseToken(t.Context(), call.name, call.atLeast); !errors.Is(err, call.want) {
				t.Errorf("raising %q to %d: %v", call.name, call.atLeast, err)
			}
		}
		for range 5 { // from the second time on, the release makes the engine sweep
			storetest.Release(t, s, storetest.Acquire(t, s, storetest.Mutex("other", time.Hour)).Claim)
			time.Sleep(2 * time.Hour)
			synctest.Wait()
		}
		if token := storetest.Acquire(t, s, storetest.Mutex("raised", time.Hour)).Token; token != raised {
			t.Errorf("the token is %d, want %d", token, raised)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// slowList is a table that lists slowly, and on which a foreign client holds some of the locks.
type slowList struct {
	record.Table
	listed atomic.Int64
}

func (*slowList) Watcher() record.Watcher { return nil }

func (s *slowList) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		for row, err := range s.Table.List(ctx, prefix, after) {
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

// TestSweepResumes: idle records are removed even if so many locks are held that one sweep cannot list all records in
// its time: the next one continues. After the last part, the next sweep is an hour later. Locks that a foreign client
// may hold are not removed.
func TestSweepResumes(t *testing.T) {
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
		for row, err := range m.Table().List(t.Context(), "", "") {
			if err != nil {
				t.Fatal(err)
			}
			left[row.Name[0]]++
		}
		if left['a'] != 0 || left['z'] != 0 || left['f'] != 10 || left['h'] != 1001 {
			t.Errorf("the records left are %v", left)
		}
		if n := table.listed.Load(); n > 2100 {
			t.Errorf("%d records were read, of about a thousand", n)
		}
	})
}
