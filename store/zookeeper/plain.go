package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// LayoutPlain has mutexes and elections alone, in the layout of hand-written locks and of leader nodes like those of
// Hadoop and Kafka: one ephemeral node, /NAMESPACE/NAME. The client that has created it holds the lock, and all
// others wait for its removal. A slash in a name is written as %2F: the folder of such a node is the namespace.
//
// Use it to exclude such clients. The other layouts cost less and are fair: here each release wakes all waiters,
// each of them tries to create the node, which is a write, and sets a watch again, and it is a matter of luck
// which of them gets the lock.
//
// Any node on that path holds the lock, no matter who created it, even one that is not ephemeral.
const LayoutPlain Layout = "plain"

// plainStore is a driver.Store in the layout of one ephemeral node.
type plainStore struct {
	*sequence.Engine
	nodeStore plainTree
}

func newPlainStore(o settings) *plainStore {
	t := plainTree{newNodeStore(o)}
	t.info.Kinds, t.info.Abilities = []driver.Kind{driver.KindMutex}, driver.Abilities{}
	return &plainStore{Engine: sequence.New(t), nodeStore: t}
}

// Info returns the engine's Info without a queue.
func (s *plainStore) Info() driver.Info {
	i := s.Engine.Info()
	i.Order, i.NativeQueue, i.MaxWaiters, i.Abilities.NewestOnly = driver.OrderNone, false, 0, false
	return i
}

// Acquire tries, and tries again whenever the lock's node may have been removed. A waiting claim has nothing in
// the store.
func (s *plainStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Kind != driver.KindMutex || c.Fair {
		return driver.Grant{}, driverutil.OnlyUnfairMutexes(LayoutPlain)
	}
	// The engine's own way to wait needs a node per waiter, in the order of their arrival. Here there is one node per
	// lock, so a waiter makes one attempt after the other, each of which is a claim that does not wait.
	try := c
	try.Wait = false
	for {
		g, err := s.Engine.Acquire(ctx, try)
		g.Wait = c.Wait
		var held *driver.HeldError
		if !c.Wait || !errors.As(err, &held) {
			return g, err
		}
		if err := s.waitForRemoval(ctx, c.Name); err != nil {
			return driver.Grant{}, fmt.Errorf("%w: %w", err, held)
		}
	}
}

// Between two polls next to the watch. An event that was lost delays a waiter by at most maxPoll. The pause is random,
// so that waiters which began together do not poll together.
const (
	minPoll = 2 * time.Second
	maxPoll = 5 * time.Second
)

// waitForRemoval waits until a lock's node may have been removed. It may return too soon: the caller then tries
// once more, and waits again.
func (s *plainStore) waitForRemoval(ctx context.Context, name string) error {
	removed := make(chan struct{}, 1)
	// Whatever node exists when the watch is set, its removal is what the claim waits for.
	watch := s.nodeStore.Watch(name, foreignKey, math.MaxInt64, func() {
		select {
		case removed <- struct{}{}:
		default:
		}
	})
	defer watch.Stop()
	for {
		select {
		case <-removed:
			return nil
		case <-time.After(minPoll + rand.N(maxPoll-minPoll)):
			// An error ends the wait too: the next attempt meets it again, and knows whether to go on.
			if l, err := s.nodeStore.List(ctx, name, false); err != nil || len(l.Nodes) == 0 {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-s.nodeStore.life.Done():
			return driver.ErrClosed
		}
	}
}

// Explain names the lock's node and its ticket, and the TTL that the servers grant, as far as it is known.
func (s *plainStore) Explain(c driver.Claim) driver.Plan {
	t := s.nodeStore
	return driver.Plan{Keys: []string{t.pathOf(c.Name), t.ticketPath("…")}, TTL: t.grantedTTL(c.TTL)}
}
