package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// requestCounter counts the watches of a client, and its reads of one object.
type requestCounter struct {
	base           http.RoundTripper
	watches, reads atomic.Int64
}

func (c *requestCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case r.URL.Query().Get("watch") != "":
		c.watches.Add(1)
	case r.Method == http.MethodGet:
		c.reads.Add(1)
	}
	return c.base.RoundTrip(r)
}

// TestSharedWatch: the waiters and the watchers of a lock in one client share one watch. Polls and changes do not end
// it.
func TestSharedWatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]server{"model": startModel(t), "cluster": sharedCluster(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := &kubernetes.Options{Prefix: "shared-watch-"}
			holder := mustOpen(t, c, kubernetestest.AllowAll, opts)
			g := storetest.Acquire(t, holder, storetest.Mutex("m", time.Hour))
			defer storetest.Release(t, holder, g.Claim)
			var counted requestCounter
			web, _ := newLink(t, c, func(base http.RoundTripper) http.RoundTripper {
				counted.base = base
				return &counted
			})
			store, err := kubernetes.New(t.Context(), web, c.Address(), kubernetestest.Namespace, opts)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close() })
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			defer all.Wait()
			defer cancel()
			for range 4 {
				all.Go(func() {
					claim := storetest.Waiting(storetest.Mutex("m", time.Minute))
					claim.Fair = true
					if _, err := store.Acquire(ctx, claim); err == nil {
						t.Error("a held lock was granted")
					}
					_ = store.Release(context.WithoutCancel(ctx), claim, "")
				})
			}
			for range 40 {
				all.Go(func() {
					for seen := (driver.Lock{Name: "m"}); ctx.Err() == nil; {
						if now, err := store.NextChange(ctx, seen); err == nil {
							seen = now
						}
					}
				})
			}
			for range 3 {
				from := counted.reads.Load()
				storetest.Eventually(t, "everybody polls", func() bool { return counted.reads.Load() >= from+60 })
				storetest.Eventually(t, "a change", func() bool { return storetest.Renew(t, holder, g).Err == nil })
			}
			watches, reads := counted.watches.Load(), counted.reads.Load()
			t.Logf("%d watches, %d reads", watches, reads)
			if watches*20 > reads { // one, and a few more if the machine is so slow that a watch is taken for broken
				t.Errorf("%d watches for %d reads", watches, reads)
			}
		})
	}
}

// watched is an object that a test changes, and its table.
type watched struct {
	testing.TB
	*kubernetestest.Model
	table record.Table
	row   record.Row
}

func newWatched(t *testing.T) *watched {
	m := startModel(t)
	web, stop := m.Client(kubernetestest.AllowAll, nil, nil)
	t.Cleanup(stop)
	table, err := kubernetes.NewTable(t.Context(), web, m.Address(), kubernetestest.Namespace, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return &watched{TB: t, Model: m, table: table, row: record.Row{Name: "a"}}
}

// change writes the object, and returns its version.
func (w *watched) change() string {
	w.Helper()
	w.row.Data = []byte("{}")
	now, err := w.table.Swap(w.Context(), w.row)
	if err != nil {
		w.Fatal(err)
	}
	w.row = now
	return now.Version
}

// remove removes the object.
func (w *watched) remove() {
	w.Helper()
	if err := w.table.Delete(w.Context(), w.row); err != nil {
		w.Fatal(err)
	}
	w.row.Version = ""
}

// begin lets all watches begin with what there is now, if they are to be behind.
func (w *watched) begin(behind bool) {
	if behind {
		w.DelayWatches()
	}
}

// wait waits for a change after a version. When it returns the watch is running.
func (w *watched) wait(version string) (ended <-chan error) {
	w.Helper()
	result := make(chan error, 1)
	go func() { result <- storetest.WaitForChange(w.Context(), w.table, "a", version) }()
	storetest.Eventually(w, "the watch", func() bool { return w.CountWatches() == 1 })
	return result
}

// awaitEnd waits for the end of a wait.
func (w *watched) awaitEnd(what string, ended <-chan error) error {
	w.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Minute):
		w.Fatalf("%s: it still waits", what)
		return nil
	}
}

// mustEnd waits until a change has ended a wait.
func (w *watched) mustEnd(what string, ended <-chan error) {
	w.Helper()
	if err := w.awaitEnd(what, ended); err != nil {
		w.Errorf("%s: %v", what, err)
	}
}

// mustWait checks that a wait has not ended.
func (w *watched) mustWait(what string, ended <-chan error) {
	w.Helper()
	select {
	case err := <-ended:
		w.Fatalf("%s: it has ended with %v", what, err)
	default:
	}
}

// expectRequests checks what was sent since the last call.
func (w *watched) expectRequests(what string, watches, reads int) {
	w.Helper()
	if got := w.CountRequests(); got["watch"] != watches || got["get"] != reads {
		w.Errorf("%s: %v", what, got)
	}
}

// TestWatchMissesNothing: a waiter that joins a watch is woken by a change after the version that it has read, also if
// the watch has shown that change before, or has begun after it.
func TestWatchMissesNothing(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	first := w.change()
	second := w.change()
	waits := w.wait(second)
	w.mustEnd("a change before the watch", w.wait(first))
	w.mustWait("no change", waits)
	third := w.change()
	w.mustEnd("a change", waits)
	w.mustEnd("a change that was shown before", w.wait(second))
	waits = w.wait(third)
	w.remove()
	w.mustEnd("a removal", waits)
	w.mustEnd("a removal that was shown before", w.wait(third))
	waits = w.wait("")
	w.change()
	w.mustEnd("a new object", waits)
	w.mustEnd("an object that was absent when it was read", w.wait(""))
	w.expectRequests("all this", 1, 2) // the last two cannot compare revisions, and read
}

// TestWatchAfterCompaction: a watch that would begin at a moment which the server has forgotten misses no change that
// came before it: neither another version, nor that the object is gone, nor that there is one now. That is so
// although what the server begins with instead is old.
func TestWatchAfterCompaction(t *testing.T) {
	t.Parallel()
	for _, behind := range []bool{false, true} {
		for what, change := range map[string]func(w *watched) (seen string){
			"an object is new": func(w *watched) string {
				w.change()
				return ""
			},
			"an object has changed": func(w *watched) string {
				first := w.change()
				w.begin(behind)
				w.change()
				return first
			},
			"an object is gone": func(w *watched) string {
				first := w.change()
				w.begin(behind)
				w.remove()
				return first
			},
		} {
			w := newWatched(t)
			w.begin(behind)
			seen := change(w)
			w.Compact()
			ended := make(chan error, 1)
			go func() { ended <- storetest.WaitForChange(t.Context(), w.table, "a", seen) }()
			w.mustEnd(fmt.Sprintf("%s, behind: %v", what, behind), ended)
		}
	}
}

// TestWatchOfAbsentObject: the waiters for an object that does not exist share a watch. One that has seen the object,
// and comes late, learns that it is gone.
func TestWatchOfAbsentObject(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	old := w.change()
	w.remove()
	waits := w.wait("")
	w.mustEnd("a removal before the watch", w.wait(old))
	more := w.wait("")
	w.mustWait("no change", waits)
	w.change()
	w.mustEnd("a new object", waits)
	w.mustEnd("a new object", more)
	if n := w.CountRequests()["watch"]; n != 1 {
		t.Errorf("%d watches", n)
	}
}

// TestWatchBehind: a waiter that has read what the watch does not show yet is woken by what comes after that, and by
// nothing before.
func TestWatchBehind(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	early := w.wait(w.change())
	w.DelayWatches()
	w.remove()
	absent := w.wait("")
	storetest.Eventually(t, "its read", func() bool { return w.CountRequests()["get"] == 1 })
	w.CatchUp()
	w.mustEnd("the change", early)
	w.mustWait("a waiter that knows of the removal", absent)
	second := w.change()
	w.mustEnd("a new object", absent)
	w.DelayWatches()
	third := w.change()
	early = w.wait(second)
	late := w.wait(third)
	w.CatchUp()
	w.mustEnd("the change", early)
	w.mustWait("a waiter that knows of the change", late)
	w.change()
	w.mustEnd("the next change", late)
}

// TestWatchStaysBehind: a watch that does not show what was read is replaced, as that of a connection which was cut.
func TestWatchStaysBehind(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	early := w.wait(w.change())
	w.DelayWatches()
	late := w.wait(w.change())
	for _, ended := range []<-chan error{early, late} {
		if err := w.awaitEnd("a watch that has broken", ended); err == nil {
			t.Error("a change is shown")
		}
	}
	storetest.Eventually(t, "the end of the watch", func() bool { return w.CountWatches() == 0 })
	w.expectRequests("a watch that has broken", 1, 0)
	w.CatchUp()
	late = w.wait(w.row.Version)
	w.expectRequests("another watch", 1, 0)
	w.change()
	w.mustEnd("a change", late)
}

// TestNoticesStayBehind: a client that listens for notices, and reads what its watch does not show, is told that it
// gets none at present: the watch may have been cut.
func TestNoticesStayBehind(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.change()
	noticed := make(chan error, 1)
	version := w.row.Version
	go func() {
		_, err := w.table.Watcher().Watch("a").Wait(t.Context(), version, record.InQueue)
		noticed <- err
	}()
	storetest.Eventually(t, "the watch", func() bool { return w.CountWatches() == 1 })
	w.DelayWatches()
	w.change()
	if _, err := w.table.Load(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-noticed:
		if err == nil {
			t.Error("a notice has come")
		}
	case <-time.After(time.Minute):
		t.Error("nothing tells that the watch is behind")
	}
}

// TestNoticeBeforeWatch: a claim in the queue that knows an older version than the one with which the watch began
// learns at once that it may have missed a notice.
func TestNoticeBeforeWatch(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	old := w.change()
	w.wait(w.change()) // there is a watch now
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := w.table.Watcher().Watch("a").Wait(ctx, old, record.InQueue); err != nil {
		t.Error(err)
	}
}

// TestWatchEnds: when the server ends a watch, the waiters read again, and the next watch misses nothing in between. A
// watch ends soon after nobody waits any more.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	first := w.change()
	for range 2 {
		waits := w.wait(first)
		w.EndWatches()
		if err := w.awaitEnd("the server ends the watch", waits); err == nil {
			t.Error("the end of a watch is a change")
		}
	}
	w.change()
	if err := storetest.WaitForChange(t.Context(), w.table, "a", first); err != nil {
		t.Errorf("a change between two watches: %v", err)
	}
	storetest.Eventually(t, "the end of the watch", func() bool { return w.CountWatches() == 0 })
	waits := w.wait(w.row.Version)
	if err := w.table.Close(); err != nil {
		t.Error(err)
	}
	if err := w.awaitEnd("a table that is closed", waits); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("a wait of a table that was closed: %v", err)
	}
}

// TestWatchesUnderChanges: while an object changes, comes and goes, and watches end, fall behind and begin at forgotten
// moments, each waiter learns of the last change.
func TestWatchesUnderChanges(t *testing.T) {
	t.Parallel()
	changes := 300
	if *prove {
		changes = 20_000
	}
	w := newWatched(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var known [8]atomic.Value // the version for whose end each of them waits
	for i := range known {
		known[i].Store("")
		all.Go(func() {
			for ctx.Err() == nil {
				row, err := w.table.Load(ctx, "a")
				if err != nil {
					continue
				}
				if rand.N(4) == 0 {
					time.Sleep(rand.N(5 * time.Millisecond)) // there are changes between its read and its wait
				}
				known[i].Store(row.Version)
				// An error says that it should read again.
				_ = storetest.WaitForChange(ctx, w.table, "a", row.Version)
			}
		})
	}
	for range changes {
		switch rand.N(10) {
		case 0:
			w.Compact()
		case 1:
			w.EndWatches()
		case 2:
			w.DelayWatches()
		case 3:
			w.CatchUp()
		case 4:
			if w.row.Version != "" {
				w.remove()
			}
		default:
			w.change()
		}
		time.Sleep(rand.N(3 * time.Millisecond))
	}
	w.CatchUp()
	end := w.change()
	for i := range known {
		storetest.Eventually(t, "the last change", func() bool { return known[i].Load() == end })
	}
}

// TestNotices: a client is notified of the changes that concern it, and of no others.
func TestNotices(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]server{"model": startModel(t), "cluster": sharedCluster(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := func() record.Table {
				web, stop := c.Client(kubernetestest.AllowAll, nil, nil)
				t.Cleanup(stop)
				table, err := kubernetes.NewTable(t.Context(), web, c.Address(), kubernetestest.Namespace,
					&kubernetes.Options{Prefix: "notices-"})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { table.Close() })
				return table
			}
			storetest.CheckNotices(t, open(), open(), nil)
			for _, place := range []record.Place{record.Outside, record.InQueue} {
				storetest.CheckNoticedRow(t, open(), open(), place, []byte(`{"data":"äöü"}`), true)
			}
		})
	}
}
