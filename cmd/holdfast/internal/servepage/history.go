package servepage

import (
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

const (
	maxHistories = 2000 // how many locks have a history
	maxEvents    = 100  // per lock
	maxSpans     = 100  // per lock
	// maxUnobserved is the longest time between two observations of a lock that is no gap.
	maxUnobserved = 4 * listInterval
)

// historyEvent is something that was observed of a lock.
type historyEvent struct {
	at     time.Time
	what   string // in words
	claim  holdfast.ClaimInfo
	waited time.Duration // before it was granted, if the claim was seen to wait
}

// claimSpan is the time of one claim, as far as it was observed.
type claimSpan struct {
	claim       holdfast.ClaimInfo
	waitedFrom  time.Time // zero: it was not seen to wait
	heldFrom    time.Time // zero: it was not granted
	endedAt     time.Time // zero: it exists
	beganBefore bool      // it was there before anybody observed the lock
}

// lockHistory is what was observed of one lock.
type lockHistory struct {
	begunAt  time.Time // of the observation
	seenAt   time.Time // the last observation
	lock     holdfast.Lock
	watched  bool
	failed   bool           // the watch has failed, and has not seen the lock since
	events   []historyEvent // from the oldest to the newest
	spans    []claimSpan    // in the order in which they were first seen
	changeAt time.Time
}

// history is what was observed of the locks of a store since the server was started. Its size is bounded.
type history struct {
	mu    sync.Mutex
	locks map[string]*lockHistory
}

func newHistory() *history { return &history{locks: map[string]*lockHistory{}} }

// setWatched notes whether a lock is watched. Listings say nothing about a lock that is: what they have read may be
// older than what its watch has seen.
func (h *history) setWatched(name string, watched bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.find(name, watched)
	switch {
	case l == nil:
		return
	case watched:
		l.noteGap(time.Now())
	default:
		l.seenAt = time.Now()
	}
	l.watched = watched
}

// observeFailure adds that a watch has failed: what happens until it sees the lock again is not observed.
func (h *history) observeFailure(name string, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.locks[name]; l != nil && !l.failed {
		l.failed = true
		l.add(historyEvent{at: at, what: "could not be observed from here on"})
	}
}

// observeWatched adds what a watch has seen.
func (h *history) observeWatched(lock holdfast.Lock, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.find(lock.Name, true); l != nil {
		if l.failed {
			l.failed = false
			l.add(historyEvent{at: at, what: "could be observed again"})
		}
		l.seenAt = at // a watch leaves no gap
		l.observe(lock, at)
	}
}

// observeListing adds what a listing has seen: also that the locks that are not listed have no claims.
func (h *history) observeListing(list listing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	listed := map[string]bool{}
	full := false // so that the oldest is looked for once, and not for each lock of a large store
	for _, s := range list.locks {
		listed[s.Name] = true
		l := h.locks[s.Name]
		if l == nil && !full {
			l = h.find(s.Name, false)
			full = l == nil
		}
		if s.err == nil && l != nil && !l.watched && !list.at.Before(l.seenAt) {
			l.observe(s.Lock, list.at)
		}
	}
	for name, l := range h.locks {
		if !listed[name] && !list.capped && !l.watched && !list.at.Before(l.seenAt) && !l.begunAt.IsZero() {
			l.observe(holdfast.Lock{Name: name}, list.at)
		}
	}
}

// find returns the history of a lock, and begins it. If there are too many, that of a lock without claims is forgotten,
// or, for a lock that is looked at, that of any lock; otherwise it returns nil. It is called with h.mu held.
func (h *history) find(name string, must bool) *lockHistory {
	if l := h.locks[name]; l != nil {
		return l
	}
	if len(h.locks) >= maxHistories {
		oldest := ""
		for other, l := range h.locks {
			isFree := len(l.lock.Holders)+len(l.lock.Waiters) == 0
			if !l.watched && (isFree || must) && (oldest == "" || l.changeAt.Before(h.locks[oldest].changeAt)) {
				oldest = other
			}
		}
		if oldest == "" {
			return nil
		}
		delete(h.locks, oldest)
	}
	l := &lockHistory{}
	h.locks[name] = l
	return l
}

// read returns a copy of what was observed of a lock.
func (h *history) read(name string) lockHistory {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.locks[name]
	if l == nil {
		return lockHistory{}
	}
	c := *l
	c.events, c.spans = slices.Clone(l.events), slices.Clone(l.spans)
	return c
}

// observe adds what has changed since the last observation.
func (l *lockHistory) observe(lock holdfast.Lock, at time.Time) {
	isFirst := l.begunAt.IsZero()
	l.noteGap(at)
	if isFirst {
		l.begunAt = at
	}
	before := l.lock
	l.lock, l.seenAt = lock, at
	for _, c := range lock.Holders {
		l.observeHolder(before, c, at, isFirst)
	}
	for _, c := range lock.Waiters {
		if l.openSpan(c) == nil && l.addSpan(claimSpan{claim: c, waitedFrom: startOf(c, at), beganBefore: isFirst}) {
			l.add(historyEvent{at: startOf(c, at), what: "waits", claim: c})
		}
	}
	exists := map[string]bool{}
	for _, c := range slices.Concat(lock.Holders, lock.Waiters) {
		exists[c.Ref] = true
	}
	for i := range l.spans {
		if s := &l.spans[i]; s.endedAt.IsZero() && !exists[s.claim.Ref] {
			s.endedAt = at
			l.add(historyEvent{at: at, what: describeEnd(*s), claim: s.claim})
		}
	}
}

// observeHolder adds what has changed of one holder.
func (l *lockHistory) observeHolder(before holdfast.Lock, c holdfast.ClaimInfo, at time.Time, isFirst bool) {
	s := l.openSpan(c)
	switch {
	case s == nil:
		if !l.addSpan(claimSpan{claim: c, heldFrom: startOf(c, at), beganBefore: isFirst}) {
			return
		}
		l.add(historyEvent{at: startOf(c, at), what: "acquired", claim: c})
	case s.heldFrom.IsZero():
		s.heldFrom = later(startOf(c, at), s.waitedFrom)
		l.add(historyEvent{at: s.heldFrom, what: "acquired", claim: c, waited: s.heldFrom.Sub(s.waitedFrom)})
	}
	s = l.openSpan(c)
	old := s.claim
	s.claim = c
	wasHeld := slices.ContainsFunc(before.Holders, func(o holdfast.ClaimInfo) bool { return o.Ref == c.Ref })
	if c.ReleaseRequested && !(wasHeld && old.ReleaseRequested) {
		l.add(historyEvent{at: at, what: "was asked to release", claim: c})
	}
	if c.Broken && !(wasHeld && old.Broken) {
		l.add(historyEvent{at: at, what: "was broken", claim: c})
	}
	if c.Detached && !(wasHeld && old.Detached) {
		l.add(historyEvent{at: at, what: "was detached", claim: c})
	}
}

// describeEnd says how a claim ended. Whether a lease was released or lost cannot be seen from outside.
func describeEnd(s claimSpan) string {
	switch {
	case s.heldFrom.IsZero():
		return "stopped waiting"
	case s.claim.Broken:
		return "ended after the break"
	}
	return "ended: released, or lost"
}

// openSpan is the span of a claim that exists.
func (l *lockHistory) openSpan(c holdfast.ClaimInfo) *claimSpan {
	for i := range l.spans {
		if s := &l.spans[i]; s.claim.Ref == c.Ref && s.endedAt.IsZero() {
			return s
		}
	}
	return nil
}

// addSpan adds a span, in place of the oldest that has ended if there are too many. If none has ended, it does nothing.
func (l *lockHistory) addSpan(s claimSpan) (added bool) {
	if len(l.spans) >= maxSpans {
		ended := slices.IndexFunc(l.spans, func(s claimSpan) bool { return !s.endedAt.IsZero() })
		if ended < 0 {
			return false
		}
		l.spans = slices.Delete(l.spans, ended, ended+1)
	}
	l.spans = append(l.spans, s)
	return true
}

// noteGap adds that the lock was not observed for a while, if that is so.
func (l *lockHistory) noteGap(at time.Time) {
	if !l.begunAt.IsZero() && !l.watched && at.Sub(l.seenAt) > maxUnobserved {
		l.add(historyEvent{at: at, what: "was not observed since " + describeTime(l.seenAt)})
		l.seenAt = at
	}
}

func (l *lockHistory) add(e historyEvent) {
	l.changeAt = e.at
	if len(l.events) >= maxEvents {
		l.events = slices.Delete(l.events, 0, 1)
	}
	l.events = append(l.events, e)
}

// startOf is when a claim was granted or began to wait, by the store if it knows. The clock of the store may be ahead.
func startOf(c holdfast.ClaimInfo, seen time.Time) time.Time {
	if c.Since.IsZero() || c.Since.After(seen) {
		return seen
	}
	return c.Since
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
