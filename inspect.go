package holdfast

import (
	"context"
	"iter"

	"github.com/holdfast-go/holdfast/driver"
)

// Inspect returns the state of a lock: who holds it and who waits for it. It changes nothing. A lock without claims is
// a Lock with no holders, not an error. Claims that wait inside a process (plain mutex claims, on most stores) are not
// seen.
func (c *Client) Inspect(ctx context.Context, name string) (Lock, error) {
	lock, err := c.inspectLock(ctx, "inspect", name)
	return lockFromDriver(lock), err
}

// List yields the locks whose names start with prefix and that have a claim, in no particular order. A lock that
// cannot be read is yielded with its name and an error, and the listing goes on; an error with an empty name ends it.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		if err := checkCall(c, ctx); err != nil {
			yield(Lock{}, c.wrapError("list", prefix, err))
			return
		}
		err := yieldListed(ctx, c, func(ctx context.Context) iter.Seq2[driver.Lock, error] {
			return c.store.List(ctx, prefix)
		}, func(lock driver.Lock, err error) bool {
			if err == nil {
				return yield(lockFromDriver(lock), nil)
			}
			return yield(lockFromDriver(lock), c.wrapError("list", lock.Name, c.orClosed(err))) && lock.Name != ""
		})
		if err != nil {
			yield(Lock{}, c.wrapError("list", prefix, err))
		}
	}
}

// yieldListed yields what the store lists, until the client closes: then it returns ErrClosed. What yield runs is the
// body of a caller's loop. That may take long, so it does not count as a call, and Close does not wait for it.
func yieldListed[T any](ctx context.Context, c *Client, list func(context.Context) iter.Seq2[T, error],
	yield func(T, error) bool) error {
	counted := c.inflight.enter()
	if !counted {
		return ErrClosed
	}
	defer func() {
		if counted {
			c.inflight.exit()
		}
	}()
	ctx, end := c.untilClosed(ctx)
	defer end()
	for item, err := range list(ctx) {
		c.inflight.exit()
		counted = false
		if !yield(item, err) {
			return nil
		}
		if counted = c.inflight.enter(); !counted {
			return ErrClosed
		}
	}
	return nil
}

// Examine asks the store how it is set up, and returns what makes its locks less safe than they could be, or suggests
// that another store may have been meant (a directory in which there is no store yet). Each finding says what to do.
// There are none on stores that have nothing to set up. It changes nothing, and returns an error if the store cannot be
// asked.
func (c *Client) Examine(ctx context.Context) ([]Finding, error) {
	return makeCall(ctx, c, "examine the settings", "", func() ([]Finding, error) {
		ctx, end := c.untilClosed(ctx)
		defer end()
		findings, err := c.store.Examine(ctx)
		return findings, c.orClosed(err)
	})
}
