package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
)

// Fence protects a resource in this database from a holder that has lost its lock and does not know it yet. It is
// fence.SQL for users of pgx: see package fence for what it promises. Both can use the same table.
//
// Call it first in the transaction that does the work, with the token of the lease (see fence.Of) and the name of what
// the lock protects. A smaller token than the largest that the resource has seen is rejected with a *fence.StaleError;
// then roll back. Other transactions that fence the same resource wait until this one ends, so writes are in the order
// of their tokens.
//
// With synchronous standbys the token is on them when the work is, because both are in one commit. But a commit that
// returns the warning that it may not have been replicated, because its wait was canceled, may be lost in a failover,
// and its token with it. Treat its outcome as unknown.
//
// The lock itself may be in any store. [Migrate] makes the fence table; the options say where it is. Under REPEATABLE
// READ and SERIALIZABLE, the wait may end in a serialization failure; then repeat the whole transaction.
func Fence(ctx context.Context, tx pgx.Tx, opts *Options, resource string, token fence.Token) error {
	p, err := opts.resolveLocation()
	if err != nil {
		return err
	}
	if tx == nil {
		return fmt.Errorf("%w: the transaction is nil: pass the one that does the work", driver.ErrInvalid)
	}
	if err := token.Check(); err != nil {
		return err
	}
	if resource == "" {
		return fmt.Errorf("%w: the name of the resource is empty", driver.ErrInvalid)
	}
	// The row stays locked until the caller's transaction ends. That is what makes the check hold until the commit: a
	// holder with a larger token waits here, and then finds the smaller one, and one with a smaller token is refused.
	tag, err := tx.Exec(ctx, `insert into `+p.fenceTable+` as f (resource, token) values ($1, $2)
		on conflict (resource) do update set token = excluded.token where f.token <= excluded.token`, resource, int64(token))
	if err != nil {
		return fmt.Errorf("fence %q by %s (Migrate makes the table): %w", resource, p.fenceTable, err)
	}
	if tag.RowsAffected() > 0 {
		return nil
	}
	stale := &fence.StaleError{Resource: resource, Token: token}
	err = tx.QueryRow(ctx, `select token from `+p.fenceTable+` where resource = $1`, resource).Scan((*int64)(&stale.Largest))
	if err != nil {
		return fmt.Errorf("%w (the larger token could not be read: %v)", stale, err)
	}
	return stale
}
