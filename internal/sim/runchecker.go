package sim

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// runChecker compares what workers see of a run ledger with the histories in the store. It sees every write of the
// store. Its fields are guarded by the mutex of its checker.
type runChecker struct {
	*checker
	runHistories
	ledgers map[string]*holdfast.LedgerOptions

	maxResult   int                          // bytes
	withdrawals int                          // runs that were taken out of their histories
	active      map[*holdfast.Run]*activeRun // runs whose workers act on them
	ended       map[string]bool              // by run id: it has ended in the store, perhaps before a failover
	reported    map[string]bool              // by run id: its worker has reported an outcome
	acked       map[string]driver.RunState   // by run id: the outcome that the ledger has acknowledged
	settleBy    map[string]time.Duration     // by run id: until when a report with an unknown outcome may take effect
	results     map[string]map[string]bool   // by key: the results of all runs that ever succeeded
	told        map[string]bool              // by run id: a worker has got it
}

// runHistories is what the store has. A failover that loses writes returns it to what it was.
type runHistories struct {
	keys map[string]*keyHistory
	byID map[string]*driver.Run // all runs ever, also of histories that were removed
}

// keyHistory is the history of a key since it was last removed.
type keyHistory struct {
	runs      []driver.Run               // all runs, in order, also those that are not kept any more
	kept      int64                      // the first attempt that the record has itself
	pages     map[string]map[int64]int64 // by page: the token of each attempt in it
	maxToken  int64                      // of all runs ever
	removals  int                        // how often the history was removed
	permits   map[int64]bool             // attempts after which an operator has allowed one more
	beat      int64                      // of the claim of the run in progress
	beatAt    time.Duration              // when that last changed
	ttl       time.Duration              // of that claim
	forgetAt  time.Duration              // since when the history may be removed; 0: never
	succeeded bool                       // a success was acknowledged to its worker
}

// activeRun is a run as its worker sees it.
type activeRun struct {
	host      *host
	key, job  string // job is empty if its slots may overlap
	suspended bool   // the host was suspended meanwhile: then only Valid counts
}

// newRunChecker shares the lock and the log of the checker for locks.
func newRunChecker(chk *checker) *runChecker {
	return &runChecker{
		checker:      chk,
		runHistories: runHistories{keys: map[string]*keyHistory{}, byID: map[string]*driver.Run{}},
		ledgers:      map[string]*holdfast.LedgerOptions{},
		active:       map[*holdfast.Run]*activeRun{},
		ended:        map[string]bool{},
		reported:     map[string]bool{},
		acked:        map[string]driver.RunState{},
		settleBy:     map[string]time.Duration{},
		results:      map[string]map[string]bool{},
		told:         map[string]bool{},
	}
}

// history returns what is known of a key.
func (c *runChecker) history(key string) *keyHistory {
	k := c.keys[key]
	if k == nil {
		k = &keyHistory{pages: map[string]map[int64]int64{}, permits: map[int64]bool{}}
		c.keys[key] = k
	}
	return k
}

func (k *keyHistory) lastRun() driver.Run {
	if len(k.runs) == 0 {
		return driver.Run{}
	}
	return k.runs[len(k.runs)-1]
}

// optionsOf returns the options of the ledger that a key belongs to.
func (c *runChecker) optionsOf(key string) holdfast.LedgerOptions {
	name, _, _ := strings.Cut(key, "/")
	if name == "" { // the lock of a job
		return holdfast.LedgerOptions{KeepRuns: 1}
	}
	if o := c.ledgers[name]; o != nil {
		return *o
	}
	return holdfast.LedgerOptions{}
}

// clocksAreTrue reports whether all times in the store come from one clock that was never set.
func (c *runChecker) clocksAreTrue() bool { return c.sim.kind != stepped }

const runPageMark = "\x1f"

// checkSwap checks the record that a swap has written: how the history has changed.
func (c *runChecker) checkSwap(row record.Row, by actor) {
	rec, err := record.Decode(row.Name, row.Data)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.addViolation("the ledger has a record that cannot be decoded: %v", err)
		return
	}
	var runs []driver.Run
	if rec.Runs != nil {
		runs = rec.Runs.Runs
	}
	key, page, isPage := strings.Cut(row.Name, runPageMark)
	k := c.history(key)
	if isPage {
		c.appendHistory(key, "page %s is written with %d runs, the first under token %d", page, len(runs), runs[0].Token)
		tokens := map[int64]int64{} // instead of those that the page had
		for _, run := range runs {
			// The request may be late, and the page that of a history that was removed meanwhile.
			if !c.ended[run.ID] || run.State == driver.RunStarted {
				c.addViolation("a page of %s has a run that has not ended: %+v%s", key, run, c.historyOf(key))
			}
			tokens[run.Attempt] = run.Token
		}
		k.pages[page] = tokens
		c.checkRunsKept(key, k)
		return
	}
	c.checkRunsAndClaims(key, runs, rec)
	if !by.forgets { // which may end a run unseen
		c.noteWithdrawal(key, k, runs)
	}
	if len(runs) == 0 {
		if len(k.runs) > 0 {
			c.noteHistoryRemoved(key, k, by.forgets)
		}
		return
	}
	if last := k.lastRun(); last.State == driver.RunStarted && runs[0].Attempt > last.Attempt {
		c.endUnseen(key, k) // it was abandoned and dropped in this step, because only the last run is kept
	}
	for i, run := range runs {
		switch at := run.Attempt - 1; {
		case run.Attempt != runs[0].Attempt+int64(i) || at > int64(len(k.runs)):
			c.addViolation("the history of %s has a gap before attempt %d", key, run.Attempt)
		case at < int64(len(k.runs)):
			c.checkRunChange(key, &k.runs[at], run)
		default:
			c.checkRunStart(key, k, run)
		}
	}
	if last := runs[len(runs)-1].Attempt; last != int64(len(k.runs)) {
		c.addViolation("the history of %s ends with attempt %d, and had %d", key, last, len(k.runs))
	}
	if k.kept != runs[0].Attempt {
		c.appendHistory(key, "the record has the runs %d to %d, and the pages %d to %d", runs[0].Attempt, len(k.runs),
			rec.Runs.Dropped, rec.Runs.Pages)
	}
	k.kept = runs[0].Attempt
	c.checkRunsKept(key, k)
	if by.retries && rec.Runs.RetryAfter > 0 {
		k.permits[rec.Runs.RetryAfter] = true
	}
	if len(rec.Claims) > 0 && rec.Claims[0].Beat != k.beat {
		k.beat, k.beatAt, k.ttl = rec.Claims[0].Beat, c.sim.elapsed(), rec.Claims[0].TTL
	}
	k.forgetAt = 0
	if o := c.optionsOf(key); o.KeepFor > 0 && k.lastRun().State != driver.RunStarted {
		k.forgetAt = c.sim.elapsed() + o.KeepFor
	}
}

// noteWithdrawal notes that the run in progress was taken out of its history. Nobody may know of it.
func (c *runChecker) noteWithdrawal(key string, k *keyHistory, runs []driver.Run) {
	last := k.lastRun()
	if last.State != driver.RunStarted || len(runs) == 0 && last.Attempt > 1 ||
		len(runs) > 0 && runs[len(runs)-1].Attempt != last.Attempt-1 {
		return
	}
	if c.told[last.ID] {
		c.addViolation("run %d of %s was taken out of its history, and its worker had got it", last.Attempt, key)
	}
	c.appendHistory(key, "run %d is withdrawn", last.Attempt)
	c.withdrawals++
	k.runs = k.runs[:len(k.runs)-1]
	delete(c.byID, last.ID)
}

// findRun returns the run of a history that has the same id and token.
func (k *keyHistory) findRun(run driver.Run) *driver.Run {
	if at := run.Attempt - 1; at >= 0 && at < int64(len(k.runs)) && k.runs[at].Token == run.Token {
		return &k.runs[at]
	}
	return nil
}

// checkRunsAndClaims checks that exactly the runs with a claim are started.
func (c *runChecker) checkRunsAndClaims(key string, runs []driver.Run, rec *record.Record) {
	claims := map[string]int64{}
	for _, claim := range rec.Claims {
		if claim.State == record.Granted {
			claims[claim.ID] = claim.Token
		}
	}
	for _, run := range runs {
		token, ok := claims[run.ID]
		if ok = ok && token == run.Token; ok != (run.State == driver.RunStarted) {
			c.addViolation("run %d of %s is %s, and its claim exists: %v", run.Attempt, key, run.State, ok)
		}
		if ok {
			delete(claims, run.ID)
		}
	}
	if len(claims) > 0 {
		c.addViolation("a claim on %s exists without a run", key)
	}
}

// checkRunStart checks a run that was added to a history.
func (c *runChecker) checkRunStart(key string, k *keyHistory, run driver.Run) {
	last, o := k.lastRun(), c.optionsOf(key)
	allowed := k.permits[last.Attempt] && last.Attempt > 0
	pause := run.StartedAt.Sub(last.EndedAt)
	switch {
	case run.State != driver.RunStarted:
		c.addViolation("run %d of %s was added as %s", run.Attempt, key, run.State)
	case last.State == driver.RunSucceeded:
		c.addViolation("run %d of %s began after one that had succeeded", run.Attempt, key)
	case last.State == driver.RunStarted:
		c.addViolation("run %d of %s began next to another one", run.Attempt, key)
	case run.Token <= k.maxToken:
		c.addViolation("token %d of %s came after %d", run.Token, key, k.maxToken)
	case last.Fingerprint != "" && run.Fingerprint != last.Fingerprint:
		c.addViolation("run %d of %s began with the payload %q in place of %q", run.Attempt, key, run.Fingerprint,
			last.Fingerprint)
	case o.MaxAttempts > 0 && run.Attempt > int64(o.MaxAttempts) && !allowed:
		c.addViolation("run %d of %s began without permission, after all attempts were used", run.Attempt, key)
	case o.Pause > 0 && last.Attempt > 0 && !allowed && c.clocksAreTrue() && pause < o.Pause-100*time.Millisecond:
		c.addViolation("run %d of %s began without permission, %v after the last, and the pause is %v", run.Attempt,
			key, pause, o.Pause)
	}
	k.maxToken = max(k.maxToken, run.Token)
	k.runs = append(k.runs, run)
	c.byID[run.ID] = &run
}

// checkRunChange checks how a run that was known has changed.
func (c *runChecker) checkRunChange(key string, was *driver.Run, run driver.Run) {
	if sameRun(*was, run) {
		return
	}
	same := *was
	if was.State == driver.RunStarted {
		same.State, same.EndedAt, same.Error, same.Result = run.State, run.EndedAt, run.Error, run.Result
	}
	if run.State == driver.RunAbandoned && was.LateReport == "" {
		same.LateReport = run.LateReport
	}
	switch {
	case !sameRun(same, run):
		c.addViolation("run %d of %s was changed: it was %+v, and is %+v", run.Attempt, key, *was, run)
	case was.State == driver.RunStarted:
		c.checkRunEnd(key, run)
	}
	*was = run
	c.byID[run.ID] = &run
}

// checkRunEnd checks that a run was ended by those who may end it.
func (c *runChecker) checkRunEnd(key string, run driver.Run) {
	c.ended[run.ID] = true
	if until, ok := c.settleBy[run.ID]; ok && run.State != driver.RunAbandoned && c.sim.elapsed() > until {
		c.addViolation("a report on %s, whose outcome was unknown, took effect only now", key)
	}
	if run.State == driver.RunFailed && !c.told[run.ID] && !c.reported[run.ID] {
		c.addViolation("run %d of %s has failed, and no worker ever got it", run.Attempt, key)
	}
	for r, a := range c.active {
		if r.ID() != run.ID || c.broken[run.ID] || !a.host.canAct() {
			continue
		}
		if run.State == driver.RunAbandoned && r.Valid() {
			c.addViolation("run %d of %s was ended by others while it was valid", run.Attempt, key)
		}
		if run.State != driver.RunAbandoned && !c.reported[run.ID] {
			c.addViolation("run %d of %s has %s, and its worker has not reported", run.Attempt, key, run.State)
		}
	}
	if run.State == driver.RunSucceeded {
		if c.results[key] == nil {
			c.results[key] = map[string]bool{}
		}
		c.results[key][string(run.Result)] = true
	}
}

// endUnseen notes that the run in progress was abandoned in the step that removed it from its history. It reports
// whether it may have been: its worker had not renewed it for its TTL, or was dead, or the run was broken. A renewal
// counts from when it was sent, which may be two of the usual TTLs before it reached the store.
func (c *runChecker) endUnseen(key string, k *keyHistory) bool {
	run := k.lastRun()
	run.State = driver.RunAbandoned
	c.checkRunEnd(key, run)
	k.runs[len(k.runs)-1] = run
	c.byID[run.ID] = &run
	owner := c.sim.hosts[run.Owner]
	return c.sim.elapsed()-k.beatAt > k.ttl-k.ttl/20-2*c.sim.ttl || c.broken[run.ID] || owner != nil && owner.hasCrashed()
}

// sameRun compares two readings of a run.
func sameRun(a, b driver.Run) bool {
	if !a.StartedAt.Equal(b.StartedAt) || !a.EndedAt.Equal(b.EndedAt) || !bytes.Equal(a.Result, b.Result) {
		return false
	}
	a.StartedAt, a.EndedAt, a.Result = b.StartedAt, b.EndedAt, nil
	b.Result = nil
	return fmt.Sprint(a) == fmt.Sprint(b)
}

// checkRunsKept checks that the runs of a history that must be kept are in the record or in pages.
func (c *runChecker) checkRunsKept(key string, k *keyHistory) {
	first := int64(1)
	if keep := int64(c.optionsOf(key).KeepRuns); keep > 0 {
		first = max(1, int64(len(k.runs))-keep+1)
	}
	for a := first; a < k.kept; a++ {
		if !k.isInPage(k.runs[a-1]) {
			c.addViolation("run %d of %s is not kept, of %d%s", a, key, len(k.runs), c.historyOf(key))
			return
		}
	}
}

// isInPage reports whether a page has a run.
func (k *keyHistory) isInPage(run driver.Run) bool {
	for _, tokens := range k.pages {
		if tokens[run.Attempt] == run.Token {
			return true
		}
	}
	return false
}

// noteHistoryRemoved checks that a history may be removed.
func (c *runChecker) noteHistoryRemoved(key string, k *keyHistory, byOperator bool) {
	late := k.forgetAt > 0 && c.sim.elapsed() >= k.forgetAt-time.Second
	switch {
	case k.lastRun().State == driver.RunStarted && !c.endUnseen(key, k):
		c.addViolation("the history of %s was removed while a run was in progress", key)
	case !byOperator && !late:
		c.addViolation("the history of %s was removed, and it must be kept", key)
	}
	k.runs, k.kept, k.succeeded, k.permits = nil, 0, false, map[int64]bool{}
	k.removals++
	c.appendHistory(key, "it is removed")
}

// checkDelete checks that a row was allowed to be deleted.
func (c *runChecker) checkDelete(row record.Row) {
	rec, err := record.Decode(row.Name, row.Data)
	c.mu.Lock()
	defer c.mu.Unlock()
	key, page, isPage := strings.Cut(row.Name, runPageMark)
	k := c.history(key)
	c.appendHistory(key, "row %q is deleted", page)
	switch {
	case !isPage && len(k.runs) > 0:
		c.noteHistoryRemoved(key, k, false)
	case isPage && err == nil && rec.Runs != nil:
		delete(k.pages, page)
		c.checkRunsKept(key, k)
	}
}

// beginCall is a call of Begin or History, as things were when it was made.
type beginCall struct {
	key, job  string // job is set if the slots of a job must not overlap
	at        time.Duration
	removals  int
	succeeded bool
	runs      []driver.Run
}

// noteCall notes that a call is made.
func (c *runChecker) noteCall(key string) beginCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.history(key)
	return beginCall{key, "", c.sim.elapsed(), k.removals, k.succeeded, slices.Clone(k.runs)}
}

// noteRunStart notes that a worker has got a run.
func (c *runChecker) noteRunStart(h *host, call beginCall, run *holdfast.Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grants++
	key := call.key
	k := c.history(key)
	known := c.byID[run.ID()]
	switch {
	case known == nil && c.readsAreCurrent():
		c.addViolation("a worker got a run of %s that is not in the history", key)
	case known != nil && (known.Token != run.Token() || known.Attempt != run.Attempt()):
		c.addViolation("a worker got run %d of %s under token %d, and the history has run %d under token %d",
			run.Attempt(), key, run.Token(), known.Attempt, known.Token)
	case call.succeeded && k.removals == call.removals:
		c.addViolation("a run of %s began after an acknowledged success", key)
	}
	c.told[run.ID()] = true
	c.active[run] = &activeRun{host: h, key: key, job: call.job}
	c.checkOverlappingRuns(key)
	c.checkOverlappingRuns(call.job)
}

// noteRunEnd notes that a worker has stopped acting on its run.
func (c *runChecker) noteRunEnd(run *holdfast.Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := c.active[run].key
	delete(c.active, run)
	if run.Err() != nil {
		c.losses++
		if c.sim.faultless {
			c.addViolation("a run of %s was lost though nothing went wrong: %v", key, run.Err())
		}
	}
}

func (c *runChecker) noteRunSuspension(h *host) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.active {
		a.suspended = a.suspended || a.host == h
	}
}

// checkAllRuns looks for two runs of one key, or of one job, at the same time.
func (c *runChecker) checkAllRuns() {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := map[string]bool{}
	for _, a := range c.active {
		keys[a.key], keys[a.job] = true, true
	}
	for key := range keys {
		c.checkOverlappingRuns(key)
	}
}

// checkOverlappingRuns checks that at most one worker acts on a run of a key or of a job, by their contexts and by
// Valid.
func (c *runChecker) checkOverlappingRuns(key string) {
	byContext, byValid := 0, 0
	for run, a := range c.active {
		if key == "" || a.key != key && a.job != key || !a.host.canAct() || c.broken[run.ID()] {
			continue
		}
		if !a.suspended && run.Context().Err() == nil {
			byContext++
		}
		if run.Valid() {
			byValid++
		}
	}
	if byContext > 1 || byValid > 1 {
		c.addViolation("overlapping runs of %s: %d by contexts, %d by Valid", key, byContext, byValid)
	}
}

// noteReport notes that a worker is about to report an outcome.
func (c *runChecker) noteReport(run *holdfast.Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reported[run.ID()] = true
}

// checkReportResult checks what a report has returned.
func (c *runChecker) checkReportResult(key string, run *holdfast.Run, state driver.RunState, result []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, k := c.byID[run.ID()], c.history(key)
	if known == nil { // of a run that a failover has removed
		if err == nil {
			c.addViolation("a report on %s was accepted, and its run is not in the history", key)
		}
		return
	}
	isInRecord := k.findRun(*known) != nil && known.Attempt >= k.kept
	switch {
	case err == nil && (known.State != state || !bytes.Equal(known.Result, result)):
		c.addViolation("run %d of %s was reported as %s, and the history does not show it: %+v", run.Attempt(), key,
			state, *known)
	case err == nil:
		c.acked[run.ID()] = state
		k.succeeded = k.succeeded || isInRecord && state == driver.RunSucceeded
	case errors.Is(err, holdfast.ErrUncertain):
		c.settleBy[run.ID()] = c.sim.elapsed() + 5*c.sim.ttl
	case !errors.Is(err, holdfast.ErrLost):
	case known.State == driver.RunSucceeded && state == driver.RunSucceeded && isInRecord:
		c.addViolation("a report on %s was refused, and the history shows it", key)
	case !isInRecord || !c.readsAreCurrent() || c.sim.kind == stepped:
	case known.State == driver.RunStarted:
		c.addViolation("a report on %s was refused, and its run has not ended", key)
	case known.LateReport == "" && state == driver.RunSucceeded:
		c.addViolation("a late report on %s is not noted", key)
	}
}

// checkRefusal checks why a run did not begin.
func (c *runChecker) checkRefusal(call beginCall, o *holdfast.RunOptions, refused *holdfast.RunError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, k, terms := call.key, c.history(call.key), c.optionsOf(call.key)
	extra := 500*time.Millisecond + c.sim.ttl/50
	isSame := k.removals == call.removals && c.readsAreCurrent()
	last := driver.Run{}
	if len(call.runs) > 0 {
		last = call.runs[len(call.runs)-1]
	}
	switch {
	case errors.Is(refused, holdfast.ErrSucceeded):
		c.checkStoredResult(key, refused.Run.Result)
	case errors.Is(refused, holdfast.ErrInProgress):
		if isSame && !c.sim.unclocked && c.clocksAreTrue() && refused.Run.ID == k.lastRun().ID && call.at-k.beatAt > k.ttl+extra {
			c.addViolation("%s could not be run %v after its worker had last renewed", key, call.at-k.beatAt)
		}
	case errors.Is(refused, holdfast.ErrMismatch):
		if o.Fingerprint == "" || o.Fingerprint == refused.Run.Fingerprint {
			c.addViolation("%s was refused as another payload, and it is the same", key)
		}
	case errors.Is(refused, holdfast.ErrAttemptsUsed):
		if terms.MaxAttempts == 0 || refused.Run.Attempt < int64(terms.MaxAttempts) {
			c.addViolation("%s was refused after %d attempts of %d", key, refused.Run.Attempt, terms.MaxAttempts)
		}
	case errors.Is(refused, holdfast.ErrTooSoon):
		if refused.RetryAfter <= 0 || refused.RetryAfter > terms.Pause {
			c.addViolation("%s was refused for %v, and the pause is %v", key, refused.RetryAfter, terms.Pause)
		}
	}
	if isSame && last.State == driver.RunSucceeded && !errors.Is(refused, holdfast.ErrSucceeded) &&
		!errors.Is(refused, holdfast.ErrMismatch) {
		c.addViolation("%s had succeeded, and was refused with: %v", key, refused)
	}
}

// checkStoredResult checks that a run of the key has succeeded with a result. It is called with mu held.
func (c *runChecker) checkStoredResult(key string, result []byte) {
	if !c.results[key][string(result)] {
		c.addViolation("the stored result of %s is %q, which no run has reported", key, result)
	}
}

// checkHistory checks a history that was read: it has all runs that had begun, as they were if they had ended.
func (c *runChecker) checkHistory(call beginCall, runs []holdfast.RunInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, o := c.history(call.key), c.optionsOf(call.key)
	if k.removals != call.removals || !c.readsAreCurrent() {
		return
	}
	for i, run := range runs {
		if run.Attempt != runs[0].Attempt+int64(i) {
			c.addViolation("the history of %s goes from attempt %d to %d", call.key, runs[0].Attempt+int64(i)-1, run.Attempt)
			return
		}
	}
	wanted := int64(len(call.runs))
	if wanted > 0 && c.byID[call.runs[wanted-1].ID] == nil { // it was withdrawn since
		wanted--
	}
	if len(runs) == 0 {
		if wanted > 0 {
			c.addViolation("the history of %s is empty, and %d runs had begun", call.key, wanted)
		}
		return
	}
	first := int64(1)
	if o.KeepRuns > 0 {
		first = max(1, int64(len(k.runs)-o.KeepRuns)+1)
	}
	if runs[0].Attempt > first || runs[len(runs)-1].Attempt < wanted {
		c.addViolation("the history of %s has the runs %d to %d, and should have %d to %d", call.key,
			runs[0].Attempt, runs[len(runs)-1].Attempt, first, wanted)
	}
	for _, run := range runs {
		if run.Attempt > wanted {
			break
		}
		was := call.runs[run.Attempt-1]
		changed := was.State != driver.RunStarted && (was.State != driver.RunState(run.State) ||
			!was.EndedAt.Equal(run.EndedAt) || was.Error != run.Error || !bytes.Equal(was.Result, run.Result))
		if was.ID != run.ID || was.Token != run.Token || changed {
			c.addViolation("run %d of %s was read as %+v, and is %+v", run.Attempt, call.key, run, was)
		}
	}
}

// recordKeys returns the keys that were ever run, in order.
func (c *runChecker) recordKeys() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.keys))
}

// saveHistories returns what the store has, so that a failover can return to it.
func (c *runChecker) saveHistories() runHistories {
	c.mu.Lock()
	defer c.mu.Unlock()
	saved := runHistories{keys: map[string]*keyHistory{}, byID: maps.Clone(c.byID)}
	for key, k := range c.keys {
		copied := *k
		copied.runs, copied.pages, copied.permits = slices.Clone(k.runs), maps.Clone(k.pages), maps.Clone(k.permits)
		saved.keys[key] = &copied
	}
	return saved
}

// revertHistories notes that the store has returned to what it had. What was acknowledged must still be there.
func (c *runChecker) revertHistories(saved runHistories) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runHistories = saved
	for id, state := range c.acked {
		if run := c.byID[id]; run == nil || run.State != state {
			c.addViolation("a report that was acknowledged as %s was lost in a failover", state)
		}
	}
}
