package sequence

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Renew renews the claims of a session with one keep-alive, if the last one is old. A keep-alive says nothing about a
// node that an operator has removed or marked. That is what the watches of the nodes are for, and one request confirms
// that they have reported everything. Nodes without a live watch, or with a change that was reported, are read.
func (e *Engine) Renew(ctx context.Context, gs []driver.Grant, done func(int, driver.Renewal)) {
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	var all sync.WaitGroup
	for s, which := range e.groupBySession(gs, done, func(i int) {
		all.Go(func() { done(i, e.renewElsewhere(ctx, gs[i])) })
	}) {
		watched, others := s.splitWatched(which)
		all.Go(func() { s.renewByReading(ctx, others, done) })
		all.Go(func() { s.renewByReading(ctx, s.renewWatched(ctx, watched, done), done) })
	}
	all.Wait()
}

// splitWatched separates the claims whose watches say that nothing has changed.
func (s *session) splitWatched(which []dueGrant) (watched, others []dueGrant) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	for _, d := range which {
		if d.cl.watch.isUnchanged() {
			watched = append(watched, d)
		} else {
			others = append(others, d)
		}
	}
	return watched, others
}

// renewWatched renews claims whose nodes need not be read, and returns the others. A watch counts only if it still says
// that nothing has changed once ConfirmWatches has returned: what is reported until then may have happened before.
func (s *session) renewWatched(ctx context.Context, which []dueGrant, done func(int, driver.Renewal)) []dueGrant {
	if len(which) == 0 {
		return nil
	}
	e := s.e
	if s.isStale() {
		e.life.Go(func() { _, _ = s.freshKeepAlive(e.life) }) // while the confirmation is under way
	}
	confirmed, err := s.confirmWatches(ctx)
	if err != nil {
		return which
	}
	since, err := s.retryFreshKeepAlive(ctx)
	if err != nil {
		return which
	}
	if e.clock.Since(confirmed) > e.clock.Since(since) {
		since = confirmed
	}
	watched, others := s.splitWatched(which)
	for _, d := range watched {
		r := driver.Renewal{Since: since, GrantedTTL: s.TTL, Err: e.extendClaim(d.cl, since)}
		e.mu.Lock()
		r.ReleaseRequested = d.cl.releaseRequested
		e.mu.Unlock()
		done(d.index, r)
	}
	return others
}

// maxReads is how many reads of one batch of renewals are under way at a time. If those of thousands of leases were
// sent together, a busy store would answer none before their timeouts. The timeout of a read begins when it is sent.
const maxReads = 16

// renewByReading renews claims whose nodes are read, many with each read.
func (s *session) renewByReading(ctx context.Context, which []dueGrant, done func(int, driver.Renewal)) {
	var all sync.WaitGroup
	underWay := make(chan struct{}, maxReads)
	for some := range slices.Chunk(which, MaxRead) {
		underWay <- struct{}{}
		all.Go(func() {
			s.renewClaims(ctx, some, done)
			<-underWay
		})
	}
	all.Wait()
}

// dueGrant is a claim of this client that is to be renewed, with the index of its grant.
type dueGrant struct {
	index int
	cl    *claim
}

// groupBySession finds the grants that are claims of this client, and records that they are wanted. It answers at once
// for those that are lost, and calls other for those that are not ours or have a session of their own.
func (e *Engine) groupBySession(
	gs []driver.Grant, done func(int, driver.Renewal), other func(i int),
) map[*session][]dueGrant {
	groups := map[*session][]dueGrant{}
	answers := map[int]error{}
	var others []int
	e.mu.Lock()
	for i := range gs {
		cl := e.claims[gs[i].ID]
		switch {
		case e.life.Err() != nil:
			answers[i] = driver.ErrClosed
		case cl == nil || !cl.wasGranted() || cl.name != gs[i].Name || cl.session.forDetached ||
			cl.node.token != gs[i].Token && cl.loss == nil:
			others = append(others, i)
		case cl.loss != nil:
			answers[i] = cl.loss
		case cl.leaving:
			answers[i] = &driver.LossError{Cause: driver.LossGone}
		default:
			// Even if the renewal fails: the holder is alive, and the janitor must not remove its claim meanwhile.
			cl.lastWanted = e.clock.Monotonic()
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

// renewClaims renews claims of one session.
func (s *session) renewClaims(ctx context.Context, some []dueGrant, done func(int, driver.Renewal)) {
	e := s.e
	refs, reported := make([]NodeRef, len(some)), make([]uint32, len(some))
	e.mu.Lock()
	for k, d := range some {
		refs[k], reported[k] = NodeRef{d.cl.name, d.cl.node.key}, d.cl.watch.reported
	}
	e.mu.Unlock()
	var since driver.Instant
	var keepAliveErr error
	var keepAlive sync.WaitGroup
	// Both requests are under way at the same time, so a renewal costs one round trip.
	keepAlive.Go(func() { since, keepAliveErr = s.retryFreshKeepAlive(ctx) })
	nodes, start, err := s.retryReadNodes(ctx, refs)
	keepAlive.Wait()
	isGone := func(n Node) bool { return n.Token == 0 }
	// If a node is gone because the session has ended, that is the reason to report, so ask first.
	if err == nil && keepAliveErr == nil && slices.ContainsFunc(nodes, isGone) {
		if keepAliveErr = s.keepAlive(ctx); keepAliveErr == nil {
			claims := make([]*claim, len(some))
			for k, d := range some {
				claims[k] = d.cl
			}
			e.addBreakReasons(ctx, claims, nodes)
		}
	}
	if e.clock.Since(start) > e.clock.Since(since) {
		since = start
	}
	for k, d := range some {
		r := driver.Renewal{Since: since, GrantedTTL: s.TTL}
		switch {
		case errors.Is(keepAliveErr, ErrSessionExpired):
			r.Err = e.markLost(d.cl, driver.LossSessionExpired)
		case err != nil:
			r.Err = e.readError(ctx, err)
		case keepAliveErr != nil && isGone(nodes[k]):
			r.Err = e.readError(ctx, keepAliveErr)
		default:
			if loss := e.updateNodeUnder(refs[k].Key, reported[k], d.cl, nodes[k]); loss != nil {
				r.Err = loss
			} else if keepAliveErr != nil {
				r.Err = e.readError(ctx, keepAliveErr)
			} else {
				r.Err = e.extendClaim(d.cl, since)
			}
			r.ReleaseRequested = nodes[k].ReleaseRequested
		}
		done(d.index, r)
	}
}

// extendClaim extends a claim by its TTL from the start of what has confirmed it, which may be long after the renewal
// was requested. It returns the loss if the claim was lost meanwhile.
func (e *Engine) extendClaim(cl *claim, since driver.Instant) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl.loss != nil {
		return cl.loss
	}
	// A slow renewal counts from the request that confirmed it, which may be later than lastWanted.
	cl.lastWanted = max(cl.lastWanted, since.Monotonic)
	return nil
}

// retryFreshKeepAlive is freshKeepAlive, repeated until there is a final answer or ctx ends.
func (s *session) retryFreshKeepAlive(ctx context.Context) (driver.Instant, error) {
	for {
		since, err := s.freshKeepAlive(ctx)
		if err == nil || errors.Is(err, ErrSessionExpired) || driverutil.IsFinal(err) ||
			s.e.life.Sleep(ctx, s.TTL/50) != nil {
			return since, err
		}
	}
}

// retryReadNodes reads nodes, and tries again until there is a final answer or ctx ends. It returns the start of the
// read that was answered.
func (s *session) retryReadNodes(ctx context.Context, refs []NodeRef) ([]Node, driver.Instant, error) {
	for {
		bctx, cancel := requestContext(ctx)
		start := s.e.clock.Now()
		nodes, err := s.e.store.Read(bctx, refs)
		cancel()
		if err == nil || driverutil.IsFinal(err) || s.e.life.Sleep(ctx, s.TTL/50) != nil {
			return nodes, start, err
		}
	}
}

// renewElsewhere renews a claim that another client made, or that has a session of its own. It sends the keep-alive for
// that session. The client that made the claim removes claims that it has not renewed itself, so the renewal is also
// written into the node, where that client finds it. Where only the client itself can keep its session alive, nobody
// else can renew the claim: it is not known here whether that client still does.
func (e *Engine) renewElsewhere(ctx context.Context, g driver.Grant) driver.Renewal {
	start := e.clock.Now()
	for {
		n, err := e.findNode(ctx, g.Name, g.ID, g.Ref)
		switch {
		case err != nil:
			return driver.Renewal{Err: driverutil.Uncertain(err)}
		case n.Token == 0 || n.Token != g.Token:
			return driver.Renewal{Err: e.whyGone(ctx, g.Name, nodeOfRef(g.ID, g.Ref))}
		case n.Broken:
			return driver.Renewal{Err: driverutil.MarkedError(n.BreakReason)}
		}
		bctx, cancel := requestContext(ctx)
		promise, err := e.store.KeepAlive(bctx, n.Session)
		cancel()
		switch {
		case errors.Is(err, ErrSessionExpired):
			return driver.Renewal{Err: &driver.LossError{Cause: driver.LossSessionExpired}}
		case err != nil:
			return driver.Renewal{Err: driverutil.Uncertain(e.readError(ctx, err))}
		}
		ttl := n.TTL
		if promise > 0 {
			ttl = min(ttl, promise)
		}
		if !n.Detached {
			payload := n.Payload
			// The client that made the claim finds the larger number, and does not remove the claim as abandoned.
			payload.Renewed++
			bctx, cancel := requestContext(ctx)
			_, ok, err := e.store.Change(bctx, g.Name, n, payload, Among{})
			cancel()
			if err != nil {
				return driver.Renewal{Err: driverutil.Uncertain(e.readError(ctx, err))}
			}
			if !ok {
				continue // the node has changed meanwhile
			}
		}
		return driver.Renewal{Since: start, GrantedTTL: ttl, ReleaseRequested: n.ReleaseRequested}
	}
}

// findNode returns the node with this ref, or, if there is no ref, the one of the claim with this ID; if both are
// given, both must match. It returns a zero Node if there is none.
func (e *Engine) findNode(ctx context.Context, name, id, r string) (Node, error) {
	bctx, cancel := requestContext(ctx)
	defer cancel()
	if r == "" {
		snapshot, err := e.store.List(bctx, name, true)
		if err != nil {
			return Node{}, e.readError(ctx, err)
		}
		for _, n := range snapshot.Nodes {
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
