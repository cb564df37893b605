package sequence

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// share gives a look to those of this client's waiting claims that it shows in a place that fits: it was made by this
// client while they stood.
func (e *Engine) share(seen sight, but *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range seen.Nodes {
		n := &seen.Nodes[i]
		cl := e.claims[n.ID]
		if cl == nil || cl == but || cl.session == nil || n.Session != cl.session.ID || n.Foreign {
			continue
		}
		if _, waits := e.waiting[seen.Name][cl]; waits && fits(seen.Nodes, i) {
			select {
			case cl.seats <- seen:
				cl.blocker = "" // nothing is, any more
			default:
			}
		}
	}
}

// Polls behind the watches: a watch that was lost in silence costs this long at most.
const (
	leastPoll = 2 * time.Second
	mostPoll  = 5 * time.Second
)

// await returns the look by which the claim is granted.
func (a *acquire) await(s *session, seen sight) (sight, error) {
	e, cl := a.e, a.cl
	i := mine(seen.Nodes, cl.ID, s.ID)
	if fits(seen.Nodes, i) {
		if mustWake(seen.Nodes, i) { // it stood in line from an earlier call
			e.wakeNext(cl)
		}
		return seen, nil
	}
	if !cl.Wait { // it stands in line from an earlier call
		if err := a.takeBack(s); err != nil {
			return seen, err
		}
		return seen, a.refusal(seen)
	}
	defer e.sit(cl)()
	e.watchSoon(cl)
	poll := time.NewTimer(0)
	defer poll.Stop()
	for {
		if fits(seen.Nodes, i) {
			if mustWake(seen.Nodes, i) {
				e.wakeNext(cl)
			}
			return seen, nil
		}
		a.watch(seen, blocker(seen.Nodes, i))
		every := leastPoll + rand.N(mostPoll-leastPoll)
		if s.alone {
			every = min(every, s.TTL/3)
		}
		poll.Reset(every)
		var err error
		if seen, err = a.next(s, poll.C); err != nil {
			return seen, err
		}
		i = mine(seen.Nodes, cl.ID, s.ID)
	}
}

// sit makes the claim one to whom looks are given.
func (e *Engine) sit(cl *claim) (rise func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.waiting[cl.Name]
	if all == nil {
		all = map[*claim]struct{}{}
		e.waiting[cl.Name] = all
	}
	all[cl] = struct{}{}
	select {
	case <-cl.seats: // from an earlier wait
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

// watch watches the node in the way, and stops watching another. What is a claim of this client's is not watched: it is
// known when that goes.
func (a *acquire) watch(seen sight, key string) {
	e, cl := a.e, a.cl
	k := slices.IndexFunc(seen.Nodes, func(n Node) bool { return n.Key == key && !n.Foreign && n.Session == cl.session.ID })
	e.mu.Lock()
	cl.blocker = ""
	if k >= 0 {
		if o := e.claims[seen.Nodes[k].ID]; o != nil && o.loss == nil && o.node.Key == key {
			cl.blocker = key
		}
	}
	own, wait := cl.blocker != "", cl.Kind != driver.KindSemaphore || cl.Weight == cl.Limit
	e.mu.Unlock()
	if own && wait {
		a.unwatch()
		return
	}
	if a.watched && a.blocker == key {
		return
	}
	a.unwatch()
	a.blocker, a.watched = key, true
	a.stop = e.tree.Watch(cl.Name, key, seen.Revision, func() { poke(cl.wake) })
}

func (a *acquire) unwatch() {
	if a.stop != nil {
		a.stop()
	}
	a.stop, a.watched = nil, false
}

// next waits until something may have changed, and looks. Many readers wait for one writer, and are woken together: if one of
// them looks already, the others wait for what it sees, and look for themselves only if that does not let them in.
func (a *acquire) next(s *session, poll <-chan time.Time) (sight, error) {
	e, cl := a.e, a.cl
	select {
	case seen := <-cl.seats:
		return seen, a.takeIn(s, seen)
	case <-cl.wake:
	case <-poll:
	case <-a.ctx.Done():
		return sight{}, driver.Uncertain(e.over(a.ctx))
	}
	e.mu.Lock()
	loss, looking := cl.loss, e.looking[cl.Name]
	e.mu.Unlock()
	if loss != nil {
		return sight{}, loss
	}
	if s.alone { // nobody else beats it; if it is over, the look tells
		_, _ = s.fresh(a.ctx)
	}
	if looking != nil {
		select {
		case <-looking:
		case <-a.ctx.Done():
			return sight{}, driver.Uncertain(e.over(a.ctx))
		}
		select {
		case seen := <-cl.seats:
			return seen, a.takeIn(s, seen)
		default:
		}
	}
	return a.look(s)
}

// wakeNext marks the claim's node as let in, so that the next in line looks for itself.
func (e *Engine) wakeNext(cl *claim) {
	e.spawn(func() {
		ctx, cancel := bounded(e.life)
		defer cancel()
		for range 3 {
			e.mu.Lock()
			n, left := cl.node, e.claims[cl.ID] != cl || cl.leaving
			e.mu.Unlock()
			if left || n.In {
				return
			}
			note := n.Payload
			note.In = true
			now, ok, err := e.tree.Change(ctx, cl.Name, n, note)
			if err == nil && ok {
				_ = e.seenUnder(n.Key, cl, now)
				return
			}
			if err == nil {
				nodes, err := e.tree.Read(ctx, []NodeRef{{cl.Name, n.Key}})
				if err == nil && nodes[0].Token == 0 {
					e.changed(cl) // and its session may be over, which has to be asked for
				}
				if err != nil || nodes[0].Token == 0 || e.seenUnder(n.Key, cl, nodes[0]) != nil {
					return // whoever is next polls
				}
			}
		}
	})
}
