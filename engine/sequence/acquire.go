package sequence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Acquire takes a free lock in one request to the tree, beside which a beat flies if the last one is old. A claim that
// does not fit waits in its place; it is granted by a look that shows it in a place that fits.
func (e *Engine) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := c.Check(e.info); err != nil {
		return driver.Grant{}, err
	}
	if c.Detached && e.mover == nil {
		return driver.Grant{}, fmt.Errorf("%w: on this store a claim ends with its client, so none can be detached", driver.ErrUnsupported)
	}
	ctx, done := e.bind(ctx)
	defer done()
	if ctx.Err() != nil {
		return driver.Grant{}, e.over(ctx)
	}
	cl, err := e.enter(ctx, c)
	if err != nil {
		return driver.Grant{}, err
	}
	defer e.exit(cl)
	a := &acquire{patience: e.patience(ctx, driver.UnreachableTimeout(c.TTL)), cl: cl}
	for {
		g, err := a.attempt()
		if !a.anew(err) {
			return g, a.failure(err)
		}
	}
}

// acquire is one Acquire under way.
type acquire struct {
	*patience
	cl   *claim
	last []Node // as the lock was seen last

	blocker string // the key that is watched
	watched bool
	stop    func() // the watch

	sessions int // how many have ended under the claim
}

// anew has the claim made again, behind all that stand, if its session has ended before it was granted: the client was
// stopped for longer than its TTL, or the store was silent or had lost its leader. Nobody wanted the wait to end.
func (a *acquire) anew(err error) bool {
	var loss *driver.LossError
	if !errors.As(err, &loss) || loss.Cause != driver.LossSessionExpired || !a.reset() {
		return false
	}
	a.heard() // it has said so
	if a.sessions++; a.sessions > 1 {
		_ = a.e.sleep(a.ctx, rand.N(10*time.Millisecond<<min(a.sessions, 6)))
	}
	return true
}

// reset lets go of a session that has ended, and of the node with it, unless the claim was granted under it.
func (a *acquire) reset() bool {
	e, cl := a.e, a.cl
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl.granted || e.life.Err() != nil || a.ctx.Err() != nil {
		return false
	}
	if s := cl.session; s != nil {
		delete(s.claims, cl)
		delete(s.checks, cl)
	}
	if cl.unwatch != nil {
		cl.unwatch()
	}
	e.unblockLocked(cl)
	cl.session, cl.node, cl.loss, cl.blocker, cl.unwatch = nil, Node{}, nil, "", nil
	cl.unsure, cl.arrived, cl.unwatched = false, false, false
	return true
}

// failure gives an error its final form. A wait that was given up says for whom it was in vain; that it has ended for another
// reason as well, at the same time, is nothing that its caller asks for any more.
func (a *acquire) failure(err error) error {
	if errors.Is(err, driver.ErrDenied) && a.mayStand() { // the client gives it back only if it is told so
		err = fmt.Errorf("%w: %w", driver.ErrUncertain, err)
	}
	if err == nil || a.ctx.Err() == nil || a.e.life.Err() != nil {
		return err
	}
	if errors.Is(err, driver.ErrLost) && !a.wasGranted() {
		err = driver.Uncertain(a.ctx.Err())
	}
	var told *driver.HeldError
	if !errors.Is(err, a.ctx.Err()) || len(a.last) == 0 || errors.As(err, &told) {
		return err
	}
	return fmt.Errorf("%w: %w", err, held(a.last))
}

// mayStand reports whether a node of the claim stands, or may come to stand.
func (a *acquire) mayStand() bool {
	a.e.mu.Lock()
	defer a.e.mu.Unlock()
	return a.cl.unsure || a.cl.node.Token != 0
}

func (a *acquire) wasGranted() bool {
	a.e.mu.Lock()
	defer a.e.mu.Unlock()
	return a.cl.granted
}

// attempt puts the claim in line under one session, and sees it through.
func (a *acquire) attempt() (driver.Grant, error) {
	e, cl := a.e, a.cl
	s, err := e.seat(a.ctx, cl)
	for err != nil {
		if err = a.again(err); err != nil {
			return driver.Grant{}, err
		}
		s, err = e.seat(a.ctx, cl)
	}
	if s.stale() {
		e.spawn(func() { _, _ = s.fresh(e.life) }) // it flies beside the add
	}
	seen, err := a.arrive(s)
	if err == nil {
		seen, err = a.await(s, seen)
	}
	a.unwatch()
	if err != nil {
		return driver.Grant{}, err
	}
	return a.grant(s, seen)
}

// grant is what a look has shown, confirmed by a beat.
func (a *acquire) grant(s *session, seen sight) (driver.Grant, error) {
	e, cl := a.e, a.cl
	since, err := s.fresh(a.ctx)
	for err != nil {
		if errors.Is(err, ErrSessionExpired) {
			return driver.Grant{}, e.lose(cl, driver.LossSessionExpired)
		}
		if err = a.again(err); err != nil {
			return driver.Grant{}, err
		}
		since, err = s.fresh(a.ctx)
	}
	if e.clock.Since(seen.start) > e.clock.Since(since) {
		since = seen.start
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl.loss != nil {
		return driver.Grant{}, cl.loss
	}
	cl.granted, cl.asked = true, e.clock.Now()
	e.watchSoonLocked(cl)
	return driver.Grant{Claim: cl.Claim, Token: cl.node.Token, Since: since, GrantedTTL: s.TTL, Ref: ref(cl.node)}, nil
}

// arrive makes the claim stand, and looks at how it stands. It stood before if this is asked for again.
func (a *acquire) arrive(s *session) (sight, error) {
	e, cl := a.e, a.cl
	e.mu.Lock()
	stood := cl.node.Token != 0
	e.mu.Unlock()
	if stood {
		return a.look(s)
	}
	guard := AddAlways
	switch {
	case !cl.Wait:
		guard = AddIfAlone
	case e.queues(cl.Name):
		guard = AddUnhurried
	}
	for passed := 1; ; passed++ {
		seen, err := a.add(s, guard)
		if err != nil {
			if errors.Is(err, ErrSessionExpired) {
				s.die()
				return seen, e.lose(cl, driver.LossSessionExpired)
			}
			if err := a.again(err); err != nil {
				return seen, err
			}
			continue
		}
		a.heard()
		a.last = seen.Nodes
		if i := mine(seen.Nodes, cl.ID, s.ID); i >= 0 {
			return seen, a.arrived(s, seen, i)
		}
		if a.ctx.Err() != nil {
			return seen, driver.Uncertain(e.over(a.ctx))
		}
		err = a.refused(seen)
		var told *driver.HeldError
		if errors.As(err, &told) && len(told.Holders) == 0 {
			continue // those who held it have gone meanwhile
		}
		if err != nil {
			return seen, a.orTakeBack(s, err)
		}
		guard = AddCondition(seen.Revision)
		if passed >= maxPassed {
			guard = AddAlways // it may come to stand in line, and is taken back then
		}
	}
}

// maxPassed is how often a claim that does not wait looks anew because others have come since it saw room. Far from a store where
// others come all the time it would do nothing else.
const maxPassed = 8

// queues reports whether claims of this client wait for a lock.
func (e *Engine) queues(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting[name]) > 0
}

// arrived takes in that the claim has come to stand, and takes it back if it may not.
func (a *acquire) arrived(s *session, seen sight, i int) error {
	e, cl := a.e, a.cl
	if loss := e.seen(cl, seen.Nodes[i], true); loss != nil {
		return loss
	}
	e.mu.Lock()
	first := !cl.arrived
	cl.arrived = true
	e.mu.Unlock()
	if !first {
		return nil
	}
	err := mismatch(seen.Nodes[:i], &cl.Claim)
	if err == nil && overfull(seen.Nodes, i, e.info) {
		err = driver.ErrQueueFull
	}
	if err == nil && !cl.Wait && !fits(seen.Nodes, i) { // the tree could not guard the add
		err = a.refusal(seen)
	}
	if err != nil {
		e.mu.Lock()
		cl.arrived = false
		e.mu.Unlock()
		return a.orTakeBack(s, err)
	}
	return nil
}

// refused is why a claim that does not wait is not let in, going by a look without it; nil: it would be.
func (a *acquire) refused(seen sight) error {
	if err := mismatch(seen.Nodes, &a.cl.Claim); err != nil {
		return err
	}
	switch {
	case !room(seen.Nodes, &a.cl.Claim):
		return a.refusal(seen)
	case len(seen.Nodes) >= a.e.info.MaxHolders:
		return driver.ErrQueueFull
	}
	return nil
}

// orTakeBack makes sure that nothing is left of a claim that is refused.
func (a *acquire) orTakeBack(s *session, refusal error) error {
	a.e.mu.Lock()
	trace := a.cl.node.Token != 0 || a.cl.unsure
	a.e.mu.Unlock()
	if trace {
		if err := a.takeBack(s); err != nil {
			return fmt.Errorf("%w: %v", err, refusal) // no refusal: it may stand
		}
	}
	return refusal
}

func (a *acquire) refusal(seen sight) error {
	if !seen.Full {
		if l, err := a.list(true); err == nil {
			return held(l.Nodes)
		}
	}
	return held(seen.Nodes)
}

// takeBack removes the claim's node within this call.
func (a *acquire) takeBack(s *session) error {
	e, cl := a.e, a.cl
	for {
		ctx, cancel := bounded(a.ctx)
		e.mu.Lock()
		n, unsure := cl.node, cl.unsure
		e.mu.Unlock()
		var err error
		if unsure {
			_, err = e.tree.Withdraw(ctx, cl.Name, s.Session, cl.number, cl.ID)
		} else {
			_, _, err = e.tree.Remove(ctx, cl.Name, Node{Key: n.Key, Token: n.Token}, false)
		}
		cancel()
		if err == nil || errors.Is(err, ErrSessionExpired) { // then it went with the session
			e.mu.Lock()
			e.unblockLocked(cl)
			cl.node, cl.unsure = Node{}, false
			e.mu.Unlock()
			return nil
		}
		if err := a.again(err); err != nil {
			return err
		}
	}
}

// add sends the add and waits for its answer. The add goes on when the caller gives up: whoever releases the claim then
// waits for the answer, and nearly always knows what there is to be removed.
func (a *acquire) add(s *session, guard AddCondition) (sight, error) {
	e, cl := a.e, a.cl
	answer := make(chan error, 1)
	var seen sight
	flight := make(chan struct{})
	e.mu.Lock()
	cl.adding = flight
	number := cl.number
	ok := e.spawnLocked(func() {
		ctx, cancel := bounded(e.life)
		defer cancel()
		start := e.clock.Now()
		look, err := e.tree.Add(ctx, cl.Name, s.Session, number, cl.note(s.TTL), guard)
		seen = sight{look, start}
		e.landed(cl, s, look, err)
		answer <- err
		close(flight)
	})
	if !ok {
		cl.adding = nil
	}
	e.mu.Unlock()
	if !ok {
		return sight{}, driver.ErrClosed
	}
	select {
	case err := <-answer:
		return seen, err
	case <-a.ctx.Done():
		return sight{}, e.over(a.ctx)
	}
}

// landed notes what an add has brought, before anybody else can see that it has ended.
func (e *Engine) landed(cl *claim, s *session, look Snapshot, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	cl.adding = nil
	cl.unsure = cl.unsure || err != nil && !errors.Is(err, ErrSessionExpired) && !driver.IsFinal(err)
	if err == nil {
		if i := mine(look.Nodes, cl.ID, s.ID); i >= 0 {
			cl.node = look.Nodes[i]
		}
	}
	if cl.busy == nil { // given up: it is released, or swept
		cl.asked = e.clock.Now()
		if !cl.unsure && cl.node.Token == 0 {
			e.forgetLocked(cl)
		}
		s.poke()
	}
}

// list reads the lock once.
func (a *acquire) list(full bool) (sight, error) {
	ctx, cancel := bounded(a.ctx)
	defer cancel()
	start := a.e.clock.Now()
	look, err := a.e.tree.List(ctx, a.cl.Name, full)
	return sight{look, start}, err
}

// look reads the lock until there is an answer, shares it with the others of this client that wait, and takes in how the
// claim stands.
func (a *acquire) look(s *session) (sight, error) {
	for {
		done := a.e.looks(a.cl.Name)
		seen, err := a.list(false)
		if err == nil {
			a.heard()
			a.e.share(seen, a.cl)
		}
		done()
		if err == nil {
			return seen, a.takeIn(s, seen)
		}
		if err := a.again(err); err != nil {
			return seen, err
		}
	}
}

// looks notes that a look is under way, until done is called, unless another one is.
func (e *Engine) looks(name string) (done func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.looking[name] != nil {
		return func() {}
	}
	looking := make(chan struct{})
	e.looking[name] = looking
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.looking, name)
		close(looking)
	}
}

// takeIn notes what a look shows of the claim.
func (a *acquire) takeIn(s *session, seen sight) error {
	a.last = seen.Nodes
	i := mine(seen.Nodes, a.cl.ID, s.ID)
	var n Node
	if i >= 0 {
		n = seen.Nodes[i]
		if !seen.Full { // the listing may not say it
			a.e.mu.Lock()
			n.Token, n.Version = a.cl.node.Token, a.cl.node.Version
			a.e.mu.Unlock()
		}
	}
	if i < 0 { // if it is the session that has ended, that is what there is to tell
		for err := s.beat(a.ctx); err != nil && !errors.Is(err, ErrSessionExpired); err = s.beat(a.ctx) {
			if err := a.again(err); err != nil {
				return err
			}
		}
	}
	if loss := a.e.seen(a.cl, n, i >= 0); loss != nil {
		return loss
	}
	return nil
}
