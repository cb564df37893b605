package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// checker compares the leases of the users with the state of the store, and collects violations. Most of its maps are
// by claim id.
type checker struct {
	sim *simulation

	mu            sync.Mutex
	violations    []string
	leases        map[string]map[*holdfast.Lease]*heldLease // by lock
	tokens        map[string]map[int64]bool
	maxToken      map[string]int64           // by lock: the largest token of an exclusive grant that a user got
	releasedIDs   map[string]bool            // claims whose release has succeeded
	releasing     map[string]bool            // claims whose release was called
	releasers     map[string]*host           // the client that called it last
	arrival       map[string]int             // the position of each claim in the order of arrival
	claims        map[string]map[string]bool // by lock and claim id: the claims in the store, and whether they hold
	grantedAt     map[string]time.Duration   // when the store granted each claim
	detachedUntil map[string]time.Duration   // until when each detached claim must be held
	broken        map[string]bool            // claims that an operator breaks, or has broken
	refs          map[string]string          // the ref of each claim
	grantKnown    map[string]bool            // whether the client knows that the claim was granted
	endedAt       map[string]time.Duration   // when each claim was ended
	endedBy       map[string]ender           // who ended each holder, and each broken waiter
	superseded    map[string]bool            // the claims that are newest-only, and behind which a newer one has waited
	notesFull     map[string]bool            // the locks whose records have had as many notes as are kept
	waiting       map[string]wait            // claims whose Acquire waits
	revertedAt    time.Duration              // when the store last lost writes
	histories     map[string][]string        // what happened to each claim, shown with a violation
	arrivals      int
	ejected       int
	grants        int
	losses        int
}

// heldLease is a lease as its user sees it.
type heldLease struct {
	host      *host
	weight    int64
	limit     int64
	minHold   time.Duration // of a LockAll
	maxHold   time.Duration
	progress  time.Duration
	steps     int           // of the work: its user notes progress after each
	stepAt    time.Duration // when it did last; 0: it has not
	heldFrom  time.Duration
	valid     func() bool     // whether the user may act as the holder; nil: the lease's Valid
	ctx       context.Context // ends when the user must stop; nil: the lease's
	suspended bool            // the host was suspended meanwhile: then only Valid counts, because a timer may be late
	reentered bool            // it was entered twice, and each entry has a context of its own
	numbered  bool            // it is of a semaphore, on a store where permits have numbers
}

// newChecker knows nothing yet: it learns all from what hosts do.
func newChecker(sim *simulation) *checker {
	return &checker{
		sim:           sim,
		leases:        map[string]map[*holdfast.Lease]*heldLease{},
		tokens:        map[string]map[int64]bool{},
		maxToken:      map[string]int64{},
		releasedIDs:   map[string]bool{},
		releasing:     map[string]bool{},
		releasers:     map[string]*host{},
		arrival:       map[string]int{},
		claims:        map[string]map[string]bool{},
		grantedAt:     map[string]time.Duration{},
		detachedUntil: map[string]time.Duration{},
		broken:        map[string]bool{},
		refs:          map[string]string{},
		grantKnown:    map[string]bool{},
		endedAt:       map[string]time.Duration{},
		endedBy:       map[string]ender{},
		superseded:    map[string]bool{},
		notesFull:     map[string]bool{},
		waiting:       map[string]wait{},
		histories:     map[string][]string{},
	}
}

func (chk *checker) addViolation(format string, args ...any) {
	if len(chk.violations) < 5 {
		chk.violations = append(chk.violations, fmt.Sprintf("at %v: ", chk.sim.elapsed())+fmt.Sprintf(format, args...))
	}
}

// appendHistory adds to a claim's history. It is called with mu held.
func (chk *checker) appendHistory(id, format string, args ...any) {
	chk.histories[id] = append(chk.histories[id],
		fmt.Sprintf("\n\t%v: ", chk.sim.elapsed())+fmt.Sprintf(format, args...))
}

// logEvent is appendHistory for callers that do not hold mu.
func (chk *checker) logEvent(id, format string, args ...any) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	chk.appendHistory(id, format, args...)
}

// historyOf returns everything that happened to a claim.
func (chk *checker) historyOf(id string) string { return strings.Join(chk.histories[id], "") }

// noteLeaseStart notes that a user got a lease, and checks its token.
func (chk *checker) noteLeaseStart(name string, l *holdfast.Lease, t *heldLease) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	chk.grants++
	if chk.leases[name] == nil {
		chk.leases[name], chk.tokens[name] = map[*holdfast.Lease]*heldLease{}, map[int64]bool{}
	}
	if chk.tokens[name][l.Token()] {
		chk.addViolation("token %d of %s was granted twice", l.Token(), name)
	}
	chk.tokens[name][l.Token()] = true
	t.heldFrom = chk.sim.elapsed()
	if t.valid == nil {
		t.valid = l.Valid
	}
	if t.ctx == nil {
		t.ctx = l.Context()
	}
	// A host can be stopped after a lock was granted and before its user gets it. If the lease was lost meanwhile,
	// Valid returns false.
	if t.weight == t.limit && t.valid() && !chk.broken[l.ID()] {
		if l.Token() <= chk.maxToken[name] {
			chk.addViolation("token %d of %s came after %d", l.Token(), name, chk.maxToken[name])
		}
		chk.maxToken[name] = l.Token()
	}
	chk.leases[name][l] = t
	chk.checkOverlap(name)
}

// noteLeaseEnd notes that a user has stopped acting as the holder, and checks why the lease was lost.
func (chk *checker) noteLeaseEnd(name string, l *holdfast.Lease, lost bool) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	t := chk.leases[name][l]
	delete(chk.leases[name], l)
	chk.appendHistory(l.ID(), "its user stops using it: %v", l.Err())
	var loss *holdfast.LossError
	if lost {
		chk.losses++
		errors.As(l.Err(), &loss)
		chk.checkLossCause(name, l, t, loss)
		isNoProgress := loss != nil && loss.Cause == holdfast.LossNoProgress
		if isNoProgress && chk.sim.faultless && chk.quietFor(t) < t.progress-t.progress/10 { // else a clock was set forward
			chk.addViolation("a lease of %s was lost for want of progress, which was noted %v ago", name, chk.quietFor(t))
		}
		if chk.sim.faultless && (loss == nil || loss.Cause != holdfast.LossMaxHold) && !isNoProgress && !chk.broken[l.ID()] {
			chk.addViolation("a lease of %s was lost though nothing went wrong: %v", name, l.Err())
		}
	}
}

// noteProgress notes progress under a lease. It counts if the lease is valid after that.
func (chk *checker) noteProgress(l *holdfast.Lease, t *heldLease) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	if at := chk.sim.elapsed(); l.Progress() {
		t.stepAt = at
	}
}

// quietFor is how long ago the last progress under a lease was, or its grant.
func (chk *checker) quietFor(t *heldLease) time.Duration {
	return chk.sim.elapsed() - max(t.heldFrom, t.stepAt)
}

// noteSuspension notes that a host is suspended.
func (chk *checker) noteSuspension(h *host) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	for _, ts := range chk.leases {
		for _, t := range ts {
			t.suspended = t.suspended || t.host.machine == h.machine
		}
	}
}

// checkAllLocks checks all locks for overlaps.
func (chk *checker) checkAllLocks() {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	for name := range chk.leases {
		chk.checkOverlap(name)
	}
}

// checkOverlap checks that the users that act as holders of a lock fit within its limit. It adds up the weight of the
// leases whose context has not ended, and separately of those for which Valid is true.
func (chk *checker) checkOverlap(name string) {
	var byContext, byValid, limit int64
	permits := map[int64]bool{}
	for l, t := range chk.leases[name] {
		if !t.host.canAct() || chk.broken[l.ID()] { // after a forced break, a holder acts until it learns of it
			continue
		}
		limit = t.limit
		weight := t.weight
		if t.limit == driver.RWLimit { // it can change
			weight = 1
			if l.Exclusive() {
				weight = t.limit
			}
		}
		if !t.suspended && !t.reentered && t.ctx.Err() == nil {
			byContext += weight
		}
		if t.valid() {
			chk.checkPermits(name, l, t, permits)
			byValid += weight
			if quiet := chk.quietFor(t); t.progress > 0 && quiet > t.progress+t.progress/100 {
				chk.addViolation("a lease of %s was valid for %v without progress, and Progress is %v", name, quiet, t.progress)
			}
			if held := chk.sim.elapsed() - t.heldFrom; t.maxHold > 0 && held > t.maxHold+t.maxHold/100 {
				chk.addViolation("a lease of %s was valid for %v, and MaxHold is %v", name, held, t.maxHold)
			}
		}
	}
	if byContext > limit || byValid > limit {
		chk.addViolation("overlapping holders on %s: weight by contexts %d, by Valid %d, limit %d", name, byContext, byValid, limit)
	}
}

// checkPermits checks that a valid lease of a semaphore has as many permits as its weight, within the limit, and none
// of those that are taken. It adds them.
func (chk *checker) checkPermits(name string, l *holdfast.Lease, t *heldLease, taken map[int64]bool) {
	permits, err := l.Permits()
	if !t.numbered {
		if !errors.Is(err, holdfast.ErrUnsupported) {
			chk.addViolation("a lease of %s has the permits %v, %v", name, permits, err)
		}
		return
	}
	if err != nil || int64(len(permits)) != t.weight {
		chk.addViolation("a lease of %s with weight %d has the permits %v, %v", name, t.weight, permits, err)
	}
	for _, n := range permits {
		if n < 0 || n >= t.limit || taken[n] {
			chk.addViolation("permit %d of %s, of %d, is held twice, or does not exist", n, name, t.limit)
		}
		taken[n] = true
	}
}

// checkRenewalResult checks that a renewal does not succeed if the claim had been broken before it was asked for.
func (chk *checker) checkRenewalResult(g driver.Grant, asked time.Duration, r driver.Renewal) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	if chk.sim.tree != nil && r.Err == nil && chk.enderOf(g.ID) == operator &&
		asked > chk.endedAt[chk.endKey(g.ID)] {
		chk.addViolation("a lease of %s was renewed although its claim had been broken%s", g.Name, chk.historyOf(g.ID))
	}
}

// checkRenewal checks that a claim is not renewed once its release has succeeded.
func (chk *checker) checkRenewal(g driver.Grant) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	if chk.releasedIDs[g.ID] {
		chk.addViolation("a lease of %s was renewed after its release", g.Name)
	}
}

// noteRelease notes that a release has succeeded, and checks that it was this release that ended the claim.
func (chk *checker) noteRelease(c driver.Claim) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	chk.releasedIDs[c.ID] = true
	// A claim that was never known to be granted may be kept from being added again, whatever became of it before.
	// If its TTL has passed since then, its holder knows that the claim is lost.
	by := chk.enderOf(c.ID)
	endedByOther := chk.grantKnown[c.ID] && by != "" && by != itself
	if endedByOther && chk.readsAreCurrent() && chk.noteIsKept(c.ID) {
		chk.addViolation("a release on %s succeeded, but its claim had been ended by %s%s", c.Name, by,
			chk.historyOf(c.ID))
	}
}

func (chk *checker) noteReleaseStart(id string, by *host) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	chk.releasing[id], chk.releasers[id] = true, by
}

// noteDetachStart notes that a claim is about to be detached. It may have ended before its user learns of that.
func (chk *checker) noteDetachStart(id string, by *host, keep time.Duration) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	chk.detachedUntil[id] = max(chk.detachedUntil[id], 0)
	chk.appendHistory(id, "%s detaches it for %v", by.name, keep)
}

// noteDetached notes that a claim was detached for the time keep, which counts from the given moment, or from the
// claim's grant if that moment is 0.
func (chk *checker) noteDetached(id string, from, keep time.Duration) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	if from == 0 {
		from = chk.grantedAt[id]
	}
	until := from + keep - keep/50 // clocks run at different rates
	chk.detachedUntil[id] = until
	at, ended := chk.endedAt[id]
	if ended && at < until && !chk.exists(id) && !chk.broken[id] && chk.sim.tree == nil && chk.readsAreCurrent() {
		chk.addViolation("a claim was to be held until %v, but was removed at %v%s", until, at, chk.historyOf(id))
	}
}

// exists reports whether a claim is in the store. It is called with mu held.
func (chk *checker) exists(id string) bool {
	for _, claims := range chk.claims {
		if _, ok := claims[id]; ok {
			return true
		}
	}
	return false
}

// noteDetachedRelease notes that a detached claim is about to be released.
func (chk *checker) noteDetachedRelease(id string) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	delete(chk.detachedUntil, id)
	chk.releasing[id] = true
}

// checkSwap checks the record that a swap has written: which claims were granted, in which order, and which were
// removed.
func (chk *checker) checkSwap(row record.Row, by actor) {
	rec, err := record.Decode(row.Name, row.Data)
	chk.mu.Lock()
	defer chk.mu.Unlock()
	if err != nil {
		chk.addViolation("the store has a record that cannot be decoded: %v", err)
		return
	}
	now := map[string]bool{}
	var granted int64
	if len(rec.Ended) >= driver.MaxWaiters {
		chk.notesFull[row.Name] = true
	}
	for _, c := range rec.Claims {
		now[c.ID] = c.State == record.Granted
		switch chk.endedBy[c.ID] {
		case operator: // a note of this is kept for a TTL; a client that was stopped for longer may not learn of it
			if chk.noteIsKept(c.ID) && (rec.NotesDroppedUntil == 0 || !chk.notesFull[row.Name]) {
				// otherwise there were more endings than notes are kept
				chk.addViolation("on %s a claim that an operator had broken exists again", row.Name)
			}
			delete(chk.endedBy, c.ID)
		case another: // its Acquire did not learn that it held, and adds the claim again
			delete(chk.endedBy, c.ID)
		}
		if _, ok := chk.arrival[c.ID]; !ok {
			chk.arrivals++
			chk.arrival[c.ID] = chk.arrivals
		}
		if c.Detached && !chk.tokens[row.Name][c.Token] {
			chk.addViolation("a claim on %s outlives its lease, which no user ever had%s", row.Name, chk.historyOf(c.ID))
		}
		if c.State == record.Granted {
			granted += c.Weight
			if _, ok := chk.grantedAt[c.ID]; !ok {
				chk.grantedAt[c.ID] = chk.sim.elapsed()
			}
		}
	}
	if granted > rec.Limit {
		chk.addViolation("the store has granted %d of %d on %s", granted, rec.Limit, row.Name)
	}
	chk.checkOrder(row.Name, rec)
	chk.checkNewest(row.Name, rec)
	for id, held := range chk.claims[row.Name] {
		if _, ok := now[id]; !ok {
			chk.noteClaimEnd(row.Name, id, held, rec, by)
			until, detached := chk.detachedUntil[id]
			if detached && chk.sim.elapsed() < until && !chk.broken[id] {
				chk.addViolation("a claim on %s was to be held until %v, but was removed", row.Name, until)
			}
			if !chk.releasing[id] && !chk.superseded[id] {
				chk.ejected++
				if chk.sim.faultless && !detached && !chk.broken[id] {
					chk.addViolation("a claim on %s was removed though nothing went wrong%s", row.Name, chk.historyOf(id))
				}
			}
			delete(chk.arrival, id)
		}
	}
	chk.claims[row.Name] = now
}

// checkOrder checks that no holder arrived after a claim that still waits, unless both fit.
func (chk *checker) checkOrder(name string, rec *record.Record) {
	for _, h := range rec.Claims {
		if h.State != record.Granted {
			continue
		}
		ahead := h.Weight
		for _, c := range rec.Claims {
			if chk.arrival[c.ID] < chk.arrival[h.ID] {
				ahead += c.Weight
			}
		}
		if ahead > rec.Limit {
			chk.addViolation("on %s a claim was granted before an earlier one: %v", name, rec.Claims)
		}
	}
}

// checkNewest checks that a claim that is newest-only, and has waited, is not granted while a newer one has waited behind
// it, and notes which of them may give up. One that joins with the same swap of its client may come after the grant.
func (chk *checker) checkNewest(name string, rec *record.Record) {
	newer, newerBefore := false, false
	for _, c := range slices.Backward(rec.Claims) {
		if !driver.IsNewestOnly(c.ID) {
			continue
		}
		isGranted := c.State == record.Granted
		if newer && !isGranted {
			chk.superseded[c.ID] = true
		}
		wasGranted, known := chk.claims[name][c.ID]
		if newerBefore && isGranted && known && !wasGranted {
			chk.addViolation("on %s a claim was granted although a newer one waits: %v", name, rec.Claims)
		}
		newer = newer || !isGranted
		newerBefore = newerBefore || !isGranted && known
	}
}

// Report is the result of one simulation.
type Report struct {
	Seed    uint64
	Kind    string // of its store, with a space after it; empty: the usual one
	Wrong   []string
	Took    time.Duration // simulated
	Grants  int
	Losses  int
	Ejected int
}

// makeReport sums up a world that has ended.
func (chk *checker) makeReport(seed uint64) Report {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	name := ""
	if chk.sim.kind != "" {
		name = string(chk.sim.kind) + " "
	}
	return Report{
		Seed: seed, Kind: name, Wrong: chk.violations, Took: chk.sim.elapsed(),
		Grants: chk.grants, Losses: chk.losses, Ejected: chk.ejected,
	}
}

// ender is who has ended a claim.
type ender string

const (
	itself   ender = "its own release"
	operator ender = "an operator"
	another  ender = "somebody else"
)

// noteClaimEnd notes who has ended a holder, or a waiter that was broken, by a swap that has left rec.
//
// A swap of one call was made by that call. Of a swap that steps share nobody says which steps it has, but what it has
// left does: a step that removes another's holder leaves a note of it, and a release leaves none. So a holder that
// such a swap removes without a note was removed by its own release, if the client that swaps is releasing it. If it
// is not, that is a violation. And if it is releasing it and the step was not in this swap, what is stored is the
// same as if it had been, so no client could tell the difference.
func (chk *checker) noteClaimEnd(name, id string, held bool, rec *record.Record, by actor) {
	chk.endedAt[id] = chk.sim.elapsed()
	noted := slices.ContainsFunc(rec.Ended, func(n record.EndedClaim) bool { return n.ID == id })
	shared := by.call == "" && by.breaks == ""
	switch {
	case by.breaks == id:
		chk.endedBy[id] = operator
	case !held:
	case by.release == id, shared && !noted && chk.releasers[id] == by.host:
		chk.endedBy[id] = itself
	case shared && !noted && rec.NotesDroppedUntil == 0:
		chk.addViolation("a holder on %s was removed without a note by a client that did not release it", name)
	default:
		chk.endedBy[id] = another
	}
}

// noteNodeRemoval notes that a host's request has removed a node of a tree. Only the operator removes another
// client's node.
func (chk *checker) noteNodeRemoval(n sequence.Node, by *host, what string) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	ref := refOf(n)
	chk.appendHistory(n.ID, "%s removed %s (%s)", by.name, ref, what)
	who := itself
	if by.reliable && chk.broken[n.ID] {
		who = operator
	}
	chk.endedBy[ref], chk.endedBy[n.ID], chk.endedAt[ref] = who, who, chk.sim.elapsed()
}

// refOf is the ref of a claim's node.
func refOf(n sequence.Node) string { return n.Key + "@" + strconv.FormatInt(n.Token, 16) }

// enderOf returns who has ended a claim that was granted.
func (chk *checker) enderOf(id string) ender { return chk.endedBy[chk.endKey(id)] }

// endKey is the key of the end of a claim. On a tree it is the node that was granted: other nodes of the same claim,
// which waited under sessions that have expired, may have been removed as well.
func (chk *checker) endKey(id string) string {
	if chk.sim.tree != nil {
		return chk.refs[id]
	}
	return id
}

// noteIsKept reports whether a claim was ended less than a TTL ago, so that a note of it is kept.
func (chk *checker) noteIsKept(id string) bool {
	return chk.sim.elapsed() < chk.endedAt[chk.endKey(id)]+chk.sim.ttl-chk.sim.ttl/50
}

// readsAreCurrent reports whether reads return the current state. If not, a release may not find a claim that exists.
func (chk *checker) readsAreCurrent() bool { return chk.sim.kind != stale && chk.sim.kind != undurable }

// noteBreak notes that an operator is about to break a claim.
func (chk *checker) noteBreak(id string) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	chk.broken[id] = true
	chk.appendHistory(id, "an operator breaks it")
}

// checkLossCause checks that a lease was lost for the cause that its holder learned.
func (chk *checker) checkLossCause(name string, l *holdfast.Lease, t *heldLease, loss *holdfast.LossError) {
	if loss == nil || chk.sim.kind == stale {
		return
	}
	_, exists := chk.claims[name][l.ID()]
	switch {
	case loss.Cause == holdfast.LossGone && exists && (t == nil || chk.revertedAt <= t.heldFrom):
		chk.addViolation("a lease of %s ended because its claim did not exist any more, but it exists", name)
	case loss.Cause == holdfast.LossBroken && !chk.broken[l.ID()]:
		chk.addViolation("a lease of %s ended because an operator broke it, but none did", name)
	case loss.Cause == holdfast.LossGone && chk.sim.tree != nil: // correct: this is all that is known if no note can be read
	case (loss.Cause == holdfast.LossGone || loss.Cause == holdfast.LossTaken) &&
		chk.enderOf(l.ID()) == operator && chk.noteIsKept(l.ID()):
		chk.addViolation("an operator broke a claim on %s, but its holder learned: %v", name, loss)
	}
}

// checkReleaseResult checks that a Release that succeeded has itself ended the claim.
func (chk *checker) checkReleaseResult(name, id string) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	if by := chk.enderOf(id); (by == operator || by == another) && chk.readsAreCurrent() {
		chk.addViolation("a Release of %s succeeded, but its claim had been ended by %s%s", name, by, chk.historyOf(id))
	}
}

// noteAcquireResult notes the result of an Acquire, and checks one that ended because the claim was broken.
func (chk *checker) noteAcquireResult(c driver.Claim, g driver.Grant, err error) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	var loss *driver.LossError
	chk.grantKnown[c.ID], chk.refs[c.ID] = err == nil, g.Ref
	chk.appendHistory(c.ID, "acquired: %s %v", g.Ref, err)
	if errors.Is(err, driver.ErrSuperseded) && !chk.superseded[c.ID] && chk.sim.tree == nil {
		chk.addViolation("a wait for %s was given up for a newer one, but none came%s", c.Name, chk.historyOf(c.ID))
	}
	if errors.As(err, &loss) && loss.Cause == driver.LossBroken && !chk.broken[c.ID] {
		chk.addViolation("a wait for %s ended because an operator broke it, but none did%s", c.Name,
			chk.historyOf(c.ID))
	}
}

// wait is an Acquire that waits.
type wait struct {
	host *host
	name string
	from time.Duration
}

func (chk *checker) noteWait(h *host, c driver.Claim) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	chk.waiting[c.ID] = wait{h, c.Name, chk.sim.elapsed()}
}

func (chk *checker) noteWaitEnd(c driver.Claim) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	delete(chk.waiting, c.ID)
}

// lockAllCall is one LockAll. It is the value of its context.
type lockAllCall struct {
	severalClients bool
	claims         []string // the ids of all claims that it has made
}

type lockAllKey struct{}

// noteLockAllClaim notes a claim of a LockAll. If it waits, the call must hold no lock, unless all are of one client.
func (chk *checker) noteLockAllClaim(call *lockAllCall, c driver.Claim) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	for _, id := range call.claims {
		if c.Wait && call.severalClients && chk.grantKnown[id] && !chk.releasing[id] {
			chk.addViolation("a LockAll waits for %s while it holds another lock%s", c.Name, chk.historyOf(id))
		}
	}
	call.claims = append(call.claims, c.ID)
}

// checkLockAllFailed checks that none of the claims of a LockAll that failed is left.
func (chk *checker) checkLockAllFailed(call *lockAllCall, err error) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	for _, id := range call.claims {
		if chk.exists(id) {
			chk.addViolation("a second after a LockAll has failed it still has a claim: %v%s", err, chk.historyOf(id))
		}
	}
}

// checkWaitersNotified checks that every claim that waited when the store stopped answering has ended its wait.
func (chk *checker) checkWaitersNotified(from, within time.Duration) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	for _, waiter := range chk.waiting {
		if waiter.from < from && waiter.host.canAct() {
			chk.addViolation("a wait for %s did not end within %v after the store stopped answering, or began to deny everything",
				waiter.name, within)
		}
	}
}

// checkerState is what the checker knew of the store at some moment.
type checkerState struct {
	arrival map[string]int
	claims  map[string]map[string]bool
	endedBy map[string]ender
}

func (chk *checker) saveState() checkerState {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	return checkerState{maps.Clone(chk.arrival), maps.Clone(chk.claims), maps.Clone(chk.endedBy)}
}

// revertState notes that the store has returned to the state of that moment.
func (chk *checker) revertState(m checkerState) {
	chk.mu.Lock()
	defer chk.mu.Unlock()
	chk.arrival, chk.claims, chk.endedBy, chk.revertedAt = m.arrival, m.claims, m.endedBy, chk.sim.elapsed()
}
