// Package foreign makes stores whose locks are shared with foreign clients that keep nothing but a holder: no queue, no
// token and no other kind of lock than the mutex. What is particular to a layout is a [record.Table], which shows the
// lock of a foreign holder as a record with one claim. Its ID begins with [IDPrefix].
package foreign

import (
	"context"
	"errors"
	"iter"
	"os"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

const (
	// IDPrefix begins the ID of a claim that stands for a foreign holder, and of no other.
	IDPrefix = "foreign-"
	// NoEndTTL is the TTL of such a claim if its holder does not expire. It is not shown.
	NoEndTTL = 100 * 365 * 24 * time.Hour
)

// New makes the store of a table. layout is the name of the layout, for errors. The store refuses everything but the
// plain mutex, and marks foreign holders.
func New(t record.Table, layout string) driver.Store {
	return &store{record.New(holderTable{t}), layout}
}

// holderTable is a table of records that have room for a holder, and for no queue.
type holderTable struct{ record.Table }

// Traits says so.
func (t holderTable) Traits() record.Traits {
	traits := t.Table.Traits()
	traits.NoQueue = true
	return traits
}

// store is the record engine over the table of a layout.
type store struct {
	driver.Store
	layout string
}

// Info is what the record engine says, without what a foreign layout has no room for: other kinds than a mutex, an
// order, a queue.
func (s *store) Info() driver.Info {
	i := s.Store.Info()
	i.Kinds, i.Order, i.MaxHolders, i.MaxWaiters = []driver.Kind{driver.KindMutex}, driver.OrderNone, 1, 0
	i.Abilities = driver.Abilities{Detach: true, Forget: true, Tokens: true}
	return i
}

// Acquire refuses what the layout does not support.
func (s *store) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Kind != driver.KindMutex || c.Fair {
		return driver.Grant{}, driverutil.OnlyUnfairMutexes(s.layout)
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

// List shows each lock as Inspect does.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for l, err := range s.Store.List(ctx, prefix) {
			if !yield(showLock(l), err) {
				return
			}
		}
	}
}

// NextChange reads the lock about once per second.
func (s *store) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	return driver.PollChange(ctx, seen, s.Inspect)
}

// Break drops the reason, for which the layout has no room.
func (s *store) Break(ctx context.Context, name, ref string, b driver.Break) error {
	return s.Store.Break(ctx, name, ref, driver.Break{Mode: b.Mode})
}

// The bucket or table of a foreign layout is the foreign clients', so nothing but locks is kept in it.

func (s *store) SetWeight(ctx context.Context, g driver.Grant, weight int64) error {
	return driver.Unsupported{}.SetWeight(ctx, g, weight)
}

func (s *store) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	return driver.Unsupported{}.OpenLedger(ctx)
}

func (s *store) LivenessFile() (*os.File, error) { return driver.Unsupported{}.LivenessFile() }

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
