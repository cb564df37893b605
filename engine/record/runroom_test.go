package record_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// boundedTable takes records of a size only, as NATS and MySQL do by their settings.
type boundedTable struct {
	record.Table
	max int
	t   *testing.T
}

func (boundedTable) Watcher() record.Watcher { return nil }

func (b boundedTable) Traits() record.Traits { return record.Traits{MaxRecord: b.max, Ledger: true} }

func (b boundedTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if len(row.Data) > b.max {
		b.t.Errorf("a record of %d bytes, where %d fit: %.200s", len(row.Data), b.max, row.Data)
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes", driver.ErrInvalid, len(row.Data))
	}
	return b.Table.Swap(ctx, row)
}

func (b boundedTable) OpenLedgerTable(context.Context) (record.Table, error) { return b, nil }

// recordSizes are sizes of the largest record of a store: the smallest one, those that NATS may have, those in which a
// result is no longer as large as everywhere, and that of Kubernetes.
var recordSizes = []int{4 << 10, 8 << 10, 12 << 10, 64 << 10, 85 << 10, 130 << 10, 140 << 10, 250 << 10}

// TestRunsHaveRoom: whatever the runs of a key have left, the next one begins, and can end with a result of the largest
// size, an error or by an operator. Texts take six times their length, as they do in JSON at worst, as far as there is
// room for that.
func TestRunsHaveRoom(t *testing.T) {
	for _, size := range recordSizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				table := boundedTable{memory.New(nil).Table(), size, t}
				l := record.NewLedger(table)
				defer l.Close()
				texts := func(text string) driver.Claim {
					c := newRun("k")
					c.Meta = strings.Repeat(text, l.Info().MaxMeta)
					if text == "<" {
						c.Owner, c.Run.Fingerprint = strings.Repeat(text, driver.MaxOwner), strings.Repeat(text, driver.MaxRunFingerprint)
					}
					return c
				}
				if size == 8<<10 && l.Info().MaxMeta != 352 { // as docs/run-once.md says of NATS
					t.Errorf("notes have at most %d bytes", l.Info().MaxMeta)
				}
				const attempts = 80
				largest := func(attempt int) driver.Claim {
					c := texts("<")
					if _, err := l.Acquire(t.Context(), c); err == nil {
						return c
					} else if !errors.Is(err, driver.ErrInvalid) || size >= 140<<10 {
						t.Fatalf("attempt %d: %v", attempt, err)
					}
					return storetest.Acquire(t, l, texts("a")).Claim // too large, which is said before it begins
				}
				for attempt := 1; attempt < attempts; attempt++ {
					c := largest(attempt)
					lock, err := l.Inspect(t.Context(), "k")
					if err != nil || len(lock.Holders) != 1 || lock.Holders[0].Ref != c.ID {
						t.Fatalf("attempt %d is not in progress: %+v, %v", attempt, lock, err)
					}
					g := driver.Grant{Claim: c, Token: lock.Token}
					switch attempt % 4 {
					case 0:
						reason := strings.Repeat("<", driver.MaxReason)
						err = l.Break(t.Context(), "k", c.ID, driver.Break{Mode: driver.BreakForce, Reason: reason})
					case 1:
						reason := strings.Repeat("<", driver.MaxReason)
						err = l.Break(t.Context(), "k", c.ID, driver.Break{Mode: driver.BreakGraceful, Reason: reason})
						time.Sleep(2 * c.TTL)
					default:
						err = l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed,
							Error: strings.Repeat("<br>&", driver.MaxRunError/5)})
					}
					if err != nil {
						t.Fatalf("attempt %d cannot be ended: %v", attempt, err)
					}
				}
				g := storetest.Acquire(t, l, texts("a"))
				if g.Attempt != attempts {
					t.Errorf("the last run is attempt %d", g.Attempt)
				}
				most := l.Info().MaxRunResult
				if most < 192 || most > driver.MaxRunResult || (most < driver.MaxRunResult) != (size < 137<<10) {
					t.Errorf("the largest result has %d bytes", most)
				}
				err := l.FinishRun(t.Context(), g, succeeded(strings.Repeat("x", most+1)))
				if !errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrUncertain) {
					t.Errorf("a result that is too large: %v", err)
				}
				if err := l.FinishRun(t.Context(), g, succeeded(strings.Repeat("x", most))); err != nil {
					t.Errorf("a result of the largest size: %v", err)
				}
				h, err := l.ReadRuns(t.Context(), "k", 0)
				if err != nil || len(h.Runs) != attempts || len(h.Runs[attempts-1].Result) != most {
					t.Errorf("there are %d runs, %v", len(h.Runs), err)
				}
				for i, r := range h.Runs {
					if r.Attempt != int64(i+1) || r.State == driver.RunStarted {
						t.Fatalf("run %d is %+v", i+1, r)
					}
				}
				for row, err := range table.List(t.Context(), "", "") {
					if most := 64 << 10; err != nil || strings.Contains(row.Name, "\x1f") && len(row.Data) > most {
						t.Errorf("the page %q has %d bytes, %v", row.Name, len(row.Data), err)
					}
				}
			})
		})
	}
}

// slowPages stops the first write of a page until it is released, and says that it has come.
type slowPages struct {
	record.Table
	arrived, release chan struct{}
	once             sync.Once
}

func (*slowPages) Watcher() record.Watcher { return nil }

func (s *slowPages) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if strings.Contains(row.Name, "\x1f") {
		s.once.Do(func() {
			close(s.arrived)
			<-s.release
		})
	}
	return s.Table.Swap(ctx, row)
}

// TestSlowPage: a client that begins a run, and writes a page of old runs when another one has written the same page
// and gone on, takes no run out of the history, although a late report was noted between the two.
func TestSlowPage(t *testing.T) {
	compared := 0
	for length := 60; length < 120; length++ {
		synctest.Test(t, func(t *testing.T) {
			table := memory.New(nil).Table()
			slowTable := &slowPages{Table: table, arrived: make(chan struct{}), release: make(chan struct{})}
			l, slow := record.NewLedger(table), record.NewLedger(slowTable)
			defer l.Close()
			defer slow.Close()
			recordSize := func() int {
				row, err := table.Load(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				return len(row.Data)
			}
			var late driver.Grant
			for recordSize() < 8<<10+200 { // somewhat more than the room of ended runs
				g := storetest.Acquire(t, l, newRun("k"))
				var err error
				if recordSize() > 7<<10 && late.Name == "" {
					late = g
					err = l.Break(t.Context(), "k", g.ID, driver.Break{Mode: driver.BreakForce})
				} else {
					text := strings.Repeat("e", length)
					err = l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed, Error: text})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			begun := make(chan error, 1)
			go func() {
				_, err := slow.Acquire(t.Context(), newRun("k"))
				begun <- err
			}()
			synctest.Wait()
			select {
			case <-slowTable.arrived:
				compared++
			case err := <-begun: // there was room
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err := l.FinishRun(t.Context(), late, succeeded("x")); !errors.Is(err, driver.ErrLost) {
				t.Fatal(err)
			}
			g := storetest.Acquire(t, l, newRun("k"))
			close(slowTable.release)
			if err := <-begun; !errors.Is(err, driver.ErrInProgress) {
				t.Errorf("a run begins next to another one: %v", err)
			}
			h, err := l.ReadRuns(t.Context(), "k", 0)
			if err != nil || len(h.Runs) != int(g.Attempt) {
				t.Errorf("with errors of %d bytes, the history has %d of %d runs, %v", length, len(h.Runs), g.Attempt, err)
			}
		})
	}
	if compared < 10 {
		t.Errorf("only %d pages were written", compared)
	}
}

// TestRunWithoutRoom: a run whose texts leave no room for its end is refused before it begins, by a final error that
// says what to do, and nothing is stored.
func TestRunWithoutRoom(t *testing.T) {
	table := boundedTable{memory.New(nil).Table(), 4 << 10, t}
	l := record.NewLedger(table)
	defer l.Close()
	c := newRun("k")
	c.Owner = strings.Repeat("<", driver.MaxOwner)
	_, err := l.Acquire(t.Context(), c)
	if !errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrUncertain) || errors.Is(err, driver.ErrQueueFull) ||
		!strings.Contains(err.Error(), "shorter") {
		t.Errorf("a run without room: %v", err)
	}
	for row := range table.List(t.Context(), "", "") {
		t.Errorf("%q is stored: %s", row.Name, row.Data)
	}
}

// TestSmallStoreHasNoLedger: a store whose records are too small for any run opens no ledger, and says what to do.
func TestSmallStoreHasNoLedger(t *testing.T) {
	for _, size := range []int{4<<10 - 1, 4 << 10} {
		s := record.New(boundedTable{memory.New(nil).Table(), size, t})
		l, err := s.OpenLedger(t.Context())
		switch {
		case size >= 4<<10 && err != nil:
			t.Errorf("records of %d bytes: %v", size, err)
		case size < 4<<10 && (!errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "raise the limit")):
			t.Errorf("records of %d bytes: %v, %v", size, l, err)
		}
	}
}

// TestLedgerFormats: the records and pages of format 1 are read, and the next step writes format 2, which a program
// that knows format 1 alone refuses. The records of locks have format 1.
func TestLedgerFormats(t *testing.T) {
	table := memory.New(nil).Table()
	var list []string
	for attempt := 17; attempt <= 40; attempt++ { // as 16 runs to a page and up to 32 in the record
		list = append(list, oldRun(attempt))
	}
	var page []string
	for attempt := 1; attempt <= 16; attempt++ {
		page = append(page, oldRun(attempt))
	}
	for name, data := range map[string]string{
		"k":      `{"holdfast":1,"token":40,"idle":9,"runs":{"list":[` + strings.Join(list, ",") + `],"pages":1}}`,
		"k\x1f0": `{"holdfast":1,"token":33,"runs":{"list":[` + strings.Join(page, ",") + `]}}`,
	} {
		if _, err := table.Swap(t.Context(), record.Row{Name: name, Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	l := record.NewLedger(table)
	defer l.Close()
	isWhole := func(attempts int) {
		t.Helper()
		h, err := l.ReadRuns(t.Context(), "k", 0)
		if err != nil || len(h.Runs) != attempts || h.Runs[0].Attempt != 1 {
			t.Fatalf("there are %d runs, %v", len(h.Runs), err)
		}
		for last := range attempts {
			h, err := l.ReadRuns(t.Context(), "k", last+1)
			if err != nil || len(h.Runs) <= last || h.Runs[len(h.Runs)-1].Attempt != int64(attempts) {
				t.Errorf("of the last %d runs there are %d, %v", last+1, len(h.Runs), err)
			}
		}
	}
	isWhole(40)
	failRuns(t, l, "k", 100)
	isWhole(140)
	for row, err := range table.List(t.Context(), "", "") {
		if want := `{"holdfast":2,`; err != nil || row.Name != "k\x1f0" && !strings.HasPrefix(string(row.Data), want) {
			t.Errorf("%q begins with %.20s, %v", row.Name, row.Data, err)
		}
	}
	locks := memory.New(nil).Table()
	storetest.Acquire(t, record.New(locks), storetest.Mutex("m", time.Minute))
	if row, err := locks.Load(t.Context(), "m"); err != nil || !strings.HasPrefix(string(row.Data), `{"holdfast":1,`) {
		t.Errorf("the record of a lock is %.20s, %v", row.Data, err)
	}
}

func oldRun(attempt int) string {
	return fmt.Sprintf(`{"attempt":%d,"state":"failed","id":"old%d","token":%d,"started_us":1,"ended_us":2,"error":"no"}`,
		attempt, attempt, attempt)
}

// TestWithdrawnRun: a run that nobody was told of leaves nothing in the history. It uses up no attempt, starts no
// pause, changes no time for which the history is kept, and leaves a permission to retry.
func TestWithdrawnRun(t *testing.T) {
	for _, before := range []int{0, 1, 60} {
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				table := memory.New(nil).Table()
				l := record.NewLedger(table)
				defer l.Close()
				terms := &driver.RunTerms{MaxAttempts: int64(before + 1), Pause: time.Hour, KeepRuns: 1, KeepFor: 48 * time.Hour}
				begin := func() (driver.Grant, error) {
					c := newRun("k")
					c.Run = terms
					return l.Acquire(t.Context(), c)
				}
				for range before {
					g, err := begin()
					if err == nil {
						err = l.FinishRun(t.Context(), g, driver.RunOutcome{State: driver.RunFailed, Error: "no"})
					}
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Hour + time.Second)
				}
				was, err := table.Load(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				kept := func(row record.Row) string {
					rec, err := record.Decode("k", row.Data)
					if row.Version == "" {
						return "0 at 0"
					}
					if err != nil {
						t.Fatal(err)
					}
					last := 0
					if n := len(rec.Runs.Runs); n > 0 {
						last = int(rec.Runs.Runs[n-1].Attempt)
					}
					return fmt.Sprint(last, " at ", rec.Runs.ForgetAt)
				}
				for range 3 {
					g, err := begin()
					if err != nil {
						t.Fatal(err)
					}
					c := g.Claim
					c.Withdrawn = true
					if err := l.Release(t.Context(), c, ""); err != nil {
						t.Fatal(err)
					}
					if now, err := table.Load(t.Context(), "k"); err != nil || kept(now) != kept(was) {
						t.Errorf("the history was %s, and is %s, %v", kept(was), kept(now), err)
					}
				}
				g, err := begin()
				if err != nil || g.Attempt != int64(before+1) {
					t.Fatalf("the next run is attempt %d, %v", g.Attempt, err)
				}
				if err := l.Release(t.Context(), g.Claim, ""); err != nil {
					t.Fatal(err)
				}
				if _, err := begin(); !errors.Is(err, driver.ErrAttemptsUsed) {
					t.Errorf("a run that somebody was told of does not count: %v", err)
				}
				if err := l.RetryRun(t.Context(), "k"); err != nil {
					t.Fatal(err)
				}
				for i := range 2 {
					g, err := begin()
					if err != nil {
						t.Fatalf("a retry that was allowed, try %d: %v", i, err)
					}
					c := g.Claim
					c.Withdrawn = true
					if err := l.Release(t.Context(), c, ""); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}
