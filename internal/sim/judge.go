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

// judge watches what users may believe and what the store says, and writes down what must not be.
type judge struct {
	w *World

	mu        sync.Mutex
	wrong     []string
	tenures   map[string]map[*holdfast.Lease]*tenure // by lock
	tokens    map[string]map[int64]bool
	largest   map[string]int64           // of exclusive grants, in the order in which users got them
	gone      map[string]bool            // claim ids whose release has succeeded
	leaving   map[string]bool            // claim ids that somebody releases
	arrival   map[string]int             // claim ids that stand in line, in the order of their coming
	standing  map[string]map[string]bool // by lock and claim id: whether it holds
	since     map[string]time.Duration   // claim ids: when the store granted them
	stands    map[string]time.Duration   // claim ids that were left alone: until when they must stand
	broken    map[string]bool            // claim ids that an operator breaks, or has broken
	refs      map[string]string          // and their refs
	given     map[string]bool            // claim ids of which their client knows that they were granted
	endedAt   map[string]time.Duration   // and when
	endedBy   map[string]ender           // claim ids that held, or were broken while they waited: by whom they were ended
	waiting   map[string]wait            // claim ids whose Acquire waits
	fell      time.Duration              // when the store fell back last
	histories map[string][]string        // by claim id: what has come to pass
	comings   int
	ejected   int
	grants    int
	losses    int
}

// tenure is a lease as its user sees it.
type tenure struct {
	host    *host
	weight  int64
	limit   int64
	maxHold time.Duration
	began   time.Duration
	valid   func() bool     // what says whether the user may believe; nil: the lease
	ctx     context.Context // what tells the user when to stop; nil: the lease's
	slept   bool            // the host was suspended since: only Valid can tell the truth then
	twice   bool            // it was entered twice, and each has a context of its own
}

func newJudge(w *World) *judge {
	return &judge{w: w, tenures: map[string]map[*holdfast.Lease]*tenure{}, tokens: map[string]map[int64]bool{},
		largest: map[string]int64{}, gone: map[string]bool{}, leaving: map[string]bool{}, arrival: map[string]int{},
		standing: map[string]map[string]bool{}, since: map[string]time.Duration{}, stands: map[string]time.Duration{},
		broken: map[string]bool{}, endedBy: map[string]ender{}, endedAt: map[string]time.Duration{}, histories: map[string][]string{}, given: map[string]bool{}, refs: map[string]string{}, waiting: map[string]wait{}}
}

func (j *judge) violation(format string, args ...any) {
	if len(j.wrong) < 5 {
		j.wrong = append(j.wrong, fmt.Sprintf("at %v: ", j.w.elapsed())+fmt.Sprintf(format, args...))
	}
}

// happened writes into a claim's history what has come to pass with it. Called with mu held.
func (j *judge) happened(id, format string, args ...any) {
	j.histories[id] = append(j.histories[id], fmt.Sprintf("\n\t%v: ", j.w.elapsed())+fmt.Sprintf(format, args...))
}

// tell is happened for those who do not have mu.
func (j *judge) tell(id, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.happened(id, format, args...)
}

// history is all that has come to pass with a claim.
func (j *judge) history(id string) string { return strings.Join(j.histories[id], "") }

// began notes that a user was given a lease.
func (j *judge) began(name string, l *holdfast.Lease, t *tenure) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.grants++
	if j.tenures[name] == nil {
		j.tenures[name], j.tokens[name] = map[*holdfast.Lease]*tenure{}, map[int64]bool{}
	}
	if j.tokens[name][l.Token()] {
		j.violation("token %d of %s was given twice", l.Token(), name)
	}
	j.tokens[name][l.Token()] = true
	t.began = j.w.elapsed()
	if t.valid == nil {
		t.valid = l.Valid
	}
	if t.ctx == nil {
		t.ctx = l.Context()
	}
	// A host can be stopped when a lock has been taken, and before its user has it. What was lost meanwhile says so.
	if t.weight == t.limit && t.valid() && !j.broken[l.ID()] {
		if l.Token() <= j.largest[name] {
			j.violation("token %d of %s came after %d", l.Token(), name, j.largest[name])
		}
		j.largest[name] = l.Token()
	}
	j.tenures[name][l] = t
	j.overlap(name)
}

// ended notes that a user has stopped to believe.
func (j *judge) ended(name string, l *holdfast.Lease, lost bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t := j.tenures[name][l]
	delete(j.tenures[name], l)
	j.happened(l.ID(), "its user stops to believe in it: %v", l.Err())
	var loss *holdfast.LossError
	if lost {
		j.losses++
		errors.As(l.Err(), &loss)
		j.cause(name, l, t, loss)
		if j.w.calm && (loss == nil || loss.Cause != holdfast.LossMaxHold) && !j.broken[l.ID()] {
			j.violation("a lease of %s was lost though nothing went wrong: %v", name, l.Err())
		}
	}
}

// slept notes that a host is suspended.
func (j *judge) slept(h *host) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, ts := range j.tenures {
		for _, t := range ts {
			t.slept = t.slept || t.host == h
		}
	}
}

// look checks all locks.
func (j *judge) look() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for name := range j.tenures {
		j.overlap(name)
	}
}

// overlap checks that those who believe in a lock now fit in its limit: those whose context goes on, and those to whom
// Valid says yes.
func (j *judge) overlap(name string) {
	var byContext, byValid, limit int64
	for l, t := range j.tenures[name] {
		if !t.host.acts() || j.broken[l.ID()] { // whom an operator breaks by force goes on until he is told
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
		if !t.slept && !t.twice && t.ctx.Err() == nil {
			byContext += weight
		}
		if t.valid() {
			byValid += weight
			if held := j.w.elapsed() - t.began; t.maxHold > 0 && held > t.maxHold+t.maxHold/100 {
				j.violation("a lease of %s is believed in for %v, and may be held for %v", name, held, t.maxHold)
			}
		}
	}
	if byContext > limit || byValid > limit {
		j.violation("belief overlap on %s: contexts %d, valid %d, limit %d", name, byContext, byValid, limit)
	}
}

// renewing checks that a claim is not renewed once its release has succeeded.
func (j *judge) renewing(g driver.Grant) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone[g.ID] {
		j.violation("a lease of %s was renewed after its release", g.Name)
	}
}

// released notes that a release has said that it has given its claim up.
func (j *judge) released(c driver.Claim) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gone[c.ID] = true
	// A claim that was never known to be granted may be barred from coming again, whatever became of it before.
	// Of one whose time has passed since its holder knows that it is lost.
	if by := j.ender(c.ID); j.given[c.ID] && by != "" && by != itself && j.current() && j.fresh(c.ID) {
		j.violation("a release on %s succeeded, and its claim had been ended by %s%s", c.Name, by, j.history(c.ID))
	}
}

func (j *judge) left(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.leaving[id] = true
}

// leftAlone notes that a claim was left standing for so long from a moment on, or from its grant on if that is 0.
func (j *judge) leftAlone(id string, from, keep time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if from == 0 {
		from = j.since[id]
	}
	j.stands[id] = from + keep - keep/50 // clocks run at different rates
}

// takenBack notes that a claim that was left alone is about to be released.
func (j *judge) takenBack(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.stands, id)
	j.leaving[id] = true
}

// swapped looks at what a swap has left in the store: who was let in, and whether anybody who came earlier still waits.
func (j *judge) swapped(row record.Row, by actor) {
	rec, err := record.Decode(row.Name, row.Data)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.violation("the store keeps what cannot be read: %v", err)
		return
	}
	now := map[string]bool{}
	var granted int64
	for _, c := range rec.Claims {
		now[c.ID] = c.State == record.Granted
		switch j.endedBy[c.ID] {
		case operator: // it can be told so for a TTL; who was stopped for longer may not hear of it
			if j.fresh(c.ID) && rec.NotesDroppedUntil == 0 { // else there were more ends than notes are kept
				j.violation("on %s a claim stands again that an operator had broken", row.Name)
			}
			delete(j.endedBy, c.ID)
		case another: // its Acquire had not heard that it held, and comes again
			delete(j.endedBy, c.ID)
		}
		if _, ok := j.arrival[c.ID]; !ok {
			j.comings++
			j.arrival[c.ID] = j.comings
		}
		if c.State == record.Granted {
			granted += c.Weight
			if _, ok := j.since[c.ID]; !ok {
				j.since[c.ID] = j.w.elapsed()
			}
		}
	}
	if granted > rec.Limit {
		j.violation("the store has granted %d of %d on %s", granted, rec.Limit, row.Name)
	}
	j.order(row.Name, rec)
	for id, held := range j.standing[row.Name] {
		if _, ok := now[id]; !ok {
			j.note(id, held, by)
			until, alone := j.stands[id]
			if alone && j.w.elapsed() < until && !j.broken[id] {
				j.violation("a claim on %s was to stand until %v, and is gone", row.Name, until)
			}
			if !j.leaving[id] {
				j.ejected++
				if j.w.calm && !alone && !j.broken[id] {
					j.violation("a claim on %s was removed though nothing went wrong", row.Name)
				}
			}
			delete(j.arrival, id)
		}
	}
	j.standing[row.Name] = now
}

// order checks that no holder came after somebody who still waits, unless both fit.
func (j *judge) order(name string, rec *record.Record) {
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
			j.violation("on %s a claim was let in before one that came earlier: %v", name, rec.Claims)
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

func (j *judge) report(seed uint64) Report {
	j.mu.Lock()
	defer j.mu.Unlock()
	name := ""
	if j.w.kind != "" {
		name = string(j.w.kind) + " "
	}
	return Report{Seed: seed, Kind: name, Wrong: j.wrong, Took: j.w.elapsed(), Grants: j.grants, Losses: j.losses, Ejected: j.ejected}
}

// ender is who has ended a claim.
type ender string

// The enders.
const (
	itself   ender = "its own release"
	operator ender = "an operator"
	another  ender = "somebody else"
)

// note remembers by whom a claim was ended that held, or was broken while it waited.
func (j *judge) note(id string, held bool, by actor) {
	j.endedAt[id] = j.w.elapsed()
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

// removed notes that a host's request has removed a node of a tree. But for the operator nobody removes what is another's, unless
// he was given it.
func (j *judge) removed(n sequence.Node, by *host, what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ref := n.Key + "@" + strconv.FormatInt(n.Token, 16)
	j.happened(n.ID, "%s removed %s (%s)", by.name, ref, what)
	who := itself
	if by.reliable && j.broken[n.ID] {
		who = operator
	}
	j.endedBy[ref], j.endedBy[n.ID], j.endedAt[ref] = who, who, j.w.elapsed()
}

// ender is by whom a claim was ended that was granted.
func (j *judge) ender(id string) ender { return j.endedBy[j.key(id)] }

// key is what the end of a claim is noted under: on a tree the node that it was granted by, for others of it, which waited under
// sessions that are over, may have been removed as well.
func (j *judge) key(id string) string {
	if j.w.tree != nil {
		return j.refs[id]
	}
	return id
}

// fresh reports whether a claim was ended less than a TTL ago, so that a note of it is kept.
func (j *judge) fresh(id string) bool { return j.w.elapsed() < j.endedAt[j.key(id)]+j.w.ttl-j.w.ttl/50 }

// current reports whether what is read from the store is true. Where it is not, a release can find its claim gone that stands.
func (j *judge) current() bool { return j.w.kind != stale && j.w.kind != undurable }

// breaks notes that an operator is about to break a claim.
func (j *judge) breaks(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken[id] = true
	j.happened(id, "an operator breaks it")
}

// cause checks that a lease was lost for the cause that its holder was told.
func (j *judge) cause(name string, l *holdfast.Lease, t *tenure, loss *holdfast.LossError) {
	if loss == nil || j.w.kind == stale {
		return
	}
	_, stands := j.standing[name][l.ID()]
	switch {
	case loss.Cause == holdfast.LossGone && stands && (t == nil || j.fell <= t.began):
		j.violation("a lease of %s ended because its claim did not stand any more, and it stands", name)
	case loss.Cause == holdfast.LossBroken && !j.broken[l.ID()]:
		j.violation("a lease of %s ended because an operator broke it, and none did", name)
	case loss.Cause == holdfast.LossGone && j.w.tree != nil: // true, and all that is known where a note cannot be asked for
	case (loss.Cause == holdfast.LossGone || loss.Cause == holdfast.LossTaken) && j.ender(l.ID()) == operator && j.fresh(l.ID()):
		j.violation("an operator broke a claim on %s, and its holder was told: %v", name, loss)
	}
}

// unlocked checks that an Unlock which said that all is well has itself given the lock up.
func (j *judge) unlocked(name, id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if by := j.ender(id); (by == operator || by == another) && j.current() {
		j.violation("an Unlock of %s succeeded, and its claim had been ended by %s%s", name, by, j.history(id))
	}
}

// acquired checks what came of an Acquire whose claim an operator may have broken.
func (j *judge) acquired(c driver.Claim, g driver.Grant, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var loss *driver.LossError
	j.given[c.ID], j.refs[c.ID] = err == nil, g.Ref
	j.happened(c.ID, "acquired: %s %v", g.Ref, err)
	if errors.As(err, &loss) && loss.Cause == driver.LossBroken && !j.broken[c.ID] {
		j.violation("a wait for %s ended because an operator broke it, and none did%s", c.Name, j.history(c.ID))
	}
}

// wait is an Acquire that waits.
type wait struct {
	host *host
	name string
	from time.Duration
}

func (j *judge) waits(h *host, c driver.Claim) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waiting[c.ID] = wait{h, c.Name, j.w.elapsed()}
}

func (j *judge) waitsNoMore(c driver.Claim) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.waiting, c.ID)
}

// told checks that nobody still waits who did when the store fell silent.
func (j *judge) told(from, within time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, w := range j.waiting {
		if w.from < from && w.host.acts() {
			j.violation("a wait for %s was not told within %v that the store is away, or denies all", w.name, within)
		}
	}
}

// memo is what the judge knew of the store at some moment.
type memo struct {
	arrival  map[string]int
	standing map[string]map[string]bool
	endedBy  map[string]ender
}

func (j *judge) keep() memo {
	j.mu.Lock()
	defer j.mu.Unlock()
	return memo{maps.Clone(j.arrival), maps.Clone(j.standing), maps.Clone(j.endedBy)}
}

// fallBack notes that the store is again as it was then.
func (j *judge) fallBack(m memo) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.arrival, j.standing, j.endedBy, j.fell = m.arrival, m.standing, m.endedBy, j.w.elapsed()
}
