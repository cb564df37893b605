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
	e     *Engine
	asked time.Duration // the TTL that was asked for
	alone bool          // serves one detached claim
	wake  chan struct{} // buffered; of its attendant
	over  chan struct{} // closed when it has ended

	// The rest is guarded by the engine's mutex.
	beats     []driver.Instant // starts of the last confirmed beats, from the one that is trusted on
	flying    chan struct{}    // not nil while a beat is under way
	failed    error            // of the last beat
	dead      bool             // the store says that it is over
	next      int64            // number of the next claim
	claims    map[*claim]struct{}
	checks    map[*claim]struct{}
	idleSince driver.Instant

	// Claims whose nodes are to be watched if they stand for long.
	settled []*claim       // that came before
	parted  driver.Instant // this moment
	arrived []*claim       // and after it
}

func (e *Engine) open(ctx context.Context, ttl time.Duration, alone bool) (*session, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	start := e.clock.Now()
	got, err := e.tree.OpenSession(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return &session{Session: got, e: e, asked: ttl, alone: alone, wake: make(chan struct{}, 1), over: make(chan struct{}),
		beats: []driver.Instant{start}, claims: map[*claim]struct{}{}, checks: map[*claim]struct{}{}, idleSince: e.clock.Now()}, nil
}

// opening is a session that is being opened, for all callers at one time.
type opening struct {
	done chan struct{}
	err  error
}

// seat binds a claim to a living session, which it opens if there is none. The opening has its own time: a caller that
// gives up does not spoil it for the others.
func (e *Engine) seat(ctx context.Context, cl *claim) (*session, error) {
	for {
		e.mu.Lock()
		s, o := e.sessions[cl.TTL], e.opening[cl.TTL]
		switch {
		case cl.session != nil:
			defer e.mu.Unlock()
			return cl.session, nil
		case e.life.Err() != nil:
			e.mu.Unlock()
			return nil, driver.ErrClosed
		case cl.Detached:
			e.mu.Unlock()
			return e.seatAlone(ctx, cl)
		case s != nil:
			defer e.mu.Unlock()
			s.take(cl)
			return s, nil
		case o == nil:
			o = &opening{done: make(chan struct{})}
			e.opening[cl.TTL] = o
			e.spawnLocked(func() { e.openShared(cl.TTL, o) })
		}
		e.mu.Unlock()
		select {
		case <-o.done:
			if o.err != nil {
				return nil, o.err
			}
		case <-ctx.Done():
			return nil, e.over(ctx)
		}
	}
}

func (e *Engine) openShared(ttl time.Duration, o *opening) {
	s, err := e.open(e.life, ttl, false)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.opening, ttl)
	o.err = own(err)
	if err == nil && e.spawnLocked(s.live) && e.spawnLocked(s.attend) {
		e.sessions[ttl] = s
	}
	close(o.done)
}

// seatAlone opens a session for one detached claim.
func (e *Engine) seatAlone(ctx context.Context, cl *claim) (*session, error) {
	s, err := e.open(ctx, cl.TTL, true)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dropDetachedLocked()
	s.take(cl)
	return s, nil
}

// take gives the claim a number that no other claim of the session ever has. Called with mu held.
func (s *session) take(cl *claim) {
	cl.session, cl.number = s, s.next
	s.next++
	s.claims[cl] = struct{}{}
}

// dropDetachedLocked forgets detached claims that have ended by themselves. Who made them may never release them.
func (e *Engine) dropDetachedLocked() {
	for _, cl := range e.claims {
		if s := cl.session; s != nil && s.alone && cl.busy == nil && cl.adding == nil && e.clock.SinceAtLeast(cl.asked) > 2*s.TTL {
			e.forgetLocked(cl)
		}
	}
}

func (s *session) poke() { poke(s.wake) }

// trusted is the start of the beat from which the store surely counts. Called with mu held.
func (s *session) trusted() driver.Instant { return s.beats[0] }

func (s *session) confirmed(start driver.Instant) {
	s.beats = append(s.beats, start)
	for len(s.beats) > 1 && start.Monotonic-s.beats[1].Monotonic >= s.ConfirmDelay {
		s.beats = s.beats[1:]
	}
}

// newest is the start of the last confirmed beat. Called with mu held.
func (s *session) newest() driver.Instant { return s.beats[len(s.beats)-1] }

// pace is the time between two beats. Where trust lags behind, they are as close as they can be, so that it is never far behind.
func (s *session) pace() time.Duration {
	if s.ConfirmDelay > 0 {
		return s.ConfirmDelay
	}
	return s.TTL / 3
}

// stale reports whether the session's last confirmation is too old to be answered with.
func (s *session) stale() bool {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return s.e.clock.Since(s.trusted()) > s.TTL/6
}

// fresh gives the start of a trusted beat that is no older at the call than a sixth of the TTL, and sends one, or as many as it
// takes, if there is none. How long they take is no matter: from a store that is slow, none may be so young when it is trusted.
func (s *session) fresh(ctx context.Context) (driver.Instant, error) {
	called := s.e.clock.Now()
	for {
		s.e.mu.Lock()
		at, dead := s.trusted(), s.dead
		early := s.ConfirmDelay - s.e.clock.SinceAtLeast(s.newest())
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
		if err := s.beat(ctx); err != nil {
			return at, err
		}
	}
}

// beat sends one beat and waits for its answer; callers at one time share one. It has its own time: a caller that gives up
// does not spoil it for the others.
func (s *session) beat(ctx context.Context) error {
	e := s.e
	e.mu.Lock()
	if s.dead {
		e.mu.Unlock()
		return ErrSessionExpired
	}
	flying := s.flying
	if flying == nil {
		flying = make(chan struct{})
		s.flying = flying
		if !e.spawnLocked(func() { s.send(flying) }) {
			s.flying = nil
			e.mu.Unlock()
			return driver.ErrClosed
		}
	}
	e.mu.Unlock()
	select {
	case <-flying:
	case <-ctx.Done():
		return e.over(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.failed
}

func (s *session) send(flying chan struct{}) {
	e := s.e
	// Short enough that another server can be asked before a holder has to stop believing.
	ctx, cancel := context.WithTimeout(e.life, min(step, max(s.TTL/6, 250*time.Millisecond)))
	defer cancel()
	start := e.clock.Now()
	promise, err := e.tree.KeepAlive(ctx, s.ID)
	lowered := err == nil && promise > 0 && promise < s.TTL
	if lowered {
		err = ErrSessionExpired
	}
	e.mu.Lock()
	s.flying, s.failed = nil, own(err)
	if err == nil {
		s.confirmed(start)
	}
	e.mu.Unlock()
	if errors.Is(err, ErrSessionExpired) {
		s.die()
	}
	close(flying)
	if lowered && e.sleep(e.life, promise) == nil { // until then it stands, so that its holders have the time to hear of it
		e.endSession(s.ID)
	}
}

// endSession ends a session with its nodes, if the store can be reached; else its TTL ends it.
func (e *Engine) endSession(id string) {
	ctx, cancel := bounded(e.life)
	defer cancel()
	_ = e.tree.EndSession(ctx, id)
}

// die takes in that the store has ended the session, or keeps it for less than its claims were told. They are all lost.
func (s *session) die() {
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.dead {
		return
	}
	s.endLocked()
	for cl := range s.claims {
		e.loseLocked(cl, driver.LossSessionExpired)
		if cl.busy == nil && cl.adding == nil {
			e.forgetLocked(cl)
		}
	}
}

func (s *session) endLocked() {
	s.dead = true
	if s.e.sessions[s.asked] == s {
		delete(s.e.sessions, s.asked)
	}
	close(s.over)
}

// live beats a session at its pace, and ends it when nothing has stood under it for a TTL. It waits for nothing else: a
// request that gets no answer must not keep it from the next beat.
func (s *session) live() {
	e := s.e
	timer := time.NewTimer(0)
	defer timer.Stop()
	var retry time.Duration // from one beat that failed to the next
	for {
		select {
		case <-timer.C:
		case <-s.over:
			return
		case <-e.life.Done():
			return
		}
		e.mu.Lock()
		if s.dead {
			e.mu.Unlock()
			return
		}
		if len(s.claims) == 0 && e.clock.SinceAtLeast(s.idleSince) > s.TTL {
			s.endLocked()
			e.mu.Unlock()
			e.endSession(s.ID)
			return
		}
		next := s.pace() - e.clock.Since(s.newest())
		e.mu.Unlock()
		if next <= 0 {
			retry = 0
			if err := s.beat(e.life); err != nil {
				retry = s.TTL / 20
			}
			next = retry
		}
		timer.Reset(max(next, time.Millisecond))
	}
}
