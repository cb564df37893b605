package file

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
)

// recordEngine is the record engine, with all the optional interfaces that it implements.
type recordEngine interface {
	driver.Store
	driver.LockWatcher
	driver.Detacher
	driver.WeightChanger
	driver.LivenessFiler
	driver.Explainer
	driver.Warner
}

// store is the record engine over the table of a directory. All calls go to the engine; two of them need something of
// the table first.
type store struct {
	recordEngine
	table *table
}

// Acquire makes the store if there is none. It does so before the engine makes the claim, because the claim contains
// the time of the store's clock and the session of this client.
func (s *store) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := s.table.openStore(ctx, true); err != nil {
		return driver.Grant{}, err
	}
	return s.recordEngine.Acquire(ctx, c)
}

// Renew checks once for all grants that this directory is still the one that other clients open.
func (s *store) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	if err := s.table.checkInPlace(ctx); err != nil {
		for i := range grants {
			done(i, driver.Renewal{Err: err})
		}
		return
	}
	s.recordEngine.Renew(ctx, grants, done)
}
