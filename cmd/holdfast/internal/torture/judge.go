package torture

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// hold is one claim, from the call to the end. Times are nanoseconds of [now].
type hold struct {
	name        string // of the lock; of a run, with its key
	lock        int
	key         int64
	worker      int
	incarnation int
	id          int64
	weight      int64
	exclusive   bool
	token       int64
	called      int64 // when it asked for the lock
	begin       int64 // when the holder believed for the first time
	end         int64 // and for the last time
	released    int64 // when it called release; 0: it did not
	returned    int64 // when release returned
	how         string
	cause       string
}

// judge gets the reports of all workers and finds broken promises. It needs no search: the tokens of exclusive grants
// order them.
//
// A hold is judged when everything that began before it is known, in the order in which holds began. What is judged is
// kept for a while, and then forgotten, so that a run may last for days.
type judge struct {
	locks  []Lock
	ttl    time.Duration
	tokens bool  // grants have fencing tokens; if not, the judge numbers them
	start  int64 // of the run

	mu        sync.Mutex
	states    map[string]*lockState
	open      map[attempt]*hold // called or held
	resources map[string]*resource
	faults    faultLog

	counts     ResourceCounts
	grants     int
	exclusive  int // grants
	handOvers  int // exclusive grants that follow another worker's
	failures   map[string]int
	losses     map[string]int // by cause; "killed" for processes
	waits      histogram
	takeOvers  histogram // from when a dead holder believed for the last time to the next grant
	renewals   int
	renewalMax time.Duration
	windows    int // that were checked for linearizability
	keys       map[int]int64
	verdicts   map[string]*Verdict
	timeline   timeline
}

// attempt names a claim.
type attempt struct {
	worker, incarnation int
	id                  int64
}

// lockState is what is known of one lock.
type lockState struct {
	ended   []*hold // not judged yet
	judged  []*hold // the latest, in the order of their begin
	tokens  []tokenAt
	window  []*hold // exclusive, for the linearizability check
	success int     // of a key
	touched int64   // when something was reported of it
}

// tokenAt is the largest token of all exclusive grants until a time.
type tokenAt struct{ at, largest int64 }

const (
	settleTime = 2 * time.Second  // how old a hold is before it is judged
	keepTime   = 2 * time.Minute  // how long it is kept after that
	idleTime   = 10 * time.Minute // after which a lock without holds is forgotten: keys of a ledger
)

func newJudge(locks []Lock, ttl time.Duration, tokens bool) *judge {
	j := &judge{locks: locks, ttl: ttl, tokens: tokens, start: now(), states: map[string]*lockState{}, open: map[attempt]*hold{},
		resources: map[string]*resource{}, failures: map[string]int{}, losses: map[string]int{},
		keys: map[int]int64{}, verdicts: map[string]*Verdict{}}
	for _, p := range promises {
		j.verdicts[p.Code] = &Verdict{promise: p}
	}
	return j
}

// lockName is the name under which a claim is judged.
func (j *judge) lockName(r report) string {
	if l := j.locks[r.Lock]; l.Kind != Ledger {
		return l.Name
	}
	return fmt.Sprintf("%s/%d", j.locks[r.Lock].Name, r.Key)
}

func (j *judge) state(name string, at int64) *lockState {
	s := j.states[name]
	if s == nil {
		s = &lockState{}
		j.states[name] = s
	}
	s.touched = at
	return s
}

// add takes a report of a worker, and returns the reply to it, if it needs one.
func (j *judge) add(worker, incarnation int, r report) *order {
	j.mu.Lock()
	defer j.mu.Unlock()
	who := attempt{worker, incarnation, r.ID}
	switch r.Op {
	case opCall:
		j.open[who] = &hold{name: j.lockName(r), lock: r.Lock, key: r.Key, worker: worker, incarnation: incarnation,
			id: r.ID, called: r.At}
		j.state(j.lockName(r), r.At)
	case opFailed:
		delete(j.open, who)
		j.failures[r.Text]++
	case opHeld:
		if h := j.open[who]; h != nil {
			h.begin, h.token, h.weight = r.At, r.Token, r.Weight
			h.exclusive = r.Weight == j.locks[r.Lock].Limit
			j.grants++
			if !j.tokens {
				h.token = int64(j.grants)
			}
			j.waits.add(time.Duration(h.begin - h.called))
			j.keys[r.Lock] = max(j.keys[r.Lock], r.Key)
		}
	case opEnded:
		if h := j.open[who]; h != nil {
			h.end, h.released, h.returned, h.how, h.cause = r.Last, r.Called, r.At, r.How, r.Cause
			j.close(who, h)
		}
	case opRead:
		return &order{Op: "reply", Lock: r.Lock, Value: j.resource(j.lockName(r)).value}
	case opWrite:
		if h := j.open[who]; h != nil {
			ok := j.resource(j.lockName(r)).write(h.token, r.Value, &j.counts)
			return &order{Op: "reply", Lock: r.Lock, OK: ok}
		}
	case opBeat:
		j.renewals += r.Renewals
		j.renewalMax = max(j.renewalMax, r.Longest)
	}
	return nil
}

func (j *judge) resource(name string) *resource {
	r := j.resources[name]
	if r == nil {
		r = &resource{}
		j.resources[name] = r
	}
	return r
}

// currentKeys are the keys at which a new worker begins, per lock.
func (j *judge) currentKeys() []int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	keys := make([]int64, len(j.locks))
	for i := range keys {
		keys[i] = max(1, j.keys[i])
	}
	return keys
}

// workerGone ends the holds of a process that was killed, by its marks.
func (j *judge) workerGone(worker, incarnation int, m *marks) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for who, h := range j.open {
		if who.worker != worker || who.incarnation != incarnation {
			continue
		}
		if h.begin == 0 {
			delete(j.open, who)
			continue
		}
		h.end, h.how = max(h.begin, m.get(h.lock)), howKilled
		j.close(who, h)
	}
}

// close moves a hold that has ended to those that will be judged.
func (j *judge) close(who attempt, h *hold) {
	delete(j.open, who)
	s := j.state(h.name, h.begin)
	s.ended = append(s.ended, h)
	switch h.how {
	case howLost:
		j.losses[h.cause]++
	case howKilled, howUncertain:
		j.losses[h.how]++
	case howUnreported:
		j.accuse("unreported", 0, h, nil, "the lease was not valid any more, and its context did not end")
	}
}

// settle judges all holds that began before everything that is not known yet. If all is set, nothing more will come.
func (j *judge) settle(all bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at := now()
	until := map[string]int64{}
	for _, h := range j.open {
		from := cmp.Or(h.begin, h.called)
		if u, ok := until[h.name]; !ok || from < u {
			until[h.name] = from
		}
	}
	for name, s := range j.states {
		cut := at - int64(settleTime)
		if u, ok := until[name]; ok {
			cut = min(cut, u)
		} else if all {
			cut = at
		}
		slices.SortFunc(s.ended, func(a, b *hold) int { return cmp.Compare(a.begin, b.begin) })
		n := 0
		for n < len(s.ended) && s.ended[n].begin < cut {
			j.judgeHold(s, s.ended[n])
			n++
		}
		s.ended = slices.Delete(s.ended, 0, n)
		if len(s.window) >= windowSize || all && len(s.window) > 0 {
			j.checkWindow(s)
		}
		j.forgetOld(name, s, at, until)
	}
}

// forgetOld forgets what cannot matter any more.
func (j *judge) forgetOld(name string, s *lockState, at int64, until map[string]int64) {
	keep := func(h *hold) bool { return h.begin > at-int64(keepTime) }
	if i := slices.IndexFunc(s.judged, keep); i > 0 {
		s.judged = slices.Delete(s.judged, 0, i)
	}
	if n := len(s.tokens); n > 1024 { // the last one covers all before it
		s.tokens = slices.Delete(s.tokens, 0, n-512)
	}
	_, busy := until[name]
	if !busy && len(s.ended) == 0 && len(s.window) == 0 && s.touched < at-int64(idleTime) {
		delete(j.states, name)
		delete(j.resources, name)
	}
}

// judgeHold compares a hold with those that began before it.
func (j *judge) judgeHold(s *lockState, h *hold) {
	limit := j.locks[h.lock].Limit
	weight, last := h.weight, (*hold)(nil)
	for _, other := range s.judged {
		if other.exclusive && (last == nil || other.end > last.end) {
			last = other
		}
		if other.end <= h.begin {
			continue
		}
		weight += other.weight
		if other.exclusive || h.exclusive {
			j.accuse("overlap", time.Duration(min(other.end, h.end)-h.begin), h, other,
				"two holders believed at the same time that the lock was theirs")
		}
	}
	if weight > limit && !h.exclusive && j.locks[h.lock].Kind == Semaphore {
		j.accuse("limit", 0, h, nil, fmt.Sprintf("holders of %d in all believed at the same time; the limit is %d", weight, limit))
	}
	if h.exclusive {
		j.exclusive++
		if j.tokens {
			j.judgeToken(s, h)
		}
		j.judgeReleases(s, h)
		if last != nil && (last.worker != h.worker || last.incarnation != h.incarnation) {
			j.handOvers++
		}
		if last != nil && (last.how == howKilled || last.how == howLost) && h.begin > last.end {
			j.takeOvers.add(time.Duration(h.begin - max(last.end, h.called)))
		}
		if j.locks[h.lock].Kind != RW { // readers are not in these windows
			s.window = append(s.window, h)
		}
	}
	if j.locks[h.lock].Kind == Fair {
		j.judgeOrder(s, h)
	}
	if h.how == howSucceeded {
		if s.success++; s.success > 1 {
			j.accuse("twice", 0, h, last, "a key of the ledger has succeeded twice")
		}
	}
	s.judged = append(s.judged, h)
	j.timeline.addHold(h.view(j.start))
}

// judgeToken: the token is larger than those of all exclusive grants that were known before it was asked for.
func (j *judge) judgeToken(s *lockState, h *hold) {
	i, _ := slices.BinarySearchFunc(s.tokens, h.called, func(t tokenAt, at int64) int { return cmp.Compare(t.at, at) })
	if i > 0 && h.token <= s.tokens[i-1].largest {
		j.accuse("tokens", 0, h, nil, fmt.Sprintf("token %d was granted after token %d", h.token, s.tokens[i-1].largest))
	}
	largest := h.token
	if n := len(s.tokens); n > 0 {
		largest = max(largest, s.tokens[n-1].largest)
	}
	s.tokens = append(s.tokens, tokenAt{h.begin, largest})
}

// judgeReleases: a release that is confirmed means that nobody else was granted the lock before it.
func (j *judge) judgeReleases(s *lockState, h *hold) {
	for _, other := range s.judged {
		confirmed := other.how == howReleased || other.how == howSucceeded || other.how == howFailed
		if other.exclusive && confirmed && other.begin < h.begin && h.begin < other.released {
			j.accuse("unreported", 0, other, h, "the release was confirmed, although another holder was granted the lock before")
		}
	}
}

// judgeOrder: on a fair lock nobody who has called later is granted the lock earlier. The claims of workers that were
// under a fault meanwhile may have reached the store late, so they are not judged; nor are calls that are close
// together.
func (j *judge) judgeOrder(s *lockState, h *hold) {
	slack := int64(j.ttl + time.Second)
	for _, other := range s.judged {
		if other.called > h.called+slack && other.begin < h.begin && other.worker != h.worker &&
			!j.faults.touched(h.worker, h.called-int64(j.ttl), h.begin) {
			j.accuse("order", time.Duration(other.called-h.called), h, other, "a later caller was granted the fair lock earlier")
			return
		}
	}
}

// accuse records a broken promise.
func (j *judge) accuse(code string, extent time.Duration, h, other *hold, text string) {
	v := j.verdicts[code]
	v.Count++
	v.worst = max(v.worst, extent)
	if len(v.Examples) >= maxExamples {
		return
	}
	e := Violation{Code: code, Text: text, Lock: h.name, Extent: millis(extent), Holds: []HoldView{}}
	if h.begin > 0 {
		e.Holds = append(e.Holds, h.view(j.start))
	}
	if other != nil {
		e.Holds = append(e.Holds, other.view(j.start))
	}
	v.Examples = append(v.Examples, e)
}
