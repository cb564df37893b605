package sequence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// SetWeight is one listing of the lock and one write. Only claims on a read-write lock can change their weight: a
// semaphore's waiters wait for claims to go, and would not notice a change.
//
// A granted claim must stay granted, since every snapshot relies on it, even when a claim ahead grows heavier. So more
// weight is written only if the lock is unchanged up to the first claim that is not granted. Then nobody was granted
// meanwhile, and every claim that comes later sees the new weight.
func (e *Engine) SetWeight(ctx context.Context, g driver.Grant, weight int64) error {
	switch {
	case !e.traits.ComparesNodes || g.Kind != driver.KindRW:
		return fmt.Errorf("%w: changing the weight of a claim", driver.ErrUnsupported)
	case weight < 1 || weight > g.Limit:
		return fmt.Errorf("%w: a weight must be 1 to the limit of %d, not %d", driver.ErrInvalid, g.Limit, weight)
	}
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	retry := e.newRetryLoop(ctx, g.GrantedTTL)
	for tries := 1; ; tries++ {
		done, err := e.trySetWeight(retry, g, weight, tries >= maxOvertaken)
		if done {
			return err
		}
		if err == nil { // the lock has changed meanwhile
			retry.NoteAnswer()
			if err := e.life.Sleep(ctx, rand.N(time.Millisecond<<tries)); err != nil {
				return retry.End(err)
			}
			continue
		}
		if err := retry.waitAndRetry(err); err != nil {
			return err
		}
	}
}

// trySetWeight is one try. If it is not done and returns no error, the lock has changed, and SetWeight tries again. The
// last try gives up instead: where other claims join faster than a read and a write can follow each other, no client
// can know that there is room.
func (e *Engine) trySetWeight(retry *retryLoop, g driver.Grant, weight int64, last bool) (done bool, err error) {
	ctx, cancel := requestContext(retry.ctx)
	defer cancel()
	snapshot, err := e.store.List(ctx, g.Name, true)
	if err != nil {
		return false, e.readError(retry.ctx, err)
	}
	i := slices.IndexFunc(snapshot.Nodes, func(n Node) bool { return n.ID == g.ID && n.Token == g.Token && !n.Foreign })
	switch {
	case i < 0:
		return true, &driver.LossError{Cause: driver.LossGone}
	case snapshot.Nodes[i].Broken:
		return true, driverutil.BrokenError(snapshot.Nodes[i].BreakReason)
	case snapshot.Nodes[i].Weight == weight && !e.isWeightUnresolved(g.ID):
		return true, nil
	}
	n, grantedCount := snapshot.Nodes[i], countGranted(snapshot.Nodes)
	payload := n.Payload
	payload.Weight = weight
	var now Node
	var ok bool
	// Less weight can take nothing from others, so the other nodes do not matter.
	if weight <= n.Weight {
		e.setWeightResolved(g.ID, false)
		now, ok, err = e.store.Change(ctx, g.Name, n, payload, Among{})
	} else {
		room := n.Limit - weight + n.Weight
		for k := range snapshot.Nodes[:grantedCount] {
			room -= effectiveWeight(&snapshot.Nodes[k], n.Kind, n.Limit)
		}
		others := slices.Delete(slices.Clone(snapshot.Nodes), i, i+1)
		if room < 0 {
			return true, newHeldError(others)
		}
		e.setWeightResolved(g.ID, false)
		among := Among{snapshot.Nodes[:min(grantedCount+1, len(snapshot.Nodes))], snapshot.Revision}
		now, ok, err = e.store.Change(ctx, g.Name, n, payload, among)
		if err == nil && !ok && last {
			e.setWeightResolved(g.ID, true)
			return true, newHeldError(others)
		}
	}
	if retry.noteWrite(err); err != nil {
		return false, err
	}
	e.setWeightResolved(g.ID, true)
	if ok {
		e.updateWeight(g.ID, now)
	}
	return ok, nil
}

// isWeightUnresolved reports whether an earlier change of the claim's weight got no reply. It may still take effect, so
// another change must be written before anything relies on the weight, even if the weight is the wanted one: the
// earlier change then fails on the node's version.
func (e *Engine) isWeightUnresolved(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	cl := e.claims[id]
	return cl != nil && cl.weightUnresolved
}

// setWeightResolved records whether the outcome of a change of the claim's weight is known.
func (e *Engine) setWeightResolved(id string, settled bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl := e.claims[id]; cl != nil {
		cl.weightUnresolved = !settled
	}
}

// updateWeight records the claim's new weight, and wakes the waiters of this client that wait for the claim.
func (e *Engine) updateWeight(id string, now Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cl := e.claims[id]; cl != nil && cl.node.token == now.Token {
		cl.setNode(now)
		e.wakeBlockedLocked(cl)
	}
}
