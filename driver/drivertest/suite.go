// Package drivertest is the conformance suite that every store of Holdfast passes.
//
// A case is data: a name, which docs/promises.md refers to, a promise in one or two sentences, and a function that
// checks whether a running store keeps the promise. Nothing here needs package testing, so the same cases run in a
// store's tests and in a trial against a real server. A store's own test has ten lines:
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
// The cases use real time. Where a TTL must pass, it is the shortest that the store allows; all others are long. The
// cases run concurrently, each on locks of its own, and use only what package driver promises. If a store's Info says
// that it does not support something, the case is not skipped: it checks that the store refuses it.
package drivertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Case is one promise of the contract and the way to check it.
type Case struct {
	Name    string // short, in-words-like-this, unique in the suite
	Promise string // one or two sentences, for people who decide whether they can rely on it
	// Run checks the promise, and returns an error that says how it was broken. Only [Run] can make an Env.
	Run func(ctx context.Context, e *Env) error
}

// Harness connects the suite to one store.
type Harness struct {
	// Open makes a new client of the store. It is the same store at each call: a lock that one client holds is held for
	// all. The suite also opens a client that only inspects a free lock, ten times a second, to see when the server is
	// slow by itself.
	Open func(ctx context.Context) (driver.Store, error)

	// Lossy, if set, opens a client as Open does. The client calls fate once per request, where the request leaves the
	// store's own code, and does what fate returns. So the suite checks that the store distinguishes a lost
	// reply from a refusal. See [Transport] and [Carry]. [Options] say how many requests are lost. Kill, Cut and Heal
	// are called with these clients, too.
	Lossy func(ctx context.Context, fate func() Fate) (driver.Store, error)

	// Prefix is at the beginning of nearly all lock names, and is unique to the run. The default is random.
	Prefix string

	// Slack is how long the store may take, beyond what is promised, for anything that should be quick: to answer, to
	// grant a released lock to the next claim, to end an expired claim. The default is 1 s.
	Slack time.Duration

	// Secrets are strings that may not appear in Info or in an error, such as the password of the store's URL.
	Secrets []string

	// Kill, if set, stops a client as if its process had been killed: no cleanup reaches the store, and nothing of the
	// client continues. The suite neither uses nor closes the client afterwards. Without Kill, the suite stops using
	// the client where this has the same effect, and otherwise skips the case.
	Kill func(s driver.Store) error

	// Cut, if set, cuts the link between a client and the store: requests and replies are lost, and nothing is refused.
	// Heal restores the link.
	Cut, Heal func(s driver.Store) error

	// Lower, if set, makes the server keep the sessions of one client for at most ttl from their next heartbeat on.
	// This is what a server with other settings does when it takes sessions over.
	Lower func(s driver.Store, ttl time.Duration) error

	// Restart, if set, shuts the store down properly, starts it again, and returns when it can be reached.
	Restart func(ctx context.Context) error
}

// Options say how to run the suite. The zero value, and nil, run all of it.
type Options struct {
	Match    func(c Case) bool // which cases to run; nil: all
	Parallel int               // how many cases run at the same time; default 32
	Limit    time.Duration     // time limit per case; default 30 s plus 20 times the minimal TTL
	Effort   float64           // how often the counting cases repeat what they do, relative to the default of 1
	Log      func(line string) // gets remarks on what was measured; several goroutines may call it at the same time
	Once     bool              // do not repeat a case that was too slow while the machine or the server was, too
	Report   func(r Result)    // gets each result as soon as it is final, one at a time

	// Of 100 requests, LostReplies take effect but their replies are lost, and Refusals are refused as too many,
	// without an effect. Both need Harness.Lossy. A store must keep its promises nevertheless, only later. 2 of each
	// are a good choice.
	LostReplies, Refusals float64
}

// Result is the result of one case.
type Result struct {
	Case    Case
	Err     error  // nil: the promise was kept
	Skipped string // why the case could not be run, if it could not
	Refused bool   // the store does not support this, says so in its Info, and refuses it properly
	Took    time.Duration

	inconclusive bool // it failed because it was too slow, and this proves nothing: see lateError
}

// Cases returns all cases, ordered by theme.
func Cases() []Case {
	var all []Case
	for _, theme := range [][]Case{
		infoCases, abilityCases, exclusionCases, tokenCases, timeCases, renewCases, releaseCases, cancelCases, waitCases, orderCases,
		rwCases, setWeightCases, semaphoreCases, limitCases, nameCases, inspectCases, operatorCases, detachCases,
		watchCases, ledgerCases, closeCases, loadCases, faultCases,
	} {
		all = append(all, theme...)
	}
	return all
}

// Run checks a store and returns a result for each case, in the order of [Cases]. Cases run concurrently, except
// those that stop the store, which run alone at the end. A case that panics or exceeds its time limit has failed. If
// the store cannot be opened, that is the only result. When ctx has ended, the cases that are left have its cause as
// their error.
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
	s := &suite{harness: h, opts: opts, openWithFates: h.Lossy}
	if opts.losesRequests() {
		if h.Lossy == nil {
			return []Result{{Case: openCase, Err: errors.New("replies are to be lost, and Harness.Lossy is not set")}}
		}
		s.harness.Open = s.openLossy
	}
	defer s.machine.Watch()()
	if err := s.openShared(ctx); err != nil {
		return []Result{{Case: openCase, Err: fmt.Errorf("opening the store: %w", err)}}
	}
	defer s.closeShared()
	if !opts.losesRequests() { // otherwise everything that is too slow proves nothing
		defer s.watchServer(ctx)()
	}

	var wg sync.WaitGroup
	var reportMu sync.Mutex
	places := make(chan struct{}, opts.Parallel)
	for i, c := range cases {
		if disturbsOthers[c.Name] {
			continue
		}
		wg.Go(func() {
			if needsMachine[c.Name] {
				s.busyMu.Lock()
				defer s.busyMu.Unlock()
			}
			places <- struct{}{}
			defer func() { <-places }()
			results[i] = s.runCase(ctx, c, c.Name, s.graceFor(0))
			if !s.isRepeated(results[i]) {
				reportMu.Lock()
				defer reportMu.Unlock()
				opts.Report(results[i])
			}
		})
	}
	wg.Wait()
	for i, c := range cases {
		if !disturbsOthers[c.Name] && !s.isRepeated(results[i]) {
			continue
		}
		for tries := 0; disturbsOthers[c.Name] && tries == 0 || s.isRepeated(results[i]) && tries < maxRetries; tries++ {
			g := s.graceFor(0)
			if results[i].inconclusive {
				opts.Log(fmt.Sprintf("%s runs again: %v", c.Name, results[i].Err))
				g = s.graceFor(tries + 1)
			}
			results[i] = s.runCase(ctx, c, fmt.Sprintf("%s-again-%d", c.Name, tries+1), g) // on fresh locks
		}
		opts.Report(results[i])
	}
	return results
}

// isRepeated reports whether a case should run again because its result proves nothing.
func (s *suite) isRepeated(r Result) bool { return r.inconclusive && !s.opts.Once }

// openCase is the case that fails if the store cannot be opened.
var openCase = Case{Name: "open", Promise: "The store can be opened."}

// maxRetries is how often an inconclusive case is repeated, alone. Each time it has twice the slack and longer TTLs,
// since the delays of a busy machine do not depend on the TTLs.
const maxRetries = 3

// tolerance is how slow the store may be in a run of a case, and how short its TTLs are.
type tolerance struct{ slack, minTTL time.Duration }

// graceFor returns the tolerance of the first run (0), or of one of the repetitions after it.
func (s *suite) graceFor(tries int) tolerance {
	return tolerance{s.harness.Slack << tries, max(s.info.MinTTL, min(time.Duration(1+tries)*s.info.MinTTL,
		s.info.MaxTTL/4))}
}

// needsMachine names the cases that need the whole machine for a while. Only one of them runs at a time, so that they
// do not slow each other down.
var needsMachine = map[string]bool{
	"fair-contended": true, "rw-contended": true, "cancel-at-random": true, "queue-full": true, "holders-full": true,
	"names": true, "mixed-load": true,
}

// disturbsOthers names the cases that must run alone.
var disturbsOthers = map[string]bool{caseRestart: true}

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
	if d.Report == nil {
		d.Report = func(Result) {}
	}
	return d
}

// sharedClients is how many clients the cases share, so that the suite opens few connections and every client has
// much to do at the same time. Cases that close or kill a client open their own.
const sharedClients = 4

type suite struct {
	harness       Harness
	opts          Options
	openWithFates func(ctx context.Context, fate func() Fate) (driver.Store, error)
	info          driver.Info
	shared        []driver.Store
	busyMu        sync.Mutex
	machine       pace.Pace
	server        pace.Pace // see watchServer
}

func (s *suite) openShared(ctx context.Context) error {
	for range sharedClients {
		st, err := s.harness.Open(ctx)
		if err != nil {
			s.closeShared()
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

func (s *suite) closeShared() {
	for _, st := range s.shared {
		st.Close()
	}
}

// watchServer measures, until the returned function is called, how late the server answers a client that no case uses,
// about a lock that nobody claims. A process that mostly sleeps is on time on a machine where the server starves or
// waits for its disk. What the server usually takes, before any case runs, counts as no delay: it may be far away. A
// store that allows no further client is not watched.
func (s *suite) watchServer(ctx context.Context) (stop func()) {
	st, err := s.harness.Open(ctx)
	if err != nil {
		s.opts.Log(fmt.Sprintf("the server is not watched: opening a client: %v", err))
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	name := s.harness.Prefix + "pulse/m"
	// ask waits for the answer, whatever it is. If the caller wants to go on, it waits for only a little longer: a
	// store may panic, or hang beyond its context.
	ask := func(quit <-chan struct{}) {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			_ = recoverError(func() error { _, err := st.Inspect(ctx, name); return err })
		}()
		select {
		case <-answered:
			return
		case <-quit:
		}
		select {
		case <-answered:
		case <-closedAfter(s.harness.Slack):
		}
	}
	var took [5]time.Duration
	for i := range took {
		start := time.Now()
		ask(closedAfter(s.harness.Slack))
		took[i] = time.Since(start)
	}
	slices.Sort(took[:])
	usual := 2 * took[len(took)/2]       // requests over a long way vary more
	const every = 100 * time.Millisecond // seldom enough for slow servers; the delays that matter are longer
	end := s.server.WatchTask(every+usual, func(quit <-chan struct{}) {
		select {
		case <-quit:
		case <-closedAfter(every):
			ask(quit)
		}
	})
	return func() {
		cancel()
		end()
		_ = st.Close()
	}
}

// runCase runs one case, on locks whose names begin with the given folder. The case gets its own goroutine, so that a
// case that hangs in a store costs no more than its time limit.
func (s *suite) runCase(ctx context.Context, c Case, folder string, g tolerance) Result {
	if ctx.Err() != nil {
		return Result{Case: c, Err: fmt.Errorf("not run: %w", context.Cause(ctx))}
	}
	start := time.Now()
	ctx, expire := context.WithTimeoutCause(ctx, s.opts.Limit, fmt.Errorf("the case took longer than %v", s.opts.Limit))
	defer expire()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := newEnv(ctx, cancel, s, folder, g)
	done := make(chan error, 1)
	go pprof.Do(ctx, pprof.Labels(goroutineLabel, e.prefix), func(ctx context.Context) {
		err := recoverError(func() error { return c.Run(ctx, e) })
		if err != nil {
			e.recordFailure(err)
		}
		cancel()
		done <- e.cleanUp()
	})
	r := Result{Case: c}
	<-ctx.Done() // the case has ended, or its time limit has passed
	select {
	case r.Err = <-done:
	case <-closedAfter(g.slack + 2*cleanupTime):
		r.Err = lateError{error: fmt.Errorf("the case does not end with its context: %w", context.Cause(ctx))}
	}
	var skip skippedError
	if errors.As(r.Err, &skip) {
		r.Err, r.Skipped = nil, string(skip)
	}
	r.Refused = e.refused.Load()
	r.Took = time.Since(start)
	var l lateError
	r.inconclusive = errors.As(r.Err, &l) &&
		(l.overrun || s.opts.losesRequests() || s.wasSlow(c, start))
	return r
}

// wasSlow reports whether the machine, or the server, was slow by itself during a case that began at start. A case that
// stops the server makes it slow, so there only the machine counts.
func (s *suite) wasSlow(c Case, start time.Time) bool {
	return s.machine.Worst(start) > pace.SlowMachine ||
		!disturbsOthers[c.Name] && s.server.Worst(start) > pace.SlowMachine
}

// closedAfter returns a channel that is closed when d has passed.
func closedAfter(d time.Duration) <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(d, func() { close(c) })
	return c
}

// skippedError is the error of a case that could not be run.
type skippedError string

func (s skippedError) Error() string { return "skipped: " + string(s) }

// failurePanic is what a step panics with when the store has broken a promise. It ends the case, so that a case of
// twenty steps has twenty lines.
type failurePanic struct{ error }

// lateError is the error of a case in which something was too slow. It proves nothing if the machine or the server was
// slow by itself, or if several requests in a row may have been lost. Nor does it if a short TTL passed before the case
// had used it, which can happen on a server that is busy with other cases (overrun).
type lateError struct {
	error
	overrun bool
}

func (l lateError) Unwrap() error { return l.error }

// recoverError runs f and turns its panics into errors.
func recoverError(f func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failurePanic:
			err = p.error
		default:
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}
