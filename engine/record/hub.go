package record

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// waiterHub watches one lock for all claims of this client that wait for it. So a change costs one load per client,
// however many claims wait, and only the claims that it affects are woken.
//
// A hub exists while it has subscribers. It runs one goroutine, which waits for a reason to load the row, and wakes the
// subscribers. The engine shows the hub what this client writes, so that needs no load.
type waiterHub struct {
	e           *engine
	name        string
	subscribers map[*subscription]struct{} // guarded by the engine's mutex, like all down to loads
	seen        snapshot                   // as last loaded, or written by this client
	replaced    []string                   // versions that this client has replaced, one after the other, up to seen
	hasWritten  bool                       // this client has written seen since the last load was started
	loads       int64                      // how many loads were started
	loadNow     chan struct{}              // buffered: load at once
	wrote       chan struct{}              // buffered: this client has written the row
	place       Place                      // of the claims for which it waits at present; guarded by the engine's mutex
	stop        context.CancelFunc
}

// subscription is one claim that waits.
//
// It takes no row whose load was started before it subscribed. Such a row may be older than the one that the claim
// knows: the claim would miss itself in a queue that it has joined since, and find the queue full.
type subscription struct {
	id                 string             // the claim's
	version            string             // the row's, as the claim knew it when it subscribed, or as the hub has looked at it since
	loadsBefore        int64              // how many loads the hub had started by then
	updates            chan update        // buffered; sent to with the engine's mutex held
	observe            func(*Record) bool // takes in a change, and reports whether it concerns the claim
	inQueue            bool               // the claim is in the store's queue
	unreachableTimeout time.Duration      // how long the claim waits for a store that does not answer
	outage             driverutil.Outage  // guarded by the engine's mutex until the subscription has ended
}

// update is what a hub sends to a subscription: the row as it is now, or the error that ends the wait.
type update struct {
	snapshot
	expired bool // a claim in it has expired: any client may remove it
	noticed bool // a notice has brought the row, which may be older than the last one
	err     error
}

// livenessInterval is how often the table is asked whether the other claims' clients are alive, if it can tell.
const livenessInterval = 100 * time.Millisecond

// maxIdleLoads: with each load that brings no news a hub polls more slowly, up to this number of loads.
const maxIdleLoads = 8

// subscribe notifies a claim of the next change that affects it, as seen from the row that it knows. A new hub begins
// as slow as one that has loaded idleLoads times without news.
func (e *engine) subscribe(sub *subscription, row Row, rec *Record, idleLoads int) (unsubscribe func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.hubs[row.Name]
	if h == nil {
		h = e.startHub(row, rec, idleLoads)
	}
	sub.loadsBefore = h.loads
	h.subscribers[sub] = struct{}{}
	if len(h.subscribers) == 1 {
		h.place = h.placeOfClaims()
	}
	switch {
	case h.place != h.placeOfClaims():
		h.requestLoad() // the hub must wait for something else now
	case h.seen.row.Version == row.Version:
	case sub.inQueue && slices.Contains(h.replaced, row.Version):
		h.showWritten(sub)
	default:
		h.requestLoad() // the hub's row or the claim's is old
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(h.subscribers, sub)
		if len(h.subscribers) == 0 && e.hubs[h.name] == h {
			delete(e.hubs, h.name)
			h.stop()
		}
	}
}

// startHub makes a hub. If the engine is closed it does not run; then the subscriber's own context ends its wait. It is
// called with mu held.
func (e *engine) startHub(row Row, rec *Record, idleLoads int) *waiterHub {
	known := snapshot{row: row, rec: rec}
	h := &waiterHub{
		e: e, name: row.Name, seen: known, subscribers: map[*subscription]struct{}{},
		loadNow: make(chan struct{}, 1), wrote: make(chan struct{}, 1),
	}
	var ctx context.Context
	ctx, h.stop = context.WithCancel(e.life)
	if e.life.Go(func() { h.run(ctx, known, idleLoads) }) {
		e.hubs[row.Name] = h
	}
	return h
}

// requestLoad makes the hub read the row soon. Several requests before that become one read.
func (h *waiterHub) requestLoad() {
	select {
	case h.loadNow <- struct{}{}:
	default:
	}
}

// run loads the row whenever it may have changed from the one that is known, until ctx ends because nobody waits any
// more.
func (h *waiterHub) run(ctx context.Context, known snapshot, idleLoads int) {
	var watch Watch
	if h.e.watcher != nil {
		watch = h.e.watcher.Watch(h.name)
		defer watch.Stop()
	}
	var failed error
	vain := 0        // notices in a row that brought no change
	offered := false // a claim was woken: if this client has had the turn to look, that has served its purpose
	for ; ctx.Err() == nil; idleLoads++ {
		notifier := watch
		if vain >= maxVainNotices {
			notifier = nil
		}
		why, row := h.awaitReason(ctx, notifier, known, idleLoads, failed != nil)
		if why == ownWrite {
			s, ok := h.takeOwnWrite()
			if !ok {
				continue // a load that was started since has brought it
			}
			h.e.observeClaims(h.name, s.rec)
			known, idleLoads = s, 0
			if !h.e.anyExpired(s.row, s.rec) { // a renewal removes no other claim
				continue
			}
		}
		if ctx.Err() != nil {
			return
		}
		var load int64
		row, now, isNoticed := h.e.acceptNotice(row)
		if isNoticed && row.Version == known.row.Version {
			isNoticed = false // the watch may have to learn by a read that this is the present row
		}
		if !isNoticed {
			load = h.nextLoad()
			var err error
			row, now, err = h.e.loadRecord(ctx, h.name)
			h.noteLoadResult(ctx, err)
			if failed = err; err != nil {
				continue
			}
		}
		h.e.observeClaims(h.name, now)
		if offered && watch != nil {
			watch.PassTurn()
		}
		offered = false
		expired, changed := h.e.anyExpired(row, now), row.Version != known.row.Version
		switch {
		case changed:
			vain = 0
		case why == noticed:
			vain++
		}
		if changed || why != timeToPoll {
			idleLoads = 0
		} else if !expired {
			continue
		}
		known = snapshot{row: row, rec: now}
		offered = h.wakeAffected(update{snapshot: known, expired: expired, noticed: isNoticed}, load)
	}
}

// maxVainNotices is after how many notices that brought no change a hub polls until the row changes: a table that
// cannot notify any more may say that by notices, again and again. Single ones are usual: a hub may have loaded what
// a notice is about before that comes.
const maxVainNotices = 20

// showHubWrite shows the hub of a lock, if there is one, what this client has written. The hub takes it if it knows the
// row that this has replaced, and wakes the subscribers that are promoted or removed. Those that are granted learn it
// from the writer, and the others are not woken to go on waiting. If a claim outside of the queue waits, the hub is not
// shown it: that claim has its turn to look.
func (e *engine) showHubWrite(s snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.hubs[s.row.Name]
	switch {
	case h == nil || h.placeOfClaims() != InQueue:
		return
	case h.seen.row.Version != s.replaced:
		h.requestLoad()
		return
	}
	h.seen, h.hasWritten = s, true
	if len(h.replaced) == maxReplaced {
		h.replaced = slices.Delete(h.replaced, 0, 1)
	}
	h.replaced = append(h.replaced, s.replaced)
	for sub := range h.subscribers {
		switch {
		case sub.version == s.row.Version:
		case slices.Contains(h.replaced, sub.version):
			h.showWritten(sub)
		default:
			h.requestLoad()
		}
	}
	select {
	case h.wrote <- struct{}{}:
	default:
	}
}

// maxReplaced is how many of the versions that a client has replaced its hub knows.
const maxReplaced = 8

// showWritten shows the row that this client has written to a claim in the queue that knew an earlier one. It is called
// with mu held.
func (h *waiterHub) showWritten(sub *subscription) {
	sub.version, sub.loadsBefore = h.seen.row.Version, h.loads
	if mine := h.seen.rec.findClaim(sub.id); mine == nil || mine.State == Promoted || h.seen.rec.isSuperseded(mine) {
		sub.deliver(update{snapshot: h.seen})
	}
}

// placeOfClaims returns where the subscribers wait. It is called with mu held.
func (h *waiterHub) placeOfClaims() Place {
	queued := 0
	for sub := range h.subscribers {
		if sub.inQueue {
			queued++
		}
	}
	switch queued {
	case 0:
		return Outside
	case len(h.subscribers):
		return InQueue
	}
	return Anywhere
}

// takeOwnWrite returns what this client has written since the last load was started, if it has.
func (h *waiterHub) takeOwnWrite() (snapshot, bool) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	hasWritten := h.hasWritten
	h.hasWritten = false
	return h.seen, hasWritten
}

// nextLoad counts a load that starts, and returns its number.
func (h *waiterHub) nextLoad() int64 {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	h.loads++
	h.hasWritten = false
	now := h.e.clock.Now()
	for sub := range h.subscribers {
		sub.outage.RequestStarted(now)
	}
	return h.loads
}

// ownWriteInterval is how long a hub expects the next change to be this client's own, after one that was.
const ownWriteInterval = 50 * time.Millisecond

// ownsHead reports whether this client has made all claims ahead of the hub's first one, and there are some. Then it is
// this client that makes room for it, if nothing goes wrong. It is called with mu held.
func (h *waiterHub) ownsHead(rec *Record) bool {
	if h.placeOfClaims() != InQueue {
		return false
	}
	for i := range rec.Claims {
		switch c := &rec.Claims[i]; {
		case h.serves(c.ID):
			return i > 0
		case !c.own:
			return false
		}
	}
	return false
}

// serves reports whether the claim with that id waits here. It is called with mu held.
func (h *waiterHub) serves(id string) bool {
	for sub := range h.subscribers {
		if sub.id == id {
			return true
		}
	}
	return false
}

// reason is why a hub loads the row.
type reason int

const (
	timeToPoll reason = iota
	noticed           // the table has notified
	asked             // a subscriber needs a load, or a client is dead
	ownWrite          // this client has written the row, which need not be loaded for that
)

// stoppedPoll is the longest time between two loads of a hub that depends on another client's notice or turn, if the
// clients notify each other ([Traits].PeerNotices). That client may have been stopped.
const stoppedPoll = time.Second

// newestPoll is the longest time between two loads for a claim that is newest-only. Nobody notifies it of a newer one.
const newestPoll = 2 * time.Second

// looksForNewer reports whether a claim that waits here is newest-only. It is called with mu held.
func (h *waiterHub) looksForNewer() bool {
	for sub := range h.subscribers {
		if driver.IsNewestOnly(sub.id) {
			return true
		}
	}
	return false
}

// awaitReason waits for a reason to load the row, and returns the row if the notice has brought it. Without another one it returns when it is time to poll, which is
// later from load to load, but at the latest when the next claim can expire.
//
// A table that notifies is polled rarely, in case a notice is lost. If it cannot notify, or if the last load failed,
// polling takes over at its usual rate.
func (h *waiterHub) awaitReason(ctx context.Context, watch Watch, known snapshot, idleLoads int, failing bool) (reason, Row) {
	rec := known.rec
	h.e.mu.Lock()
	h.place = h.placeOfClaims()
	place, ahead, ownsHead, looks := h.place, h.claimsAhead(rec), h.ownsHead(rec), h.looksForNewer()
	h.e.mu.Unlock()
	if ownsHead {
		// While the lock goes from one claim of this client to the next, it would be notified of nothing but its own
		// writes.
		quiet := time.NewTimer(ownWriteInterval)
		defer quiet.Stop()
		select {
		case <-h.wrote:
			return ownWrite, Row{}
		case <-h.loadNow:
			return asked, Row{}
		case <-quiet.C:
		case <-ctx.Done():
			return timeToPoll, Row{}
		}
	}
	shortPoll, paced := h.pacedDelay(rec)
	if !paced {
		shortPoll = h.idleDelay(idleLoads, 20*time.Millisecond, maxPoll)
	}
	shortPoll = h.spreadDelay(rec, idleLoads, shortPoll)
	limit := shortPoll
	if watch != nil && !failing {
		limit = h.spreadDelay(rec, idleLoads, h.idleDelay(idleLoads, time.Second, 5*time.Second))
	}
	if h.e.traits.PeerNotices && (place == Outside || isNext(ahead)) {
		limit = min(limit, stoppedPoll/2+randomPart(stoppedPoll/2))
	}
	if looks {
		limit = min(limit, newestPoll/2+randomPart(newestPoll/2))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	var liveness <-chan time.Time // nil without the turn: hundreds may wait for it, and the one that has it checks
	if watch == nil || place != Outside || watch.HasTurn() {
		ticker := time.NewTicker(livenessInterval)
		defer ticker.Stop()
		liveness = ticker.C
	}
	type notice struct {
		row Row
		err error
	}
	waited := make(chan notice, 1)
	var listener sync.WaitGroup
	defer listener.Wait()
	defer cancel()
	if watch != nil {
		listener.Go(func() {
			row, err := watch.Wait(ctx, known.row.Version, place)
			waited <- notice{row, err}
		})
	}
	for ticks := 1; ; {
		select {
		case n := <-waited:
			if n.err == nil {
				return noticed, n.row
			}
			defer time.AfterFunc(shortPoll, cancel).Stop()
		case <-h.loadNow:
			return asked, Row{}
		case <-h.wrote:
			return ownWrite, Row{}
		case <-liveness:
			now := h.e.clock.Now()
			if slices.ContainsFunc(claimsToCheck(rec, ahead, ticks), func(c Claim) bool { return h.e.isDead(&c, now) }) {
				return asked, Row{}
			}
			ticks++
		case <-ctx.Done():
			return timeToPoll, Row{}
		}
	}
}

// idleDelay is how long to wait before the next load without a sign: it doubles with each load that brought no news,
// between minDelay and maxDelay.
func (h *waiterHub) idleDelay(idleLoads int, minDelay, maxDelay time.Duration) time.Duration {
	return min(maxDelay, max(minDelay, 4*h.e.roundTrip())<<min(idleLoads, maxIdleLoads))
}

// spreadDelay shortens a delay by up to half, so that clients do not all load at the same time, and ends it when the
// next claim can expire.
func (h *waiterHub) spreadDelay(rec *Record, idleLoads int, d time.Duration) time.Duration {
	d = d/2 + randomPart(d/2)
	if left, ok := h.e.nextExpiry(h.name, rec); ok {
		d = min(d, max(left, 0)+(h.e.roundTrip()/4+time.Millisecond)<<min(idleLoads, 10))
	}
	return d
}

// wakeAffected wakes the subscribers that the change affects. If a claim has expired it wakes all of them, because
// any of them may remove it. A subscriber that came after the load was started gets the row of another load, unless it
// knows this row already. So does one in the queue that a noticed row does not have: it may have joined after that.
// It reports whether it woke any.
func (h *waiterHub) wakeAffected(u update, load int64) (woke bool) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	switch {
	case h.hasWritten && slices.Contains(h.replaced, u.row.Version): // it was replaced while it was read
		u.snapshot = h.seen
	case u.row.Version != h.seen.row.Version:
		h.replaced = nil
	}
	h.seen = u.snapshot
	for sub := range h.subscribers {
		isOlder := !u.noticed && load <= sub.loadsBefore
		switch {
		case isOlder, u.noticed && sub.inQueue && u.rec.findClaim(sub.id) == nil:
			if u.row.Version != sub.version {
				h.requestLoad()
			}
		default:
			isKnown := sub.version == u.row.Version // the claim has looked at this row, and waits
			sub.version = u.row.Version
			if u.expired || !isKnown && sub.observe(u.rec) {
				sub.deliver(u)
				woke = true
			}
		}
	}
	return woke
}

// noteLoadResult ends the waits that a failed load must end: all of them if the error is final, since asking again
// cannot help, and otherwise those for which the store was unreachable for too long. A waiter in the queue sends no
// requests of its own for a long time, so it depends on this.
func (h *waiterHub) noteLoadResult(ctx context.Context, err error) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	for sub := range h.subscribers {
		sub.outage.NoteReason(ctx, err)
		switch {
		case err == nil:
			sub.outage.RequestAnswered()
		case ctx.Err() != nil: // nobody waits any more
		case driverutil.IsFinal(err), sub.outage.RequestFailed(h.e.clock, sub.unreachableTimeout):
			sub.deliver(update{err: err})
		}
	}
}

// deliver sends an update, in place of an earlier one that was not received yet.
func (s *subscription) deliver(u update) {
	select {
	case <-s.updates:
	default:
	}
	s.updates <- u
}

// anyExpired reports whether the record has a claim, or a foreign hold, that any client may remove.
func (e *engine) anyExpired(row Row, rec *Record) bool {
	in := e.stepInput(row, rec)
	if rec.Foreign != 0 && in.foreignEnd(rec) == 0 {
		return true
	}
	return slices.ContainsFunc(rec.Claims, func(c Claim) bool { return in.judgeClaim(&c) != Alive })
}
