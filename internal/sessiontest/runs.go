//go:build unix

package sessiontest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// beginOnce asks for a run of a key by clients that ask only once, until one of them gets it, and returns when. None of
// them has seen the key before.
func (h *Harness[C, P]) beginOnce(t *testing.T, c C, key string) rivalResult {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for r := (rivalResult{lock: key}); ; time.Sleep(50 * time.Millisecond) {
		p, err := h.Open(c)
		if err != nil {
			r.err = err
			return r
		}
		client, err := holdfast.New(p, &holdfast.Options{TTL: time.Minute / 4})
		if err != nil {
			r.err = err
			return r
		}
		run, err := client.Ledger(ledgerName, nil).Begin(ctx, key, nil)
		r.grantedAt, r.err = time.Now(), err
		if err == nil {
			if err := run.Succeed(ctx, nil); !isPassing(err) {
				r.err = err
			}
		}
		client.Close()
		p.Close()
		r.repeated = r.repeated || isPassing(r.err)
		if ctx.Err() != nil || !errors.Is(r.err, holdfast.ErrInProgress) && !isPassing(r.err) {
			return r
		}
	}
}

// beginWithRetries begins a run. It tries again where the outcome of a try is not known: the run of that try may be in
// progress until its TTL has passed.
func beginWithRetries(ctx context.Context, client *holdfast.Client, key string) (*holdfast.Run, error) {
	for mayHaveBegun := false; ; time.Sleep(50 * time.Millisecond) {
		run, err := client.Ledger(ledgerName, nil).Begin(ctx, key, nil)
		isUnknown := errors.Is(err, holdfast.ErrUncertain) || errors.Is(err, holdfast.ErrLost)
		mayHaveBegun = mayHaveBegun || isUnknown
		retry := isUnknown || mayHaveBegun && errors.Is(err, holdfast.ErrInProgress)
		if !retry || ctx.Err() != nil {
			return run, err
		}
	}
}

// startBeginners is startRivals for runs.
func (h *Harness[C, P]) startBeginners(t *testing.T, c C, keys []string) func() []rivalResult {
	out := make([]rivalResult, len(keys))
	var all sync.WaitGroup
	for i, key := range keys {
		all.Go(func() { out[i] = h.beginOnce(t, c, key) })
	}
	return func() []rivalResult { all.Wait(); return out }
}

// runTakeOver is how long it takes at most until a dead worker's key can be run: its mark has a session for its TTL
// and a third, which may have begun a third of the TTL later; and the servers count in whole seconds and ticks.
func (h *Harness[C, P]) runTakeOver(ttl time.Duration) time.Duration {
	return h.keepTime(ttl+ttl/3) + ttl/3 + time.Second + h.Slack
}

// keepTime is how long the servers keep a session from its last keep-alive on.
func (h *Harness[C, P]) keepTime(ttl time.Duration) time.Duration {
	if h.KeepsTwice {
		return 2 * ttl
	}
	return ttl
}

const (
	runsPerFault = 4
	ledgerName   = "jobs"
)

// RunKill kills the processes of workers.
func (h *Harness[C, P]) RunKill(t *testing.T) {
	c := h.Shared(t)
	pulse := h.watchCluster(t, c)
	var y takeoverCounts
	keys := lockNames(t, 0)[:runsPerFault]
	w := h.StartWorker(t, WorkerTask{Do: "run", Endpoints: c.Endpoints(), Locks: keys, TTL: faultTTL})
	w.awaitLine(t, "held")
	time.Sleep(faultTTL + rand.N(faultTTL)) // so that the runs live by their renewals
	fault := time.Now()
	if err := w.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	y.addRun(t, fault, nil, h.startBeginners(t, c, keys)(), pulse)
	y.checkCounts(t, h.runTakeOver(faultTTL))
}

// beginRuns begins runs that nobody ends, by a client each, prints "held", and waits forever.
func (o WorkerTask) beginRuns() error {
	for _, key := range o.Locks {
		c, err := o.openClient()
		if err != nil {
			return err
		}
		if _, err := beginWithRetries(context.Background(), c, key); err != nil {
			return err
		}
	}
	fmt.Println("held")
	select {}
}

// RunCut cuts the links of workers. Other clients ask for their keys all the time.
func (h *Harness[C, P]) RunCut(t *testing.T) {
	c := h.Shared(t)
	pulse := h.watchCluster(t, c)
	var y takeoverCounts
	keys := lockNames(t, 0)[:runsPerFault]
	var peers []P
	var believing sync.WaitGroup
	last := make([]lastValid, len(keys))
	for i, key := range keys {
		p := h.Peer(t, c)
		run, err := beginWithRetries(t.Context(), NewClient(t, p, faultTTL), key)
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, p)
		believing.Go(func() {
			last[i] = watchLease(key, func() bool { return run.Valid() || run.Context().Err() == nil })
		})
	}
	next := h.startBeginners(t, c, keys)
	time.Sleep(faultTTL + rand.N(faultTTL))
	fault := time.Now()
	for _, p := range peers {
		p.Cut()
	}
	results := next()
	believing.Wait()
	believed := map[string]int64{}
	for _, b := range last {
		believed[b.Lock] = b.Last
	}
	y.addRun(t, fault, believed, results, pulse)
	for _, p := range peers {
		p.Heal()
	}
	y.checkCounts(t, h.runTakeOver(faultTTL))
}

// RunNotRenewed begins two runs by one client, which renews only one of them. The other one is abandoned.
func (h *Harness[C, P]) RunNotRenewed(t *testing.T) {
	const ttl = 3 * faultTTL // the run that is renewed is kept although a renewal takes seconds
	c := h.Shared(t)
	pulse := h.watchCluster(t, c)
	p := h.Peer(t, c)
	l, err := p.OpenLedger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	keys := lockNames(t, 0)
	begin := func(key string) driver.Grant {
		claim := storetest.Mutex(ledgerName+"/"+key, ttl)
		claim.Run = &driver.RunTerms{}
		return storetest.Acquire(t, l, claim)
	}
	var y takeoverCounts
	renewed := begin(keys[0])
	begun := time.Now()
	lost := begin(keys[1])
	ctx, stop := context.WithCancel(t.Context())
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for ctx.Err() == nil {
			l.Renew(ctx, []driver.Grant{renewed}, func(_ int, r driver.Renewal) {
				if errors.Is(r.Err, driver.ErrLost) && ctx.Err() == nil { // no answer is no loss
					t.Errorf("renewing the other run: %v", r.Err)
				}
			})
			time.Sleep(ttl / 10)
		}
	})
	taken := h.beginOnce(t, c, keys[1])
	stop()
	renewing.Wait()
	if early := lost.GrantedTTL - taken.grantedAt.Sub(begun); early > 0 {
		t.Errorf("the run was abandoned %v before the end of its TTL", early)
	}
	y.addRun(t, begun, nil, []rivalResult{taken}, pulse)
	y.checkCounts(t, h.runTakeOver(ttl))
}
