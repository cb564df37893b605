// Package foreign makes stores whose locks are shared with foreign clients that keep nothing but a holder: no queue, no
// token and no other kind of lock than the mutex. What is particular to a layout is a [record.Table], which shows the lock
// of a foreign holder as a record with one claim. Its ID begins with [IDPrefix].
package foreign

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

const (
	// IDPrefix begins the ID of a claim that stands for a foreign holder, and of no other.
	IDPrefix = "foreign-"
	// NoEndTTL is the TTL of such a claim if its holder does not expire. It is not shown.
	NoEndTTL = 100 * 365 * 24 * time.Hour
)

// New makes the store of a table. layout is the name of the layout, for errors. The store refuses everything but the plain
// mutex, and marks foreign holders.
func New(t record.Table, layout string) driver.Store { return &store{record.New(t), layout} }

// store is the record engine over the table of a layout.
type store struct {
	driver.Store
	layout string
}

func (s *store) Info() driver.Info {
	i := s.Store.Info()
	i.Kinds, i.Order, i.MaxHolders, i.MaxWaiters = []driver.Kind{driver.KindMutex}, driver.OrderNone, 1, 0
	return i
}

// Acquire refuses what the layout does not support.
func (s *store) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Kind != driver.KindMutex || c.Fair {
		return driver.Grant{}, fmt.Errorf("%w: the layout %s supports only a mutex without a queue",
			driver.ErrUnsupported, s.layout)
	}
	g, err := s.Store.Acquire(ctx, c)
	var held *driver.HeldError
	if errors.As(err, &held) {
		markForeign(held.Holders)
	}
	return g, err
}

func (s *store) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	l, err := s.Store.Inspect(ctx, name)
	return showLock(l), err
}

func (s *store) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for l, err := range s.Store.List(ctx, prefix) {
			if !yield(showLock(l), err) {
				return
			}
		}
	}
}

func (s *store) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return s.Store.(driver.Detacher).Detach(ctx, g, keep)
}

func (s *store) ReadTokenFloor(ctx context.Context) (driver.TokenFloor, error) {
	return s.Store.(driver.TokenRaiser).ReadTokenFloor(ctx)
}

func (s *store) RaiseToken(ctx context.Context, name string, atLeast int64) error {
	return s.Store.(driver.TokenRaiser).RaiseToken(ctx, name, atLeast)
}

func (s *store) Explain(c driver.Claim) driver.Plan {
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
		if h := &holders[i]; strings.HasPrefix(h.Ref, IDPrefix) {
			any, h.Foreign, h.Token = true, true, 0
			if h.TTL == NoEndTTL {
				h.TTL = 0
			}
		}
	}
	return any
}

// Examine is that of the record engine over the table.
func (s *store) Examine(ctx context.Context) ([]driver.Finding, error) {
	return s.Store.(driver.Examiner).Examine(ctx)
}

// Forget is that of the record engine over the table.
func (s *store) Forget(ctx context.Context, name string) error {
	return s.Store.(driver.Forgetter).Forget(ctx, name)
}
