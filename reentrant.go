package holdfast

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
)

// carried is what the context of a re-entrant lease carries: the tenure, and what the context carried before. The context
// is the only identity that a thread of work has in Go: whoever was given it works for the holder.
type carried struct {
	tenure *tenure
	outer  *carried
}

type carriedKey struct{}

func carriedBy(ctx context.Context) *carried {
	c, _ := ctx.Value(carriedKey{}).(*carried)
	return c
}

// carry makes ctx carry a tenure.
func carry(ctx context.Context, t *tenure) context.Context {
	return context.WithValue(ctx, carriedKey{}, &carried{tenure: t, outer: carriedBy(ctx)})
}

// carryOn makes ctx carry what another context carries.
func carryOn(ctx, from context.Context) context.Context {
	if c := carriedBy(from); c != carriedBy(ctx) {
		return context.WithValue(ctx, carriedKey{}, c)
	}
	return ctx
}

// enter gives another handle on the lease of the claimed lock that ctx carries, or nil if it carries none. One that was
// given up does not count; one that was lost does: the work goes on under a lock that it has not any more.
func (c *Client) enter(ctx context.Context, claim driver.Claim) (*Lease, error) {
	for held := carriedBy(ctx); held != nil; held = held.outer {
		t := held.tenure
		if t.client != c || t.name() != claim.Name {
			continue
		}
		t.look()
		if l, err := t.enter(ctx, claim); l != nil || err != nil {
			return l, err
		}
	}
	return nil, nil
}

func (t *tenure) enter(ctx context.Context, claim driver.Claim) (*Lease, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch g := t.granted(); {
	case t.state == stateLost:
		return nil, t.err
	case t.state != stateHeld || ctx.Err() != nil:
		return nil, nil
	case g.Kind != claim.Kind || g.Limit != claim.Limit:
		return nil, fmt.Errorf("%w: the context holds it as %s of %d, and asks for it as %s of %d",
			ErrMismatch, g.Kind, g.Limit, claim.Kind, claim.Limit)
	case g.Weight < claim.Weight && g.Kind == KindRW:
		return nil, invalid("the context holds the lock for reading, and would wait for itself to write")
	case g.Weight < claim.Weight:
		return nil, invalid("the context holds %d of the lock, and would wait for itself to hold %d", g.Weight, claim.Weight)
	}
	l := &Lease{tenure: t, values: ctx}
	t.handles = append(t.handles, l)
	return l, nil
}
