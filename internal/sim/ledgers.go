package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// ledgerKinds are the kinds of store of the simulations with ledgers. Half of them have nothing particular.
var ledgerKinds = []kind{"", broken, "", undurable, "", stepped}

// RunLedger runs one simulation in which the users run the keys of ledgers. An empty kind depends on the seed.
func RunLedger(seed uint64, only string) Report {
	sim := newSimulation(seed, chooseKind(ledgerKinds, seed, only), nil)
	sim.runs = newRunChecker(sim.checker)
	sim.storeShift = sim.upTo(20*time.Hour) - 10*time.Hour
	if sim.chance(0.5) {
		sim.maxRecord = 4<<10 + int(sim.randomFloat()*(12<<10))
	}
	return sim.run()
}

// The ledgers of a simulation. Each user runs the keys of all of them.
const (
	plainLedger    = "plain"
	limitedLedger  = "limited"  // few attempts, and a pause between them
	trimmedLedger  = "trimmed"  // only some runs are kept
	retainedLedger = "retained" // its histories are removed some time after their end
	slotLedger     = "slots"    // its keys are a job and a time slot
)

// slotLength is how long the slots of the job are. Some runs are longer.
const slotLength = 5 * time.Second

// oldKey is a key with many runs, so that its history has pages.
const oldKey = "old"

const (
	retention    = time.Minute
	keysInterval = 6 * time.Second // a new key per ledger comes that often
)

// prepareLedgers opens the ledgers. All clients have then read the store's clock: see setStoreClock.
func (sim *simulation) prepareLedgers() {
	sim.runs.ledgers = map[string]*holdfast.LedgerOptions{
		plainLedger:    nil,
		limitedLedger:  {MaxAttempts: 3, Pause: sim.upTo(sim.ttl).Truncate(time.Millisecond)},
		trimmedLedger:  {KeepRuns: 1 + int(sim.randomFloat()*30)},
		retainedLedger: {KeepFor: retention, TTL: 24 * time.Hour},
		slotLedger:     nil,
	}
	client, err := holdfast.New(sim.operator, &holdfast.Options{TTL: sim.ttl, Owner: "operator"})
	if err != nil {
		panic(err)
	}
	sim.operatorClient = client
	if sim.operatorLedger, err = sim.operator.OpenLedger(context.Background()); err != nil {
		panic(err)
	}
	sim.runs.maxResult = sim.operatorLedger.Info().MaxRunResult
	for _, name := range []string{plainLedger, slotLedger} { // the longest note for which there is room besides other texts
		sim.runs.ledgers[name] = &holdfast.LedgerOptions{Meta: strings.Repeat("m", sim.operatorLedger.Info().MaxMeta/2)}
	}
	sim.gentle.Store(true)
	defer sim.gentle.Store(false)
	clients := []*holdfast.Client{client}
	for _, h := range sim.hosts {
		clients = append(clients, h.client)
	}
	for _, c := range clients {
		if _, err := c.Ledger(plainLedger, nil).History(context.Background(), oldKey); err != nil {
			panic(err)
		}
	}
	if sim.chance(0.5) {
		sim.addOldRuns(plainLedger)
		sim.addOldRuns(trimmedLedger)
	}
}

// addOldRuns fails a key so often that the next runs move the first ones to a page.
func (sim *simulation) addOldRuns(ledger string) {
	l := sim.operatorClient.Ledger(ledger, sim.runs.ledgers[ledger])
	for range 28 {
		run, err := l.Begin(context.Background(), oldKey, nil)
		if err == nil {
			sim.runs.noteReport(run)
			err = run.Fail(context.Background(), nil)
		}
		if err != nil {
			sim.reportViolation("the operator cannot run %s: %v", oldKey, err)
		}
	}
}

// chooseKey returns a key to run: usually the newest one of a ledger, which others run as well.
func (sim *simulation) chooseKey() (ledger, key string) {
	ledger = []string{plainLedger, plainLedger, limitedLedger, trimmedLedger}[int(sim.randomFloat()*4)]
	if ledger != limitedLedger && sim.chance(0.15) {
		return ledger, oldKey
	}
	n := int(min(sim.elapsed(), lifetime) / keysInterval)
	if sim.chance(0.3) {
		n = int(sim.randomFloat() * float64(n+1))
	}
	return ledger, fmt.Sprint("event", n)
}

// useLedger is one turn of a user: it runs a key, or reads a history.
func (sim *simulation) useLedger(ctx context.Context, h *host) {
	if sim.chance(0.15) {
		sim.runJob(ctx, h)
		return
	}
	name, key := sim.chooseKey()
	l := h.client.Ledger(name, sim.runs.ledgers[name])
	call := sim.runs.noteCall(name + "/" + key)
	opts := &holdfast.RunOptions{Wait: sim.chance(0.4)}
	switch p := sim.randomFloat(); {
	case p < 0.4:
		opts.Fingerprint = "the payload of " + key
	case p < 0.45:
		opts.Fingerprint = "another payload"
	}
	switch p := sim.randomFloat(); {
	case p < 0.1:
		sim.readHistory(ctx, h, l, call, key)
	case p < 0.4:
		sim.doKey(ctx, h, l, call, key, opts)
	default:
		sim.runKey(ctx, h, l, call, key, opts)
	}
}

// runJob runs a job once per time slot. The store's clock decides which slot it is, and the clocks of all hosts are
// wrong by the same time, up to ten hours.
func (sim *simulation) runJob(ctx context.Context, h *host) {
	l := h.client.Ledger(slotLedger, sim.runs.ledgers[slotLedger])
	from := sim.storeTime()
	slot, err := l.CurrentSlot(ctx, holdfast.Every(slotLength))
	to := sim.storeTime()
	if h.waitUntilRunning(context.Background()) != nil {
		return
	}
	switch {
	case err != nil:
		sim.checkError("the slot", err)
	case sim.kind != stepped && (slot.Start.After(to.Add(slot.MaxError)) || !slot.End.After(from.Add(-slot.MaxError))):
		sim.reportViolation("the slot is %v to %v by another clock than the store's, which showed %v to %v",
			slot.Start, slot.End, from, to)
	default:
		key := slot.Key("job")
		call, opts := sim.runs.noteCall(slotLedger+"/"+key), &holdfast.RunOptions{Wait: sim.chance(0.4)}
		if sim.chance(0.8) {
			call.job, opts.Slot = slotLedger+"/job", &slot
		}
		sim.runKey(ctx, h, l, call, key, opts)
	}
}

// storeTime returns the store's clock.
func (sim *simulation) storeTime() time.Time {
	return time.UnixMicro(sim.memory.Table().TokenFloor()).Add(sim.storeShift)
}

// runKey begins a run, works, and reports.
func (sim *simulation) runKey(ctx context.Context, h *host, l *holdfast.Ledger, call beginCall, key string,
	opts *holdfast.RunOptions) {
	run, err := l.Begin(ctx, key, opts)
	if h.waitUntilRunning(context.Background()) != nil {
		return // the host has crashed: its user never learns of a run
	}
	if err != nil {
		sim.checkRunError(call, opts, err)
		return
	}
	if !sim.workOnRun(h, call, run) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	if sim.chance(0.3) {
		ctx, cancel = context.WithTimeout(context.Background(), sim.upTo(sim.ttl))
	}
	defer cancel()
	sim.reportOutcome(ctx, call.key, run)
}

// workOnRun works on a run for a while. Some workers go on although they have lost their run. It returns false if the
// host has crashed.
func (sim *simulation) workOnRun(h *host, call beginCall, run *holdfast.Run) bool {
	sim.runs.noteRunStart(h, call, run)
	if sim.chance(0.6) {
		sim.waitWhileHeld(run.Context())
	} else {
		time.Sleep(sim.upTo(2 * sim.ttl))
	}
	if h.waitUntilRunning(context.Background()) != nil {
		return false
	}
	sim.runs.noteRunEnd(run)
	return true
}

// reportOutcome reports the end of a run: half of them have succeeded.
func (sim *simulation) reportOutcome(ctx context.Context, key string, run *holdfast.Run) {
	if sim.chance(0.02) {
		err := run.Succeed(ctx, make([]byte, sim.runs.maxResult+1))
		if !errors.Is(err, holdfast.ErrInvalid) {
			sim.reportViolation("a result that is too large: %v", err)
		}
	}
	sim.runs.noteReport(run)
	state, result := driver.RunFailed, []byte(nil)
	var err error
	if sim.chance(0.5) {
		state, result = driver.RunSucceeded, sim.resultOf(run)
		err = run.Succeed(ctx, result)
	} else {
		err = run.Fail(ctx, errWorkFailed)
	}
	sim.runs.checkReportResult(key, run, state, result, err)
	if err != nil && sim.faultless && ctx.Err() == nil {
		sim.reportViolation("reporting on %s: %v", key, err)
	}
}

// errWorkFailed has a text that takes six times its length in a record.
var errWorkFailed = errors.New("the work has failed: " + strings.Repeat("<", 200))

// resultOf is what a run stores: no other run has the same. Where records are small, some results have the largest
// size.
func (sim *simulation) resultOf(run *holdfast.Run) []byte {
	result := []byte(run.ID())
	if sim.maxRecord > 0 && run.Token()%2 == 0 {
		result = append(result, make([]byte, max(0, sim.runs.maxResult-len(result)))...)
	}
	return result
}

// doKey runs a key with Do.
func (sim *simulation) doKey(ctx context.Context, h *host, l *holdfast.Ledger, call beginCall, key string,
	opts *holdfast.RunOptions) {
	var run *holdfast.Run
	succeeds := sim.chance(0.5)
	result, err := l.Do(ctx, key, opts, func(_ context.Context, r *holdfast.Run) ([]byte, error) {
		if h.waitUntilRunning(context.Background()) != nil || !sim.workOnRun(h, call, r) {
			return nil, errCrashed
		}
		sim.runs.noteReport(r)
		run = r
		if succeeds {
			return sim.resultOf(r), nil
		}
		return nil, errWorkFailed
	})
	switch {
	case h.waitUntilRunning(context.Background()) != nil:
	case run != nil && succeeds:
		sim.runs.checkReportResult(call.key, run, driver.RunSucceeded, sim.resultOf(run), err)
	case run != nil && !errors.Is(err, errWorkFailed):
		sim.reportViolation("Do of %s whose function fails: %v", key, err)
	case run == nil && err == nil:
		sim.runs.mu.Lock()
		defer sim.runs.mu.Unlock()
		sim.runs.checkStoredResult(call.key, result)
	case run == nil:
		sim.checkRunError(call, opts, err)
	}
}

// checkRunError reports a violation unless a run may have been refused with the error.
func (sim *simulation) checkRunError(call beginCall, opts *holdfast.RunOptions, err error) {
	var refused *holdfast.RunError
	if errors.As(err, &refused) && !errors.Is(err, context.DeadlineExceeded) {
		sim.runs.checkRefusal(call, opts, refused)
		return
	}
	if errors.Is(err, driver.ErrLost) && sim.kind == broken || opts.Slot != nil && (errors.Is(err, holdfast.ErrMissed) ||
		errors.Is(err, holdfast.ErrLost) && !sim.faultless) { // the run, while it waited for another slot
		return
	}
	sim.checkError(call.key, err)
}

// readHistory reads the runs of a key and compares them with what its workers did.
func (sim *simulation) readHistory(ctx context.Context, h *host, l *holdfast.Ledger, call beginCall, key string) {
	runs, err := l.History(ctx, key)
	if h.waitUntilRunning(context.Background()) != nil {
		return
	}
	if err != nil {
		sim.checkError(call.key, err)
		return
	}
	sim.runs.checkHistory(call, runs)
}

// operateLedgers is what an operator does now and then: it allows a retry, or forgets a history.
func (sim *simulation) operateLedgers() {
	for !sim.faultsStopped.Load() {
		time.Sleep(sim.upTo(2 * time.Second))
		name, key := sim.chooseKey()
		l := sim.operatorClient.Ledger(name, sim.runs.ledgers[name])
		ctx := context.Background()
		if sim.chance(0.7) {
			err := l.Retry(context.WithValue(ctx, actorKey{}, actor{retries: true}), key)
			if !errors.Is(err, holdfast.ErrInvalid) { // it was never run
				sim.checkOperatorError("retry", key, err)
			}
		} else {
			err := l.Forget(context.WithValue(ctx, actorKey{}, actor{forgets: true}), key)
			sim.checkOperatorError("forget", key, err)
		}
	}
}

func (sim *simulation) checkOperatorError(what, key string, err error) {
	var refused *holdfast.RunError
	if err == nil || errors.As(err, &refused) || sim.isExpectedError(err) {
		return
	}
	sim.reportViolation("the operator cannot %s %s: %v", what, key, err)
}

// breakRuns makes the operator break the run of a key.
func (sim *simulation) breakRuns() {
	name, key := sim.chooseKey()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	lock, err := sim.operatorLedger.Inspect(ctx, name+"/"+key)
	if err != nil {
		sim.reportViolation("the operator cannot inspect %s: %v", key, err)
		return
	}
	for _, holder := range lock.Holders {
		mode := driver.BreakForce
		if sim.chance(0.2) {
			mode = driver.BreakGraceful
		}
		sim.checker.noteBreak(holder.Ref)
		if err := sim.operatorLedger.Break(ctx, lock.Name, holder.Ref, driver.Break{Mode: mode}); err != nil && !errors.Is(err, driver.ErrLost) {
			sim.reportViolation("the operator cannot break a run of %s: %v", key, err)
		}
	}
}

// checkLedgersAtEnd checks what remains at the end: every key can be run or has succeeded, and all histories are
// complete.
func (sim *simulation) checkLedgersAtEnd() {
	h := sim.hosts["host0"]
	for _, recordKey := range sim.runs.recordKeys() {
		if !strings.HasPrefix(recordKey, "/") { // the lock of a job
			sim.runAtEnd(h, recordKey)
		}
	}
	for name, opts := range sim.runs.ledgers {
		sim.checkList(h.client.Ledger(name, opts))
	}
	if sim.checksRetention {
		sim.checkRetention(h)
	}
	if err := sim.operatorClient.Close(); err != nil {
		sim.reportViolation("closing the operator's client: %v", err)
	}
}

// runAtEnd runs a key once more, which must be possible once all abandoned runs have expired.
func (sim *simulation) runAtEnd(h *host, recordKey string) {
	limit := 10*sim.ttl + 30*time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	name, key, _ := strings.Cut(recordKey, "/")
	l := h.client.Ledger(name, sim.runs.ledgers[name])
	opts := &holdfast.RunOptions{Wait: true}
	for {
		call := sim.runs.noteCall(recordKey)
		run, err := l.Begin(ctx, key, opts)
		var refused *holdfast.RunError
		switch {
		case err == nil:
			sim.runs.noteRunStart(h, call, run)
			sim.runs.noteRunEnd(run)
			sim.reportOutcome(ctx, recordKey, run)
		case errors.Is(err, holdfast.ErrTooSoon) && errors.As(err, &refused) && ctx.Err() == nil:
			time.Sleep(max(refused.RetryAfter, time.Millisecond))
			continue
		case errors.As(err, &refused) && ctx.Err() == nil:
			sim.runs.checkRefusal(call, opts, refused)
		case name == limitedLedger && !sim.runs.clocksAreTrue(): // a clock that was set back makes a pause longer
		default:
			sim.reportViolation("%s could not be run in %v after the faults had stopped: %v", recordKey, limit, err)
		}
		break
	}
	sim.readHistory(context.Background(), h, l, sim.runs.noteCall(recordKey), key)
}

// checkList checks that a ledger lists each key with its last run.
func (sim *simulation) checkList(l *holdfast.Ledger) {
	listed := map[string]int64{}
	for run, err := range l.List(context.Background(), "") {
		if err != nil {
			sim.reportViolation("listing %s: %v", l.Name(), err)
		}
		listed[l.Name()+"/"+run.Key] = run.Attempt
	}
	sim.runs.mu.Lock()
	defer sim.runs.mu.Unlock()
	for key, k := range sim.runs.keys {
		if strings.HasPrefix(key, l.Name()+"/") && listed[key] != int64(len(k.runs)) {
			sim.runs.addViolation("%s is listed with attempt %d of %d", key, listed[key], len(k.runs))
		}
	}
}

// checkRetention lets hours pass, in which the clients remove old histories. That of a run in progress stays.
func (sim *simulation) checkRetention(h *host) {
	const name, old, running = retainedLedger, "ended", "running"
	l := h.client.Ledger(name, sim.runs.ledgers[name])
	var last *holdfast.Run
	for _, key := range []string{old, running, running} {
		run, err := l.Begin(context.Background(), key, nil)
		if err != nil {
			sim.reportViolation("%s could not be run: %v", key, err)
			return
		}
		if last = run; key == old || run.Attempt() == 1 {
			sim.runs.noteReport(run)
			err = run.Fail(context.Background(), errWorkFailed)
			sim.runs.checkReportResult(name+"/"+key, run, driver.RunFailed, nil, err)
		}
	}
	for i := range 3 { // the end of a run starts a sweep if none was made for an hour
		time.Sleep(61 * time.Minute)
		sim.runAtEnd(h, fmt.Sprint(plainLedger, "/later", i))
	}
	time.Sleep(time.Minute)
	sim.readHistory(context.Background(), h, l, sim.runs.noteCall(name+"/"+running), running)
	sim.runs.noteReport(last)
	err := last.Succeed(context.Background(), sim.resultOf(last))
	sim.runs.checkReportResult(name+"/"+running, last, driver.RunSucceeded, sim.resultOf(last), err)
	if err != nil {
		sim.reportViolation("a run that was renewed for hours: %v", err)
	}
	if runs, err := l.History(context.Background(), old); err != nil || len(runs) > 0 {
		sim.reportViolation("hours after its time the history of %s has %d runs, %v", old, len(runs), err)
	}
}

// checkNoRunsLeft checks that no run is in progress in a simulation in which nothing went wrong.
func (sim *simulation) checkNoRunsLeft() {
	sim.runs.mu.Lock()
	defer sim.runs.mu.Unlock()
	for key, k := range sim.runs.keys {
		if k.lastRun().State == driver.RunStarted {
			sim.runs.addViolation("a run of %s is left in progress", key)
		}
		if at := slices.IndexFunc(k.runs, func(r driver.Run) bool { return r.State == driver.RunAbandoned }); at >= 0 {
			sim.runs.addViolation("run %d of %s was abandoned though nothing went wrong", at+1, key)
		}
	}
}

// ledgerTable returns the store's table of histories.
func (sim *simulation) ledgerTable() record.Table {
	if sim.revertible != nil {
		return sim.revertible
	}
	table, err := sim.memory.Table().OpenLedgerTable(context.Background())
	if err != nil {
		panic(err)
	}
	return table
}
