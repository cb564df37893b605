package file

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// store is the record engine over the table of a directory. All calls go to the engine; four of them need something of
// the table first.
type store struct {
	driver.Store
	table *table
	opts  *Options
}

// Info returns the engine's Info, with a ledger, which is in a directory of its own.
func (s *store) Info() driver.Info {
	i := s.Store.Info()
	i.Abilities.Ledger = true
	return i
}

// Acquire makes the store if there is none. It does so before the engine makes the claim, because the claim contains
// the time of the store's clock and the session of this client.
func (s *store) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := s.table.openStore(ctx, true); err != nil {
		return driver.Grant{}, err
	}
	return s.Store.Acquire(ctx, c)
}

// ReadTokenFloor needs a store: the clock of one that does not exist yet is not known.
func (s *store) ReadTokenFloor(ctx context.Context) (driver.TokenFloor, error) {
	switch err := s.table.openStore(ctx, false); {
	case errors.Is(err, errAbsent):
		return driver.TokenFloor{}, fmt.Errorf("%w: there is no store in %s yet; its first lock makes it, and its tokens "+
			"begin with the wall clock of this machine", driver.ErrUnsupported, s.table.path)
	case err != nil:
		return driver.TokenFloor{}, err
	}
	return s.Store.ReadTokenFloor(ctx)
}

// RaiseToken makes the store if there is none, as Acquire does.
func (s *store) RaiseToken(ctx context.Context, name string, atLeast int64) error {
	if name != "" {
		if err := s.table.openStore(ctx, true); err != nil {
			return err
		}
	}
	return s.Store.RaiseToken(ctx, name, atLeast)
}

// Renew checks once for all grants that this directory is still the one that other clients open.
func (s *store) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	renewInPlace(ctx, s.table, s.Store, grants, done)
}

// renewInPlace renews by the engine of a table, unless its directory is not the one any more that other clients open.
func renewInPlace(
	ctx context.Context, t *table, engine driver.Store, grants []driver.Grant, done func(int, driver.Renewal),
) {
	if err := t.checkInPlace(ctx); err != nil {
		for i := range grants {
			done(i, driver.Renewal{Err: err})
		}
		return
	}
	engine.Renew(ctx, grants, done)
}

// ledger is the run ledger of a store: a store of its own in the directory runs below the store's.
type ledger struct {
	driver.Ledger
	locks, runs *table
}

// OpenLedger opens the run ledger. Like the store, it is made by the first claim.
func (s *store) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	opts := s.opts.withDefaults()
	// Any member may have made this directory, and only those who may enter the store's reach it.
	opts.isMember = func(int, int) bool { return true }
	t := newTable(filepath.Join(s.table.path, "runs"), opts)
	if err := t.openStore(ctx, false); err != nil && !errors.Is(err, errAbsent) {
		return nil, err
	}
	return &ledger{Ledger: record.NewLedger(t), locks: s.table, runs: t}, nil
}

// Acquire makes the stores if there are none, that of the locks first.
func (l *ledger) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	for _, t := range []*table{l.locks, l.runs} {
		if err := t.openStore(ctx, true); err != nil {
			return driver.Grant{}, err
		}
	}
	return l.Ledger.Acquire(ctx, c)
}

// Renew renews the grants as the store does.
func (l *ledger) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	renewInPlace(ctx, l.runs, l.Ledger, grants, done)
}
