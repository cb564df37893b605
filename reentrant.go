package holdfast

import (
	"context"
	"fmt"
	"iter"

	"github.com/holdfast-go/holdfast/driver"
)

// carriedHold is what the context of a re-entrant lease carries: the hold, and what the context carried before. A
// context is the only identity that a thread of work has in Go: code that was given it works for the holder.
type carriedHold struct {
	hold  *hold
	outer *carriedHold
}

type carriedKey struct{}

func carriedIn(ctx context.Context) *carriedHold {
	c, _ := ctx.Value(carriedKey{}).(*carriedHold)
	return c
}

// withHold makes ctx carry a hold.
func withHold(ctx context.Context, h *hold) context.Context {
	return context.WithValue(ctx, carriedKey{}, &carriedHold{hold: h, outer: carriedIn(ctx)})
}

// withHoldsOf makes ctx carry the holds that another context carries.
func withHoldsOf(ctx, from context.Context) context.Context {
	if c := carriedIn(from); c != carriedIn(ctx) {
		return context.WithValue(ctx, carriedKey{}, c)
	}
	return ctx
}

// reenter returns another lease on the hold of the claimed lock that ctx carries, or nil if ctx carries none. A hold
// that was released does not count; one that was lost gives its error: the work goes on under a lock that it no longer
// has.
func (c *Client) reenter(ctx context.Context, claim driver.Claim) (*Lease, error) {
	for h := range c.carriedHolds(ctx, claim.Name) {
		if l, err := h.reenter(ctx, claim); l != nil || err != nil {
			return l, err
		}
	}
	return nil, nil
}

// checkReentry returns the error of reenter, and enters nothing.
func (c *Client) checkReentry(ctx context.Context, claim driver.Claim) error {
	for h := range c.carriedHolds(ctx, claim.Name) {
		h.mu.Lock()
		enters, err := h.canReenter(ctx, claim)
		h.mu.Unlock()
		if enters || err != nil {
			return err
		}
	}
	return nil
}

// carriedHolds yields the holds of a lock that ctx carries, from the innermost.
func (c *Client) carriedHolds(ctx context.Context, name string) iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		for held := carriedIn(ctx); held != nil; held = held.outer {
			if h := held.hold; h.client == c && h.name == name {
				h.checkExpiry()
				if !yield(h) {
					return
				}
			}
		}
	}
}

// reenter returns one more lease of the hold, or nil if it cannot be entered any more, and the lock must be acquired.
func (h *hold) reenter(ctx context.Context, claim driver.Claim) (*Lease, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if enters, err := h.canReenter(ctx, claim); !enters {
		return nil, err
	}
	l, x := &Lease{hold: h, values: ctx}, h.ensureExtras()
	x.reentries = append(x.reentries, l)
	return l, nil
}

// canReenter reports whether a claim can be another lease on this hold, or why the claim must not be made at all. It is
// called with mu held.
func (h *hold) canReenter(ctx context.Context, claim driver.Claim) (bool, error) {
	switch g := h.currentGrant(); {
	case h.state == stateLost:
		return false, h.err()
	case h.state != stateHeld || ctx.Err() != nil:
		return false, nil
	case g.Kind != claim.Kind || g.Limit != claim.Limit:
		return false, fmt.Errorf("%w: the context holds it as %s of %d, and asks for it as %s of %d",
			ErrMismatch, g.Kind, g.Limit, claim.Kind, claim.Limit)
	case g.Weight < claim.Weight && g.Kind == KindRW:
		return false, newInvalidError("this context already holds the read lock; acquiring the write lock would deadlock")
	case g.Weight < claim.Weight:
		return false, newInvalidError("this context already holds %d of the lock; acquiring %d would deadlock", g.Weight,
			claim.Weight)
	}
	return true, nil
}
