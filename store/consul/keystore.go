package consul

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Layout is the form of the locks in Consul.
type Layout string

const (
	// LayoutClaims has a key per claim, and all kinds of locks. Foreign clients do not see them. It is the default.
	LayoutClaims Layout = "claims"
	// LayoutLock has mutexes and elections alone, in the layout of consul lock: the key NAME/.lock.
	LayoutLock Layout = "lock"
	// LayoutKey has mutexes and elections alone, in the layout of the Lock of Consul's clients: the key NAME.
	LayoutKey Layout = "key"
)

// layouts are all of them, the default first.
var layouts = []Layout{LayoutClaims, LayoutLock, LayoutKey}

// suffixes are what the layouts with one key per lock write behind a name.
var suffixes = map[Layout]string{LayoutLock: "/.lock", LayoutKey: ""}

// keyStore is a driver.Store in the layout of one key per lock. A waiting claim has nothing in the store: each release
// wakes all waiters, each of which tries, and it is a matter of luck which of them gets the lock.
type keyStore struct {
	*sequence.Engine
	nodes keyNodes
}

func newKeyStore(t *nodeStore, suffix string) *keyStore {
	t.info.Kinds = []driver.Kind{driver.KindMutex}
	k := keyNodes{t, suffix}
	return &keyStore{Engine: sequence.New(k), nodes: k}
}

// Info returns the engine's Info without a queue.
func (s *keyStore) Info() driver.Info {
	i := s.Engine.Info()
	i.Order, i.NativeQueue, i.MaxWaiters, i.Abilities.NewestOnly = driver.OrderNone, false, 0, false
	return i
}

// Acquire tries, and tries again whenever the key may be free. The engine's own way to wait needs a node per waiter.
func (s *keyStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Kind != driver.KindMutex || c.Fair {
		return driver.Grant{}, driverutil.OnlyUnfairMutexes(s.nodes.opts.Layout)
	}
	if err := checkKeyName(c.Name); err != nil {
		return driver.Grant{}, err
	}
	try := c
	try.Wait = false
	for delay := minDelayPoll; ; {
		g, err := s.Engine.Acquire(ctx, try)
		g.Wait = c.Wait
		var held *driver.HeldError
		if !c.Wait || !errors.As(err, &held) {
			return g, err
		}
		wait := s.awaitFree
		if len(held.Holders) == 1 && held.Holders[0].Ref == delayedRef {
			// Nothing changes when a lock-delay ends.
			wait = func(ctx context.Context, _ string) error { return s.nodes.life.Sleep(ctx, rand.N(delay)) }
			delay = min(2*delay, maxDelayPoll)
		}
		if err := wait(ctx, c.Name); err != nil {
			return driver.Grant{}, fmt.Errorf("%w: %w", err, held)
		}
	}
}

// The longest pauses between two tries while a lock-delay bars the key.
const (
	minDelayPoll = 20 * time.Millisecond
	maxDelayPoll = time.Second
)

// Between two polls next to the watch. The pause is random, so that waiters which began together do not poll together.
const (
	minPoll = 2 * time.Second
	maxPoll = 5 * time.Second
)

// awaitFree waits until a lock's key may be free. It may return too soon.
func (s *keyStore) awaitFree(ctx context.Context, name string) error {
	t := s.nodes
	look := func(ctx context.Context, o *api.QueryOptions) (bool, uint64, error) {
		kv, meta, err := t.client.KV().Get(t.keyOf(name), o.WithContext(ctx))
		if err != nil {
			return false, 0, err
		}
		return kv == nil || kv.Session == "", meta.LastIndex, nil
	}
	free, stop := t.watchForWaiter(look)
	defer stop()
	poll := time.NewTimer(minPoll + rand.N(maxPoll-minPoll))
	defer poll.Stop()
	select {
	case <-free:
	case <-poll.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-t.life.Done():
		return driver.ErrClosed
	}
	return nil
}

// OpenLedger opens the run ledger next to the locks.
func (s *keyStore) OpenLedger(context.Context) (driver.Ledger, error) {
	return record.NewLedger(newLedgerTable(s.nodes.nodeStore)), nil
}

// Examine finds the same as in the other layout.
func (s *keyStore) Examine(ctx context.Context) ([]driver.Finding, error) {
	return s.nodes.examine(ctx)
}

// Explain names the keys of a claim.
func (s *keyStore) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{Keys: []string{s.nodes.keyOf(c.Name), s.nodes.ticketKey(c.Name)}, TTL: s.nodes.sessionTTL(c.TTL)}
}
