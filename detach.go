package holdfast

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Handle names a detached claim: one that no client renews, so that any process that has the handle can renew or
// release it. It comes from [Lease.Detach], is plain data, and may be stored and sent. A process that has the handle
// can release the lock.
type Handle struct {
	Name   string        `json:"name"`
	Kind   Kind          `json:"kind"`
	Limit  int64         `json:"limit"`
	Weight int64         `json:"weight"`
	TTL    time.Duration `json:"ttl_ns"` // how long a renewal makes it last; nanoseconds in JSON
	ID     string        `json:"id"`
	Ref    string        `json:"ref"`
	Token  int64         `json:"token"` // the fencing token; see Lease.Token
}

// A handle comes from a detached lease. A process that dies before it detaches leaves nothing that needs a TTL, and
// waiting claims always belong to a living process. Rejected: a second way to lock.

// Detach ends the lease, and leaves the lock held for a fixed time, without a client that renews it: a timed lock. The
// time is the TTL from now, but at most what is left of MaxHold, and at least what is left of MinHold. It is the TTL
// of the returned handle. With the handle this or another process can renew the lock, by [Client.Renew], or release
// it earlier, by [Client.Release]. MaxHold bounds the lease, which has ended, and not what is renewed with the
// handle.
//
// It takes at most as long as Release. It returns ErrUnsupported, and has changed nothing, where Info.Detached is
// false; ErrInvalid, and has changed nothing, while the lock is entered more than once; ErrUncertain if the store could
// not be reached in time: the client then goes on trying in the background, and the handle is good. Other errors are
// those of Release, without a handle.
func (l *Lease) Detach() (Handle, error) {
	h, c := l.hold, l.hold.client
	if !c.store.Info().Abilities.Detach {
		return Handle{}, c.wrapError("detach", l.Name(), errNotDetached)
	}
	ctx, cancel := context.WithTimeout(context.Background(), driver.UnreachableTimeout(h.asked.TTL))
	defer cancel()
	detachFor := h.asked.TTL
	if h.maxHold > 0 {
		detachFor = max(min(detachFor, (h.maxHold-c.clock.Since(h.startedAt)).Truncate(time.Millisecond)),
			time.Millisecond)
	}
	h.mu.Lock()
	detachFor = max(detachFor, h.minHoldLeft()) // stores renew a claim for as long as it was detached for
	h.mu.Unlock()
	err := l.giveUp(ctx, "detach", ending{detachFor: detachFor})
	if err != nil && !isOneOf(err, ErrUncertain) {
		return Handle{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.currentGrant()
	return Handle{Name: g.Name, Kind: g.Kind, Limit: g.Limit, Weight: g.Weight, TTL: detachFor, ID: g.ID, Ref: g.Ref,
		Token: g.Token}, err
}

var errNotDetached = fmt.Errorf("%w: claims cannot outlive their client in this store", ErrUnsupported)

// driverClaim is what the store knows the handle's claim by.
func (h Handle) driverClaim() driver.Claim {
	return driver.Claim{Name: h.Name, ID: h.ID, Kind: h.Kind, Limit: h.Limit, Weight: h.Weight, TTL: h.TTL,
		Detached: true}
}

// checkFields reports what no handle that Lease.Detach has returned lacks, or has. Anyone who has a handle may change
// it.
func (h Handle) checkFields(info driver.Info) error {
	if h.ID == "" || h.Ref == "" || h.Token <= 0 || h.TTL <= 0 {
		return newInvalidError("a handle is what Lease.Detach returns, with an id, a ref, a token and a TTL")
	}
	if h.TTL > info.MaxTTL {
		return newInvalidError("the TTL of a handle is at most %v on this store, not %v", info.MaxTTL, h.TTL)
	}
	return nil
}

// Renew makes a detached claim last for its TTL from now, and returns that TTL as the store has it. It may be longer
// than h.TTL. For so long after the call began, less the margin that [Lease.Remaining] describes, nobody else holds
// the lock.
//
// It is one request; ctx bounds it. It returns ErrLost, with a [*LossError], if the claim has ended: it is never made
// again. After any other error it is not known whether the claim was renewed, and Renew may be called again. A claim
// that was lost with [LossBroken] keeps others out until its TTL has expired: Release it when the work under it has
// stopped.
func (c *Client) Renew(ctx context.Context, h Handle) (ttl time.Duration, err error) {
	return onStore(ctx, c, "renew", h.Name, func() (ttl time.Duration, err error) {
		if err := h.checkFields(c.store.Info()); err != nil {
			return 0, err
		}
		g := driver.Grant{Claim: h.driverClaim(), Token: h.Token, GrantedTTL: h.TTL, Ref: h.Ref, Since: c.clock.Now()}
		err = errNoAnswer
		c.store.Renew(ctx, []driver.Grant{g}, func(_ int, r driver.Renewal) { ttl, err = r.GrantedTTL, r.Err })
		return ttl, err
	})
}

// Release releases a detached claim. It returns ErrLost if the claim has ended before; ErrUncertain if the store did
// not answer: Release may then be called again, and the claim expires by its TTL.
func (c *Client) Release(ctx context.Context, h Handle) error {
	_, err := onStore(ctx, c, "release", h.Name, func() (none struct{}, err error) {
		if err := h.checkFields(c.store.Info()); err != nil {
			return none, err
		}
		return none, c.store.Release(ctx, h.driverClaim(), h.Ref)
	})
	return err
}
