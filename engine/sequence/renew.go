package sequence

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
)

// Renew answers for a session's claims by one beat, if the last one is old, and beside it by one read of their nodes for
// every [MaxRead]: a beat says nothing about a node that an operator has removed or marked.
func (e *Engine) Renew(ctx context.Context, gs []driver.Grant, done func(int, driver.Renewal)) {
	ctx, stop := e.bindContext(ctx)
	defer stop()
	var all sync.WaitGroup
	for s, which := range e.groupBySession(gs, done, func(i int) {
		all.Go(func() { done(i, e.renewElsewhere(ctx, gs[i])) })
	}) {
		for len(which) > 0 {
			some := which[:min(len(which), MaxRead)]
			which = which[len(some):]
			all.Go(func() { s.renewClaims(ctx, some, done) })
		}
	}
	all.Wait()
}

// dueGrant is a claim of ours whose i-th grant is to be renewed.
type dueGrant struct {
	index int
	cl    *claim
}

// groupBySession sorts out the grants that are claims of this client, and notes that they were asked for. What is lost is
// answered at once, and what is not ours is handed to other.
func (e *Engine) groupBySession(gs []driver.Grant, done func(int, driver.Renewal), other func(i int)) map[*session][]dueGrant {
	groups := map[*session][]dueGrant{}
	answers := map[int]error{}
	var others []int
	e.mu.Lock()
	for i := range gs {
		cl := e.claims[gs[i].ID]
		switch {
		case e.life.Err() != nil:
			answers[i] = driver.ErrClosed
		case cl == nil || !cl.wasGranted() || cl.Name != gs[i].Name || cl.node.Token != gs[i].Token && cl.loss == nil || cl.session.forDetached:
			others = append(others, i)
		case cl.loss != nil:
			answers[i] = cl.loss
		case cl.leaving:
			answers[i] = &driver.LossError{Cause: driver.LossGone}
		default:
			cl.lastWanted = e.clock.Now()
			groups[cl.session] = append(groups[cl.session], dueGrant{i, cl})
		}
	}
	e.mu.Unlock()
	for i, err := range answers {
		done(i, driver.Renewal{Err: err})
	}
	for _, i := range others {
		other(i)
	}
	return groups
}

func (s *session) renewClaims(ctx context.Context, some []dueGrant, done func(int, driver.Renewal)) {
	e := s.e
	at := make([]NodeRef, len(some))
	e.mu.Lock()
	for k, d := range some {
		at[k] = NodeRef{d.cl.Name, d.cl.node.Key}
	}
	e.mu.Unlock()
	var since driver.Instant
	var beatErr error
	var beat sync.WaitGroup
	beat.Go(func() { since, beatErr = s.retryFreshKeepAlive(ctx) })
	nodes, start, err := s.retryReadNodes(ctx, at)
	beat.Wait()
	isGone := func(n Node) bool { return n.Token == 0 }
	if err == nil && beatErr == nil && slices.ContainsFunc(nodes, isGone) { // if it is the session that has ended, that is what there is to tell
		beatErr = s.keepAlive(ctx)
	}
	if e.clock.Since(start) > e.clock.Since(since) {
		since = start
	}
	for k, d := range some {
		r := driver.Renewal{Since: since, GrantedTTL: s.TTL}
		switch {
		case errors.Is(beatErr, ErrSessionExpired):
			r.Err = e.markLost(d.cl, driver.LossSessionExpired)
		case err != nil:
			r.Err = e.readError(ctx, err)
		case beatErr != nil && isGone(nodes[k]):
			r.Err = e.readError(ctx, beatErr)
		default:
			if loss := e.updateNode(d.cl, nodes[k], nodes[k].Token != 0); loss != nil {
				r.Err = loss
			} else if beatErr != nil {
				r.Err = e.readError(ctx, beatErr)
			} else {
				r.Err = e.extendClaim(d.cl, since)
			}
			r.ReleaseRequested = nodes[k].ReleaseRequested
		}
		done(d.index, r)
	}
}

// extendClaim has the claim stand for its TTL from the start of what has confirmed it, which may have come long after it was asked
// for, unless it was lost meanwhile.
func (e *Engine) extendClaim(cl *claim, since driver.Instant) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl.loss != nil {
		return cl.loss
	}
	if since.Monotonic > cl.lastWanted.Monotonic {
		cl.lastWanted = since
	}
	return nil
}

// retryFreshKeepAlive is fresh, asked again until there is an answer or ctx ends.
func (s *session) retryFreshKeepAlive(ctx context.Context) (driver.Instant, error) {
	for {
		since, err := s.freshKeepAlive(ctx)
		if err == nil || errors.Is(err, ErrSessionExpired) || driver.IsFinal(err) || s.e.sleep(ctx, s.TTL/50) != nil {
			return since, err
		}
	}
}

// retryReadNodes reads nodes, again until there is an answer or ctx ends, and gives the start of the read that had it.
func (s *session) retryReadNodes(ctx context.Context, at []NodeRef) ([]Node, driver.Instant, error) {
	for {
		bctx, cancel := requestContext(ctx)
		start := s.e.clock.Now()
		nodes, err := s.e.store.Read(bctx, at)
		cancel()
		if err == nil || driver.IsFinal(err) || s.e.sleep(ctx, s.TTL/50) != nil {
			return nodes, start, err
		}
	}
}

// renewElsewhere renews a claim that another client made, or that has a session of its own: it beats the session in that
// client's stead. Its client removes what it has not renewed itself; so the renewal is written into the node, where that
// client finds it. Where a session can be beaten by its own client alone nobody else can renew: whether that client
// still does is not known here.
func (e *Engine) renewElsewhere(ctx context.Context, g driver.Grant) driver.Renewal {
	lost := func(why driver.LossCause) driver.Renewal { return driver.Renewal{Err: &driver.LossError{Cause: why}} }
	start := e.clock.Now()
	for {
		n, err := e.findNode(ctx, g.Name, g.ID, g.Ref)
		switch {
		case err != nil:
			return driver.Renewal{Err: driver.Uncertain(err)}
		case n.Token == 0 || n.Token != g.Token:
			return driver.Renewal{Err: e.whyGone(ctx, g.Name, nodeOfRef(g.ID, g.Ref))}
		case n.Broken:
			return lost(driver.LossBroken)
		}
		bctx, cancel := requestContext(ctx)
		promise, err := e.store.KeepAlive(bctx, n.Session)
		cancel()
		switch {
		case errors.Is(err, ErrSessionExpired):
			return lost(driver.LossSessionExpired)
		case err != nil:
			return driver.Renewal{Err: driver.Uncertain(e.readError(ctx, err))}
		}
		ttl := n.TTL
		if promise > 0 {
			ttl = min(ttl, promise)
		}
		if !n.Detached {
			note := n.Payload
			note.Renewed++
			bctx, cancel := requestContext(ctx)
			_, ok, err := e.store.Change(bctx, g.Name, n, note)
			cancel()
			if err != nil {
				return driver.Renewal{Err: driver.Uncertain(e.readError(ctx, err))}
			}
			if !ok {
				continue // changed meanwhile
			}
		}
		return driver.Renewal{Since: start, GrantedTTL: ttl, ReleaseRequested: n.ReleaseRequested}
	}
}

// findNode gives the node that a ref names, or the one of a claim's id if there is no ref; a zero Node if it does not stand.
// If both are given both must match.
func (e *Engine) findNode(ctx context.Context, name, id, r string) (Node, error) {
	bctx, cancel := requestContext(ctx)
	defer cancel()
	if r == "" {
		look, err := e.store.List(bctx, name, true)
		if err != nil {
			return Node{}, e.readError(ctx, err)
		}
		for _, n := range look.Nodes {
			if !n.Foreign && n.ID == id {
				return n, nil
			}
		}
		return Node{}, nil
	}
	key, token, err := parseRef(r)
	if err != nil {
		return Node{}, err
	}
	nodes, err := e.store.Read(bctx, []NodeRef{{name, key}})
	if err != nil {
		return Node{}, e.readError(ctx, err)
	}
	if n := nodes[0]; n.Token == token && (id == "" || n.ID == id) {
		return n, nil
	}
	return Node{}, nil
}
