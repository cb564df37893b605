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
		if err := checkCall(c, ctx); err != nil {
			yield(Lock{}, c.wrapError("watch", name, err))
			return
		}
		var seen driver.Lock
		for known := false; ; known = true {
			lock, err := c.nextChange(ctx, "watch", name, seen, known)
			if ctx.Err() != nil {
				err = c.wrapError("watch", name, contextError(ctx))
			}
			if err != nil {
				yield(Lock{}, err)
				return
			}
			news := !known || lock.Revision != seen.Revision
			if seen = lock; news && !yield(lockFromDriver(lock), nil) {
				return
			}
		}
	}
}

// nextChange waits until the lock may stand otherwise than in seen, or looks at once if that is not known.
func (c *Client) nextChange(ctx context.Context, op, name string, seen driver.Lock, known bool) (driver.Lock, error) {
	w, ok := c.store.(driver.LockWatcher)
	switch {
	case !known:
	case ok:
		return c.readLock(ctx, op, name, func(ctx context.Context) (driver.Lock, error) { return w.NextChange(ctx, seen) })
	default:
		sleepContext(ctx, observePause/2+randomPart(observePause/2))
	}
	return c.inspectLock(ctx, op, name)
}
