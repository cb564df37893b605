package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// judge watches what users may believe and what the store says, and writes down what must not be.
type judge struct {
	w *World

	mu       sync.Mutex
	wrong    []string
	tenures  map[string]map[*holdfast.Lease]*tenure // by lock
	tokens   map[string]map[int64]bool
	largest  map[string]int64 // of exclusive grants, in the order in which users got them
	gone     map[string]bool  // claim ids whose release has succeeded
	leaving  map[string]bool  // claim ids that somebody releases
	arrival  map[string]int   // claim ids that stand in line, in the order of their coming
	standing map[string]map[string]bool
	since    map[string]time.Duration // claim ids: when the store granted them
	stands   map[string]time.Duration // claim ids that were left alone: until when they must stand
	comings  int
	ejected  int
	grants   int
	losses   int
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
		standing: map[string]map[string]bool{}, since: map[string]time.Duration{}, stands: map[string]time.Duration{}}
}

func (j *judge) violation(format string, args ...any) {
	if len(j.wrong) < 5 {
		j.wrong = append(j.wrong, fmt.Sprintf("at %v: ", j.w.elapsed())+fmt.Sprintf(format, args...))
	}
}

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
	if t.weight == t.limit && t.valid() {
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
	delete(j.tenures[name], l)
	var loss *holdfast.LossError
	if lost {
		j.losses++
		if errors.As(l.Err(), &loss) && loss.Loss == holdfast.LossGone && j.standing[name][l.ID()] {
			j.violation("a lease of %s ended because its claim did not stand any more, and it stands", name)
		}
		if j.w.calm && (loss == nil || loss.Loss != holdfast.LossMaxHold) {
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
		if !t.host.acts() {
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

func (j *judge) released(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gone[id] = true
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
func (j *judge) swapped(row record.Row) {
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
		now[c.ID] = true
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
	for id := range j.standing[row.Name] {
		if !now[id] {
			until, alone := j.stands[id]
			if alone && j.w.elapsed() < until {
				j.violation("a claim on %s was to stand until %v, and is gone", row.Name, until)
			}
			if !j.leaving[id] {
				j.ejected++
				if j.w.calm && !alone {
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
	Wrong   []string
	Took    time.Duration // simulated
	Grants  int
	Losses  int
	Ejected int
}

func (j *judge) report(seed uint64) Report {
	j.mu.Lock()
	defer j.mu.Unlock()
	return Report{Seed: seed, Wrong: j.wrong, Took: j.w.elapsed(), Grants: j.grants, Losses: j.losses, Ejected: j.ejected}
}
