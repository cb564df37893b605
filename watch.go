package holdfast

import (
	"context"
	"iter"

	"github.com/holdfast-go/holdfast/driver"
)

// Watch yields how a lock stands, first as it is and then whenever it has changed, until ctx ends. States that pass
// quickly may be left out, and the last one never is. Where the store does not tell of changes it is asked about once a
// second.
//
// An error ends it. The error is ctx's own when that has ended.
func (c *Client) Watch(ctx context.Context, name string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		var seen Lock
		for known := false; ; known = true {
			lock, err := c.nextChange(ctx, "watch", name, seen, known)
			if ctx.Err() != nil {
				err = c.wrap("watch", name, contextError(ctx))
			}
			if err != nil {
				yield(Lock{}, err)
				return
			}
			news := !known || lock.Revision != seen.Revision
			if seen = lock; news && !yield(lock, nil) {
				return
			}
		}
	}
}

// nextChange waits until the lock may stand otherwise than in seen, or looks at once if that is not known.
func (c *Client) nextChange(ctx context.Context, op, name string, seen Lock, known bool) (Lock, error) {
	w, ok := c.store.(driver.LockWatcher)
	switch {
	case !known:
	case ok:
		return c.look(ctx, op, name, func(ctx context.Context) (Lock, error) { return w.NextChange(ctx, seen) })
	default:
		sleep(ctx, observePause/2+randomPart(observePause/2))
	}
	return c.look(ctx, op, name, func(ctx context.Context) (Lock, error) { return c.store.Inspect(ctx, name) })
}

// Plan is where and how a claim would stand. See Client.Explain.
type Plan = driver.Plan

// Explain tells how a claim on a lock would stand in the store: under which keys, with which TTL. It makes none, does
// no I/O, and is for people to read. Keys is empty on stores that cannot tell. The error Is ErrInvalid.
func (c *Client) Explain(name string, kind Kind, limit, weight int64, opts *LockOptions) (Plan, error) {
	var o LockOptions
	if opts != nil {
		o = *opts
	}
	claim, err := c.newClaim(name, kind, limit, weight, o)
	if err != nil {
		return Plan{}, c.wrap("explain", name, err)
	}
	if e, ok := c.store.(driver.Explainer); ok {
		return e.Explain(claim), nil
	}
	return Plan{TTL: claim.TTL}, nil
}

// Warnings asks the store how it is set up, and tells in words what makes its locks less safe than they could be, or shows
// that another store may have been meant (a directory in which there is none yet): each says what to set. There are none on
// stores that have nothing to set up. An error is that of a store that cannot be asked.
func (c *Client) Warnings(ctx context.Context) ([]string, error) {
	w, ok := c.store.(driver.Warner)
	if !ok {
		return nil, nil
	}
	const op = "look at the settings"
	if !c.crew.join() {
		return nil, c.wrap(op, "", ErrClosed)
	}
	defer c.crew.leave()
	ctx, end := c.untilClosed(ctx)
	defer end()
	ws, err := w.Warnings(ctx)
	if err != nil {
		return nil, c.wrap(op, "", c.orClosed(err))
	}
	return ws, nil
}
