package holdfast

import (
	"context"
	"iter"

	"github.com/holdfast-go/holdfast/driver"
)

// Inspect tells how a lock stands: who holds it and who waits. It changes nothing. A lock on which nothing stands is a
// Lock with no holders, not an error. Claims that wait inside of a process (plain mutex claims, on most stores) are not
// seen.
func (c *Client) Inspect(ctx context.Context, name string) (Lock, error) {
	return c.look(ctx, "inspect", name, func(ctx context.Context) (Lock, error) { return c.store.Inspect(ctx, name) })
}

// List yields the locks whose names start with prefix and on which a claim stands, in no certain order. A lock that
// cannot be read is yielded with its name and an error, and the listing goes on; an error with an empty name ends it.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		if !c.crew.join() {
			yield(Lock{}, c.wrap("list", prefix, ErrClosed))
			return
		}
		defer c.crew.leave()
		ctx, end := c.untilClosed(ctx)
		defer end()
		for lock, err := range c.store.List(ctx, prefix) {
			if err != nil {
				err = c.wrap("list", lock.Name, c.orClosed(err))
			}
			if !yield(lock, err) {
				return
			}
		}
	}
}

// Break acts on somebody else's claim as an operator, found by the Ref that Inspect showed. [BreakMark] tells the
// holder at its next renewal and passes the lock on when it has let go; [BreakForce] passes it on at once, while the
// old holder may still be running; [BreakAsk] only asks. It touches no other claim: the error Is ErrLost if that one
// does not stand any more.
func (c *Client) Break(ctx context.Context, name, ref string, mode BreakMode) error {
	_, err := onStore(c, "break", name, func() (none struct{}, err error) {
		switch {
		case ref == "":
			return none, invalid("a break needs the ref of a claim, as Inspect shows it")
		case mode != BreakGraceful && mode != BreakForce && mode != BreakAsk:
			return none, invalid("unknown break mode %d", mode)
		}
		return none, c.store.Break(ctx, name, ref, mode)
	})
	return err
}

// look is onStore for a read. It ends when the client closes: nothing is lost by that, and Close need not wait for a store
// that says nothing.
func (c *Client) look(ctx context.Context, op, name string, read func(context.Context) (Lock, error)) (Lock, error) {
	return onStore(c, op, name, func() (Lock, error) {
		ctx, end := c.untilClosed(ctx)
		defer end()
		lock, err := read(ctx)
		return lock, c.orClosed(err)
	})
}

// orClosed is the error of a read that ends with the client.
func (c *Client) orClosed(err error) error {
	if err != nil && c.waiting.Err() != nil {
		return ErrClosed
	}
	return err
}

// onStore runs one call to the store about a lock: not after Close, not with a bad name, errors wrapped.
func onStore[T any](c *Client, op, name string, call func() (T, error)) (result T, err error) {
	if !c.crew.join() {
		return result, c.wrap(op, name, ErrClosed)
	}
	defer c.crew.leave()
	if err = driver.CheckName(name, c.store.Info()); err == nil {
		result, err = call()
	}
	if err != nil {
		err = c.wrap(op, name, err)
	}
	return result, err
}
