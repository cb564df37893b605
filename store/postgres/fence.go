package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
)

// Fence guards a resource in this database against a holder that has lost its lock and does not know it yet. Call it in the
// transaction that does the work, with the token of the lease and a name for what the lock protects: the transaction
// carries the largest token that the resource has seen, and a smaller one is refused, with an error that Is ErrLost; roll
// back then. The same token passes again, so that the holder itself may repeat its work. Until the transaction ends, others
// that fence the same resource wait for it, so the order of the tokens is that of the writes.
//
// With synchronous standbys the token is on them when the work is, since both are in one commit. A commit that is answered with the
// warning that it may not have been replicated, because somebody has cancelled its wait, may be lost in a fail-over, and the token
// with it: take its outcome for unknown.
//
// Tokens of exclusive locks only: those of readers and of semaphores say nothing about who came last. The lock itself may
// be in any store. The fence table is made by [Migrate]; the options say where. Under REPEATABLE READ and above, waiting may
// end in a serialization failure, and the whole transaction is to be repeated, as ever there.
func Fence(ctx context.Context, tx pgx.Tx, opts *Options, resource string, token int64) error {
	p, err := opts.resolveLocation()
	if err != nil {
		return err
	}
	if token <= 0 || resource == "" {
		return fmt.Errorf("%w: a fence needs a resource and a positive token, not %q and %d", driver.ErrInvalid, resource, token)
	}
	tag, err := tx.Exec(ctx, `insert into `+p.fenceTable+` as f (resource, token) values ($1, $2)
		on conflict (resource) do update set token = excluded.token where f.token <= excluded.token`, resource, token)
	if err != nil {
		return fmt.Errorf("fencing %q by %s: %w", resource, p.fenceTable, err)
	}
	if tag.RowsAffected() == 0 {
		return &driver.LossError{Cause: driver.LossTaken, Err: fmt.Errorf("the resource %q has seen a larger token than %d", resource, token)}
	}
	return nil
}
