package record_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// trips counts the round trips to a table. A conflict does not bring the row, as on the poorest of stores.
type trips struct {
	record.Table
	loads, swaps int
}

func (t *trips) Load(ctx context.Context, name string) (record.Row, error) {
	t.loads++
	return t.Table.Load(ctx, name)
}

func (t *trips) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.swaps++
	now, err := t.Table.Swap(ctx, row)
	if errors.Is(err, record.ErrConflict) {
		now = record.Row{}
	}
	return now, err
}

// did gives and forgets what was counted.
func (t *trips) did() string {
	s := fmt.Sprintf("%d loads, %d swaps", t.loads, t.swaps)
	t.loads, t.swaps = 0, 0
	return s
}

// TestRoundTripsPerStep promises what a step costs: one round trip to take a lock that is absent or as this client
// saw it last, one to renew and one to release it; one more to see what a stranger has done.
func TestRoundTripsPerStep(t *testing.T) {
	ctx := t.Context()
	m := memory.New(nil)
	one, two := &trips{Table: m.Table()}, &trips{Table: m.Table()}
	ours, theirs := record.New(one), record.New(two)
	claim := func() driver.Claim { return storetest.Mutex("m", time.Minute) }
	expect := func(table *trips, what, want string) {
		t.Helper()
		if got := table.did(); got != want {
			t.Errorf("%s took %s, not %s", what, got, want)
		}
	}

	a := storetest.Acquire(t, ours, claim())
	expect(one, "taking an absent lock", "0 loads, 1 swaps")

	if err := storetest.Renew(t, ours, a).Err; err != nil {
		t.Fatal(err)
	}
	expect(one, "renewing", "0 loads, 1 swaps")

	storetest.Release(t, ours, a.Claim)
	expect(one, "releasing", "0 loads, 1 swaps")

	a = storetest.Acquire(t, ours, claim())
	expect(one, "taking a lock as it was left", "0 loads, 1 swaps")

	if _, err := theirs.Acquire(ctx, claim()); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	expect(two, "being refused by a stranger's lock", "1 loads, 1 swaps")

	if _, err := theirs.Acquire(ctx, claim()); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	expect(two, "being refused again", "1 loads, 0 swaps")

	storetest.Release(t, ours, a.Claim)
	storetest.Acquire(t, theirs, claim())
	expect(two, "taking a lock that a stranger has left", "1 loads, 1 swaps")
}

// lines is a table with lines of another length.
type lines struct {
	record.Table
	most int
}

func (l lines) Info() driver.Info {
	i := l.Table.Info()
	i.MaxWaiters, i.MaxHolders = l.most, l.most
	return i
}

// TestRefusalsCostTheSame promises that a claim which is refused, since the line is full or as many hold the lock as
// may, costs the store one read and no write (but one in vain by a client that has never seen the lock), however many
// those are, and as much the next time.
func TestRefusalsCostTheSame(t *testing.T) {
	for _, most := range []int{1, driver.MaxWaiters} {
		m := memory.New(nil)
		table := &trips{Table: m.Table()}
		s, others := record.New(lines{table, most}), record.New(lines{m.Table(), most})
		claim := func(name string, n int) driver.Claim {
			return driver.Claim{Name: name, ID: fmt.Sprint("claim", n), Kind: driver.KindSemaphore, Limit: 1000,
				Weight: 1, TTL: time.Hour}
		}
		for n := range most {
			storetest.Acquire(t, others, claim("holders", n))
		}
		all := claim("line", most)
		all.Weight = 1000
		storetest.Acquire(t, others, all)
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for n := range most {
			c := claim("line", n)
			c.Wait = true
			waiting.Go(func() { others.Acquire(ctx, c) })
		}
		for standing := 0; standing < most; {
			l, err := others.Inspect(t.Context(), "line")
			if err != nil {
				t.Fatal(err)
			}
			standing = len(l.Waiters)
		}
		for _, name := range []string{"holders", "line"} {
			table.did()
			for tries := range 3 {
				c := claim(name, 1000)
				c.Wait = true
				if _, err := s.Acquire(t.Context(), c); !errors.Is(err, driver.ErrQueueFull) {
					t.Fatal(err)
				}
				if did := table.did(); did != "1 loads, 0 swaps" && (tries > 0 || did != "1 loads, 1 swaps") {
					t.Errorf("with %d %s a refusal took %s", most, name, did)
				}
			}
		}
		from := time.Now()
		for range 20 {
			c := claim("line", 1000)
			c.Wait = true
			s.Acquire(t.Context(), c)
		}
		t.Logf("%d in line: %v for each refusal", most, time.Since(from)/20)
		cancel()
		waiting.Wait()
		s.Close()
		others.Close()
	}
}
