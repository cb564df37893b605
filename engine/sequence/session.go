package sequence

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// session is one session of this client. One serves all claims with its TTL; a detached claim has one of its own, which
// nobody beats but whoever renews that claim.
type session struct {
	Session
	e            *Engine
	requestedTTL time.Duration // the TTL that was asked for
	forDetached  bool          // serves one detached claim
	wakeup       chan struct{} // buffered; of its attendant
	stopped      chan struct{} // closed when it has ended

	// The rest is guarded by the engine's mutex.
	keepAlives []driver.Instant // starts of the last confirmed beats, from the one that is trusted on
	inFlight   chan struct{}    // not nil while a beat is under way
	lastErr    error            // of the last beat
	expired    bool             // the store says that it is over
	nextNumber int64            // number of the next claim
	claims     map[*claim]struct{}
	toCheck    map[*claim]struct{}
	idleSince  driver.Instant

	// Claims whose nodes are to be watched if they stand for long.
	olderUnwatched []*claim       // that came before
	unwatchedSplit driver.Instant // this moment
	newerUnwatched []*claim       // and after it
}

func (e *Engine) openSession(ctx context.Context, ttl time.Duration, alone bool) (*session, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	start := e.clock.Now()
	got, err := e.store.OpenSession(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return &session{Session: got, e: e, requestedTTL: ttl, forDetached: alone, wakeup: make(chan struct{}, 1), stopped: make(chan struct{}),
		keepAlives: []driver.Instant{start}, claims: map[*claim]struct{}{}, toCheck: map[*claim]struct{}{}, idleSince: e.clock.Now()}, nil
}

// sessionOpening is a session that is being opened, for all callers at one time.
type sessionOpening struct {
	done chan struct{}
	err  error
}

// bindSession binds a claim to a living session, which it opens if there is none. The opening has its own time: a caller that
// gives up does not spoil it for the others.
func (e *Engine) bindSession(ctx context.Context, cl *claim) (*session, error) {
	for {
		e.mu.Lock()
		s, o := e.sessions[cl.TTL], e.openings[cl.TTL]
		switch {
		case cl.session != nil:
			defer e.mu.Unlock()
			return cl.session, nil
		case e.life.Err() != nil:
			e.mu.Unlock()
			return nil, driver.ErrClosed
		case cl.Detached:
			e.mu.Unlock()
			return e.bindOwnSession(ctx, cl)
		case s != nil:
			defer e.mu.Unlock()
			s.bindClaim(cl)
			return s, nil
		case o == nil:
			o = &sessionOpening{done: make(chan struct{})}
			e.openings[cl.TTL] = o
			e.startGoroutineLocked(func() { e.openSharedSession(cl.TTL, o) })
		}
		e.mu.Unlock()
		select {
		case <-o.done:
			if o.err != nil {
				return nil, o.err
			}
		case <-ctx.Done():
			return nil, e.contextError(ctx)
		}
	}
}

func (e *Engine) openSharedSession(ttl time.Duration, o *sessionOpening) {
	s, err := e.openSession(e.life, ttl, false)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.openings, ttl)
	o.err = hideContextError(err)
	if err == nil && e.startGoroutineLocked(s.keepAliveLoop) && e.startGoroutineLocked(s.runJanitor) {
		e.sessions[ttl] = s
	}
	close(o.done)
}

// bindOwnSession opens a session for one detached claim.
func (e *Engine) bindOwnSession(ctx context.Context, cl *claim) (*session, error) {
	s, err := e.openSession(ctx, cl.TTL, true)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgetExpiredDetachedLocked()
	s.bindClaim(cl)
	return s, nil
}

// bindClaim gives the claim a number that no other claim of the session ever has. Called with mu held.
func (s *session) bindClaim(cl *claim) {
	cl.session, cl.add.number = s, s.nextNumber
	s.nextNumber++
	s.claims[cl] = struct{}{}
}

// forgetExpiredDetachedLocked forgets detached claims that have ended by themselves. Who made them may never release them.
func (e *Engine) forgetExpiredDetachedLocked() {
	for _, cl := range e.claims {
		if s := cl.session; s != nil && s.forDetached && !cl.isBusy() && e.clock.SinceAtLeast(cl.lastWanted) > 2*s.TTL {
			e.forgetClaimLocked(cl)
		}
	}
}

func (s *session) wakeJanitor() { wakeOne(s.wakeup) }

// trustedSince is the start of the beat from which the store surely counts. Called with mu held.
func (s *session) trustedSince() driver.Instant { return s.keepAlives[0] }

func (s *session) noteKeepAlive(start driver.Instant) {
	s.keepAlives = append(s.keepAlives, start)
	for len(s.keepAlives) > 1 && start.Monotonic-s.keepAlives[1].Monotonic >= s.ConfirmDelay {
		s.keepAlives = s.keepAlives[1:]
	}
}

// lastKeepAlive is the start of the last confirmed beat. Called with mu held.
func (s *session) lastKeepAlive() driver.Instant { return s.keepAlives[len(s.keepAlives)-1] }

// keepAliveInterval is the time between two beats. Where trust lags behind, they are as close as they can be, so that it is never far behind.
func (s *session) keepAliveInterval() time.Duration {
	if s.ConfirmDelay > 0 {
		return s.ConfirmDelay
	}
	return s.TTL / 3
}

// isStale reports whether the session's last confirmation is too old to be answered with.
func (s *session) isStale() bool {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return s.e.clock.Since(s.trustedSince()) > s.TTL/6
}

// freshKeepAlive gives the start of a trusted beat that is no older at the call than a sixth of the TTL, and sends one, or as many as it
// takes, if there is none. How long they take is no matter: from a store that is slow, none may be so young when it is trusted.
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
		if early > 0 { // a beat now would not prove the last one
			if err := s.e.sleep(ctx, early); err != nil {
				return at, err
			}
		}
		if err := s.keepAlive(ctx); err != nil {
			return at, err
		}
	}
}

// keepAlive sends one beat and waits for its answer; callers at one time share one. It has its own time: a caller that gives up
// does not spoil it for the others.
func (s *session) keepAlive(ctx context.Context) error {
	e := s.e
	e.mu.Lock()
	if s.expired {
		e.mu.Unlock()
		return ErrSessionExpired
	}
	flying := s.inFlight
	if flying == nil {
		flying = make(chan struct{})
		s.inFlight = flying
		if !e.startGoroutineLocked(func() { s.sendKeepAlive(flying) }) {
			s.inFlight = nil
			e.mu.Unlock()
			return driver.ErrClosed
		}
	}
	e.mu.Unlock()
	select {
	case <-flying:
	case <-ctx.Done():
		return e.contextError(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.lastErr
}

func (s *session) sendKeepAlive(flying chan struct{}) {
	e := s.e
	// Short enough that another server can be asked before a holder has to stop believing.
	ctx, cancel := context.WithTimeout(e.life, min(requestTimeout, max(s.TTL/6, 250*time.Millisecond)))
	defer cancel()
	start := e.clock.Now()
	promise, err := e.store.KeepAlive(ctx, s.ID)
	lowered := err == nil && promise > 0 && promise < s.TTL
	if lowered {
		err = ErrSessionExpired
	}
	e.mu.Lock()
	s.inFlight, s.lastErr = nil, hideContextError(err)
	if err == nil {
		s.noteKeepAlive(start)
	}
	e.mu.Unlock()
	if errors.Is(err, ErrSessionExpired) {
		s.markExpired()
	}
	close(flying)
	if lowered && e.sleep(e.life, promise) == nil { // until then it stands, so that its holders have the time to hear of it
		e.endSession(s.ID)
	}
}

// endSession ends a session with its nodes, if the store can be reached; else its TTL ends it.
func (e *Engine) endSession(id string) {
	ctx, cancel := requestContext(e.life)
	defer cancel()
	_ = e.store.EndSession(ctx, id)
}

// markExpired takes in that the store has ended the session, or keeps it for less than its claims were told. They are all lost.
func (s *session) markExpired() {
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.expired {
		return
	}
	s.endLocked()
	for cl := range s.claims {
		e.markLostLocked(cl, driver.LossSessionExpired)
		if !cl.isBusy() {
			e.forgetClaimLocked(cl)
		}
	}
}

func (s *session) endLocked() {
	s.expired = true
	if s.e.sessions[s.requestedTTL] == s {
		delete(s.e.sessions, s.requestedTTL)
	}
	close(s.stopped)
}

// keepAliveLoop beats a session at its pace, and ends it when nothing has stood under it for a TTL. It waits for nothing else: a
// request that gets no answer must not keep it from the next beat.
func (s *session) keepAliveLoop() {
	e := s.e
	timer := time.NewTimer(0)
	defer timer.Stop()
	var retry time.Duration // from one beat that failed to the next
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
		if len(s.claims) == 0 && e.clock.SinceAtLeast(s.idleSince) > s.TTL {
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
