// Package drivertest is the conformance suite that every store of Holdfast passes.
//
// A case is data: a name, by which EVIDENCE.md calls it, a promise in one sentence and a function that looks whether a
// running store keeps it. Nothing here needs package testing, so the same cases run in a store's tests and in a trial
// against a real server. A store's own test is ten lines:
//
//	func TestConformance(t *testing.T) {
//		h := drivertest.Harness{Open: func(ctx context.Context) (driver.Store, error) { return mystore.Open(ctx, addr) }}
//		for _, r := range drivertest.Run(t.Context(), h, nil) {
//			switch {
//			case r.Err != nil:
//				t.Errorf("%s: %v\npromised: %s", r.Case.Name, r.Err, r.Case.Promise)
//			case r.Skipped != "":
//				t.Logf("%s: skipped: %s", r.Case.Name, r.Skipped)
//			}
//		}
//	}
//
// The cases use real time, with the shortest TTLs that the store allows where a TTL must pass and long ones elsewhere,
// and run side by side, each on locks of its own. They use only what package driver promises. What a store's Info says
// that it does not carry is not skipped: the case then checks that the store refuses it.
package drivertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Case is one promise of the contract and the way to check it.
type Case struct {
	Name    string // short, in-words-like-this, unique in the suite
	Promise string // one sentence, for people who have to decide whether to rely on it
	// Run checks the promise and returns how it was broken. Only [Run] can make an Env.
	Run func(ctx context.Context, e *Env) error
}

// Harness connects the suite to one store.
type Harness struct {
	// Open makes a new client of the store, the same store at each call: what one client locks the others see locked.
	Open func(ctx context.Context) (driver.Store, error)

	// Lossy, if set, opens a client as Open does, whose requests meet the fates that it asks for: one for each request, where it
	// leaves the store's own code. So the store is seen to tell a lost reply from a refusal. See [Transport] and [Carry].
	// [Options] say how many are lost.
	Lossy func(ctx context.Context, fate func() Fate) (driver.Store, error)

	// Prefix starts (nearly) all names of locks, and is unique to the run. Default: a random one.
	Prefix string

	// Slack is how long the store may take, beyond what is promised, for anything that should be quick: to answer, to
	// hand a lock over, to end a silent claim. Default 1 s.
	Slack time.Duration

	// Secrets are strings that may not show up in Info or in an error: the password of the store's URL.
	Secrets []string

	// Kill, if set, drops a client as if its process had been killed: no clean-up reaches the store, and nothing of it
	// goes on. The suite does not use or close the client afterwards. Without it the suite leaves a client alone instead
	// where that comes to the same, and skips the case elsewhere.
	Kill func(s driver.Store) error

	// Cut, if set, cuts the link between a client and the store: requests and replies vanish, and nothing is refused.
	// Heal undoes it.
	Cut, Heal func(s driver.Store) error

	// Lower, if set, has the server keep the sessions of one client for no longer than ttl, from their next heartbeat on: what a
	// server with other settings does that takes them over.
	Lower func(s driver.Store, ttl time.Duration) error

	// Restart, if set, stops the store in good order, starts it again, and returns when it can be reached.
	Restart func(ctx context.Context) error
}

// Options are how to run the suite. The zero value, and nil, run all of it.
type Options struct {
	Match    func(c Case) bool // which cases to run; nil: all
	Parallel int               // how many cases at a time; default 32
	Limit    time.Duration     // for one case; default 30 s and 20 times the least TTL
	Effort   float64           // how often the counting cases repeat what they do, against the usual 1
	Log      func(line string) // hears remarks on what was measured; may be called by several goroutines at once
	Once     bool              // do not run a case again that failed for being late while the machine was late, too

	// Of a hundred requests so many take effect and their replies are lost, and so many are refused as too many, with no effect.
	// Both need Harness.Lossy. A store keeps its promises all the same, only later: 2 of each are a good choice.
	LostReplies, Refusals float64
}

// Result is how a store did in one case.
type Result struct {
	Case    Case
	Err     error  // nil: the promise was kept
	Skipped string // why the case could not be run, if it could not
	Refused bool   // the store does not carry this, says so in its Info, and refuses it properly
	Took    time.Duration

	proofless bool // it failed for being late, and that proves nothing; see late
}

// Cases are all cases, in an order that reads well.
func Cases() []Case {
	var all []Case
	for _, theme := range [][]Case{
		infoCases, exclusionCases, tokenCases, timeCases, renewCases, releaseCases, cancelCases, waitCases, orderCases,
		rwCases, reweighCases, semaphoreCases, limitCases, nameCases, lookCases, operatorCases, detachCases, watchCases, closeCases,
		loadCases, faultCases,
	} {
		all = append(all, theme...)
	}
	return all
}

// Run checks a store and returns a result for each case, in the order of [Cases]. Cases run side by side, but for those
// that stop the store, which run at the end, alone. A case that panics or exceeds its time has failed. If the store cannot be
// opened, that is the one result.
func Run(ctx context.Context, h Harness, o *Options) []Result {
	opts := o.withDefaults()
	if h.Prefix == "" {
		h.Prefix = "drivertest-" + strings.ToLower(rand.Text()[:8]) + "/"
	}
	if h.Slack == 0 {
		h.Slack = time.Second
	}
	var cases []Case
	for _, c := range Cases() {
		if opts.Match(c) {
			cases = append(cases, c)
		}
	}
	results := make([]Result, len(cases))
	s := &suite{h: h, opts: opts, lossy: h.Lossy}
	if opts.lossy() {
		if h.Lossy == nil {
			return []Result{{Case: openCase, Err: errors.New("replies are to be lost, and Harness.Lossy is not set")}}
		}
		s.h.Open = s.openLossy
	}
	defer s.pace.Watch()()
	if err := s.open(ctx); err != nil {
		return []Result{{Case: openCase, Err: fmt.Errorf("opening the store: %w", err)}}
	}
	defer s.close()

	var wg sync.WaitGroup
	places := make(chan struct{}, opts.Parallel)
	for i, c := range cases {
		if alone[c.Name] {
			continue
		}
		wg.Go(func() {
			if busy[c.Name] {
				s.busy.Lock()
				defer s.busy.Unlock()
			}
			places <- struct{}{}
			defer func() { <-places }()
			results[i] = s.run(ctx, c, c.Name, s.graces(0))
		})
	}
	wg.Wait()
	for i, c := range cases {
		for tries := 0; alone[c.Name] && tries == 0 || results[i].proofless && !opts.Once && tries < retries; tries++ {
			g := s.graces(0)
			if results[i].proofless {
				g = s.graces(tries + 1)
			}
			results[i] = s.run(ctx, c, fmt.Sprintf("%s-again-%d", c.Name, tries+1), g) // on fresh locks
		}
	}
	return results
}

// openCase is the one that fails if there is nothing that could be checked.
var openCase = Case{Name: "open", Promise: "The store can be opened."}

// retries is how often a case is run again, alone, that failed for being late in a way that proves nothing: each time with
// twice the slack, and with longer TTLs, since what a busy machine takes does not depend on them.
const retries = 3

// grace is what a case is run with: how late things may be, and how soon its claims end.
type grace struct{ slack, least time.Duration }

// graces is that of the first run, and of the tries after it.
func (s *suite) graces(tries int) grace {
	return grace{s.h.Slack << tries, max(s.info.MinTTL, min(time.Duration(1+tries)*s.info.MinTTL, s.info.MaxTTL/4))}
}

// lateMachine is by how much a machine is late on which a case that failed for being late proves nothing: the shortest TTLs are
// 1 s, and servers on it were late, too.
const lateMachine = 50 * time.Millisecond

// busy names the cases that need a whole machine for a while. One of them runs at a time, so that they do not make the
// others late.
var busy = map[string]bool{"fair-contended": true, "rw-contended": true, "cancel-at-random": true, "queue-full": true,
	"holders-full": true, "names": true, "crowd": true}

// alone names the cases that disturb all others.
var alone = map[string]bool{caseRestart: true}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	if d.Match == nil {
		d.Match = func(Case) bool { return true }
	}
	if d.Parallel <= 0 {
		d.Parallel = 32
	}
	if d.Effort <= 0 {
		d.Effort = 1
	}
	if d.Log == nil {
		d.Log = func(string) {}
	}
	return d
}

// sharedClients is how many clients the cases share, so that the suite opens as few connections as it can and that
// every client carries much at a time. Cases that close or kill a client open their own.
const sharedClients = 4

type suite struct {
	h      Harness
	opts   Options
	lossy  func(ctx context.Context, fate func() Fate) (driver.Store, error)
	info   driver.Info
	shared []driver.Store
	busy   sync.Mutex
	pace   pace.Pace
}

func (s *suite) open(ctx context.Context) error {
	for range sharedClients {
		st, err := s.h.Open(ctx)
		if err != nil {
			s.close()
			return err
		}
		s.shared = append(s.shared, st)
	}
	s.info = s.shared[0].Info()
	if s.opts.Limit == 0 {
		s.opts.Limit = 30*time.Second + 20*s.info.MinTTL
	}
	return nil
}

func (s *suite) close() {
	for _, st := range s.shared {
		st.Close()
	}
}

// run runs one case, on locks below a name of its own. The case gets its own goroutine, so that one that hangs in a store costs its limit and no more.
func (s *suite) run(ctx context.Context, c Case, folder string, g grace) Result {
	start := time.Now()
	ctx, expire := context.WithTimeoutCause(ctx, s.opts.Limit, fmt.Errorf("the case took longer than %v", s.opts.Limit))
	defer expire()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := newEnv(ctx, cancel, s, folder, g)
	done := make(chan error, 1)
	go pprof.Do(ctx, pprof.Labels(goroutineLabel, e.prefix), func(ctx context.Context) {
		err := guard(func() error { return c.Run(ctx, e) })
		if err != nil {
			e.fail(err)
		}
		cancel()
		done <- e.finish()
	})
	r := Result{Case: c}
	<-ctx.Done() // the case has ended, or its time is up
	select {
	case r.Err = <-done:
	case <-after(g.slack + 2*cleanupTime):
		r.Err = late{error: fmt.Errorf("the case does not end with its context: %w", context.Cause(ctx))}
	}
	var skip skipped
	if errors.As(r.Err, &skip) {
		r.Err, r.Skipped = nil, string(skip)
	}
	r.Refused = e.refused.Load()
	r.Took = time.Since(start)
	var l late
	r.proofless = errors.As(r.Err, &l) && (l.overrun || s.pace.Worst(start) > lateMachine)
	return r
}

// after is a channel that is closed when d has passed.
func after(d time.Duration) <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(d, func() { close(c) })
	return c
}

// skipped is the error of a case that could not be run.
type skipped string

func (s skipped) Error() string { return "skipped: " + string(s) }

// failure is what a step panics with when the store has broken a promise. It ends the case; a case of twenty steps
// reads as twenty lines.
type failure struct{ error }

// late is the error of a case in which something took too long. It proves nothing if the machine itself was late; or if a
// short TTL passed before the case had done under it what it is about, which a server that is busy with other cases is enough for.
type late struct {
	error
	overrun bool
}

func (l late) Unwrap() error { return l.error }

// guard runs f and turns its panics into errors.
func guard(f func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.error
		default:
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}
