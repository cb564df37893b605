package torture

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// Config says what to do. All fields but the hooks and BesideOthers must be set.
type Config struct {
	Store        string           // URL of the store
	Files        bool             // the store is a directory of files: it has no links, and its clients share a clock
	Worker       func() *exec.Cmd // makes the command that calls [Work]
	For          time.Duration    // how long there are faults
	Workers      int              // processes
	Seed         uint64           // of all random choices
	TTL          time.Duration
	Faults       []Fault
	FaultEvery   time.Duration // mean time between two faults
	Kinds        []Kind
	Rate         float64 // claims per second, of all workers
	LongHolds    int     // one hold in so many lasts for up to two TTLs; the others are short
	BesideOthers bool    // go on although there are other locks in the store

	ServerFault string        // command lines that make a fault of the server, and end it; empty: none
	ServerHeal  string        //
	ServerEvery time.Duration // between the end of one and the next
	ServerFor   time.Duration // from the fault to its end
	HookTimeout time.Duration

	// CalmTimeout is how long, after the faults, a worker may wait for its last turns. The claims of dead processes
	// must expire first. LeftoverTimeout is how long a claim may be left after that.
	CalmTimeout, LeftoverTimeout time.Duration

	Progress      func(line string) // called from time to time with a line for people
	ProgressEvery time.Duration
}

const (
	scratchPrefix = "holdfast-torture-"
	// settleEvery is how often the judge is asked.
	settleEvery = time.Second
	// stopTimeout is how long a worker may take to release its locks and to close its client.
	stopTimeout = 20 * time.Second
)

// run is one run of the command.
type run struct {
	cfg     Config
	subject Subject
	prefix  string
	dir     string // of the marks; removed at the end
	linked  bool
	links   []*servertest.Link
	locks   []Lock
	judge   *judge

	mu        sync.Mutex
	abort     context.CancelCauseFunc // ends the faults; nil before they begin
	processes []*process              // by worker
	failed    error                   // a worker has ended by itself
}

// Run puts the store under faults, and returns what it found. If ctx ends early, the report is about what was done
// until then. The error says why there is no report: the store cannot be used, or the workers cannot be started.
// Nothing is left in the store, nor of the processes, in any case that the store allows.
func Run(ctx context.Context, subject Subject, cfg Config) (*Report, error) {
	r := &run{cfg: cfg, subject: subject, linked: !cfg.Files, processes: make([]*process, cfg.Workers)}
	r.prefix = scratchPrefix + strings.ToLower(rand.Text()[:10])
	r.locks = newLocks(r.prefix, cfg.Kinds)
	if !cfg.BesideOthers {
		if err := subject.check(ctx); err != nil {
			return nil, err
		}
	}
	cfg.Progress(fmt.Sprintf("torture of %s for %v, seed %d", subject.Store, cfg.For, cfg.Seed))
	var err error
	if r.dir, err = os.MkdirTemp("", "holdfast-torture-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(r.dir)
	r.judge = newJudge(r.locks, cfg.TTL, !subject.NoTokens)
	defer r.closeLinks()
	for range cfg.Workers {
		if !r.linked {
			break
		}
		link, err := servertest.NewSocks()
		if err != nil {
			return nil, err
		}
		r.links = append(r.links, link)
	}
	began := time.Now()
	if err := r.startAll(ctx); err != nil && ctx.Err() == nil {
		r.stopAll()
		r.forgetLocks()
		return nil, err
	}
	err = r.torment(ctx)
	r.heal()
	if ctx.Err() == nil && err == nil {
		r.awaitCalm(ctx)
	}
	r.stopAll()
	r.judge.settle(true)
	r.checkLeftovers()
	report := r.judge.report(cfg, subject, time.Since(began))
	report.Ended = endReason(ctx, cmp.Or(r.failure(), err))
	if report.Ended != "" && report.Outcome == Sound {
		report.Outcome = Unproven
	}
	return report, nil
}

// endReason says why a run has ended early; empty: it has not.
func endReason(ctx context.Context, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case ctx.Err() != nil:
		return context.Cause(ctx).Error()
	}
	return ""
}

func (r *run) closeLinks() {
	for _, link := range r.links {
		link.Close()
	}
}

// pause is the mean time between two claims of one actor, so that all together make Rate claims per second.
func (r *run) pause() time.Duration {
	return time.Duration(float64(r.cfg.Workers*len(r.locks)) / r.cfg.Rate * float64(time.Second))
}

// startAll starts the workers, and waits until each has opened the store.
func (r *run) startAll(ctx context.Context) error {
	for i := range r.processes {
		p, err := r.startProcess(i, 0)
		if err != nil {
			return fmt.Errorf("worker %d cannot be started: %w", i, err)
		}
		r.processes[i] = p
	}
	for i, p := range r.processes {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.ready:
		}
		if text := p.failure(); text != "" {
			return fmt.Errorf("worker %d cannot use the store: %s", i, text)
		}
	}
	return nil
}

// endEarly ends the faults.
func (r *run) endEarly(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.abort(err)
}

// process is the present process of a worker.
func (r *run) process(worker int) *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.processes[worker]
}

// restart puts a new process in the place of one that is gone.
func (r *run) restart(worker int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := r.startProcess(worker, r.processes[worker].incarnation+1)
	if err != nil {
		r.failed = fmt.Errorf("worker %d cannot be started again: %w", worker, err)
		r.abort(r.failed)
		return
	}
	r.processes[worker] = p
}

// torment makes faults for the time that was asked for. The error says why it ended early, unless ctx has ended.
func (r *run) torment(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, r.cfg.For)
	defer cancel()
	tormenting, abort := context.WithCancelCause(limited)
	defer abort(nil)
	r.mu.Lock()
	r.abort = abort
	r.mu.Unlock()
	var all sync.WaitGroup
	all.Go(func() { r.watch(tormenting) })
	i := &injector{run: r, busy: map[int]bool{}, rnd: mathrand.New(mathrand.NewPCG(r.cfg.Seed, 1))}
	err := i.inject(tormenting)
	abort(nil)
	all.Wait()
	if cause := context.Cause(tormenting); limited.Err() == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// watch judges what has settled, restarts workers that have ended by themselves, and tells how the run goes.
func (r *run) watch(ctx context.Context) {
	next := time.Now().Add(r.cfg.ProgressEvery)
	for sleep(ctx, settleEvery) {
		r.judge.settle(false)
		if time.Now().After(next) {
			next = next.Add(r.cfg.ProgressEvery)
			r.cfg.Progress(r.judge.progress())
		}
	}
}

// heal ends all faults.
func (r *run) heal() {
	for i := range r.processes {
		if r.linked {
			r.links[i].SetFaults(nil)
			r.links[i].Heal()
		}
		if p := r.process(i); p != nil { // nil: the run was ended before it was started
			p.signal(contSignal)
		}
	}
}

// awaitCalm asks all workers to take their turns, and accuses the store if one does not get it in time: it waits for a
// lock that nobody holds, or others are always preferred.
func (r *run) awaitCalm(ctx context.Context) {
	for i := range r.processes {
		p := r.process(i)
		p.send(order{Op: "calm"})
	}
	deadline := time.Now().Add(r.cfg.CalmTimeout)
	for time.Now().Before(deadline) && ctx.Err() == nil && r.failure() == nil {
		waits := func(p *process) bool { return len(p.unserved(len(r.locks))) > 0 }
		if !slices.ContainsFunc(r.processes, waits) {
			return
		}
		sleep(ctx, 50*time.Millisecond)
		r.judge.settle(false)
	}
	if ctx.Err() != nil || r.failure() != nil || !r.storeAnswers(ctx) {
		return
	}
	for _, p := range r.processes {
		for _, l := range p.unserved(len(r.locks)) {
			r.judge.accuseStarved(p.worker, r.locks[l], r.cfg.CalmTimeout)
		}
	}
}

// failure is why the run proves nothing, or nil.
func (r *run) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// storeAnswers reports whether the store can be asked. If not, the run proves nothing.
func (r *run) storeAnswers(ctx context.Context) bool {
	asking, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := r.subject.List(asking, r.prefix)
	if err == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = cmp.Or(r.failed, fmt.Errorf("the store does not answer when the faults are over: %w", err))
	return false
}

// workerFailed records that a worker has ended by itself. That is no fault of the store, and the run proves nothing.
func (r *run) workerFailed(p *process) {
	err := fmt.Errorf("worker %d has ended by itself: %s", p.worker, p.failure())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = cmp.Or(r.failed, err)
	if r.abort != nil {
		r.abort(err)
	}
}

// stopAll ends all workers.
func (r *run) stopAll() {
	var all sync.WaitGroup
	r.mu.Lock()
	processes := slices.Clone(r.processes)
	r.mu.Unlock()
	for _, p := range processes {
		if p != nil {
			all.Go(func() { p.stop(stopTimeout) })
		}
	}
	all.Wait()
}

// checkLeftovers waits until no claim is left in the store, and removes what the store keeps of the locks. A claim of a
// killed process may be left until its TTL has passed.
func (r *run) checkLeftovers() {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.LeftoverTimeout)
	defer cancel()
	var left []string
	for {
		var err error
		if left, err = r.subject.List(ctx, r.prefix); err == nil && len(left) == 0 {
			break
		}
		if !sleep(ctx, 200*time.Millisecond) {
			break
		}
	}
	if !r.storeAnswers(context.Background()) {
		return
	}
	for _, name := range left {
		r.judge.accuseLeftover(name)
	}
	r.forgetLocks()
}

// forgetLocks removes what the store keeps of locks without claims. Some stores keep nothing, or remove it by
// themselves.
func (r *run) forgetLocks() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if r.subject.Forget == nil {
		return
	}
	keys := r.judge.currentKeys()
	for i, lock := range r.locks {
		r.subject.Forget(ctx, lock, keys[i])
	}
}
