package sequence

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// shareSnapshot gives a look to those of this client's waiting claims that it shows in a place that fits: it was made by this
// client while they stood.
func (e *Engine) shareSnapshot(seen timedSnapshot, but *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range seen.Nodes {
		n := &seen.Nodes[i]
		cl := e.claims[n.ID]
		if cl == nil || cl == but || cl.session == nil || n.Session != cl.session.ID || n.Foreign {
			continue
		}
		if _, waits := e.waiting[seen.Name][cl]; waits && isGranted(seen.Nodes, i) {
			select {
			case cl.turn.snapshots <- seen:
				cl.turn.blockedBy = "" // nothing is, any more
			default:
			}
		}
	}
}

// Polls behind the watches: a watch that was lost in silence costs this long at most.
const (
	minPoll = 2 * time.Second
	maxPoll = 5 * time.Second
)

// waitForTurn returns the look by which the claim is granted.
func (a *acquisition) waitForTurn(s *session, seen timedSnapshot) (timedSnapshot, error) {
	e, cl := a.e, a.cl
	i := findOwn(seen.Nodes, cl.ID, s.ID)
	if isGranted(seen.Nodes, i) {
		if mustMarkAdmitted(seen.Nodes, i) { // it stood in line from an earlier call
			e.markAdmitted(cl)
		}
		return seen, nil
	}
	if !cl.Wait { // it stands in line from an earlier call
		if err := a.removeOwnNode(s); err != nil {
			return seen, err
		}
		return seen, a.readHeldError(seen)
	}
	defer e.addWaiter(cl)()
	e.scheduleWatch(cl)
	poll := time.NewTimer(0)
	defer poll.Stop()
	for {
		if isGranted(seen.Nodes, i) {
			if mustMarkAdmitted(seen.Nodes, i) {
				e.markAdmitted(cl)
			}
			return seen, nil
		}
		a.watchBlocker(seen, findBlocker(seen.Nodes, i))
		every := minPoll + rand.N(maxPoll-minPoll)
		if s.forDetached {
			every = min(every, s.TTL/3)
		}
		poll.Reset(every)
		var err error
		if seen, err = a.awaitSnapshot(s, poll.C); err != nil {
			return seen, err
		}
		i = findOwn(seen.Nodes, cl.ID, s.ID)
	}
}

// addWaiter makes the claim one to whom looks are given.
func (e *Engine) addWaiter(cl *claim) (rise func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.waiting[cl.Name]
	if all == nil {
		all = map[*claim]struct{}{}
		e.waiting[cl.Name] = all
	}
	all[cl] = struct{}{}
	select {
	case <-cl.turn.snapshots: // from an earlier wait
	default:
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(all, cl)
		if len(all) == 0 {
			delete(e.waiting, cl.Name)
		}
	}
}

// watchBlocker watches the node in the way, and stops watching another. What is a claim of this client's is not watched: it is
// known when that goes.
func (a *acquisition) watchBlocker(seen timedSnapshot, key string) {
	e, cl := a.e, a.cl
	k := slices.IndexFunc(seen.Nodes, func(n Node) bool { return n.Key == key && !n.Foreign && n.Session == cl.session.ID })
	e.mu.Lock()
	cl.turn.blockedBy = ""
	if k >= 0 {
		if o := e.claims[seen.Nodes[k].ID]; o != nil && o.loss == nil && o.node.Key == key {
			cl.turn.blockedBy = key
		}
	}
	own, wait := cl.turn.blockedBy != "", cl.Kind != driver.KindSemaphore || cl.Weight == cl.Limit
	e.mu.Unlock()
	if own && wait {
		a.stopWatching()
		return
	}
	if a.isWatching && a.watchedKey == key {
		return
	}
	a.stopWatching()
	a.watchedKey, a.isWatching = key, true
	a.stopWatch = e.store.Watch(cl.Name, key, seen.Revision, func() { wakeOne(cl.turn.wakeup) })
}

func (a *acquisition) stopWatching() {
	if a.stopWatch != nil {
		a.stopWatch()
	}
	a.stopWatch, a.isWatching = nil, false
}

// awaitSnapshot waits until something may have changed, and looks. Many readers wait for one writer, and are woken together: if one of
// them looks already, the others wait for what it sees, and look for themselves only if that does not let them in.
func (a *acquisition) awaitSnapshot(s *session, poll <-chan time.Time) (timedSnapshot, error) {
	e, cl := a.e, a.cl
	select {
	case seen := <-cl.turn.snapshots:
		return seen, a.checkOwnNode(s, seen)
	case <-cl.turn.wakeup:
	case <-poll:
	case <-a.ctx.Done():
		return timedSnapshot{}, driver.Uncertain(e.contextError(a.ctx))
	}
	e.mu.Lock()
	loss, looking := cl.loss, e.listings[cl.Name]
	e.mu.Unlock()
	if loss != nil {
		return timedSnapshot{}, loss
	}
	if s.forDetached { // nobody else beats it; if it is over, the look tells
		_, _ = s.freshKeepAlive(a.ctx)
	}
	if looking != nil {
		select {
		case <-looking:
		case <-a.ctx.Done():
			return timedSnapshot{}, driver.Uncertain(e.contextError(a.ctx))
		}
		select {
		case seen := <-cl.turn.snapshots:
			return seen, a.checkOwnNode(s, seen)
		default:
		}
	}
	return a.readLine(s)
}

// markAdmitted marks the claim's node as let in, so that the next in line looks for itself.
func (e *Engine) markAdmitted(cl *claim) {
	e.startGoroutine(func() {
		ctx, cancel := requestContext(e.life)
		defer cancel()
		for range 3 {
			e.mu.Lock()
			n, left := cl.node, e.claims[cl.ID] != cl || cl.leaving
			e.mu.Unlock()
			if left || n.Admitted {
				return
			}
			note := n.Payload
			note.Admitted = true
			now, ok, err := e.store.Change(ctx, cl.Name, n, note)
			if err == nil && ok {
				_ = e.updateNodeUnder(n.Key, cl, now)
				return
			}
			if err == nil {
				nodes, err := e.store.Read(ctx, []NodeRef{{cl.Name, n.Key}})
				if err == nil && nodes[0].Token == 0 {
					e.requestCheck(cl) // and its session may be over, which has to be asked for
				}
				if err != nil || nodes[0].Token == 0 || e.updateNodeUnder(n.Key, cl, nodes[0]) != nil {
					return // whoever is next polls
				}
			}
		}
	})
}
