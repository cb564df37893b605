package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/driver"
)

const (
	// how long the last output may take to be copied before the outcome of the run is reported: its reader may have
	// stopped
	lastOutputTimeout = time.Second
	maxReportTime     = time.Minute
	maxFailureOutput  = 900 // bytes of output in the text of a failure, which the ledger cuts at driver.MaxRunError
)

// onceJob is one command to be run once for one key, or once per slot.
type onceJob struct {
	key          string // without the slot
	path         string
	argv         []string
	store        string // URL, or empty
	ledger       string
	opts         holdfast.LedgerOptions
	policy       guard.KillPolicy
	progress     progressFlags
	schedule     holdfast.Schedule // nil: the key has no slots
	startWithin  time.Duration     // how late a slot may be run for the first time; 0: no limit
	allowOverlap bool              // of slots of the job
	waits        bool              // while a run is in progress
	waitLimit    waitLimit
	doneCode     int
	fingerprint  string
	keepOutput   int // bytes
	telemetry    *telemetry
	labels       claimLabels
	messages     messageFlags
	storeWait    waitLimit
	otherSlot    atomic.Pointer[string] // the slot that it has waited for, and who runs it
	waitsForSlot chan struct{}          // closed when otherSlot is known
}

// ledgerRun is a run that this program has begun.
type ledgerRun struct {
	*holdfast.Run
	slot string // when its slot started; empty without slots
}

// ledgerStore is a store that remembers the ledger that was opened on it. Runs are kept by the ledger, so the guard
// needs its liveness file, and not that of the store of the locks.
type ledgerStore struct {
	driver.Store
	ledger driver.Ledger
}

func (s *ledgerStore) OpenLedger(ctx context.Context) (l driver.Ledger, err error) {
	l, err = s.Store.OpenLedger(ctx)
	s.ledger = l
	return l, err
}

// runCommand begins a run of the key, runs the command, and reports to the ledger when the last process has ended.
func (j *onceJob) runCommand(events *eventFile) error {
	signals := catchSignals()
	output, err := newOutputCopy(j.keepOutput)
	if err != nil {
		return cannotRun(exitCannotRun, "no pipe can be opened for the output: %s", rootCause(err))
	}
	store := &ledgerStore{}
	client, run, err := j.beginUntilSignal(store, signals, events)
	if err != nil {
		if client != nil {
			closeClient(client)
		}
		return err
	}
	w := &wrapper{
		name: run.Key(), lease: run, lostEvent: holdfast.EventRunLost, clock: client.Info().Clock, ttl: j.opts.TTL, policy: j.policy, signals: signals,
		events: events, watched: j.progress,
	}
	env := run.commandEnvironment(os.Environ(), client.Info().Store, j.ledger)
	env = j.telemetry.environment(env)
	output.start()
	w.superviseCommand(store.ledger, guardedCommand{path: j.path, argv: j.argv, env: env, output: output})
	if len(w.result.escaped) > 0 {
		// The run was lost, and what is left cannot be ended. Nothing is reported: the guard stays and keeps trying.
		events.addFields(fields{"escaped": w.result.escaped})
		return w.result.exitError(j.argv[0], w.result.loss)
	}
	copied := output.finish()
	guard.WaitWithTimeout(copied, lastOutputTimeout)
	err = j.reportOutcome(run, &w.result, output, events)
	w.closeGuard()
	closeClient(client)
	signals.awaitOutput(copied)
	return err
}

// awaitOutput waits until all output is copied. A signal that would end a program ends the wait.
func (s *signalQueue) awaitOutput(copied <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-copied
		cancel()
	}()
	s.waitForEnd(ctx)
}

// beginUntilSignal opens the store and begins a run. A signal that would end a program ends the wait. The caller
// closes the client, even after an error, unless it is nil.
func (j *onceJob) beginUntilSignal(
	store *ledgerStore, signals *signalQueue, events *eventFile,
) (*holdfast.Client, *ledgerRun, error) {
	ctx, cancel := context.WithCancelCause(j.telemetry.withSpan(context.Background()))
	defer cancel(nil)
	stop := signals.watchDuringWait(func(s syscall.Signal) { cancel(&signalError{s}) })
	client, run, err := j.openAndBegin(ctx, store, events)
	if signaled := stop(); signaled != nil {
		if run != nil { // the signal arrived after the run had begun, and would be lost
			_ = j.withdrawRun(run, signaled.Error()+" before the command was started", events)
		}
		return client, nil, storeError(fmt.Errorf("%w before a run of %s began", signaled, quoteName(j.key)))
	}
	return client, run, err
}

// openAndBegin opens the store and begins a run, of the current slot if the key has slots.
func (j *onceJob) openAndBegin(
	ctx context.Context, store *ledgerStore, events *eventFile,
) (*holdfast.Client, *ledgerRun, error) {
	var err error
	opening := time.Now()
	if store.Store, err = openPatiently(ctx, j.store, j.key, j.storeWait, j.messages); err != nil {
		return nil, nil, err
	}
	waitedForStore := time.Since(opening)
	client, err := newClient(store, &holdfast.Options{Owner: j.labels.ownerOrDefault(),
		OnEvent: j.telemetry.handler(j.eventHandler(events))})
	if err != nil {
		return nil, nil, err
	}
	where, ledger, key := client.Info().Store, client.Ledger(j.ledger, &j.opts), j.key
	events.addFields(storeSourceFields())
	events.addFields(fields{"store": where, "ledger": j.ledger})
	run := &ledgerRun{}
	opts := &holdfast.RunOptions{Fingerprint: j.fingerprint}
	if j.schedule != nil {
		if err := j.checkOverlap(client); err != nil {
			return client, nil, err
		}
		slot, err := j.chooseSlot(ctx, ledger, events)
		if err != nil {
			return client, nil, err
		}
		key, run.slot = slot.Key(j.key), formatSlot(slot.Start)
		if !j.allowOverlap {
			slot.End = j.lastStart(slot)
			opts.Slot = &slot
		}
	}
	if err := j.checkSelfWait(ctx, where, ledger, key); err != nil {
		return client, nil, err
	}
	if err := j.checkOutput(ctx, ledger); err != nil {
		return client, nil, err
	}
	began := time.Now().Add(-waitedForStore)
	if run.Run, err = j.beginRun(ctx, ledger, key, opts, began, events); err != nil {
		return client, nil, err
	}
	j.messages.printDetail("attempt %d of %s begins, with token %d, after a wait of %v", run.Attempt(), quoteName(key),
		run.Token(), time.Since(began).Round(time.Millisecond))
	events.addFields(fields{"token": run.Token(), "id": run.ID(), "attempt": run.Attempt()})
	events.addEvent(holdfast.EventRunStarted, fields{"waited_ms": shown.Millis(time.Since(began))})
	return client, run, nil
}

// checkOutput refuses to keep more output than the store has room for, before anything is run. What is wrong with the
// ledger is said when the run begins.
func (j *onceJob) checkOutput(ctx context.Context, ledger *holdfast.Ledger) error {
	ctx, cancel := j.limitCall(ctx)
	defer cancel()
	if info, err := ledger.Info(ctx); err == nil && j.keepOutput > info.MaxRunResult {
		return usageError("--keep-output: this store has room for %d bytes", info.MaxRunResult)
	}
	return nil
}

// commandEnvironment is the environment of the command: the inherited one, with the variables of an outer once or run
// replaced by those of this run. store and ledger are for heldVariable.
func (r *ledgerRun) commandEnvironment(inherited []string, store, ledger string) []string {
	return replaceVariables(inherited, [][2]string{
		{"HOLDFAST_KEY", r.Key()},
		{"HOLDFAST_SLOT", r.slot},
		{"HOLDFAST_ATTEMPT", strconv.FormatInt(r.Attempt(), 10)},
		{"HOLDFAST_TOKEN", strconv.FormatInt(r.Token(), 10)},
		{"HOLDFAST_ID", r.ID()},
		{"HOLDFAST_LOCK", ""}, // HOLDFAST_TOKEN is not the token of that lock any more
		{"HOLDFAST_TOKENS", ""},
		{permitVariable, ""},
		{heldVariable, addHeldEntries(heldLock{store: store, name: ledger + "/" + r.Key(), ref: r.ID(), token: r.Token()}.String())},
	})
}

// reportOutcome ends the run as the command has ended.
func (j *onceJob) reportOutcome(run *ledgerRun, result *runResult, output *outputCopy, events *eventFile) error {
	var why string
	switch {
	case result.loss != nil:
		_ = j.reportFailure(run, "the command was ended: "+lossText(result.loss), true, events)
		return result.exitError(j.argv[0], nil)
	case errors.As(result.startError, new(*guardStartError)):
		return result.exitError(j.argv[0], j.withdrawRun(run, rootCause(result.startError), events))
	case result.startError != nil:
		why = "the command could not be started: " + rootCause(result.startError)
	case result.status.Signaled():
		why = "killed by " + signalName(result.status.Signal())
	case result.status.ExitStatus() != 0:
		why = "exit status " + strconv.Itoa(result.status.ExitStatus())
	default:
		return j.reportSuccess(run, output.lastBytes(j.keepOutput), events)
	}
	if end := output.lastBytes(maxFailureOutput); len(end) > 0 {
		why += "; its output ends with: " + strings.TrimRight(string(end), "\n")
	}
	return result.exitError(j.argv[0], j.reportFailure(run, why, false, events))
}

// reportSuccess ends the run as succeeded. If the store does not confirm that, the command may be run again, so this is
// never a success of this program.
func (j *onceJob) reportSuccess(run *ledgerRun, result []byte, events *eventFile) error {
	err := j.report(run, false, func(ctx context.Context) error { return run.Succeed(ctx, result) })
	switch {
	case err == nil:
		events.addEvent(holdfast.EventRunSucceeded, fields{"result_bytes": len(result)})
		j.messages.printDetail("the run of %s has succeeded, and that is recorded", quoteName(run.Key()))
		return nil
	case errors.Is(err, holdfast.ErrLost):
		return &exitError{code: exitLost, outcome: outcomeLost, cause: endCauseOf(err), err: fmt.Errorf(
			"the command has succeeded, but the run of %s was lost before that was recorded, so it may be run again: %s",
			quoteName(run.Key()), lossText(err))}
	}
	events.addEvent(eventReportUnconfirmed, fields{"message": errorText(err)})
	return &exitError{code: exitNotRecorded, outcome: outcomeNotRecorded, err: fmt.Errorf(
		"the command has succeeded, but the store has not confirmed that this is recorded; unless it is, %s is run again; "+
			"check it with holdfast ledger show: %s", quoteName(run.Key()), errorText(err))}
}

// reportFailure ends the run as failed. It returns an error only if the run is known to be lost. A failure that cannot
// be recorded now is no other outcome: the run is abandoned after its TTL, and the key can be run again either way.
func (j *onceJob) reportFailure(run *ledgerRun, why string, lossReported bool, events *eventFile) error {
	err := j.report(run, lossReported, func(ctx context.Context) error { return run.Fail(ctx, errors.New(why)) })
	switch {
	case err == nil:
		events.addEvent(holdfast.EventRunFailed, fields{"message": oneLine(why)})
		j.messages.printDetail("the run of %s has failed, and that is recorded: %s", quoteName(run.Key()), why)
	case errors.Is(err, holdfast.ErrLost):
		if !lossReported {
			printStoreMessage("the run of %s was lost meanwhile: %s", quoteName(run.Key()), lossText(err))
		}
		return err
	default:
		events.addEvent(eventReportUnconfirmed, fields{"message": errorText(err)})
		printStoreMessage("it could not be recorded that the run of %s has failed; it counts as in progress "+
			"until its TTL has passed: %s", quoteName(run.Key()), errorText(err))
	}
	return nil
}

// withdrawRun ends a run whose command was certainly not started, as if it had not begun: it uses up no attempt. It
// returns an error only if the run is known to be lost.
func (j *onceJob) withdrawRun(run *ledgerRun, why string, events *eventFile) error {
	err := j.report(run, false, run.Withdraw)
	switch {
	case err == nil:
		events.addEvent(holdfast.EventRunFailed, fields{"message": oneLine("withdrawn: " + why)})
		j.messages.printDetail("the run of %s is withdrawn, and uses up no attempt: %s", quoteName(run.Key()), why)
	case errors.Is(err, holdfast.ErrLost):
		printStoreMessage("the run of %s was lost meanwhile: %s", quoteName(run.Key()), lossText(err))
		return err
	default:
		events.addEvent(eventReportUnconfirmed, fields{"message": errorText(err)})
		printStoreMessage("the run of %s, whose command was not started, could not be withdrawn; it counts as in progress "+
			"until its TTL has passed: %s", quoteName(run.Key()), errorText(err))
	}
	return nil
}

// report makes one report to the ledger. It tries for as long as nobody else can begin a run, within maxReportTime, but
// not for long if the store was found to be unreachable before.
func (j *onceJob) report(run *ledgerRun, lossReported bool, f func(context.Context) error) error {
	limit := max(driver.UnreachableTimeout(j.opts.TTL), min(run.Remaining(), maxReportTime))
	if lossReported {
		limit = time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return runWithTimeout(limit+time.Second, func() error { return f(ctx) })
}
