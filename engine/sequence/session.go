package sequence

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// session is one session of this client. One serves all claims with its TTL. A detached claim has one of its own, to
// which only a process that renews that claim sends keep-alives.
type session struct {
	Session
	e            *Engine
	requestedTTL time.Duration // the store may have granted more
	forDetached  bool          // it serves one detached claim
	wakeup       chan struct{} // buffered; wakes the janitor
	stopped      chan struct{} // closed when the session has ended

	// The rest is guarded by the engine's mutex.
	keepAlives       []driver.Instant // starts of the keep-alives that had replies, from the trusted one on
	inFlight         chan struct{}    // not nil while a keep-alive is under way
	lastErr          error            // of the last keep-alive
	expired          bool             // the store has ended it
	nextNumber       int64            // the smallest number that no claim has had
	freeNumbers      []int64          // smaller ones that claims can have again
	confirming       bool             // sendConfirmations runs
	nextConfirmation *confirmation    // nil if nobody waits for one that has not begun
	claimCount       int              // of the claims that are bound to it: see has
	toCheck          map[*claim]struct{}
	idleSince        driver.Instant

	// Claims whose own nodes are to be watched if they last (see startDueWatches).
	olderUnwatched []*claim // scheduled before unwatchedSplit
	unwatchedSplit driver.Instant
	newerUnwatched []*claim // and since then
}

// openSession opens a session. It counts from the start of the request.
func (e *Engine) openSession(ctx context.Context, ttl time.Duration, forDetached bool) (*session, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	start := e.clock.Now()
	got, err := e.store.OpenSession(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return &session{
		Session: got, e: e, requestedTTL: ttl, forDetached: forDetached,
		wakeup: make(chan struct{}, 1), stopped: make(chan struct{}),
		keepAlives: []driver.Instant{start}, idleSince: e.clock.Now(),
		toCheck: map[*claim]struct{}{},
	}, nil
}

// sessionOpening is the request that opens a session, shared by all callers that wait for it.
type sessionOpening struct {
	done chan struct{}
	err  error
}

// bindSession binds a claim to a live session, which it opens if there is none. The opening has a time limit of its
// own, so that a caller that gives up does not end it for the others.
//
// Claims with the same TTL share a session, so ten thousand leases cost the keep-alives of one. Claims with another TTL
// need another one, because the store counts one time per session. A detached claim has a session of its own,
// which expires when the time of the claim has passed.
func (a *acquisition) bindSession() (*session, error) {
	e, cl := a.e, a.cl
	for {
		e.mu.Lock()
		s, o := e.sessions[a.TTL], e.openings[a.TTL]
		switch {
		case cl.session != nil:
			defer e.mu.Unlock()
			return cl.session, nil
		case e.life.Err() != nil:
			e.mu.Unlock()
			return nil, driver.ErrClosed
		case a.Detached:
			e.mu.Unlock()
			return a.bindOwnSession()
		case s != nil:
			defer e.mu.Unlock()
			s.bindClaim(cl)
			return s, nil
		case o == nil:
			o = &sessionOpening{done: make(chan struct{})}
			e.openings[a.TTL] = o
			e.life.Go(func() { e.openSharedSession(a.TTL, o) })
		}
		e.mu.Unlock()
		select {
		case <-o.done:
			if o.err != nil {
				return nil, o.err
			}
		case <-a.ctx.Done():
			return nil, e.contextError(a.ctx)
		}
	}
}

// openSharedSession opens a session for all claims with a TTL, and starts its two goroutines.
func (e *Engine) openSharedSession(ttl time.Duration, o *sessionOpening) {
	s, err := e.openSession(e.life, ttl, false)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.openings, ttl)
	o.err = driverutil.HideContextError(err)
	if err == nil && e.life.Go(s.keepAliveLoop) && e.life.Go(s.runJanitor) {
		e.sessions[ttl] = s
	}
	close(o.done)
}

// bindOwnSession opens a session for one detached claim.
func (a *acquisition) bindOwnSession() (*session, error) {
	e := a.e
	s, err := e.openSession(a.ctx, a.TTL, true)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// This is the only time at which detached claims are cleaned up, and often enough: it bounds how many can
	// gather.
	e.forgetExpiredDetachedLocked()
	s.bindClaim(a.cl)
	return s, nil
}

// bindClaim gives the claim a number that no other claim of the session has. It is called with mu held.
func (s *session) bindClaim(cl *claim) {
	s.e.idle = without(s.e.idle, s)
	cl.session, cl.numberSpent = s, false
	if last := len(s.freeNumbers) - 1; last >= 0 {
		cl.addNumber, s.freeNumbers = s.freeNumbers[last], s.freeNumbers[:last]
	} else {
		cl.addNumber = s.nextNumber
		s.nextNumber++
	}
	s.claimCount++
}

// has reports whether a claim is bound to the session. It is called with mu held.
func (s *session) has(cl *claim) bool { return cl.session == s && s.e.claims[cl.id] == cl }

// dropClaim is called before a claim is unbound from the session, or forgotten. It is called with mu held.
func (s *session) dropClaim(cl *claim) {
	s.claimCount--
	delete(s.toCheck, cl)
}

// noteIdle is called when the session has lost its last claim. Of the sessions that are idle then, the one that has
// been idle for the longest time is ended if they are too many: a program may give each lock a TTL of its own. It is
// called with mu held.
func (s *session) noteIdle() {
	e := s.e
	s.idleSince = e.clock.Now()
	if s.forDetached || s.expired {
		return
	}
	e.idle = append(e.idle, s)
	if len(e.idle) > maxIdleSessions {
		oldest := e.idle[0]
		oldest.endLocked()
		e.life.Go(func() { e.endSession(oldest.ID) })
	}
}

// without returns all sessions but one.
func without(sessions []*session, s *session) []*session {
	return slices.DeleteFunc(sessions, func(o *session) bool { return o == s })
}

// freeNumber lets another claim have the number of one that is being forgotten, if the store wants that and nothing can
// come of the first any more. It is called with mu held.
func (s *session) freeNumber(cl *claim) {
	if s.e.traits.ReusesNumbers && !cl.numberSpent && !cl.isBusy() {
		s.freeNumbers = append(s.freeNumbers, cl.addNumber)
	}
}

// renumber gives a claim a number that no claim has had. Nothing can come of an add under its old one any more.
func (s *session) renumber(cl *claim) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	cl.addNumber, cl.numberSpent = s.nextNumber, false
	s.nextNumber++
}

// forgetExpiredDetachedLocked forgets detached claims that have expired. The process that made them may never release
// them. It is called with mu held.
func (e *Engine) forgetExpiredDetachedLocked() {
	for _, cl := range e.claims {
		if s := cl.session; s != nil && s.forDetached && !cl.isBusy() && e.clock.Monotonic()-cl.lastWanted > 2*s.TTL {
			e.forgetClaimLocked(cl)
		}
	}
}

func (s *session) wakeJanitor() { wakeOne(s.wakeup) }

// trustedSince is the start of the newest keep-alive from which the store is known to count. It is called with mu held.
func (s *session) trustedSince() driver.Instant { return s.keepAlives[0] }

// noteKeepAlive records a keep-alive that had its reply. It is called with mu held.
//
// An earlier one is known to have reached the server that ends sessions once this one was sent at least ConfirmDelay
// after it. So the newest such one becomes the trusted one, and those before it are dropped.
func (s *session) noteKeepAlive(start driver.Instant) {
	s.keepAlives = append(s.keepAlives, start)
	// Without a delay only the newest keep-alive remains.
	for len(s.keepAlives) > 1 && start.Monotonic-s.keepAlives[1].Monotonic >= s.ConfirmDelay {
		s.keepAlives = s.keepAlives[1:]
	}
}

// lastKeepAlive is the start of the last keep-alive that had its reply. It is called with mu held.
func (s *session) lastKeepAlive() driver.Instant { return s.keepAlives[len(s.keepAlives)-1] }

// keepAliveInterval is the time between two keep-alives. With a ConfirmDelay they are sent as often as that allows, so
// that the trusted one is never much older than the last.
func (s *session) keepAliveInterval() time.Duration {
	if s.ConfirmDelay > 0 {
		return s.ConfirmDelay
	}
	return s.TTL / 3
}

// isStale reports whether the session's trusted keep-alive is too old for a new grant.
func (s *session) isStale() bool {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return s.e.clock.Since(s.trustedSince()) > s.TTL/6
}

// freshKeepAlive returns the start of a trusted keep-alive that was at most a sixth of the TTL old when it was called.
// If there is none, it sends one, or as many as it takes. The time they take does not count: on a slow store, none
// might be that young by the time it is trusted.
func (s *session) freshKeepAlive(ctx context.Context) (driver.Instant, error) {
	called := s.e.clock.Now()
	for {
		s.e.mu.Lock()
		at, dead := s.trustedSince(), s.expired
		early := s.ConfirmDelay - s.e.clock.SinceAtLeast(s.lastKeepAlive())
		s.e.mu.Unlock()
		switch {
		case dead:
			return at, ErrSessionExpired
		case called.Since(at) <= s.TTL/6:
			return at, nil
		}
		if early > 0 { // a keep-alive sent now would not confirm the last one
			if err := s.e.life.Sleep(ctx, early); err != nil {
				return at, err
			}
		}
		if err := s.keepAlive(ctx); err != nil {
			return at, err
		}
	}
}

// keepAlive sends one keep-alive and waits for its reply. Calls at the same time share one request, which has a time
// limit of its own, so that a caller that gives up does not end it for the others.
func (s *session) keepAlive(ctx context.Context) error {
	e := s.e
	e.mu.Lock()
	if s.expired {
		e.mu.Unlock()
		return ErrSessionExpired
	}
	inFlight := s.inFlight
	if inFlight == nil {
		inFlight = make(chan struct{})
		s.inFlight = inFlight
		if !e.life.Go(func() { s.sendKeepAlive(inFlight) }) {
			s.inFlight = nil
			e.mu.Unlock()
			return driver.ErrClosed
		}
	}
	e.mu.Unlock()
	select {
	case <-inFlight:
	case <-ctx.Done():
		return e.contextError(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.lastErr
}

// confirmation is one ConfirmWatches, shared by all callers that wait for it.
type confirmation struct {
	done  chan struct{}  // closed after it; the rest is set then
	start driver.Instant // of the request
	err   error
}

// confirmWatches waits for a ConfirmWatches that begins after this call, so that it shows all that had happened before.
// Calls that come while one is under way share the next one.
func (s *session) confirmWatches(ctx context.Context) (driver.Instant, error) {
	e := s.e
	e.mu.Lock()
	c := s.nextConfirmation
	if c == nil {
		c = &confirmation{done: make(chan struct{})}
		s.nextConfirmation = c
		if !s.confirming {
			s.confirming = e.life.Go(s.sendConfirmations)
		}
	}
	e.mu.Unlock()
	select {
	case <-c.done:
		return c.start, c.err
	case <-ctx.Done():
	case <-e.life.Done():
	}
	return driver.Instant{}, e.contextError(ctx)
}

// sendConfirmations sends the requests for confirmWatches while there are callers. The time limit of each leaves time
// to read the nodes instead.
func (s *session) sendConfirmations() {
	e := s.e
	for {
		e.mu.Lock()
		c := s.nextConfirmation
		s.nextConfirmation, s.confirming = nil, c != nil
		e.mu.Unlock()
		if c == nil {
			return
		}
		c.start = e.clock.Now()
		ctx, cancel := context.WithTimeout(e.life, min(requestTimeout, s.TTL/12))
		c.err = e.store.ConfirmWatches(ctx, s.ID)
		cancel()
		close(c.done)
	}
}

// sendKeepAlive sends the request for keepAlive, and closes inFlight when its result is recorded.
func (s *session) sendKeepAlive(inFlight chan struct{}) {
	e := s.e
	// Short enough that another server can be asked before holders have to give up their locks.
	ctx, cancel := context.WithTimeout(e.life, min(requestTimeout, max(s.TTL/6, 250*time.Millisecond)))
	defer cancel()
	start := e.clock.Now()
	promise, err := e.store.KeepAlive(ctx, s.ID)
	// The store keeps the session for less time than its claims were promised. Their holders would trust it for too
	// long, so they are lost now.
	lowered := err == nil && promise > 0 && promise < s.TTL
	e.mu.Lock()
	// The store may be ending the session already, and answers until it has.
	late := err == nil && s.KeepAliveWithin > 0 && e.clock.Since(s.lastKeepAlive()) > s.KeepAliveWithin
	if lowered || late {
		err = ErrSessionExpired
	}
	s.inFlight, s.lastErr = nil, driverutil.HideContextError(err)
	if err == nil {
		s.noteKeepAlive(start)
	}
	e.mu.Unlock()
	if errors.Is(err, ErrSessionExpired) {
		s.markExpired()
	}
	close(inFlight)
	// A session with a lower TTL is ended when the promised time is over, so that its holders learn of it first. If
	// the reply was late, the session is ended at once: its leases have ended already.
	if late || lowered && e.life.Sleep(e.life, promise) == nil {
		e.endSession(s.ID)
	}
}

// endSession ends a session and its nodes. If the store cannot be reached, the session expires.
func (e *Engine) endSession(id string) {
	ctx, cancel := requestContext(e.life)
	defer cancel()
	_ = e.store.EndSession(ctx, id)
}

// markExpired is called when the store has ended the session, or keeps it for less time than its claims were promised.
// They are all lost.
func (s *session) markExpired() {
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.expired {
		return
	}
	s.endLocked()
	for _, cl := range e.claims {
		if cl.session != s {
			continue
		}
		e.markLostLocked(cl, &driver.LossError{Cause: driver.LossSessionExpired})
		if !cl.isBusy() {
			e.forgetClaimLocked(cl)
		}
	}
}

// endLocked stops the session's goroutines, and makes sure that no new claim is bound to it. It is called with mu held.
func (s *session) endLocked() {
	s.expired = true
	s.e.idle = without(s.e.idle, s)
	// A new session with this TTL may have replaced it.
	if s.e.sessions[s.requestedTTL] == s {
		delete(s.e.sessions, s.requestedTTL)
	}
	close(s.stopped)
}

// keepAliveLoop sends the session's keep-alives at their interval, and ends a session that had no claims for its TTL.
// It does nothing else: a request that gets no answer must not delay the next keep-alive.
//
// The client's renewer calls Renew in a rhythm of its own, but only for leases. A waiter has none, and neither has a
// session that is idle between two claims; both need keep-alives too. When a renewal and this loop are due at
// the same time they share one request (see keepAlive), and a renewal that comes soon after a keep-alive sends none.
func (s *session) keepAliveLoop() {
	e := s.e
	timer := time.NewTimer(time.Millisecond)
	defer timer.Stop()
	var retry time.Duration // after a keep-alive that failed
	for {
		select {
		case <-timer.C:
		case <-s.stopped:
			return
		case <-e.life.Done():
			return
		}
		e.mu.Lock()
		if s.expired {
			e.mu.Unlock()
			return
		}
		// Kept for a while, so that a client that locks now and then needs no new session each time.
		if s.claimCount == 0 && e.clock.SinceAtLeast(s.idleSince) > s.TTL {
			s.endLocked()
			e.mu.Unlock()
			e.endSession(s.ID)
			return
		}
		next := s.keepAliveInterval() - e.clock.Since(s.lastKeepAlive())
		e.mu.Unlock()
		if next <= 0 {
			retry = 0
			if err := s.keepAlive(e.life); err != nil {
				retry = s.TTL / 20
			}
			next = retry
		}
		timer.Reset(max(next, time.Millisecond))
	}
}
