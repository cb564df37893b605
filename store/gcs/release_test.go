package gcs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/gcs"
	"github.com/holdfast-go/holdfast/store/gcs/gcstest"
)

// TestReleaseAfterBreakWithLostReply promises that a holder whose lock was broken by force, and whose release got
// no answer at first, does not learn that it released the lock itself. It learns of the break or, where nothing
// remains of a free lock, that the outcome is not known.
func TestReleaseAfterBreakWithLostReply(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			var lose sync.Once
			var leaving atomic.Bool
			s.Decide = func(r gcstest.Request) (f gcstest.Fate) {
				if leaving.Load() && (r.Kind == gcstest.Insert || r.Kind == gcstest.Delete) {
					lose.Do(func() { f.DropReply = true })
				}
				return f
			}
			holder, _ := mustOpen(t, s, quickLayoutOptions(layout))
			other, _ := mustOpen(t, s, quickLayoutOptions(layout))
			g := acquire(t, holder, mutexClaim("m", time.Minute))
			if err := other.Break(t.Context(), "m", g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
				t.Fatal(err)
			}
			release(t, other, acquire(t, other, mutexClaim("m", time.Minute)).Claim)
			leaving.Store(true)
			err := holder.Release(t.Context(), g.Claim, "")
			var loss *driver.LossError
			if layout != gcs.LayoutRecord {
				if !errors.Is(err, driver.ErrUncertain) {
					t.Errorf("told %v", err)
				}
			} else if !errors.As(err, &loss) || loss.Cause != driver.LossBroken {
				t.Errorf("told %v", err)
			}
		})
	}
}

// TestEndedContextWritesNothing promises that an Acquire whose context had ended before the call writes nothing,
// in every layout.
func TestEndedContextWritesNothing(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, layout := range layouts {
		s := startServer(t)
		var writes atomic.Int64
		s.Decide = func(r gcstest.Request) (f gcstest.Fate) {
			if r.Kind == gcstest.Insert {
				writes.Add(1)
			}
			return f
		}
		client, _ := mustOpen(t, s, quickLayoutOptions(layout))
		release(t, client, acquire(t, client, mutexClaim("m", time.Minute)).Claim)
		writes.Store(0)
		for range 20 {
			if _, err := client.Acquire(ended, mutexClaim("m", time.Minute)); !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: %v", layout, err)
			}
		}
		client.Close() // it waits for a write that is on its way
		if n := writes.Load(); n != 0 {
			t.Errorf("%s: %d writes", layout, n)
		}
	}
}

// TestListReadsConcurrently promises that a listing reads several objects at a time, and yields each once.
func TestListReadsConcurrently(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		s := startServer(t)
		var listing atomic.Bool
		var mu sync.Mutex
		var reads int
		enough := make(chan struct{})
		s.Decide = func(r gcstest.Request) gcstest.Fate {
			if r.Kind != gcstest.Read || !listing.Load() {
				return gcstest.Fate{}
			}
			mu.Lock()
			if reads++; reads == 8 {
				close(enough)
			}
			mu.Unlock()
			select { // no reply before eight requests have arrived
			case <-enough:
				return gcstest.Fate{}
			case <-time.After(4 * time.Second):
				return gcstest.Fate{RefuseStatus: 500}
			}
		}
		store, _ := mustOpen(t, s, quickLayoutOptions(layout))
		want := map[string]bool{}
		for n := range 40 {
			c := mutexClaim(string(rune('a'+n%26))+string(rune('a'+n/26)), time.Minute)
			acquire(t, store, c)
			want[c.Name] = true
		}
		listing.Store(true)
		for l, err := range store.List(t.Context(), "") {
			if err != nil || !want[l.Name] {
				t.Fatalf("%s: %q: %v", layout, l.Name, err)
			}
			delete(want, l.Name)
		}
		if len(want) > 0 {
			t.Errorf("%s: not listed: %v", layout, want)
		}
	}
}

// TestListAfter promises that a listing can begin at any name, and reads nothing before it. A sweep continues by
// that where it stopped. Names are in the order of their objects.
func TestListAfter(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client, _ := newLink(t)
	table, err := gcs.NewTable(t.Context(), client, bucket, at(s, quickOptions()))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	names := []string{"a", "b\nb", "b/c", "bb", "c", "d"}
	for _, name := range names {
		if _, err := table.Swap(t.Context(), record.Row{Name: name, Data: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	for after, want := range map[string]int{"": 6, "a": 5, "b\nb": 4, "b/c": 3, "bz": 2, "c": 1, "d": 0, "z": 0} {
		s.Counts()
		var got []string
		for row, err := range table.List(t.Context(), "", after) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, row.Name)
		}
		asked := "list 1"
		if want > 0 {
			asked = fmt.Sprintf("read %d, list 1", want)
		}
		if counted := s.Counts(); !slices.Equal(got, names[len(names)-want:]) || counted != asked {
			t.Errorf("after %q: %q, for which it asked %q", after, got, counted)
		}
	}
}
