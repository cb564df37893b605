package sequence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// SetWeight is one look and one write. Only a read-write lock's claims change their weight: what a semaphore's waiters watch
// for is that a claim goes.
//
// A place that fits stays so, on which all looks rely, although one ahead grows heavier: more weight is written only if
// the lock stands as it was looked at, as far as the first claim that is not let in. So nobody is let in beside it, and
// whoever comes later sees the new weight.
func (e *Engine) SetWeight(ctx context.Context, g driver.Grant, weight int64) error {
	switch {
	case e.weightChanger == nil || g.Kind != driver.KindRW:
		return fmt.Errorf("%w: changing the weight of a claim", driver.ErrUnsupported)
	case weight < 1 || weight > g.Limit:
		return fmt.Errorf("%w: a weight must be 1 to the limit of %d, not %d", driver.ErrInvalid, g.Limit, weight)
	}
	ctx, stop := e.bindContext(ctx)
	defer stop()
	p := e.newRetryLoop(ctx, driver.UnreachableTimeout(g.GrantedTTL))
	for tries := 1; ; tries++ {
		over, err := e.trySetWeight(p, g, weight, tries >= maxOvertaken)
		if over {
			return err
		}
		if err == nil { // the lock has changed meanwhile
			p.noteAnswer()
			if err := e.sleep(ctx, rand.N(time.Millisecond<<tries)); err != nil {
				return driver.Uncertain(err)
			}
			continue
		}
		if err := p.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// trySetWeight is one try. Not over and without an error, it is to be made again, unless it is the last: where others come all the
// time, faster than a look and a write can follow each other, nobody can tell that the lock is free of them.
func (e *Engine) trySetWeight(p *retryLoop, g driver.Grant, weight int64, last bool) (over bool, err error) {
	ctx, cancel := requestContext(p.ctx)
	defer cancel()
	look, err := e.store.List(ctx, g.Name, true)
	if err != nil {
		return false, e.readError(p.ctx, err)
	}
	i := slices.IndexFunc(look.Nodes, func(n Node) bool { return n.ID == g.ID && n.Token == g.Token && !n.Foreign })
	switch {
	case i < 0:
		return true, &driver.LossError{Cause: driver.LossGone}
	case look.Nodes[i].Broken:
		return true, &driver.LossError{Cause: driver.LossBroken}
	case look.Nodes[i].Weight == weight && !e.isWeightUnresolved(g.ID):
		return true, nil
	}
	n, let := look.Nodes[i], countGranted(look.Nodes)
	note := n.Payload
	note.Weight = weight
	var now Node
	var ok bool
	if weight <= n.Weight {
		e.setWeightResolved(g.ID, false)
		now, ok, err = e.store.Change(ctx, g.Name, n, note)
	} else {
		left := n.Limit - weight + n.Weight
		for k := range look.Nodes[:let] {
			left -= effectiveWeight(&look.Nodes[k], n.Kind, n.Limit)
		}
		others := slices.Delete(slices.Clone(look.Nodes), i, i+1)
		if left < 0 {
			return true, newHeldError(others)
		}
		e.setWeightResolved(g.ID, false)
		now, ok, err = e.weightChanger.ChangeAmong(ctx, g.Name, n, note, look.Nodes[:min(let+1, len(look.Nodes))], look.Revision)
		if err == nil && !ok && last {
			e.setWeightResolved(g.ID, true)
			return true, newHeldError(others)
		}
	}
	if err != nil {
		return false, err
	}
	e.setWeightResolved(g.ID, true)
	if ok {
		e.updateWeight(g.ID, now)
	}
	return ok, nil
}

// isWeightUnresolved reports whether the outcome of an earlier change of a claim's weight is not known. It may yet take effect, so
// another change must go ahead of it even where the weight is the one that is wanted.
func (e *Engine) isWeightUnresolved(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	cl := e.claims[id]
	return cl != nil && cl.weightUnresolved
}

func (e *Engine) setWeightResolved(id string, settled bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl := e.claims[id]; cl != nil {
		cl.weightUnresolved = !settled
	}
}

// updateWeight takes in the new weight, and has those of this client look again that wait for the claim.
func (e *Engine) updateWeight(id string, now Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl := e.claims[id]; cl != nil && cl.node.Token == now.Token {
		cl.node = now
		e.wakeBlockedLocked(cl)
	}
}
