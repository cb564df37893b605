package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// foreignStore is a store in the layout of leader election. It refuses everything but the plain mutex, and marks foreign
// holders.
type foreignStore struct {
	driver.Store
}

func (s *foreignStore) Info() driver.Info {
	i := s.Store.Info()
	i.Kinds, i.Order, i.MaxHolders, i.MaxWaiters = []driver.Kind{driver.KindMutex}, driver.OrderNone, 1, 0
	return i
}

// Acquire refuses what the layout does not support.
func (s *foreignStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Kind != driver.KindMutex || c.Fair {
		return driver.Grant{}, fmt.Errorf("%w: the layout %s supports only a mutex without a queue",
			driver.ErrUnsupported, LayoutLeaderElection)
	}
	g, err := s.Store.Acquire(ctx, c)
	var held *driver.HeldError
	if errors.As(err, &held) {
		markForeign(held.Holders)
	}
	return g, err
}

func (s *foreignStore) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	l, err := s.Store.Inspect(ctx, name)
	return showLock(l), err
}

func (s *foreignStore) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for l, err := range s.Store.List(ctx, prefix) {
			if !yield(showLock(l), err) {
				return
			}
		}
	}
}

func (s *foreignStore) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return s.Store.(driver.Detacher).Detach(ctx, g, keep)
}

func (s *foreignStore) ReadTokenFloor(ctx context.Context) (driver.TokenFloor, error) {
	return s.Store.(driver.TokenRaiser).ReadTokenFloor(ctx)
}

func (s *foreignStore) RaiseToken(ctx context.Context, name string, atLeast int64) error {
	return s.Store.(driver.TokenRaiser).RaiseToken(ctx, name, atLeast)
}

func (s *foreignStore) Explain(c driver.Claim) driver.Plan {
	return s.Store.(driver.Explainer).Explain(c)
}

// showLock marks foreign holders, and shows no token for their lock: they have none.
func showLock(l driver.Lock) driver.Lock {
	if markForeign(l.Holders) {
		l.Token = 0
	}
	return l
}

// markForeign marks foreign holders and removes from them what only the record engine needs. It reports
// whether there is one.
func markForeign(holders []driver.ClaimInfo) (any bool) {
	for i := range holders {
		if h := &holders[i]; strings.HasPrefix(h.Ref, foreignIDPrefix) {
			any, h.Foreign, h.Token = true, true, 0
			if h.TTL == noEndTTL {
				h.TTL = 0
			}
		}
	}
	return any
}

// Examine is that of the record engine over the leases.
func (s *foreignStore) Examine(ctx context.Context) ([]driver.Finding, error) {
	return s.Store.(driver.Examiner).Examine(ctx)
}

// Forget is that of the record engine over the leases.
func (s *foreignStore) Forget(ctx context.Context, name string) error {
	return s.Store.(driver.Forgetter).Forget(ctx, name)
}
