package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// Fence protects a resource in this database from a holder that has lost its lock and does not know it yet.
//
// Call it in the transaction that does the work, with the token of the lease and a name for the resource that the lock
// protects. The transaction stores the largest token that the resource has seen. A smaller token is refused with a
// [*holdfast.LossError], for which errors.Is(err, holdfast.ErrLost) is true; then roll back. The same token is accepted
// again, so the holder may repeat its work. Other transactions that fence the same resource wait until this one ends,
// so writes are in the order of their tokens.
//
// With synchronous standbys the token is on them when the work is, because both are in one commit. But a
// commit that returns the warning that it may not have been replicated, because its wait was cancelled, may
// be lost in a failover, and its token with it. Treat its outcome as unknown.
//
// Use tokens of exclusive locks only: those of readers and of semaphores do not say which claim came last. The
// lock itself may be in any store. [Migrate] makes the fence table; the options say where it is. Under
// REPEATABLE READ and SERIALIZABLE, the wait may end in a serialization failure; then repeat the whole
// transaction.
func Fence(ctx context.Context, tx pgx.Tx, opts *Options, resource string, token int64) error {
	p, err := opts.resolveLocation()
	if err != nil {
		return err
	}
	if tx == nil {
		return fmt.Errorf("%w: the transaction is nil: pass the one that does the work", driver.ErrInvalid)
	}
	if token <= 0 || resource == "" {
		return fmt.Errorf("%w: a fence needs a resource and a positive token, not %q and %d", driver.ErrInvalid,
			resource, token)
	}
	// The row stays locked until the caller's transaction ends. That is what makes the check hold until the commit: a
	// holder with a larger token waits here, and then finds the smaller one, and one with a smaller token is refused.
	tag, err := tx.Exec(ctx, `insert into `+p.fenceTable+` as f (resource, token) values ($1, $2)
		on conflict (resource) do update set token = excluded.token where f.token <= excluded.token`, resource, token)
	if err != nil {
		return fmt.Errorf("fencing %q by %s: %w", resource, p.fenceTable, err)
	}
	if tag.RowsAffected() == 0 {
		// This is the caller's type and not the driver's: Fence is not called by a client, which would convert it.
		return &holdfast.LossError{Cause: holdfast.LossTaken,
			Err: fmt.Errorf("the resource %q has seen a larger token than %d", resource, token)}
	}
	return nil
}
