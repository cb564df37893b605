package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// openLedgers opens a ledger with two clients of one store in memory.
func openLedgers(t *testing.T, opts *holdfast.LedgerOptions) (a, b *holdfast.Ledger) {
	t.Helper()
	m := memory.New(nil)
	open := func() *holdfast.Ledger {
		c, err := holdfast.New(m.Open(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c.Ledger("events", opts)
	}
	return open(), open()
}

func mustBegin(t *testing.T, l *holdfast.Ledger, key string) *holdfast.Run {
	t.Helper()
	run, err := l.Begin(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func requireRunError(t *testing.T, err, reason error) *holdfast.RunError {
	t.Helper()
	var refused *holdfast.RunError
	if !errors.Is(err, reason) || !errors.As(err, &refused) {
		t.Fatalf("got %v, want %v", err, reason)
	}
	return refused
}

// TestLedgerRunsUntilSuccess: a key is run until a run succeeds, and every refusal shows the run that is the reason.
func TestLedgerRunsUntilSuccess(t *testing.T) {
	a, b := openLedgers(t, nil)
	run := mustBegin(t, a, "k")
	if run.Attempt() != 1 || !run.Valid() || run.Key() != "k" || run.Context().Err() != nil {
		t.Errorf("the run is %v", run)
	}
	_, err := b.Begin(t.Context(), "k", nil)
	refused := requireRunError(t, err, holdfast.ErrInProgress)
	if refused.Run.Key != "k" || refused.Run.ID != run.ID() || refused.Run.Token != run.Token() {
		t.Errorf("the refusal shows %+v", refused.Run)
	}
	if !errors.Is(err, holdfast.ErrHeld) || !strings.Contains(err.Error(), `"events/k"`) {
		t.Errorf("the error is %v", err)
	}
	if err := run.Fail(t.Context(), errors.New("no route")); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(run.Err(), holdfast.ErrReleased) || run.Valid() || run.Context().Err() == nil {
		t.Errorf("after its end the run is %v", run)
	}
	next := mustBegin(t, b, "k")
	if next.Attempt() != 2 || next.Token() <= run.Token() {
		t.Errorf("after attempt %d with token %d: %v", run.Attempt(), run.Token(), next)
	}
	if err := next.Succeed(t.Context(), []byte("42")); err != nil {
		t.Fatal(err)
	}
	if err := next.Succeed(t.Context(), []byte("42")); !errors.Is(err, holdfast.ErrReleased) {
		t.Errorf("a second success: %v", err)
	}
	_, err = a.Begin(t.Context(), "k", &holdfast.RunOptions{Wait: true})
	if refused := requireRunError(t, err, holdfast.ErrSucceeded); string(refused.Run.Result) != "42" {
		t.Errorf("the refusal shows %+v", refused.Run)
	}
	runs, err := a.History(t.Context(), "k")
	if err != nil || len(runs) != 2 || runs[0].Error != "no route" || runs[1].State != holdfast.RunSucceeded {
		t.Errorf("the history is %+v, %v", runs, err)
	}
}

// TestLedgerDo: the function runs once, and later calls get its result. What fails or panics is run again.
func TestLedgerDo(t *testing.T) {
	a, b := openLedgers(t, nil)
	calls := 0
	work := func(result string, err error) func(context.Context, *holdfast.Run) ([]byte, error) {
		return func(ctx context.Context, r *holdfast.Run) ([]byte, error) {
			calls++
			if ctx.Err() != nil || !r.Valid() {
				t.Errorf("the function runs under %v, %v", ctx.Err(), r)
			}
			return []byte(result), err
		}
	}
	failed := errors.New("failed")
	if _, err := a.Do(t.Context(), "k", nil, work("", failed)); err != failed {
		t.Errorf("a function that fails: %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = a.Do(t.Context(), "k", nil, func(context.Context, *holdfast.Run) ([]byte, error) { panic("oh") })
	}()
	for _, l := range []*holdfast.Ledger{a, b, a} {
		if result, err := l.Do(t.Context(), "k", nil, work("done", nil)); err != nil || string(result) != "done" {
			t.Errorf("got %q, %v", result, err)
		}
	}
	runs, err := b.History(t.Context(), "k")
	if err != nil || calls != 2 || len(runs) != 3 || runs[1].State != holdfast.RunFailed {
		t.Errorf("after %d calls the history is %+v, %v", calls, runs, err)
	}
	if _, err := a.Do(t.Context(), "k", nil, nil); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("no function: %v", err)
	}
}

// TestLedgerOneRun: of many workers that begin a run of one key at the same moment, exactly one gets it, for every key.
func TestLedgerOneRun(t *testing.T) {
	a, b := openLedgers(t, nil)
	for key := range 20 {
		var ran atomic.Int64
		var workers sync.WaitGroup
		for i := range 16 {
			workers.Go(func() {
				_, err := []*holdfast.Ledger{a, b}[i%2].Do(t.Context(), fmt.Sprint(key), &holdfast.RunOptions{Wait: true},
					func(context.Context, *holdfast.Run) ([]byte, error) {
						ran.Add(1)
						return nil, nil
					})
				if err != nil {
					t.Error(err)
				}
			})
		}
		workers.Wait()
		if n := ran.Load(); n != 1 {
			t.Errorf("key %d ran %d times", key, n)
		}
	}
}

// TestLedgerLateSuccess: a worker that was cut off reports success after its lease has ended. If another run was begun,
// the report is refused, and noted. If not, it counts.
func TestLedgerLateSuccess(t *testing.T) {
	for _, taken := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			m := memory.New(nil)
			cut := &cutLedger{Store: m.Open()}
			client, err := holdfast.New(cut, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			other, err := holdfast.New(m.Open(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			run := mustBegin(t, client.Ledger("l", nil), "k")
			cut.cut.Store(true)
			<-run.Context().Done()
			if !errors.Is(run.Err(), holdfast.ErrLost) || run.Valid() {
				t.Errorf("cut off, the run is %v", run)
			}
			l := other.Ledger("l", nil)
			if taken {
				next, err := l.Begin(t.Context(), "k", &holdfast.RunOptions{Wait: true})
				if err != nil {
					t.Fatal(err)
				}
				defer next.Succeed(t.Context(), nil)
			}
			cut.cut.Store(false)
			err = run.Succeed(t.Context(), []byte("late"))
			if lost := errors.Is(err, holdfast.ErrLost); lost != taken || !taken && err != nil {
				t.Errorf("another run was begun: %t; a late success: %v", taken, err)
			}
			runs, err := l.History(t.Context(), "k")
			want := holdfast.RunInfo{State: holdfast.RunSucceeded}
			if taken {
				want = holdfast.RunInfo{State: holdfast.RunAbandoned, LateReport: holdfast.RunSucceeded}
			}
			if err != nil || runs[0].State != want.State || runs[0].LateReport != want.LateReport {
				t.Errorf("the history is %+v, %v", runs, err)
			}
		})
	}
}

// TestLedgerDoAfterLateSuccess: a function of Do that has itself reported success, late and with the answer nil, has
// ended its run: Do returns its result, and a second report is ErrReleased. So it is if the report arrived in the
// background.
func TestLedgerDoAfterLateSuccess(t *testing.T) {
	for _, inBackground := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cut := &cutLedger{Store: memory.New(nil).Open()}
			client, err := holdfast.New(cut, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			l := client.Ledger("l", nil)
			result, err := l.Do(t.Context(), "k", nil, func(ctx context.Context, r *holdfast.Run) ([]byte, error) {
				cut.cut.Store(true)
				<-ctx.Done()
				late := context.WithoutCancel(ctx)
				if inBackground {
					short, cancel := context.WithTimeout(late, time.Second)
					defer cancel()
					if err := r.Succeed(short, []byte("done")); !errors.Is(err, holdfast.ErrUncertain) {
						t.Errorf("a report without an answer: %v", err)
					}
				}
				cut.cut.Store(false)
				if inBackground {
					time.Sleep(time.Minute)
				} else if err := r.Succeed(late, []byte("done")); err != nil {
					t.Errorf("a late report: %v", err)
				}
				if err := r.Succeed(late, []byte("done")); !errors.Is(err, holdfast.ErrReleased) {
					t.Errorf("a second report: %v", err)
				}
				return []byte("done"), nil
			})
			runs, historyErr := l.History(t.Context(), "k")
			if err != nil || string(result) != "done" || historyErr != nil || runs[0].State != holdfast.RunSucceeded {
				t.Errorf("Do returns %q, %v; the ledger shows %+v, %v", result, err, runs, historyErr)
			}
		})
	}
}

// cutLedger is a store whose ledger gets no answers while the link is cut.
type cutLedger struct {
	driver.Store
	cut atomic.Bool
}

func (s *cutLedger) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	l, err := s.Store.OpenLedger(ctx)
	return &cutRuns{Ledger: l, store: s}, err
}

type cutRuns struct {
	driver.Ledger
	store *cutLedger
}

func (l *cutRuns) Renew(ctx context.Context, g []driver.Grant, done func(int, driver.Renewal)) {
	if !l.store.cut.Load() {
		l.Ledger.Renew(ctx, g, done)
		return
	}
	<-ctx.Done()
	for i := range g {
		done(i, driver.Renewal{Err: driver.ErrUncertain})
	}
}

func (l *cutRuns) FinishRun(ctx context.Context, g driver.Grant, o driver.RunOutcome) error {
	for l.store.cut.Load() { // a report that waits arrives when the link is whole again
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(driver.ErrUncertain, ctx.Err())
		}
	}
	return l.Ledger.FinishRun(ctx, g, o)
}

func (l *cutRuns) Release(ctx context.Context, c driver.Claim, ref string) error {
	if !l.store.cut.Load() {
		return l.Ledger.Release(ctx, c, ref)
	}
	<-ctx.Done()
	return errors.Join(driver.ErrUncertain, ctx.Err())
}

// TestCloseWhileLedgerHangs: a ledger that does not answer delays neither the release of the locks at Close nor the end
// of their contexts.
func TestCloseWhileLedgerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New(nil)
		cut := &cutLedger{Store: m.Open()}
		client, err := holdfast.New(cut, nil)
		if err != nil {
			t.Fatal(err)
		}
		run := mustBegin(t, client.Ledger("l", nil), "k")
		lease, err := client.Mutex("m", nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cut.cut.Store(true)
		start := time.Now()
		var closing sync.WaitGroup
		closing.Go(func() {
			if err := client.Close(); !errors.Is(err, holdfast.ErrUncertain) {
				t.Errorf("Close: %v", err)
			}
		})
		synctest.Wait()
		lock, err := m.Open().Inspect(t.Context(), "m")
		if err != nil || len(lock.Holders) > 0 {
			t.Errorf("the lock is %+v, %v", lock, err)
		}
		if lease.Context().Err() == nil || run.Context().Err() == nil {
			t.Error("a context has not ended")
		}
		closing.Wait()
		if took := time.Since(start); took > 11*time.Second {
			t.Errorf("Close took %v", took)
		}
	})
}

// TestCloseDuringListing: Close does not wait for the body of a loop over a listing. The listing then ends with
// ErrClosed.
func TestCloseDuringListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New(nil)
		open := func() *holdfast.Client {
			c, err := holdfast.New(m.Open(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		other := open()
		defer other.Close()
		for _, name := range []string{"a", "b"} {
			mustBegin(t, other.Ledger("l", nil), name)
			if _, err := other.Mutex(name, nil).Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		client := open()
		for range client.List(t.Context(), "") {
			break
		}
		proceed := make(chan bool)
		var loops sync.WaitGroup
		loop := func(next func(func(error) bool)) {
			loops.Go(func() {
				var errs []error
				next(func(err error) bool {
					errs = append(errs, err)
					<-proceed
					return true
				})
				if len(errs) != 2 || errs[0] != nil || !errors.Is(errs[1], holdfast.ErrClosed) {
					t.Errorf("the listing yields the errors %v", errs)
				}
			})
		}
		loop(func(yield func(error) bool) {
			client.List(t.Context(), "")(func(_ holdfast.Lock, err error) bool { return yield(err) })
		})
		loop(func(yield func(error) bool) {
			client.Ledger("l", nil).List(t.Context(), "")(func(_ holdfast.RunInfo, err error) bool { return yield(err) })
		})
		synctest.Wait()
		start := time.Now()
		if err := client.Close(); err != nil || time.Since(start) > 0 {
			t.Errorf("Close: %v after %v", err, time.Since(start))
		}
		close(proceed)
		loops.Wait()
	})
}

// TestLedgerUnknownOutcome: a success whose outcome is not known is reported in the background until it is.
func TestLedgerUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New(nil)
		cut := &cutLedger{Store: m.Open()}
		client, err := holdfast.New(cut, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		l := client.Ledger("l", nil)
		run := mustBegin(t, l, "k")
		cut.cut.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = run.Succeed(ctx, []byte("done"))
		if !errors.Is(err, holdfast.ErrUncertain) {
			t.Errorf("cut off: %v", err)
		}
		if text := fmt.Sprint(err); strings.Count(text, "not known") != 1 || strings.Contains(text, "the lock ends") {
			t.Errorf("the error does not say once, and of a run, what is not known: %s", text)
		}
		cut.cut.Store(false)
		time.Sleep(10 * time.Second)
		_, err = l.Begin(t.Context(), "k", nil)
		if refused := requireRunError(t, err, holdfast.ErrSucceeded); string(refused.Run.Result) != "done" {
			t.Errorf("the refusal shows %+v", refused.Run)
		}
	})
}

// TestLedgerPause: after an abandoned run the pause counts from its end, and passes, however often somebody asks.
func TestLedgerPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, unclocked := range []bool{false, true} {
			m := memory.New(&memory.Options{Unclocked: unclocked})
			dead, err := m.Ledger().Acquire(t.Context(), driver.Claim{Name: "l/k", ID: "dead", Kind: driver.KindMutex, Limit: 1,
				Weight: 1, TTL: 10 * time.Second, Run: &driver.RunTerms{}})
			if err != nil || dead.Attempt != 1 {
				t.Fatal(dead, err)
			}
			client, err := holdfast.New(m.Open(), nil)
			if err != nil {
				t.Fatal(err)
			}
			l := client.Ledger("l", &holdfast.LedgerOptions{Pause: time.Minute, MaxAttempts: 2})
			start, tooSoon := time.Now(), 0
			for {
				run, err := l.Begin(t.Context(), "k", nil)
				if err == nil {
					if waited := time.Since(start); waited < 70*time.Second || waited > 75*time.Second {
						t.Errorf("the next run began after %v", waited)
					}
					if err := run.Fail(t.Context(), nil); err != nil {
						t.Error(err)
					}
					break
				}
				if errors.Is(err, holdfast.ErrTooSoon) {
					tooSoon++
				} else {
					requireRunError(t, err, holdfast.ErrInProgress)
				}
				time.Sleep(time.Second)
			}
			if tooSoon < 55 {
				t.Errorf("refused %d times as too soon", tooSoon)
			}
			_, err = l.Begin(t.Context(), "k", nil)
			requireRunError(t, err, holdfast.ErrAttemptsUsed)
			if err := l.Retry(t.Context(), "k"); err != nil {
				t.Error(err)
			}
			mustBegin(t, l, "k")
			_ = client.Close()
		}
	})
}

// TestLedgerLastRuns: the last runs of a key come in the order in which they began, as many as there are.
func TestLedgerLastRuns(t *testing.T) {
	a, b := openLedgers(t, nil)
	const attempts = 60
	for range attempts {
		if err := mustBegin(t, a, "k").Fail(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range map[int]int{1: 1, 2: 2, 59: 59, 60: 60, 61: 60, math.MaxInt: 60} {
		runs, err := b.LastRuns(t.Context(), "k", n)
		if err != nil || len(runs) != want || runs[0].Attempt != int64(attempts-want+1) ||
			runs[want-1].Attempt != attempts {
			t.Errorf("the last %d runs: %d, %v", n, len(runs), err)
		}
	}
	if runs, err := b.LastRuns(t.Context(), "none", 5); err != nil || len(runs) > 0 {
		t.Errorf("of a key that was never run: %v, %v", runs, err)
	}
	for _, n := range []int{0, -1} {
		if _, err := b.LastRuns(t.Context(), "k", n); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("the last %d runs: %v", n, err)
		}
	}
}

// TestLedgerInfo: the longest key that Info allows can be run, and no longer one.
func TestLedgerInfo(t *testing.T) {
	a, _ := openLedgers(t, nil)
	info, err := a.Info(t.Context())
	if err != nil || info.MaxName < 100 {
		t.Fatalf("%+v, %v", info, err)
	}
	mustBegin(t, a, strings.Repeat("k", info.MaxName))
	if _, err := a.Begin(t.Context(), strings.Repeat("k", info.MaxName+1), nil); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("a longer key: %v", err)
	}
}

// TestLedgerOfOperators: keys are listed by prefix and state, watched, and forgotten.
func TestLedgerOfOperators(t *testing.T) {
	m := memory.New(nil)
	client := newMemoryClient(t, m, nil)
	a, b := client.Ledger("events", nil), newMemoryClient(t, m, nil).Ledger("events", nil)
	for key, end := range map[string]func(*holdfast.Run) error{
		"x/1": func(r *holdfast.Run) error { return r.Succeed(t.Context(), nil) },
		"x/2": func(r *holdfast.Run) error { return r.Fail(t.Context(), nil) },
		"x/3": func(r *holdfast.Run) error { return nil },
		"y":   func(r *holdfast.Run) error { return nil },
	} {
		if err := end(mustBegin(t, a, key)); err != nil {
			t.Fatal(err)
		}
	}
	for want, states := range map[string][]holdfast.RunState{
		"x/1 x/2 x/3": nil, "x/2": {holdfast.RunFailed}, "x/1 x/3": {holdfast.RunSucceeded, holdfast.RunStarted},
	} {
		found := map[string]bool{}
		for run, err := range b.List(t.Context(), "x/", states...) {
			if err != nil || found[run.Key] {
				t.Errorf("listed: %+v, %v", run, err)
			}
			found[run.Key] = true
		}
		for _, key := range strings.Fields(want) {
			if !found[key] || len(found) != len(strings.Fields(want)) {
				t.Errorf("for %v, listed are %v", states, found)
			}
		}
	}
	if err := mustBegin(t, client.Ledger("other", nil), "x/2").Fail(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	failed := map[string]bool{}
	for run, err := range client.ListRuns(t.Context(), holdfast.RunFailed) {
		if err != nil {
			t.Error(err)
		}
		failed[run.Ledger+" "+run.Key] = true
	}
	if len(failed) != 2 || !failed["events x/2"] || !failed["other x/2"] {
		t.Errorf("the failed runs of all ledgers are %v", failed)
	}
	if err := b.Forget(t.Context(), "x/3"); !errors.Is(err, holdfast.ErrInProgress) {
		t.Errorf("forgetting a run in progress: %v", err)
	}
	if err := b.Retry(t.Context(), "x/1"); !errors.Is(err, holdfast.ErrSucceeded) {
		t.Errorf("retrying a key that has succeeded: %v", err)
	}
	if err := b.Retry(t.Context(), "none"); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("retrying a key that was never run: %v", err)
	}
	if err := b.Forget(t.Context(), "x/1"); err != nil {
		t.Error(err)
	}
	states := make(chan string, 16)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for run, err := range b.Watch(ctx, "x/1") {
			if err != nil {
				return
			}
			states <- fmt.Sprint(run.Attempt, run.State)
		}
	})
	requireNext := func(want string) {
		t.Helper()
		if got := <-states; got != want {
			t.Errorf("watched %q, want %q", got, want)
		}
	}
	requireNext("0")
	run := mustBegin(t, a, "x/1")
	requireNext("1started")
	if err := run.Succeed(t.Context(), nil); err != nil {
		t.Error(err)
	}
	requireNext("1succeeded")
	cancel()
	watching.Wait()
}

// TestLedgerFingerprint: a fingerprint that was accepted matches itself in the next run, also at another client.
func TestLedgerFingerprint(t *testing.T) {
	a, b := openLedgers(t, nil)
	for i, print := range []string{"5f70bf18", "X3C/GA==", "\u00e9\u2028\ufffd\x01<&>\"\\", strings.Repeat("f", 256)} {
		for _, l := range []*holdfast.Ledger{a, b} {
			run, err := l.Begin(t.Context(), fmt.Sprint(i), &holdfast.RunOptions{Fingerprint: print})
			if err != nil {
				t.Fatalf("%q: %v", print, err)
			}
			if err := run.Fail(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestLedgerBadInput: bad names, keys and options are refused with an error that says what is wrong.
func TestLedgerBadInput(t *testing.T) {
	a, _ := openLedgers(t, nil)
	begin := func(l *holdfast.Ledger, key string, opts *holdfast.RunOptions) error {
		_, err := l.Begin(t.Context(), key, opts)
		return err
	}
	client, err := holdfast.New(memory.New(nil).Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for name, err := range map[string]error{
		"no ledger name":    begin(client.Ledger("", nil), "k", nil),
		"a slash":           begin(client.Ledger("a/b", nil), "k", nil),
		"a huge key":        begin(a, strings.Repeat("k", 600), nil),
		"an odd key":        begin(a, "k\x1f1", nil),
		"not UTF-8":         begin(a, "\xff", nil),
		"a NUL":             begin(a, "\x00", nil),
		"no key":            begin(a, "", nil),
		"a raw hash":        begin(a, "k", &holdfast.RunOptions{Fingerprint: "\xff\xfe"}),
		"a NUL in a hash":   begin(a, "k", &holdfast.RunOptions{Fingerprint: "a\x00"}),
		"a huge print":      begin(a, "k", &holdfast.RunOptions{Fingerprint: strings.Repeat("f", 300)}),
		"negative attempts": begin(client.Ledger("l", &holdfast.LedgerOptions{MaxAttempts: -1}), "k", nil),
		"a negative pause":  begin(client.Ledger("l", &holdfast.LedgerOptions{Pause: -1}), "k", nil),
		"a short TTL":       begin(client.Ledger("l", &holdfast.LedgerOptions{TTL: time.Millisecond}), "k", nil),
	} {
		if !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	run := mustBegin(t, a, "k")
	if err := run.Succeed(t.Context(), make([]byte, holdfast.MaxRunResult+1)); !errors.Is(err, holdfast.ErrInvalid) || !run.Valid() {
		t.Errorf("a result that is too large: %v, and then the run is %v", err, run)
	}
	if err := run.Fail(t.Context(), errors.New(strings.Repeat("é", 4000))); err != nil {
		t.Error(err)
	}
	runs, err := a.History(t.Context(), "k")
	if err != nil || len(runs[0].Error) != 1024 {
		t.Errorf("the error has %d bytes, %v", len(runs[0].Error), err)
	}
	if err := begin((*holdfast.Client)(nil).Ledger("l", nil), "k", nil); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("no client: %v", err)
	}
}

// slowOpener is a store whose ledger is opened only when proceed is closed, whatever the contexts say.
type slowOpener struct {
	driver.Store
	proceed chan bool
	closed  atomic.Bool // the ledger is
}

func (s *slowOpener) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	<-s.proceed
	l, err := s.Store.OpenLedger(ctx)
	return &slowlyOpened{l, s}, err
}

type slowlyOpened struct {
	driver.Ledger
	store *slowOpener
}

func (l *slowlyOpened) Close() error {
	l.store.closed.Store(true)
	return l.Ledger.Close()
}

// TestLedgerOpening: while one call opens the ledger, others wait no longer than their own contexts allow, and not when
// the client is closed. A ledger that is opened when the client is closing is closed.
func TestLedgerOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowOpener{Store: memory.New(nil).Open(), proceed: make(chan bool)}
		client, err := holdfast.New(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		l := client.Ledger("l", nil)
		start := time.Now()
		var calls sync.WaitGroup
		begin := func(timeout, want time.Duration, reason error) {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				_, err := l.Begin(ctx, "k", nil)
				if took := time.Since(start); took != want || !errors.Is(err, reason) {
					t.Errorf("a call with %v to go ended after %v: %v", timeout, took, err)
				}
			})
			synctest.Wait()
		}
		begin(time.Hour, 3*time.Second, holdfast.ErrClosed) // it opens the ledger
		begin(time.Second, time.Second, context.DeadlineExceeded)
		begin(time.Hour, 2*time.Second, holdfast.ErrClosed)
		time.Sleep(2 * time.Second)
		calls.Go(func() {
			if err := client.Close(); err != nil || !store.closed.Load() {
				t.Errorf("Close: %v; it has closed the ledger: %t", err, store.closed.Load())
			}
		})
		time.Sleep(time.Second)
		close(store.proceed)
		calls.Wait()
	})
}

// TestLedgerClosed: Close ends the runs and closes the ledger; later calls return ErrClosed.
func TestLedgerClosed(t *testing.T) {
	m := memory.New(nil)
	client, err := holdfast.New(m.Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	l := client.Ledger("l", nil)
	run := mustBegin(t, l, "k")
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if !errors.Is(run.Err(), holdfast.ErrClosed) || !errors.Is(run.Succeed(t.Context(), nil), holdfast.ErrClosed) {
		t.Errorf("after Close the run is %v", run)
	}
	if _, err := l.Begin(t.Context(), "k", nil); !errors.Is(err, holdfast.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := l.History(t.Context(), "k"); !errors.Is(err, holdfast.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	h, err := m.Ledger().ReadRuns(t.Context(), "l/k", 0)
	if err != nil || h.Runs[0].State != driver.RunFailed {
		t.Errorf("the history is %+v, %v", h, err)
	}
}
