package drivertest_test

import (
	"errors"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// brokenLedger is a correct ledger with one defect: a function that is set replaces the method.
type brokenLedger struct {
	driver.Ledger
	acquire func(l driver.Ledger, ctx ctx, c driver.Claim) (driver.Grant, error)
	renew   func(l driver.Ledger, ctx ctx, g []driver.Grant, done func(int, driver.Renewal))
	release func(l driver.Ledger, ctx ctx, c driver.Claim, ref string) error
	finish  func(l driver.Ledger, ctx ctx, g driver.Grant, o driver.RunOutcome) error
	read    func(l driver.Ledger, ctx ctx, key string, last int) (driver.RunHistory, error)
	list    func(l driver.Ledger, ctx ctx, prefix string) iter.Seq2[driver.RunHistory, error]
	forget  func(l driver.Ledger, ctx ctx, key string) error
	clock   func(l driver.Ledger, ctx ctx) (time.Time, time.Duration, error)
	close   func(l driver.Ledger) error
}

func (b *brokenLedger) Acquire(ctx ctx, c driver.Claim) (driver.Grant, error) {
	if b.acquire != nil {
		return b.acquire(b.Ledger, ctx, c)
	}
	return b.Ledger.Acquire(ctx, c)
}

func (b *brokenLedger) Renew(ctx ctx, g []driver.Grant, done func(int, driver.Renewal)) {
	if b.renew != nil {
		b.renew(b.Ledger, ctx, g, done)
		return
	}
	b.Ledger.Renew(ctx, g, done)
}

func (b *brokenLedger) Release(ctx ctx, c driver.Claim, ref string) error {
	if b.release != nil {
		return b.release(b.Ledger, ctx, c, ref)
	}
	return b.Ledger.Release(ctx, c, ref)
}

func (b *brokenLedger) FinishRun(ctx ctx, g driver.Grant, o driver.RunOutcome) error {
	if b.finish != nil {
		return b.finish(b.Ledger, ctx, g, o)
	}
	return b.Ledger.FinishRun(ctx, g, o)
}

func (b *brokenLedger) ReadRuns(ctx ctx, key string, last int) (driver.RunHistory, error) {
	if b.read != nil {
		return b.read(b.Ledger, ctx, key, last)
	}
	return b.Ledger.ReadRuns(ctx, key, last)
}

func (b *brokenLedger) ListRuns(ctx ctx, prefix string) iter.Seq2[driver.RunHistory, error] {
	if b.list != nil {
		return b.list(b.Ledger, ctx, prefix)
	}
	return b.Ledger.ListRuns(ctx, prefix)
}

func (b *brokenLedger) ForgetRuns(ctx ctx, key string) error {
	if b.forget != nil {
		return b.forget(b.Ledger, ctx, key)
	}
	return b.Ledger.ForgetRuns(ctx, key)
}

func (b *brokenLedger) ReadClock(ctx ctx) (time.Time, time.Duration, error) {
	if b.clock != nil {
		return b.clock(b.Ledger, ctx)
	}
	return b.Ledger.ReadClock(ctx)
}

func (b *brokenLedger) Close() error {
	if b.close != nil {
		return b.close(b.Ledger)
	}
	return b.Ledger.Close()
}

// clockCalls counts the calls of a clock that differs from call to call.
var clockCalls atomic.Int64

// withLedger returns a store whose ledger has a defect.
func withLedger(b brokenLedger) *brokenStore {
	return &brokenStore{ledger: func(l driver.Ledger) driver.Ledger {
		broken := b
		broken.Ledger = l
		return &broken
	}}
}

// ledgerMutants are broken ledgers: for each case one that it detects.
var ledgerMutants = []mutant{
	{"runs a key again after a success", "ledger-runs ledger-wait", "", withLedger(brokenLedger{
		acquire: func(l driver.Ledger, ctx ctx, c driver.Claim) (driver.Grant, error) {
			g, err := l.Acquire(ctx, c)
			if errors.Is(err, driver.ErrSucceeded) && l.ForgetRuns(ctx, c.Name) == nil {
				return l.Acquire(ctx, c)
			}
			return g, err
		}})},
	{"begins a run while another one is in progress", "ledger-one-run", "callers got the run", withLedger(brokenLedger{
		acquire: func(l driver.Ledger, ctx ctx, c driver.Claim) (driver.Grant, error) {
			since := driver.SystemClock.Now()
			g, err := l.Acquire(ctx, c)
			if errors.Is(err, driver.ErrInProgress) {
				return driver.Grant{Claim: c, Token: 1, Since: since, GrantedTTL: c.TTL, Ref: c.ID}, nil
			}
			return g, err
		}})},
	{"does not wait for a run in progress", "ledger-wait", "was not granted", withLedger(brokenLedger{
		acquire: func(l driver.Ledger, ctx ctx, c driver.Claim) (driver.Grant, error) {
			c.Wait = false
			return l.Acquire(ctx, c)
		}})},
	{"accepts the report of an abandoned run", "ledger-abandoned ledger-finish-again", "want \"the lock is lost\"",
		withLedger(brokenLedger{
			finish: func(l driver.Ledger, ctx ctx, g driver.Grant, o driver.RunOutcome) error {
				if err := l.FinishRun(ctx, g, o); !errors.Is(err, driver.ErrLost) {
					return err
				}
				return nil
			}})},
	{"confirms renewals that it does not make", "ledger-renewed", "", withLedger(brokenLedger{
		renew: func(l driver.Ledger, ctx ctx, g []driver.Grant, done func(int, driver.Renewal)) {
			for i := range g {
				done(i, driver.Renewal{Since: driver.SystemClock.Now(), GrantedTTL: g[i].GrantedTTL})
			}
		}})},
	{"counts a released run as a success", "ledger-release", "", withLedger(brokenLedger{
		release: func(l driver.Ledger, ctx ctx, c driver.Claim, ref string) error {
			h, err := l.ReadRuns(ctx, c.Name, 0)
			if err != nil || len(h.Runs) == 0 {
				return err
			}
			g := driver.Grant{Claim: c, Token: h.Runs[len(h.Runs)-1].Token}
			return l.FinishRun(ctx, g, driver.RunOutcome{State: driver.RunSucceeded})
		}})},
	{"counts a withdrawn run as a failure", "ledger-withdrawn", "", withLedger(brokenLedger{
		release: func(l driver.Ledger, ctx ctx, c driver.Claim, ref string) error {
			c.Withdrawn = false
			return l.Release(ctx, c, ref)
		}})},
	{"ignores the terms of a run", "ledger-terms", "", withLedger(brokenLedger{
		acquire: func(l driver.Ledger, ctx ctx, c driver.Claim) (driver.Grant, error) {
			c.Run = &driver.RunTerms{}
			return l.Acquire(ctx, c)
		}})},
	{"stores fingerprints that it cannot read back", "ledger-terms", "not UTF-8", withLedger(brokenLedger{
		acquire: func(l driver.Ledger, ctx ctx, c driver.Claim) (driver.Grant, error) {
			terms := *c.Run
			terms.Fingerprint = strings.ToValidUTF8(terms.Fingerprint, "\ufffd")
			c.Run = &terms
			return l.Acquire(ctx, c)
		}})},
	{"forgets nothing", "ledger-forget", "", withLedger(brokenLedger{
		forget: func(driver.Ledger, ctx, string) error { return nil }})},
	{"cuts results", "ledger-result", "came back", withLedger(brokenLedger{
		finish: func(l driver.Ledger, ctx ctx, g driver.Grant, o driver.RunOutcome) error {
			if len(o.Result) <= driver.MaxRunResult {
				o.Result = o.Result[:min(1000, len(o.Result))]
			}
			return l.FinishRun(ctx, g, o)
		}})},
	{"shows the latest runs only", "ledger-history ledger-runs", "", withLedger(brokenLedger{
		read: func(l driver.Ledger, ctx ctx, key string, last int) (driver.RunHistory, error) {
			h, err := l.ReadRuns(ctx, key, last)
			h.Runs = h.Runs[max(0, len(h.Runs)-1):]
			return h, err
		}})},
	{"shows the first runs where the last are wanted", "ledger-history", "of the last 1 runs", withLedger(brokenLedger{
		read: func(l driver.Ledger, ctx ctx, key string, last int) (driver.RunHistory, error) {
			h, err := l.ReadRuns(ctx, key, 0)
			if last > 0 {
				h.Runs = h.Runs[:min(last, len(h.Runs))]
			}
			return h, err
		}})},
	{"lists all keys", "ledger-list", "listed are", withLedger(brokenLedger{
		list: func(l driver.Ledger, ctx ctx, _ string) iter.Seq2[driver.RunHistory, error] {
			return l.ListRuns(ctx, "")
		}})},
	{"tells each client another time", "ledger-clock", "told", withLedger(brokenLedger{
		clock: func(l driver.Ledger, ctx ctx) (time.Time, time.Duration, error) {
			now, maxError, err := l.ReadClock(ctx)
			return now.Add(time.Duration(clockCalls.Add(1)) * -time.Hour), maxError, err
		}})},
	{"begins a run for the claim of a lock", "ledger-claims", "invalid", withLedger(brokenLedger{
		acquire: func(l driver.Ledger, ctx ctx, c driver.Claim) (driver.Grant, error) {
			if c.Run == nil {
				c.Run = &driver.RunTerms{}
			}
			return l.Acquire(ctx, c)
		}})},
	{"does not close its ledger", "ledger-closed", "closed", withLedger(brokenLedger{
		close: func(driver.Ledger) error { return nil }})},
}
