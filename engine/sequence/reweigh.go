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
	case e.weigher == nil || g.Kind != driver.KindRW:
		return fmt.Errorf("%w: changing the weight of a claim", driver.ErrUnsupported)
	case weight < 1 || weight > g.Limit:
		return fmt.Errorf("%w: a weight must be 1 to the limit of %d, not %d", driver.ErrInvalid, g.Limit, weight)
	}
	ctx, stop := e.bind(ctx)
	defer stop()
	p := e.patience(ctx, driver.UnreachableTimeout(g.GrantedTTL))
	for tries := 1; ; tries++ {
		over, err := e.reweigh(p, g, weight, tries >= maxPassed)
		if over {
			return err
		}
		if err == nil { // the lock has changed meanwhile
			p.heard()
			if err := e.sleep(ctx, rand.N(time.Millisecond<<tries)); err != nil {
				return driver.Uncertain(err)
			}
			continue
		}
		if err := p.again(err); err != nil {
			return err
		}
	}
}

// reweigh is one try. Not over and without an error, it is to be made again, unless it is the last: where others come all the
// time, faster than a look and a write can follow each other, nobody can tell that the lock is free of them.
func (e *Engine) reweigh(p *patience, g driver.Grant, weight int64, last bool) (over bool, err error) {
	ctx, cancel := bounded(p.ctx)
	defer cancel()
	look, err := e.tree.List(ctx, g.Name, true)
	if err != nil {
		return false, e.fault(p.ctx, err)
	}
	i := slices.IndexFunc(look.Nodes, func(n Node) bool { return n.ID == g.ID && n.Token == g.Token && !n.Foreign })
	switch {
	case i < 0:
		return true, &driver.LossError{Cause: driver.LossGone}
	case look.Nodes[i].Broken:
		return true, &driver.LossError{Cause: driver.LossBroken}
	case look.Nodes[i].Weight == weight && !e.unsettled(g.ID):
		return true, nil
	}
	n, let := look.Nodes[i], granted(look.Nodes)
	note := n.Payload
	note.Weight = weight
	var now Node
	var ok bool
	if weight <= n.Weight {
		e.settle(g.ID, false)
		now, ok, err = e.tree.Change(ctx, g.Name, n, note)
	} else {
		left := n.Limit - weight + n.Weight
		for k := range look.Nodes[:let] {
			left -= weighs(&look.Nodes[k], n.Kind, n.Limit)
		}
		others := slices.Delete(slices.Clone(look.Nodes), i, i+1)
		if left < 0 {
			return true, held(others)
		}
		e.settle(g.ID, false)
		now, ok, err = e.weigher.ChangeAmong(ctx, g.Name, n, note, look.Nodes[:min(let+1, len(look.Nodes))], look.Revision)
		if err == nil && !ok && last {
			e.settle(g.ID, true)
			return true, held(others)
		}
	}
	if err != nil {
		return false, err
	}
	e.settle(g.ID, true)
	if ok {
		e.reweighed(g.ID, now)
	}
	return ok, nil
}

// unsettled reports whether the outcome of an earlier change of a claim's weight is not known. It may yet take effect, so
// another change must go ahead of it even where the weight is the one that is wanted.
func (e *Engine) unsettled(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	cl := e.claims[id]
	return cl != nil && cl.reweighing
}

func (e *Engine) settle(id string, settled bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl := e.claims[id]; cl != nil {
		cl.reweighing = !settled
	}
}

// reweighed takes in the new weight, and has those of this client look again that wait for the claim.
func (e *Engine) reweighed(id string, now Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl := e.claims[id]; cl != nil && cl.node.Token == now.Token {
		cl.node = now
		e.unblockLocked(cl)
	}
}
