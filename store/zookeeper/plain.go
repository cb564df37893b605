package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// LayoutPlain is that of locks that are one ephemeral node: see [NewPlain].
const LayoutPlain = "plain"

// Plain is a driver.Store for mutexes and elections alone, in the layout of locks that are written by hand and of leader
// nodes like those of Hadoop and Kafka: one ephemeral node, /NAMESPACE/NAME. Who has made it holds the lock, and all others
// wait for its removal. A slash in a name is written as %2F: the folder that such a node stands in is the namespace.
//
// It is there to exclude such clients. The other layouts cost less and are fair: here each release wakes everybody who
// waits, and each of them makes a try, which is a write, and sets a watch again; who wins is a matter of luck.
//
// Any node on that path holds the lock, whoever made it, also one that is not ephemeral.
type Plain struct {
	*sequence.Engine
	tree plainTree
}

// NewPlain makes a store in the layout of one ephemeral node; Options.Layout is not looked at. It does no I/O.
func NewPlain(o Options) (*Plain, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	t := plainTree{newTree(o)}
	t.info.Kinds = []driver.Kind{driver.KindMutex}
	return &Plain{Engine: sequence.New(t), tree: t}, nil
}

// Info is that of the engine, but that nobody stands in line.
func (s *Plain) Info() driver.Info {
	i := s.Engine.Info()
	i.Order, i.NativeQueue, i.MaxWaiters = driver.OrderNone, false, 0
	return i
}

// Acquire tries, and tries again whenever the lock's node may have gone. While it waits nothing stands in the store.
func (s *Plain) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Kind != driver.KindMutex || c.Fair {
		return driver.Grant{}, fmt.Errorf("%w: the layout %s has mutexes without an order only", driver.ErrUnsupported, LayoutPlain)
	}
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

// Polls behind the watch: one that was lost in silence costs this long at most.
const (
	minPoll = 2 * time.Second
	maxPoll = 5 * time.Second
)

// await waits until a lock's node may have gone.
func (s *Plain) waitForRemoval(ctx context.Context, name string) error {
	gone := make(chan struct{}, 1)
	// Whichever node stands there when the watch is set, its end is what there is to wait for.
	defer s.tree.Watch(name, foreignKey, math.MaxInt64, func() {
		select {
		case gone <- struct{}{}:
		default:
		}
	})()
	for {
		select {
		case <-gone:
			return nil
		case <-time.After(minPoll + rand.N(maxPoll-minPoll)):
			if l, err := s.tree.List(ctx, name, false); err != nil || len(l.Nodes) == 0 {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-s.tree.life.Done():
			return driver.ErrClosed
		}
	}
}

// Table is that of a [Store].
func (s *Plain) Table() record.Table { return newTable(s.tree.tree) }

// Explain names the lock's node, and the ticket beside it.
func (s *Plain) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{Keys: []string{s.tree.pathOf(c.Name), s.tree.ticketPath("…")}, TTL: s.tree.grantedTTL(c.TTL)}
}
