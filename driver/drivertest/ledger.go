package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// ledgerClient is a client of the store's ledger. Its Acquire begins runs.
type ledgerClient struct {
	*client
	ledger driver.Ledger
}

// newLedgerCase returns a case for stores that keep a ledger. run gets clients of it that belong to different clients
// of the store. Other stores have to refuse to open one.
func newLedgerCase(name, text string, run func(e *Env, a, b *ledgerClient)) Case {
	return newCase(name, text, func(e *Env) {
		var clients []*ledgerClient
		defer func() {
			for _, c := range clients {
				c.endCalls()
				_ = c.store.Close()
			}
		}()
		for i := range 2 {
			c := e.openLedger(e.client(i))
			if c == nil {
				e.refused.Store(true)
				return
			}
			clients = append(clients, c)
		}
		run(e, clients[0], clients[1])
	})
}

// openLedger opens the ledger of a client's store; nil if the store has none.
func (e *Env) openLedger(c *client) *ledgerClient {
	var l driver.Ledger
	err := e.retryIfLossy(e.ctx, func() (err error) {
		l, err = c.store.OpenLedger(e.ctx)
		return err
	})
	if errors.Is(err, driver.ErrUnsupported) {
		return nil
	}
	if err != nil {
		e.failf("opening the ledger: %w", err)
	}
	return &ledgerClient{client: newClient(e, l, "ledger of "+c.label), ledger: l}
}

// newRun returns a claim that begins a run of the key.
func (e *Env) newRun(key string) driver.Claim {
	c := e.mutexClaim(e.prefix + key)
	c.Run = &driver.RunTerms{}
	return c
}

// mustBegin begins a run, which must have the given number.
func (c *ledgerClient) mustBegin(cl driver.Claim, attempt int64) driver.Grant {
	g := c.mustTry(cl)
	if g.Attempt != attempt {
		c.e.failf("the run is attempt %d, want %d", g.Attempt, attempt)
	}
	return g
}

// mustRefuse tries to begin a run, which must be refused, and returns what the refusal says.
func (c *ledgerClient) mustRefuse(cl driver.Claim, reason error) *driver.RunError {
	_, err := c.acquire(c.e.ctx, cl)
	c.e.requireError(err, reason, "a run of %q", cl.Name)
	var refused *driver.RunError
	if !errors.As(err, &refused) {
		c.e.failf("the error is no *RunError: %q", err)
	}
	return refused
}

func (c *ledgerClient) finish(g driver.Grant, o driver.RunOutcome) error {
	return c.e.retryIfLossy(c.ctx, func() error { return c.ledger.FinishRun(c.ctx, g, o) })
}

func (c *ledgerClient) allowRetry(key string) error {
	return c.e.retryIfLossy(c.ctx, func() error { return c.ledger.RetryRun(c.ctx, key) })
}

func (c *ledgerClient) forget(key string) error {
	return c.e.retryIfLossy(c.ctx, func() error { return c.ledger.ForgetRuns(c.ctx, key) })
}

func (c *ledgerClient) mustSucceed(g driver.Grant, result string) {
	if err := c.finish(g, driver.RunOutcome{State: driver.RunSucceeded, Result: []byte(result)}); err != nil {
		c.e.failf("reporting the success of %q: %w", g.Name, err)
	}
}

func (c *ledgerClient) mustFail(g driver.Grant, reason string) {
	if err := c.finish(g, driver.RunOutcome{State: driver.RunFailed, Error: reason}); err != nil {
		c.e.failf("reporting the failure of %q: %w", g.Name, err)
	}
}

func (c *ledgerClient) readRuns(key string) (h driver.RunHistory, err error) {
	err = c.e.retryRead(func() (err error) {
		h, err = c.ledger.ReadRuns(c.ctx, key, 0)
		return err
	})
	return h, err
}

// mustReadRuns reads a history and requires the states of its runs, in words separated by spaces. It checks what is
// promised of every history.
func (c *ledgerClient) mustReadRuns(key, states string) []driver.Run {
	h, err := c.readRuns(key)
	c.e.requireAnswer(err, "reading the runs of %q", key)
	var got []string
	var before driver.Run
	for _, r := range h.Runs {
		switch {
		case r.Attempt != before.Attempt+1 || r.Token <= before.Token || r.ID == "" || r.StartedAt.IsZero():
			c.e.failf("after the run %+v comes %+v", before, r)
		case (r.State == driver.RunStarted) != r.EndedAt.IsZero() || !r.EndedAt.IsZero() && r.EndedAt.Before(r.StartedAt):
			c.e.failf("the run is %s, started at %v and ended at %v", r.State, r.StartedAt, r.EndedAt)
		}
		got, before = append(got, string(r.State)), r
	}
	if text := strings.Join(got, " "); text != states {
		c.e.failf("the runs of %q are %q, want %q", key, text, states)
	}
	return h.Runs
}

// hasLocks reports whether the store keeps locks next to its ledger.
func (e *Env) hasLocks() bool { return len(e.info.Kinds) > 0 }

// readClock returns the store's time, or zero if the store does not tell it.
func (c *ledgerClient) readClock() (now time.Time, maxError time.Duration) {
	err := c.e.retryRead(func() (err error) {
		now, maxError, err = c.ledger.ReadClock(c.ctx)
		return err
	})
	if errors.Is(err, driver.ErrUnsupported) && c.store.Info().ExpiryClock != driver.ExpiryClockStore {
		return time.Time{}, 0
	}
	c.e.requireAnswer(err, "reading the store's clock")
	if now.IsZero() || maxError < 0 {
		c.e.failf("the store's clock is %v, with an error of %v", now, maxError)
	}
	return now, maxError
}

var ledgerCases = []Case{
	newLedgerCase("ledger-runs", "A key is run until a run has succeeded, and then never again. Every refusal shows the "+
		"run that is the reason, with its owner or its result.", func(e *Env, a, b *ledgerClient) {
		run := e.newRun("k")
		g1 := a.mustBegin(run, 1)
		inProgress := b.mustRefuse(e.newRun("k"), driver.ErrInProgress)
		if !errors.Is(inProgress, driver.ErrHeld) || inProgress.Run.Owner != run.Owner || inProgress.Run.ID != run.ID {
			e.failf("the refusal is %+v", inProgress)
		}
		a.mustFail(g1, "the disk is full")
		g2 := b.mustBegin(e.newRun("k"), 2)
		e.requireRising(g1.Token, g2.Token)
		b.mustSucceed(g2, "42 rows")
		for _, c := range []*ledgerClient{a, b} {
			if last := c.mustRefuse(e.newRun("k"), driver.ErrSucceeded).Run; string(last.Result) != "42 rows" || last.Attempt != 2 {
				e.failf("the refusal shows the run %+v", last)
			}
		}
		runs := a.mustReadRuns(run.Name, "failed succeeded")
		if runs[0].Error != "the disk is full" || runs[0].Token != g1.Token || runs[1].Token != g2.Token {
			e.failf("the runs are %+v", runs)
		}
	}),
	newLedgerCase("ledger-one-run", "However many callers begin a run of a key at the same moment, exactly one gets it.",
		func(e *Env, a, b *ledgerClient) {
			for i := range e.scaleEffort(10) {
				key := fmt.Sprint("k", i)
				var begun atomic.Int64
				e.runConcurrently(16, func(n int) {
					c := []*ledgerClient{a, b}[n%2]
					_, err := c.acquire(c.ctx, e.newRun(key))
					if err == nil {
						begun.Add(1)
					} else if !errors.Is(err, driver.ErrUncertain) || !e.suite.opts.losesRequests() {
						e.requireError(err, driver.ErrInProgress, "a run of %q", key)
					}
				})
				if n := begun.Load(); n > 1 || n == 0 && !e.suite.opts.losesRequests() {
					e.failf("%d of 16 callers got the run", n)
				}
			}
		}),
	newLedgerCase("ledger-wait", "A claim that waits gets the run when the run in progress has failed, and is refused "+
		"when it has succeeded.", func(e *Env, a, b *ledgerClient) {
		g := a.mustBegin(e.newRun("k"), 1)
		w := b.startWaiting(e.newRun("k"))
		e.sleep(50 * time.Millisecond)
		a.mustFail(g, "no")
		next := w.mustBeGranted()
		if next.Attempt != 2 {
			e.failf("the run is attempt %d", next.Attempt)
		}
		last := a.startWaiting(e.newRun("k"))
		e.sleep(50 * time.Millisecond)
		b.mustSucceed(next, "yes")
		last.mustFail(driver.ErrSucceeded)
	}),
	newLedgerCase("ledger-abandoned", "When a worker stops renewing, its run is abandoned after its TTL, and the next "+
		"run begins. What the worker reports later is refused, and noted.", func(e *Env, a, b *ledgerClient) {
		g := a.mustBegin(e.withMinTTL(e.newRun("k")), 1)
		var next driver.Grant
		w := b.startWaiting(e.newRun("k"))
		w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
		next = w.grant
		e.requireNotEarly(g, w.returned)
		e.requireRising(g.Token, next.Token)
		o := driver.RunOutcome{State: driver.RunSucceeded, Result: []byte("late")}
		e.requireError(a.finish(g, o), driver.ErrLost, "a report of an abandoned run")
		b.mustSucceed(next, "")
		e.requireError(a.finish(g, o), driver.ErrLost, "a report of an abandoned run, repeated")
		runs := b.mustReadRuns(g.Name, "abandoned succeeded")
		if runs[0].LateReport != driver.RunSucceeded || len(runs[0].Result) > 0 {
			e.failf("the abandoned run is %+v", runs[0])
		}
	}),
	newLedgerCase("ledger-renewed", "A run that is renewed is not abandoned, and its success counts.",
		func(e *Env, a, b *ledgerClient) {
			g := a.mustBegin(e.withMinTTL(e.newRun("k")), 1)
			start := e.now()
			for e.since(start) < g.GrantedTTL+driver.Margin(g.GrantedTTL)+e.slack {
				g = a.mustRenew(g)
				e.whileGranted(g, func() { b.mustRefuse(e.newRun("k"), driver.ErrInProgress) })
				e.sleep(g.GrantedTTL / 8)
			}
			g = a.mustRenew(g)
			e.whileGranted(g, func() { a.mustSucceed(g, "done") })
			b.mustReadRuns(g.Name, "succeeded")
		}),
	newLedgerCase("ledger-finish-again", "The same report can be repeated. Another report of the same run is refused.",
		func(e *Env, a, b *ledgerClient) {
			g := a.mustBegin(e.newRun("k"), 1)
			a.mustSucceed(g, "one")
			a.mustSucceed(g, "one")
			b.mustSucceed(g, "one")
			e.requireError(a.finish(g, driver.RunOutcome{State: driver.RunSucceeded, Result: []byte("two")}), driver.ErrLost,
				"another result")
			e.requireError(b.finish(g, driver.RunOutcome{State: driver.RunFailed, Error: "no"}), driver.ErrLost,
				"a failure after a success")
			if runs := b.mustReadRuns(g.Name, "succeeded"); string(runs[0].Result) != "one" {
				e.failf("the result is %q", runs[0].Result)
			}
		}),
	newLedgerCase("ledger-release", "A run that is released has failed. A run that an operator breaks by force is "+
		"abandoned.", func(e *Env, a, b *ledgerClient) {
		g := a.mustBegin(e.newRun("k"), 1)
		a.mustRelease(g)
		g = a.mustBegin(e.newRun("k"), 2)
		b.mustBreak(g.Name, g.Ref, driver.BreakForce)
		e.requireError(a.finish(g, driver.RunOutcome{State: driver.RunFailed, Error: "no"}), driver.ErrLost,
			"a report of a run that was broken")
		b.mustReadRuns(g.Name, "failed abandoned")
		b.mustBegin(e.newRun("k"), 3)
	}),
	newLedgerCase("ledger-withdrawn", "A run that is withdrawn, because its caller was never told of it, leaves nothing in "+
		"the history. It uses up no attempt, starts no pause, leaves a permission to retry, and takes the place of no run "+
		"that is to be kept.",
		func(e *Env, a, b *ledgerClient) {
			begin := func(attempts int64) driver.Claim {
				c := e.newRun("k")
				c.Run = &driver.RunTerms{Fingerprint: c.ID, MaxAttempts: attempts, Pause: time.Hour}
				return c
			}
			withdraw := func(c *ledgerClient, g driver.Grant) {
				g.Claim.Withdrawn = true
				err := e.retryIfLossy(e.ctx, func() error { return c.store.Release(e.ctx, g.Claim, "") })
				if err != nil && !errors.Is(err, driver.ErrLost) {
					e.failf("withdrawing a run: %w", err)
				}
			}
			for i := range 2 {
				c := begin(1)
				c.Withdrawn = i == 0 // as the lock of a job is claimed
				withdraw([]*ledgerClient{a, b}[i], []*ledgerClient{a, b}[i].mustBegin(c, 1))
				a.mustReadRuns(e.prefix+"k", "")
			}
			last := begin(1)
			g := a.mustBegin(last, 1)
			a.mustFail(g, "no")
			b.mustRefuse(begin(2), driver.ErrMismatch)
			if err := b.allowRetry(g.Name); err != nil {
				e.failf("allowing another run: %w", err)
			}
			again := func() driver.Claim {
				c := begin(1)
				c.Run.Fingerprint = last.Run.Fingerprint
				return c
			}
			for i := range 2 {
				c := []*ledgerClient{b, a}[i]
				withdraw(c, c.mustBegin(again(), 2))
				b.mustReadRuns(g.Name, "failed")
			}
			b.mustFail(b.mustBegin(again(), 2), "again")
			a.mustRefuse(again(), driver.ErrAttemptsUsed)
			a.mustReadRuns(g.Name, "failed failed")

			const keep = 2
			trimmed := func() driver.Claim {
				c := e.newRun("trimmed")
				c.Run.KeepRuns = keep
				return c
			}
			mustKeep := func(last int64) int {
				h, err := a.readRuns(e.prefix + "trimmed")
				n := len(h.Runs)
				if err != nil || n < keep || h.Runs[n-1].Attempt != last {
					e.failf("where %d runs are to be kept, and attempt %d is the last, there are %+v (%v)", keep, last, h.Runs, err)
				}
				return n
			}
			kept := 0
			for i := range int64(16) {
				a.mustFail(a.mustBegin(trimmed(), i+1), "no")
				if 2 <= i && i <= 4 {
					for range 7 - i {
						withdraw(b, b.mustBegin(trimmed(), i+2))
					}
				}
				if i+1 >= keep {
					kept = mustKeep(i + 1)
				}
			}
			if kept > keep+1 && !e.suite.opts.losesRequests() {
				e.failf("where %d runs are to be kept, %d are, long after others were withdrawn", keep, kept)
			}
		}),
	newLedgerCase("ledger-terms", "A key with another fingerprint, too many attempts, or too short a pause is refused. "+
		"An operator can allow one more run. A fingerprint can be any UTF-8.", func(e *Env, a, b *ledgerClient) {
		terms := driver.RunTerms{Fingerprint: "sum \"<&>\\\" \u00e9\u2028\ufffd\x01", MaxAttempts: 1, Pause: time.Hour}
		begin := func(change func(*driver.RunTerms)) driver.Claim {
			c, t := e.newRun("k"), terms
			change(&t)
			c.Run = &t
			return c
		}
		same := func(*driver.RunTerms) {}
		_, err := a.acquire(e.ctx, begin(func(t *driver.RunTerms) { t.Fingerprint = "\xff\xfe" }))
		e.requireError(err, driver.ErrInvalid, "a fingerprint that is not UTF-8")
		g := a.mustBegin(begin(same), 1)
		a.mustFail(g, "no")
		b.mustRefuse(begin(func(t *driver.RunTerms) { t.Fingerprint = "another" }), driver.ErrMismatch)
		b.mustRefuse(begin(same), driver.ErrAttemptsUsed)
		left := b.mustRefuse(begin(func(t *driver.RunTerms) { t.MaxAttempts = 2 }), driver.ErrTooSoon).RetryAfter
		if left <= 59*time.Minute-e.slack || left > time.Hour {
			e.failf("the pause of an hour passes in %v", left)
		}
		if err := b.allowRetry(g.Name); err != nil {
			e.failf("allowing another run: %w", err)
		}
		g = a.mustBegin(begin(same), 2)
		e.requireError(b.allowRetry(g.Name), driver.ErrInProgress, "allowing a run while one is in progress")
		a.mustFail(g, "again")
		b.mustRefuse(begin(same), driver.ErrAttemptsUsed)
		a.mustReadRuns(g.Name, "failed failed")
	}),
	newLedgerCase("ledger-forget", "A key whose history is removed is run from the beginning, under a larger token. A key "+
		"with a run in progress is not touched.", func(e *Env, a, b *ledgerClient) {
		g := a.mustBegin(e.newRun("k"), 1)
		e.requireError(b.forget(g.Name), driver.ErrInProgress, "forgetting a run in progress")
		a.mustSucceed(g, "one")
		if err := b.forget(g.Name); err != nil {
			e.failf("forgetting a key: %w", err)
		}
		b.mustReadRuns(g.Name, "")
		next := a.mustBegin(e.newRun("k"), 1)
		e.requireRising(g.Token, next.Token)
		a.mustSucceed(next, "two")
	}),
	newLedgerCase("ledger-result", "A result of 64 KiB is stored, or of what the ledger's Info says. A larger one is refused, "+
		"and the run goes on.",
		func(e *Env, a, b *ledgerClient) {
			most := a.store.Info().MaxRunResult
			if most < 1 || most > driver.MaxRunResult {
				e.failf("the largest result of the ledger has %d bytes", most)
			}
			g := a.mustBegin(e.newRun("k"), 1)
			o := driver.RunOutcome{State: driver.RunSucceeded, Result: bytes.Repeat([]byte{0, 255}, most)[:most+1]}
			e.requireError(a.finish(g, o), driver.ErrInvalid, "a result that is too large")
			o.Result = o.Result[:most]
			if err := a.finish(g, o); err != nil {
				e.failf("a result of the largest size: %w", err)
			}
			if last := b.mustRefuse(e.newRun("k"), driver.ErrSucceeded).Run; !bytes.Equal(last.Result, o.Result) {
				e.failf("%d bytes of the result came back", len(last.Result))
			}
		}),
	newLedgerCase("ledger-history", "All runs of a key are kept, also many, unless fewer are to be kept.",
		func(e *Env, a, b *ledgerClient) {
			const attempts = 70
			for i := range int64(attempts) {
				for _, key := range []string{"all", "few"} {
					c := e.newRun(key)
					if key == "few" {
						c.Run.KeepRuns = 3
					}
					a.mustFail(a.mustBegin(c, i+1), fmt.Sprint("error ", i+1))
				}
			}
			runs := b.mustReadRuns(e.prefix+"all", strings.TrimSuffix(strings.Repeat("failed ", attempts), " "))
			if runs[0].Error != "error 1" || runs[attempts-1].Error != "error 70" {
				e.failf("the runs are %+v", runs)
			}
			for _, last := range []int{1, 40, attempts, attempts + 1} {
				var h driver.RunHistory
				err := e.retryRead(func() (err error) {
					h, err = b.ledger.ReadRuns(e.ctx, e.prefix+"all", last)
					return err
				})
				n := len(h.Runs)
				for i := range min(n, attempts) {
					if want := int64(attempts - i); h.Runs[n-1-i].Attempt != want || h.Runs[n-1-i].ID != runs[want-1].ID {
						e.failf("of the last %d runs, number %d is %+v", last, want, h.Runs[n-1-i])
					}
				}
				if err != nil || n < min(last, attempts) || n > attempts {
					e.failf("where the last %d runs are needed, there are %d (%v)", last, n, err)
				}
			}
			few, err := b.readRuns(e.prefix + "few")
			if n := len(few.Runs); err != nil || n < 3 || n > 4 || few.Runs[n-1].Attempt != attempts {
				e.failf("where 3 are to be kept, there are %d runs (%v)", len(few.Runs), err)
			}
		}),
	newLedgerCase("ledger-list", "A listing has each key under a prefix once, with its last run. Locks of the same name "+
		"are not in it, and keys are not in a listing of locks.", func(e *Env, a, b *ledgerClient) {
		if e.hasLocks() {
			e.a().mustTry(e.mutexClaim(e.prefix + "list/lock"))
		}
		want := map[string]driver.RunState{}
		for _, state := range []driver.RunState{driver.RunStarted, driver.RunFailed, driver.RunSucceeded} {
			g := a.mustBegin(e.newRun("list/"+string(state)), 1)
			want[g.Name] = state
			switch state {
			case driver.RunFailed:
				a.mustFail(g, "no")
			case driver.RunSucceeded:
				a.mustSucceed(g, "yes")
			}
		}
		a.mustBegin(e.newRun("other"), 1)
		got := map[string]driver.RunState{}
		err := e.retryIfLossy(e.ctx, func() error {
			clear(got)
			for h, err := range b.ledger.ListRuns(e.ctx, e.prefix+"list/") {
				if err != nil {
					return err
				}
				if got[h.Key] != "" || len(h.Runs) != 1 {
					e.failf("%q is listed twice, or with %d runs", h.Key, len(h.Runs))
				}
				got[h.Key] = h.Runs[0].State
			}
			return nil
		})
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			e.failf("listed are %v, want %v (%v)", got, want, err)
		}
		if !e.hasLocks() {
			return
		}
		if locks := e.b().mustList(e.prefix + "list/"); len(locks) != 1 {
			e.failf("the locks are %q", locks)
		}
	}),
	newLedgerCase("ledger-clock", "Two clients are told the same time by the store, and it passes. A store whose clock "+
		"expires no claims may refuse.", func(e *Env, a, b *ledgerClient) {
		const passed = 100 * time.Millisecond
		first, firstError := a.readClock()
		if first.IsZero() {
			return
		}
		e.sleep(passed)
		second, secondError := b.readClock()
		if late := second.Sub(first); late < passed/2-firstError-secondError {
			e.failf("%v after one client was told %v, another is told %v", passed, first, second)
		}
		third, thirdError := a.readClock()
		if early := third.Sub(second); early < -secondError-thirdError || early > time.Minute {
			e.failf("one client is told %v, and then another one %v", second, third)
		}
	}),
	newLedgerCase("ledger-claims", "A ledger takes only claims that begin a run, and a store of locks takes none of them.",
		func(e *Env, a, b *ledgerClient) {
			_, err := a.store.Acquire(e.ctx, e.mutexClaim(e.prefix+"k"))
			e.requireError(err, driver.ErrInvalid, "a claim of a lock in a ledger")
			_, err = e.a().store.Acquire(e.ctx, e.newRun("k"))
			e.requireError(err, driver.ErrInvalid, "a claim of a run on a lock")
			_, err = a.store.Acquire(e.ctx, e.newRun("k\x1fk"))
			e.requireError(err, driver.ErrInvalid, "a key with a control character that is reserved")
			long := e.newRun("k")
			long.Name = strings.Repeat("k", a.store.Info().MaxName+1)
			_, err = a.store.Acquire(e.ctx, long)
			e.requireError(err, driver.ErrInvalid, "a key that is too long")
		}),
	newLedgerCase("ledger-closed", "A ledger can be closed. Its store stays open, and the runs expire like those of a "+
		"dead worker, those for others not before their TTL has passed.", func(e *Env, a, b *ledgerClient) {
		run := e.withMinTTL(e.newRun("k"))
		run.ForOthers = true
		g := a.mustBegin(run, 1)
		if err := a.store.Close(); err != nil {
			e.failf("closing: %w", err)
		}
		_, err := a.store.Acquire(context.WithoutCancel(e.ctx), e.newRun("k"))
		e.requireError(err, driver.ErrClosed, "a run on a closed ledger")
		if e.hasLocks() {
			e.a().mustTry(e.mutexClaim(e.lockName("m")))
		} else {
			_, err = e.a().store.Inspect(e.ctx, e.prefix+"m")
			e.requireError(err, driver.ErrUnsupported, "a lock on an open store that keeps a ledger alone")
		}
		w := b.startWaiting(e.newRun("k"))
		w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
		if a.store.Info().DeadHolderTimeout != 0 {
			e.requireNotEarly(g, w.returned)
		}
		b.mustReadRuns(g.Name, "abandoned started")
	}),
}
