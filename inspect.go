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
	return onStore(c, "inspect", name, func() (Lock, error) { return c.store.Inspect(ctx, name) })
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
		for lock, err := range c.store.List(ctx, prefix) {
			if err != nil {
				err = c.wrap("list", lock.Name, err)
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
		case mode != BreakMark && mode != BreakForce && mode != BreakAsk:
			return none, invalid("unknown break mode %d", mode)
		}
		return none, c.store.Break(ctx, name, ref, mode)
	})
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
