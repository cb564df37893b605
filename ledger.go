package holdfast

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
)

// Errors of a [Ledger] that are not those of locks. errors.As finds a [*RunError] that says which run is the reason.
var (
	// ErrSucceeded is returned when a run of the key has succeeded. The RunError has its result.
	ErrSucceeded = driver.ErrSucceeded
	// ErrInProgress is returned when another run of the key is in progress. Such an error matches ErrHeld as well.
	ErrInProgress = driver.ErrInProgress
	// ErrTooSoon is returned when the pause since the last run has not passed.
	ErrTooSoon = driver.ErrTooSoon
	// ErrAttemptsUsed is returned when the key has had as many runs as LedgerOptions.MaxAttempts allows.
	ErrAttemptsUsed = driver.ErrAttemptsUsed
	// ErrMissed is returned when a time slot has ended while another slot of its job was still run: see
	// RunOptions.Slot. Such an error matches ErrHeld as well, and errors.As finds a [*HeldError] that says who runs
	// the other one. There is no RunError.
	ErrMissed = errors.New("the slot has ended while another slot of the job was run")
)

// MaxRunResult is the size of the largest result that a run can store, in bytes. Where the store's records are small,
// as on a NATS server whose messages are, it is less: see Info.MaxRunResult of [Ledger.Info].
const MaxRunResult = driver.MaxRunResult

// Ledger keeps the runs of keys, so that each key is run until a run has succeeded, and then never again. The key is
// the id of a message that may be delivered more than once, or a job and its time slot.
//
// What a ledger cannot promise: work that was done by a worker that died before it called Succeed is done again. The
// token of the new run is larger, so a resource that checks tokens rejects what the old worker writes late.
//
// A run is a lease on its key, kept by the same rules as the lease of a lock: its context ends before anyone else can
// begin the next run, it is renewed in the background, and it has a fencing token that is larger than those of all runs
// of the key before. When a worker dies, its run is abandoned after its TTL, and the next Begin gets the key.
//
// The history of a key is kept: each run with its times, its owner, its error or its result. A run that has ended never
// changes.
//
// A Ledger has no state of its own. All methods may be called from any goroutine.
type Ledger struct {
	client *Client
	name   string
	opts   LedgerOptions
}

// LedgerOptions are the options of one ledger. The zero value and nil are valid.
type LedgerOptions struct {
	// TTL is how long a worker that stops renewing its run keeps the key. Default: the client's.
	TTL time.Duration
	// Meta is a note that is kept with each run. Default: the client's.
	Meta string
	// Owner is Options.Owner for the runs. Default: the client's.
	Owner string
	// Progress ends a run this long after it was begun, or after the last [Run.Progress], so that a worker that hangs
	// does not keep the key. It is then lost, with cause [LossNoProgress]. Its worker can still report that it has
	// failed; otherwise the run is abandoned when its TTL has passed. At least Info.MinTTL. Default: no bound.
	Progress time.Duration
	// MaxAttempts is how many runs a key may have; then Begin returns ErrAttemptsUsed. An attempt counts when it is
	// begun, whatever becomes of it. A Begin that returns an error has begun none, once the client has told the store:
	// see Begin. Default: no limit.
	MaxAttempts int
	// Pause is the least time between the end of a run and the start of the next. Default: none.
	Pause time.Duration
	// KeepRuns is how many runs of a key are kept at least, and the one in progress; older ones are removed when new
	// ones begin. Default: all.
	KeepRuns int
	// KeepFor is how long the history of a key is kept after its last run has ended. After that, a message with this
	// key is run again, so it must be longer than messages can be late. Stores and clients remove old histories now
	// and then: it may take longer. Of a key with many runs, more than 8 KiB of them, the older ones may go when they
	// ended that long ago. Default: forever.
	KeepFor time.Duration
}

// RunOptions are the options of one run. The zero value and nil are valid.
//
// The ledger decides the TTL of a run, its attempts and pauses. Client.Ledger costs nothing, so runs that need
// others are begun by a Ledger of the same name with other LedgerOptions.
type RunOptions struct {
	// Fingerprint describes the payload that belongs to the key, for example by a hash in hex or base64. If an earlier
	// run of the key had another one, Begin returns ErrMismatch: two different payloads have the same key. At most 256
	// bytes, in UTF-8 and without NUL bytes; otherwise Begin returns ErrInvalid.
	Fingerprint string
	// Wait makes Begin wait while another run of the key is in progress. It then returns a run, ErrSucceeded, or
	// ErrTooSoon: it does not wait for the ledger's Pause.
	Wait bool
	// Slot is the time slot that the key belongs to, for a job whose slots must not overlap. The key is then that of
	// the slot: see [Slot.Key]. If a run of another slot of the job is in progress, Begin waits for its end, whatever
	// Wait says, but not beyond Slot.End. Then it returns [ErrMissed], and there was no run; ErrLost if the store
	// could not be reached for the TTL meanwhile. While the run is in progress, no other slot of the job begins.
	//
	// All who run the job must set Slot: a run without it may overlap with others. Nil: the slots of a job may overlap.
	// ErrUnsupported if the store keeps no locks.
	Slot *Slot
}

// RunState says how far a run has come.
type RunState string

// A run is started, and later has one of the three other states forever.
const (
	RunStarted   RunState = "started"   // in progress
	RunSucceeded RunState = "succeeded" // its worker reported success: the key is never run again
	RunFailed    RunState = "failed"    // its worker reported a failure, or its client was closed before it reported
	RunAbandoned RunState = "abandoned" // its worker stopped renewing it, or an operator broke it
)

// RunInfo is a run as the ledger keeps it.
type RunInfo struct {
	Ledger      string
	Key         string
	Attempt     int64 // 1 for the first run of the key
	State       RunState
	ID          string // unique forever
	Token       int64
	Owner, Meta string
	Fingerprint string
	StartedAt   time.Time // by the store's clock, in UTC, as is EndedAt
	EndedAt     time.Time // zero while the run is in progress
	Error       string    // why it failed or was abandoned
	Result      []byte    // what Succeed was given
	LateReport  RunState  // what its worker reported after the run had been abandoned; empty if nothing
}

// RunError says why a run of a key did not begin. errors.Is finds its Reason.
type RunError struct {
	Reason     error         // ErrSucceeded, ErrInProgress, ErrTooSoon, ErrAttemptsUsed or ErrMismatch
	Run        RunInfo       // the last run of the key
	RetryAfter time.Duration // for ErrTooSoon: how long until a run may begin
	err        error         // what the store has reported; nil if it was not asked
}

// Error says which run is in the way, and what the caller can do.
func (e *RunError) Error() string { return e.Unwrap().Error() }

// Unwrap returns what the store has reported, or else the Reason.
func (e *RunError) Unwrap() error { return cmp.Or(e.err, e.Reason) }

// Ledger returns the ledger with that name. Keys of different ledgers never meet. It does no I/O: an error in the name
// or in the options is returned by the methods. opts may be nil.
//
// On a store without a ledger, such as Redlock and most foreign layouts, the methods return ErrUnsupported.
func (c *Client) Ledger(name string, opts *LedgerOptions) *Ledger {
	l := &Ledger{client: c, name: name}
	if opts != nil {
		l.opts = *opts
	}
	return l
}

// Name returns the ledger's name.
func (l *Ledger) Name() string { return l.name }

// Info returns what the store promises of runs, and its bounds. These may differ from those of locks: see Client.Info.
// MaxName is the length of a key in bytes. Errors: ErrUnsupported if the store keeps no runs, ErrInvalid if something
// must be created first, and those of the store.
func (l *Ledger) Info(ctx context.Context) (Info, error) {
	c, err := l.open(ctx)
	if err != nil {
		return Info{}, l.wrapError("open ledger", "", err)
	}
	info := c.Info()
	info.MaxName -= len(l.recordKey(""))
	return info, nil
}

// Begin begins a run of the key. However many callers begin at the same moment, exactly one gets the run; the others
// get ErrInProgress. The caller ends the run with Succeed or Fail.
//
// Errors: ErrSucceeded, ErrInProgress, ErrTooSoon, ErrAttemptsUsed and ErrMismatch, each as a [*RunError] with the last
// run of the key; ErrMissed; ErrInvalid also if the store has no room for the run's texts; and those of Lock. ctx
// bounds the call, not the run. opts may be nil.
//
// After an error, the store may have begun the run nevertheless. The client then takes it back in the background, so
// that no run is left of it, no attempt is used up and no pause begins. Only if it cannot reach the store for the
// TTL, or dies, the run is abandoned.
func (l *Ledger) Begin(ctx context.Context, key string, opts *RunOptions) (*Run, error) {
	const op = "begin run"
	if opts == nil {
		opts = &RunOptions{}
	}
	c, err := l.open(ctx)
	if err == nil {
		err = l.checkKey(key, c.store.Info())
	}
	var job string
	if err == nil && opts.Slot != nil {
		job, err = l.jobOf(key, opts.Slot)
	}
	if err != nil {
		return nil, l.wrapError(op, key, err)
	}
	o := LockOptions{TTL: l.opts.TTL, Meta: l.opts.Meta, Owner: l.opts.Owner, Progress: l.opts.Progress}
	claim, err := c.newClaim(lockSpec{client: c, name: l.recordKey(key), kind: KindMutex, limit: 1, weight: 1, opts: o})
	if err == nil {
		claim.Run = &driver.RunTerms{
			Fingerprint: opts.Fingerprint, MaxAttempts: int64(l.opts.MaxAttempts), Pause: l.opts.Pause,
			KeepRuns: int64(l.opts.KeepRuns), KeepFor: l.opts.KeepFor,
		}
		err = claim.Run.Check()
	}
	if err != nil {
		return nil, l.wrapError(op, key, err)
	}
	claim.Wait = opts.Wait
	if !c.inflight.enter() {
		return nil, l.wrapError(op, key, ErrClosed)
	}
	defer c.inflight.exit()
	run := &Run{ledger: l, key: key}
	if run.lease, err = c.beginRun(ctx, &claim, &o); err == nil {
		run.held = run.lease
		if opts.Slot != nil {
			err = l.enterJob(ctx, c, run, job, opts.Slot)
		}
	}
	if err != nil {
		return nil, l.wrapError(op, key, err)
	}
	return run, nil
}

// beginRun makes a claim of a run.
func (c *Client) beginRun(ctx context.Context, claim *driver.Claim, o *LockOptions) (*Lease, error) {
	claim.ID = newID()
	start := time.Now()
	c.emitAttempt(ctx, claim, o, start)
	lease, err := c.claimAtStore(ctx, claim, o, start, false)
	if err != nil {
		c.emitFailure(ctx, claim, o, start, err)
	}
	return lease, err
}

// Do begins a run of the key, calls f, and reports the outcome: what f returns is the result of the run, and if f
// returns an error or panics, the run has failed. If a run has succeeded before, Do does not call f, and returns the
// stored result. The context of f ends with ctx and with the run.
//
// It returns the errors of Begin but ErrSucceeded; f's error, joined with Fail's; and the errors of Succeed. If f has
// ended the run itself, Do reports nothing more, and returns what f has returned.
func (l *Ledger) Do(ctx context.Context, key string, opts *RunOptions,
	f func(ctx context.Context, r *Run) ([]byte, error)) (result []byte, err error) {
	if f == nil {
		return nil, l.wrapError("begin run", key, errNilFunction)
	}
	run, err := l.Begin(ctx, key, opts)
	var refused *RunError
	switch {
	case errors.Is(err, ErrSucceeded) && errors.As(err, &refused):
		return refused.Run.Result, nil
	case err != nil:
		return nil, err
	}
	ended := false
	defer func() { // f panics, which goes on, or has ended its goroutine
		if !ended {
			_ = endRun(run, run.Fail, errors.New("the function did not return"))
		}
	}()
	bound, stop := bindContext(ctx, run.Context())
	result, err = f(bound, run)
	stop()
	ended = true
	if err != nil {
		if failErr := endRun(run, run.Fail, err); failErr != nil {
			err = errors.Join(err, failErr)
		}
		return nil, err
	}
	if err := endRun(run, run.Succeed, result); err != nil {
		return nil, err
	}
	return result, nil
}

// History returns all runs of a key that are kept, from the first to the last. A key that was never run has none.
func (l *Ledger) History(ctx context.Context, key string) ([]RunInfo, error) {
	return l.readRuns(ctx, key, 0)
}

// LastRuns returns the last n runs of a key, or all if there are fewer, in the order in which they began. It does not
// read the others, of which a key may have many. n is 1 or more.
func (l *Ledger) LastRuns(ctx context.Context, key string, n int) ([]RunInfo, error) {
	if n < 1 {
		return nil, l.wrapError("read runs", key, newInvalidError("the number of runs must be at least 1"))
	}
	runs, err := l.readRuns(ctx, key, n)
	return runs[max(0, len(runs)-n):], err
}

// readRuns reads the last runs of a key, and maybe more. If last is 0, it reads all.
func (l *Ledger) readRuns(ctx context.Context, key string, last int) ([]RunInfo, error) {
	return onKey(ctx, l, "read runs", key,
		func(ctx context.Context, store driver.Ledger, recordKey string) ([]RunInfo, error) {
			h, err := store.ReadRuns(ctx, recordKey, last)
			return l.runsFromDriver(h), err
		})
}

// List yields the last run of each key that starts with prefix, in no particular order; if there are states, only the
// runs in one of them. A key that cannot be read is yielded with its name and an error. An error without a key ends the
// listing.
func (l *Ledger) List(ctx context.Context, prefix string, states ...RunState) iter.Seq2[RunInfo, error] {
	return func(yield func(RunInfo, error) bool) {
		c, err := l.open(ctx)
		if err == nil {
			err = c.yieldRuns(ctx, l.recordKey(prefix), states, func(string) *Ledger { return l }, yield)
		}
		if err != nil {
			yield(RunInfo{}, l.wrapError("list runs", "", err))
		}
	}
}

// ListRuns yields the last run of each key of all ledgers, as [Ledger.List] does for one of them: RunInfo.Ledger is
// its name.
func (c *Client) ListRuns(ctx context.Context, states ...RunState) iter.Seq2[RunInfo, error] {
	return func(yield func(RunInfo, error) bool) {
		err := checkCall(c, ctx)
		var runs *Client
		if err == nil {
			runs, err = c.openLedger(ctx)
		}
		if err == nil {
			err = runs.yieldRuns(ctx, "", states, func(recordKey string) *Ledger {
				name, _, _ := strings.Cut(recordKey, "/")
				return c.Ledger(name, nil)
			}, yield)
		}
		if err != nil {
			yield(RunInfo{}, c.wrapError("list runs", "", err))
		}
	}
}

// yieldRuns yields the last run of each key in the store that starts with prefix. ledgerOf finds the ledger of such a
// key. It returns the error that ends the listing.
func (c *Client) yieldRuns(ctx context.Context, prefix string, states []RunState, ledgerOf func(recordKey string) *Ledger,
	yield func(RunInfo, error) bool) (ended error) {
	err := yieldListed(ctx, c, func(ctx context.Context) iter.Seq2[driver.RunHistory, error] {
		return c.runs.ListRuns(ctx, prefix)
	}, func(h driver.RunHistory, err error) bool {
		switch {
		case err != nil && h.Key == "":
			ended = c.orClosed(err)
			return false
		case strings.HasPrefix(h.Key, jobLockPrefix):
			return true
		}
		l := ledgerOf(h.Key)
		if err != nil {
			key := strings.TrimPrefix(h.Key, l.recordKey(""))
			return yield(RunInfo{Ledger: l.name, Key: key}, l.wrapError("list runs", key, c.orClosed(err)))
		}
		runs := l.runsFromDriver(h)
		if len(runs) == 0 || len(states) > 0 && !slices.Contains(states, runs[len(runs)-1].State) {
			return true
		}
		return yield(runs[len(runs)-1], nil)
	})
	return cmp.Or(ended, err)
}

// Watch yields the last run of a key as it is now, and each time it has changed, until ctx ends. A key that was never
// run is yielded with attempt 0. Changes that follow each other quickly may be yielded as one.
func (l *Ledger) Watch(ctx context.Context, key string) iter.Seq2[RunInfo, error] {
	return func(yield func(RunInfo, error) bool) {
		c, err := l.open(ctx)
		if err != nil {
			yield(RunInfo{}, l.wrapError("watch runs", key, err))
			return
		}
		var last RunInfo
		first := true
		for _, err := range c.Watch(ctx, l.recordKey(key)) {
			info := RunInfo{Key: key}
			if err == nil {
				var runs []RunInfo
				if runs, err = l.LastRuns(ctx, key, 1); len(runs) > 0 {
					info = runs[len(runs)-1]
				}
			}
			if err == nil && !first && info.sameAs(last) {
				continue
			}
			if !yield(info, err) || err != nil {
				return
			}
			first, last = false, info
		}
	}
}

// sameAs reports whether two readings show the same state of the same run. What else a run has never changes.
func (r RunInfo) sameAs(o RunInfo) bool {
	return r.Attempt == o.Attempt && r.Token == o.Token && r.State == o.State && r.LateReport == o.LateReport
}

// Retry is for operators: it lets one more run of a failed or abandoned key begin, whatever the pause and the number of
// attempts. The error matches ErrSucceeded or ErrInProgress if there is nothing to retry.
func (l *Ledger) Retry(ctx context.Context, key string) error {
	_, err := onKey(ctx, l, "retry", key,
		func(ctx context.Context, store driver.Ledger, recordKey string) (any, error) {
			return nil, store.RetryRun(ctx, recordKey)
		})
	return err
}

// Forget is for operators: it removes the history of a key, so that the key is run again even if it has succeeded. A
// run in progress is not touched: the error then matches ErrInProgress.
func (l *Ledger) Forget(ctx context.Context, key string) error {
	_, err := onKey(ctx, l, "forget runs", key,
		func(ctx context.Context, store driver.Ledger, recordKey string) (any, error) {
			return nil, store.ForgetRuns(ctx, recordKey)
		})
	return err
}

// recordKey is the key as the store keeps it.
func (l *Ledger) recordKey(key string) string { return l.name + "/" + key }

// checkName reports why there can be no such ledger.
func (l *Ledger) checkName() error {
	switch {
	case l.name == "":
		return newInvalidError("a ledger's name must not be empty")
	case len(l.name) > 64 || strings.ContainsAny(l.name, "/\x00\x1f"):
		return newInvalidError("a ledger's name has at most 64 bytes, and no slash: %q", l.name)
	}
	return nil
}

// checkKey reports why there can be no such key in a store.
func (l *Ledger) checkKey(key string, info driver.Info) error {
	longest := info.MaxName - len(l.recordKey(""))
	switch {
	case key == "":
		return newInvalidError("a key must not be empty")
	case len(key) > longest:
		return newInvalidError("a key of this ledger is at most %d bytes, this one is %d; use a hash of it", longest, len(key))
	case !utf8.ValidString(key):
		return newInvalidError("a key must be UTF-8, %q is not; encode it, for example in base64", key)
	case strings.ContainsRune(key, 0):
		return newInvalidError("a key must not contain a NUL byte, %q does", key)
	}
	return nil
}

// ledgerClient is the client that keeps the runs of all ledgers of another client, as if they were locks. It is opened
// when a ledger is first used.
type ledgerClient struct {
	opening chan struct{} // has an element while a call opens the client
	client  atomic.Pointer[Client]
}

// open returns the client that keeps the runs.
func (l *Ledger) open(ctx context.Context) (*Client, error) {
	if err := checkCall(l.client, ctx); err != nil {
		return nil, err
	}
	if err := l.checkName(); err != nil {
		return nil, err
	}
	return l.client.openLedger(ctx)
}

// openLedger returns the client of the ledgers. The first call opens it; calls at the same time wait for that one.
func (c *Client) openLedger(ctx context.Context) (*Client, error) {
	if !c.inflight.enter() {
		return nil, ErrClosed
	}
	defer c.inflight.exit()
	if opened := c.ledger.client.Load(); opened != nil {
		return opened, nil
	}
	select {
	case c.ledger.opening <- struct{}{}:
		defer func() { <-c.ledger.opening }()
	case <-ctx.Done():
		return nil, contextError(ctx)
	case <-c.waiting.Done():
		return nil, ErrClosed
	}
	if opened := c.ledger.client.Load(); opened != nil {
		return opened, nil
	}
	ctx, end := c.untilClosed(ctx)
	defer end()
	store, err := c.store.OpenLedger(ctx)
	if err != nil {
		return nil, c.orClosed(err)
	}
	opts := c.opts
	opened, err := New(store, &opts)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	opened.runs = store
	opened.events = c.events // so that the receivers get one event at a time
	c.ledger.client.Store(opened)
	if c.waiting.Err() != nil { // Close may have found no client
		return nil, errors.Join(ErrClosed, opened.Close())
	}
	return opened, nil
}

// closeLedger closes the client that keeps the runs, if there is one. It is called when waiting has ended: a call that
// opens the client later closes it itself.
func (c *Client) closeLedger(ctx context.Context) error {
	if opened := c.ledger.client.Load(); opened != nil {
		return opened.CloseContext(ctx)
	}
	return nil
}

// onKey makes one call about a key to the ledger in the store.
func onKey[T any](ctx context.Context, l *Ledger, op, key string,
	call func(ctx context.Context, store driver.Ledger, recordKey string) (T, error)) (result T, err error) {
	return onLedger(ctx, l, op, key, func(ctx context.Context, store driver.Ledger) (result T, err error) {
		if err = l.checkKey(key, store.Info()); err != nil {
			return result, err
		}
		return call(ctx, store, l.recordKey(key))
	})
}

// onLedger makes one call to the ledger in the store. key is for the error; it may be empty.
func onLedger[T any](ctx context.Context, l *Ledger, op, key string,
	call func(context.Context, driver.Ledger) (T, error)) (result T, err error) {
	c, err := l.open(ctx)
	if err != nil {
		return result, l.wrapError(op, key, err)
	}
	if !c.inflight.enter() {
		return result, l.wrapError(op, key, ErrClosed)
	}
	defer c.inflight.exit()
	ctx, end := c.untilClosed(ctx)
	defer end()
	result, err = call(ctx, c.runs)
	if err = c.orClosed(err); err != nil {
		err = l.wrapError(op, key, err)
	}
	return result, err
}

// wrapError makes the Error of a ledger: its Lock is the ledger's name and the key.
func (l *Ledger) wrapError(op, key string, err error) error {
	var refused *driver.RunError
	if errors.As(err, &refused) {
		err = &RunError{
			Reason: refused.Reason, Run: l.runFromDriver(key, refused.Run), RetryAfter: refused.RetryAfter, err: err,
		}
	}
	return l.client.wrapError(op, l.recordKey(key), err)
}

// runsFromDriver converts all runs of a key.
func (l *Ledger) runsFromDriver(h driver.RunHistory) []RunInfo {
	runs := make([]RunInfo, 0, len(h.Runs))
	for _, r := range h.Runs {
		runs = append(runs, l.runFromDriver(strings.TrimPrefix(h.Key, l.recordKey("")), r))
	}
	return runs
}

// runFromDriver converts a run. Times are in UTC.
func (l *Ledger) runFromDriver(key string, r driver.Run) RunInfo {
	return RunInfo{
		Ledger: l.name, Key: key, Attempt: r.Attempt, State: RunState(r.State), ID: r.ID, Token: r.Token, Owner: r.Owner, Meta: r.Meta,
		Fingerprint: r.Fingerprint, StartedAt: r.StartedAt.UTC(), EndedAt: r.EndedAt.UTC(), Error: r.Error, Result: r.Result,
		LateReport: RunState(r.LateReport),
	}
}
