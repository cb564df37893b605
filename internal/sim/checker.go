package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// checker watches what users may believe and what the store says, and writes down what must not be.
type checker struct {
	sim *simulation

	mu            sync.Mutex
	violations    []string
	leases        map[string]map[*holdfast.Lease]*heldLease // by lock
	tokens        map[string]map[int64]bool
	maxToken      map[string]int64           // of exclusive grants, in the order in which users got them
	releasedIDs   map[string]bool            // claim ids whose release has succeeded
	releasing     map[string]bool            // claim ids that somebody releases
	arrival       map[string]int             // claim ids that stand in line, in the order of their coming
	claims        map[string]map[string]bool // by lock and claim id: whether it holds
	grantedAt     map[string]time.Duration   // claim ids: when the store granted them
	detachedUntil map[string]time.Duration   // claim ids that were left alone: until when they must stand
	broken        map[string]bool            // claim ids that an operator breaks, or has broken
	refs          map[string]string          // and their refs
	grantKnown    map[string]bool            // claim ids of which their client knows that they were granted
	endedAt       map[string]time.Duration   // and when
	endedBy       map[string]ender           // claim ids that held, or were broken while they waited: by whom they were ended
	waiting       map[string]wait            // claim ids whose Acquire waits
	revertedAt    time.Duration              // when the store fell back last
	histories     map[string][]string        // by claim id: what has come to pass
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
	maxHold   time.Duration
	heldFrom  time.Duration
	valid     func() bool     // what says whether the user may believe; nil: the lease
	ctx       context.Context // what tells the user when to stop; nil: the lease's
	suspended bool            // the host was suspended since: only Valid can tell the truth then
	reentered bool            // it was entered twice, and each has a context of its own
}

func newChecker(w *simulation) *checker {
	return &checker{sim: w, leases: map[string]map[*holdfast.Lease]*heldLease{}, tokens: map[string]map[int64]bool{},
		maxToken: map[string]int64{}, releasedIDs: map[string]bool{}, releasing: map[string]bool{}, arrival: map[string]int{},
		claims: map[string]map[string]bool{}, grantedAt: map[string]time.Duration{}, detachedUntil: map[string]time.Duration{},
		broken: map[string]bool{}, endedBy: map[string]ender{}, endedAt: map[string]time.Duration{}, histories: map[string][]string{}, grantKnown: map[string]bool{}, refs: map[string]string{}, waiting: map[string]wait{}}
}

func (j *checker) addViolation(format string, args ...any) {
	if len(j.violations) < 5 {
		j.violations = append(j.violations, fmt.Sprintf("at %v: ", j.sim.elapsed())+fmt.Sprintf(format, args...))
	}
}

// appendHistory writes into a claim's history what has come to pass with it. Called with mu held.
func (j *checker) appendHistory(id, format string, args ...any) {
	j.histories[id] = append(j.histories[id], fmt.Sprintf("\n\t%v: ", j.sim.elapsed())+fmt.Sprintf(format, args...))
}

// logEvent is happened for those who do not have mu.
func (j *checker) logEvent(id, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.appendHistory(id, format, args...)
}

// historyOf is all that has come to pass with a claim.
func (j *checker) historyOf(id string) string { return strings.Join(j.histories[id], "") }

// noteLeaseStart notes that a user was given a lease.
func (j *checker) noteLeaseStart(name string, l *holdfast.Lease, t *heldLease) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.grants++
	if j.leases[name] == nil {
		j.leases[name], j.tokens[name] = map[*holdfast.Lease]*heldLease{}, map[int64]bool{}
	}
	if j.tokens[name][l.Token()] {
		j.addViolation("token %d of %s was given twice", l.Token(), name)
	}
	j.tokens[name][l.Token()] = true
	t.heldFrom = j.sim.elapsed()
	if t.valid == nil {
		t.valid = l.Valid
	}
	if t.ctx == nil {
		t.ctx = l.Context()
	}
	// A host can be stopped when a lock has been taken, and before its user has it. What was lost meanwhile says so.
	if t.weight == t.limit && t.valid() && !j.broken[l.ID()] {
		if l.Token() <= j.maxToken[name] {
			j.addViolation("token %d of %s came after %d", l.Token(), name, j.maxToken[name])
		}
		j.maxToken[name] = l.Token()
	}
	j.leases[name][l] = t
	j.checkOverlap(name)
}

// noteLeaseEnd notes that a user has stopped to believe.
func (j *checker) noteLeaseEnd(name string, l *holdfast.Lease, lost bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t := j.leases[name][l]
	delete(j.leases[name], l)
	j.appendHistory(l.ID(), "its user stops to believe in it: %v", l.Err())
	var loss *holdfast.LossError
	if lost {
		j.losses++
		errors.As(l.Err(), &loss)
		j.checkLossCause(name, l, t, loss)
		if j.sim.faultless && (loss == nil || loss.Cause != holdfast.LossMaxHold) && !j.broken[l.ID()] {
			j.addViolation("a lease of %s was lost though nothing went wrong: %v", name, l.Err())
		}
	}
}

// noteSuspension notes that a host is suspended.
func (j *checker) noteSuspension(h *host) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, ts := range j.leases {
		for _, t := range ts {
			t.suspended = t.suspended || t.host == h
		}
	}
}

// checkAllLocks checks all locks.
func (j *checker) checkAllLocks() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for name := range j.leases {
		j.checkOverlap(name)
	}
}

// checkOverlap checks that those who believe in a lock now fit in its limit: those whose context goes on, and those to whom
// Valid says yes.
func (j *checker) checkOverlap(name string) {
	var byContext, byValid, limit int64
	for l, t := range j.leases[name] {
		if !t.host.canAct() || j.broken[l.ID()] { // whom an operator breaks by force goes on until he is told
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
			byValid += weight
			if held := j.sim.elapsed() - t.heldFrom; t.maxHold > 0 && held > t.maxHold+t.maxHold/100 {
				j.addViolation("a lease of %s is believed in for %v, and may be held for %v", name, held, t.maxHold)
			}
		}
	}
	if byContext > limit || byValid > limit {
		j.addViolation("belief overlap on %s: contexts %d, valid %d, limit %d", name, byContext, byValid, limit)
	}
}

// checkRenewal checks that a claim is not renewed once its release has succeeded.
func (j *checker) checkRenewal(g driver.Grant) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.releasedIDs[g.ID] {
		j.addViolation("a lease of %s was renewed after its release", g.Name)
	}
}

// noteRelease notes that a release has said that it has given its claim up.
func (j *checker) noteRelease(c driver.Claim) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.releasedIDs[c.ID] = true
	// A claim that was never known to be granted may be barred from coming again, whatever became of it before.
	// Of one whose time has passed since its holder knows that it is lost.
	if by := j.enderOf(c.ID); j.grantKnown[c.ID] && by != "" && by != itself && j.readsAreCurrent() && j.noteIsKept(c.ID) {
		j.addViolation("a release on %s succeeded, and its claim had been ended by %s%s", c.Name, by, j.historyOf(c.ID))
	}
}

func (j *checker) noteReleaseStart(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.releasing[id] = true
}

// noteDetached notes that a claim was left standing for so long from a moment on, or from its grant on if that is 0.
func (j *checker) noteDetached(id string, from, keep time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if from == 0 {
		from = j.grantedAt[id]
	}
	j.detachedUntil[id] = from + keep - keep/50 // clocks run at different rates
}

// noteDetachedRelease notes that a claim that was left alone is about to be released.
func (j *checker) noteDetachedRelease(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.detachedUntil, id)
	j.releasing[id] = true
}

// checkSwap looks at what a swap has left in the store: who was let in, and whether anybody who came earlier still waits.
func (j *checker) checkSwap(row record.Row, by actor) {
	rec, err := record.Decode(row.Name, row.Data)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.addViolation("the store keeps what cannot be read: %v", err)
		return
	}
	now := map[string]bool{}
	var granted int64
	for _, c := range rec.Claims {
		now[c.ID] = c.State == record.Granted
		switch j.endedBy[c.ID] {
		case operator: // it can be told so for a TTL; who was stopped for longer may not hear of it
			if j.noteIsKept(c.ID) && rec.NotesDroppedUntil == 0 { // else there were more ends than notes are kept
				j.addViolation("on %s a claim stands again that an operator had broken", row.Name)
			}
			delete(j.endedBy, c.ID)
		case another: // its Acquire had not heard that it held, and comes again
			delete(j.endedBy, c.ID)
		}
		if _, ok := j.arrival[c.ID]; !ok {
			j.arrivals++
			j.arrival[c.ID] = j.arrivals
		}
		if c.State == record.Granted {
			granted += c.Weight
			if _, ok := j.grantedAt[c.ID]; !ok {
				j.grantedAt[c.ID] = j.sim.elapsed()
			}
		}
	}
	if granted > rec.Limit {
		j.addViolation("the store has granted %d of %d on %s", granted, rec.Limit, row.Name)
	}
	j.checkOrder(row.Name, rec)
	for id, held := range j.claims[row.Name] {
		if _, ok := now[id]; !ok {
			j.noteClaimEnd(id, held, by)
			until, alone := j.detachedUntil[id]
			if alone && j.sim.elapsed() < until && !j.broken[id] {
				j.addViolation("a claim on %s was to stand until %v, and is gone", row.Name, until)
			}
			if !j.releasing[id] {
				j.ejected++
				if j.sim.faultless && !alone && !j.broken[id] {
					j.addViolation("a claim on %s was removed though nothing went wrong", row.Name)
				}
			}
			delete(j.arrival, id)
		}
	}
	j.claims[row.Name] = now
}

// checkOrder checks that no holder came after somebody who still waits, unless both fit.
func (j *checker) checkOrder(name string, rec *record.Record) {
	for _, h := range rec.Claims {
		if h.State != record.Granted {
			continue
		}
		ahead := h.Weight
		for _, c := range rec.Claims {
			if j.arrival[c.ID] < j.arrival[h.ID] {
				ahead += c.Weight
			}
		}
		if ahead > rec.Limit {
			j.addViolation("on %s a claim was let in before one that came earlier: %v", name, rec.Claims)
		}
	}
}

// Report is what came of one world.
type Report struct {
	Seed    uint64
	Kind    string // of its store, with a space behind it; empty: the usual one
	Wrong   []string
	Took    time.Duration // simulated
	Grants  int
	Losses  int
	Ejected int
}

func (j *checker) makeReport(seed uint64) Report {
	j.mu.Lock()
	defer j.mu.Unlock()
	name := ""
	if j.sim.kind != "" {
		name = string(j.sim.kind) + " "
	}
	return Report{Seed: seed, Kind: name, Wrong: j.violations, Took: j.sim.elapsed(), Grants: j.grants, Losses: j.losses, Ejected: j.ejected}
}

// ender is who has ended a claim.
type ender string

// The enders.
const (
	itself   ender = "its own release"
	operator ender = "an operator"
	another  ender = "somebody else"
)

// noteClaimEnd remembers by whom a claim was ended that held, or was broken while it waited.
func (j *checker) noteClaimEnd(id string, held bool, by actor) {
	j.endedAt[id] = j.sim.elapsed()
	switch {
	case by.breaks && j.broken[id]:
		j.endedBy[id] = operator
	case !held:
	case by.release == id:
		j.endedBy[id] = itself
	default:
		j.endedBy[id] = another
	}
}

// noteNodeRemoval notes that a host's request has removed a node of a tree. But for the operator nobody removes what is another's, unless
// he was given it.
func (j *checker) noteNodeRemoval(n sequence.Node, by *host, what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ref := n.Key + "@" + strconv.FormatInt(n.Token, 16)
	j.appendHistory(n.ID, "%s removed %s (%s)", by.name, ref, what)
	who := itself
	if by.reliable && j.broken[n.ID] {
		who = operator
	}
	j.endedBy[ref], j.endedBy[n.ID], j.endedAt[ref] = who, who, j.sim.elapsed()
}

// enderOf is by whom a claim was ended that was granted.
func (j *checker) enderOf(id string) ender { return j.endedBy[j.endKey(id)] }

// endKey is what the end of a claim is noted under: on a tree the node that it was granted by, for others of it, which waited under
// sessions that are over, may have been removed as well.
func (j *checker) endKey(id string) string {
	if j.sim.tree != nil {
		return j.refs[id]
	}
	return id
}

// noteIsKept reports whether a claim was ended less than a TTL ago, so that a note of it is kept.
func (j *checker) noteIsKept(id string) bool {
	return j.sim.elapsed() < j.endedAt[j.endKey(id)]+j.sim.ttl-j.sim.ttl/50
}

// readsAreCurrent reports whether what is read from the store is true. Where it is not, a release can find its claim gone that stands.
func (j *checker) readsAreCurrent() bool { return j.sim.kind != stale && j.sim.kind != undurable }

// noteBreak notes that an operator is about to break a claim.
func (j *checker) noteBreak(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken[id] = true
	j.appendHistory(id, "an operator breaks it")
}

// checkLossCause checks that a lease was lost for the cause that its holder was told.
func (j *checker) checkLossCause(name string, l *holdfast.Lease, t *heldLease, loss *holdfast.LossError) {
	if loss == nil || j.sim.kind == stale {
		return
	}
	_, stands := j.claims[name][l.ID()]
	switch {
	case loss.Cause == holdfast.LossGone && stands && (t == nil || j.revertedAt <= t.heldFrom):
		j.addViolation("a lease of %s ended because its claim did not stand any more, and it stands", name)
	case loss.Cause == holdfast.LossBroken && !j.broken[l.ID()]:
		j.addViolation("a lease of %s ended because an operator broke it, and none did", name)
	case loss.Cause == holdfast.LossGone && j.sim.tree != nil: // true, and all that is known where a note cannot be asked for
	case (loss.Cause == holdfast.LossGone || loss.Cause == holdfast.LossTaken) && j.enderOf(l.ID()) == operator && j.noteIsKept(l.ID()):
		j.addViolation("an operator broke a claim on %s, and its holder was told: %v", name, loss)
	}
}

// checkReleaseResult checks that an Unlock which said that all is well has itself given the lock up.
func (j *checker) checkReleaseResult(name, id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if by := j.enderOf(id); (by == operator || by == another) && j.readsAreCurrent() {
		j.addViolation("an Unlock of %s succeeded, and its claim had been ended by %s%s", name, by, j.historyOf(id))
	}
}

// noteAcquireResult checks what came of an Acquire whose claim an operator may have broken.
func (j *checker) noteAcquireResult(c driver.Claim, g driver.Grant, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var loss *driver.LossError
	j.grantKnown[c.ID], j.refs[c.ID] = err == nil, g.Ref
	j.appendHistory(c.ID, "acquired: %s %v", g.Ref, err)
	if errors.As(err, &loss) && loss.Cause == driver.LossBroken && !j.broken[c.ID] {
		j.addViolation("a wait for %s ended because an operator broke it, and none did%s", c.Name, j.historyOf(c.ID))
	}
}

// wait is an Acquire that waits.
type wait struct {
	host *host
	name string
	from time.Duration
}

func (j *checker) noteWait(h *host, c driver.Claim) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waiting[c.ID] = wait{h, c.Name, j.sim.elapsed()}
}

func (j *checker) noteWaitEnd(c driver.Claim) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.waiting, c.ID)
}

// checkWaitersNotified checks that nobody still waits who did when the store fell silent.
func (j *checker) checkWaitersNotified(from, within time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, w := range j.waiting {
		if w.from < from && w.host.canAct() {
			j.addViolation("a wait for %s was not told within %v that the store is away, or denies all", w.name, within)
		}
	}
}

// checkerState is what the judge knew of the store at some moment.
type checkerState struct {
	arrival  map[string]int
	standing map[string]map[string]bool
	endedBy  map[string]ender
}

func (j *checker) saveState() checkerState {
	j.mu.Lock()
	defer j.mu.Unlock()
	return checkerState{maps.Clone(j.arrival), maps.Clone(j.claims), maps.Clone(j.endedBy)}
}

// revertState notes that the store is again as it was then.
func (j *checker) revertState(m checkerState) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.arrival, j.claims, j.endedBy, j.revertedAt = m.arrival, m.standing, m.endedBy, j.sim.elapsed()
}
