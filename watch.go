package holdfast

import (
	"context"
	"iter"

	"github.com/holdfast-go/holdfast/driver"
)

// Watch yields the state of a lock, first as it is and then after each change, until ctx ends. States that pass quickly
// may be left out; the last one never is. A store that does not report changes is asked about once a second.
//
// An error ends the sequence. When ctx has ended it is ctx's error.
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

// nextChange waits until the lock may differ from seen. If seen is not known it reads the lock at once.
func (c *Client) nextChange(ctx context.Context, op, name string, seen driver.Lock, known bool) (driver.Lock, error) {
	if !known {
		return c.inspectLock(ctx, op, name)
	}
	return c.readLock(ctx, op, name,
		func(ctx context.Context) (driver.Lock, error) { return c.store.NextChange(ctx, seen) })
}
