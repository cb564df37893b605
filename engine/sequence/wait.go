package sequence

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// shareSnapshot gives a snapshot to those waiting claims of this client that are granted in it. They can rely on it as
// on one of their own: this process read it while they were waiting.
func (e *Engine) shareSnapshot(seen timedSnapshot, but *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range seen.Nodes {
		n := &seen.Nodes[i]
		cl := e.claims[n.ID]
		if cl == nil || cl == but || cl.session == nil || n.Session != cl.session.ID || n.Foreign {
			continue
		}
		// An older snapshot may show an earlier node of the claim, which had another place. Listings may leave out the
		// token; where they do, no other node gets the key.
		if n.Key != cl.node.key || n.Token != 0 && n.Token != cl.node.token {
			continue
		}
		// A granted claim stays granted, so even an older snapshot is good for that. One in which the claim must
		// wait says nothing new.
		if _, waits := e.waiting[seen.Name][cl.acquire]; waits && isGranted(seen.Nodes, i) {
			select {
			case cl.acquire.turn.snapshots <- seen:
				cl.acquire.turn.blockedBy = "" // it is not blocked any more
			default:
			}
		}
	}
}

// The time between two reads without a watch event is random within these limits. A watch that was lost without notice
// delays a waiter by no more.
const (
	minPoll = 2 * time.Second
	maxPoll = 5 * time.Second
	// the longest time between two reads of a claim that is newest-only
	newestPoll = 2 * time.Second
)

// waitForTurn returns the snapshot by which the claim is granted.
func (a *acquisition) waitForTurn(s *session, seen timedSnapshot) (timedSnapshot, error) {
	e, cl := a.e, a.cl
	i := findOwn(seen.Nodes, a.ID, s.ID)
	if isGranted(seen.Nodes, i) {
		if mustMarkAdmitted(seen.Nodes, i) { // an earlier call added its node
			a.markAdmitted()
		}
		return seen, nil
	}
	if !a.Wait { // an earlier call, which did wait, added its node
		if err := a.removeOwnNode(s); err != nil {
			return seen, err
		}
		return seen, a.readHeldError(seen)
	}
	// Registered before the first read that follows, so that no snapshot shared from now on is missed.
	defer e.addWaiter(a)()
	e.scheduleWatch(cl)
	poll := time.NewTimer(maxPoll)
	defer poll.Stop()
	for {
		if isSuperseded(seen.Nodes, i) { // even if its turn has come
			return seen, a.removeThenRefuse(s, driver.ErrSuperseded)
		}
		if isGranted(seen.Nodes, i) {
			if mustMarkAdmitted(seen.Nodes, i) {
				a.markAdmitted()
			}
			return seen, nil
		}
		// The watch begins at the revision of the snapshot, so a change since then is reported at once.
		a.watchBlocker(seen, findBlocker(seen.Nodes, i))
		every := minPoll + rand.N(maxPoll-minPoll)
		if s.forDetached {
			every = min(every, s.TTL/3)
		}
		if driver.IsNewestOnly(a.ID) { // it watches the nodes ahead, and not those behind
			every = min(every, newestPoll/2+rand.N(newestPoll/2))
		}
		poll.Reset(every)
		var err error
		if seen, err = a.awaitSnapshot(s, poll.C); err != nil {
			return seen, err
		}
		i = findOwn(seen.Nodes, a.ID, s.ID)
	}
}

// addWaiter registers an Acquire as one that can be given snapshots, until remove is called.
func (e *Engine) addWaiter(a *acquisition) (remove func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.waiting[a.Name]
	if all == nil {
		all = map[*acquisition]struct{}{}
		e.waiting[a.Name] = all
	}
	all[a] = struct{}{}
	a.turn.since = e.clock.Now()
	select {
	case <-a.turn.snapshots: // left from an earlier wait
	default:
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(all, a)
		if len(all) == 0 {
			delete(e.waiting, a.Name)
		}
	}
}

// watchBlocker watches the node that the claim waits for, and ends the watch of an earlier one. If that node is a claim
// of the same session it needs no watch, because this process knows when the claim goes. A semaphore's waiter needs one
// even then, since it also waits for the mark that the claim ahead was admitted.
func (a *acquisition) watchBlocker(seen timedSnapshot, key string) {
	e, cl := a.e, a.cl
	k := slices.IndexFunc(seen.Nodes,
		func(n Node) bool { return n.Key == key && !n.Foreign && n.Session == cl.session.ID })
	e.mu.Lock()
	a.turn.blockedBy = ""
	if k >= 0 {
		// With the same token, unless the listing left that out: the claim may have gone, and have come again behind
		// this one, with the same key.
		n := &seen.Nodes[k]
		o := e.claims[n.ID]
		if o != nil && o.loss == nil && o.node.key == key && (n.Token == 0 || n.Token == o.node.token) {
			a.turn.blockedBy = key
		}
	}
	// While it is blocked by a claim of this client, the end of that claim wakes it: see wakeBlockedLocked.
	own, wait := a.turn.blockedBy != "", a.Kind != driver.KindSemaphore || a.Exclusive()
	e.mu.Unlock()
	if own && wait {
		a.stopWatching()
		return
	}
	if a.blocker != nil && a.watchedKey == key {
		return
	}
	a.stopWatching()
	a.watchedKey = key
	wakeup := a.turn.wakeup
	a.blocker = e.store.Watch(a.Name, key, seen.Revision, func() { wakeOne(wakeup) })
}

// stopWatching stops the watch of the claim in front, if there is one.
func (a *acquisition) stopWatching() {
	if a.blocker != nil {
		a.blocker.Stop()
	}
	a.blocker = nil
}

// awaitSnapshot waits until the lock may have changed, and returns a new snapshot of it. Many readers wait for one
// writer, and wake up together. If one of them is listing the lock, the others wait for its snapshot, and read for
// themselves only if they are not granted in it.
func (a *acquisition) awaitSnapshot(s *session, poll <-chan time.Time) (timedSnapshot, error) {
	e, cl := a.e, a.cl
	select {
	case seen := <-a.turn.snapshots:
		return seen, a.checkOwnNode(s, seen)
	case <-a.turn.wakeup:
	case <-poll:
	case <-a.ctx.Done():
		return timedSnapshot{}, e.contextError(a.ctx)
	}
	e.mu.Lock()
	// Another waiter of this client may be listing the lock right now. That may have begun before the change
	// that woke this one, so its snapshot counts only if it grants the claim.
	loss, looking := cl.loss, e.listings[a.Name]
	e.mu.Unlock()
	if loss != nil {
		return timedSnapshot{}, loss
	}
	if s.forDetached { // nothing else keeps this session alive; if it has expired, the next read shows that
		_, _ = s.freshKeepAlive(a.ctx)
	}
	if looking != nil {
		a.RequestStarted(e.clock.Now())
		select {
		case <-looking:
		case <-a.ctx.Done():
			return timedSnapshot{}, e.contextError(a.ctx)
		}
		select {
		case seen := <-a.turn.snapshots:
			a.NoteAnswer()
			return seen, a.checkOwnNode(s, seen)
		default:
		}
	}
	return a.readSnapshot(s)
}

// markAdmitted marks the claim's node as admitted, in the background. The semaphore's next waiter watches for this
// mark, and lists the lock when it comes. If the mark cannot be written, the next waiter finds out by polling.
func (a *acquisition) markAdmitted() {
	e, cl := a.e, a.cl
	e.mu.Lock()
	n := a.node
	e.mu.Unlock()
	e.life.Go(func() {
		ctx, cancel := requestContext(e.life)
		defer cancel()
		// A few tries are enough: the mark only saves the next waiter a poll.
		for range 3 {
			e.mu.Lock()
			left, reported := e.claims[cl.id] != cl || cl.leaving, cl.watch.reported
			e.mu.Unlock()
			if left || n.Admitted {
				return
			}
			payload := n.Payload
			payload.Admitted = true
			now, ok, err := e.store.Change(ctx, cl.name, n, payload, Among{})
			if err == nil && ok {
				_ = e.updateNodeUnder(n.Key, reported, cl, now)
				return
			}
			if err == nil {
				nodes, err := e.store.Read(ctx, []NodeRef{{cl.name, n.Key}})
				if err == nil && nodes[0].Token == 0 {
					e.requestCheck(cl) // or its session has expired; the check asks
				}
				if err != nil || nodes[0].Token == 0 || e.updateNodeUnder(n.Key, reported, cl, nodes[0]) != nil {
					return // the next waiter polls
				}
				n = nodes[0]
			}
		}
	})
}
