package holdfast

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
)

// BreakMode says how Client.Break ends a claim.
type BreakMode int

const (
	// BreakGraceful tells the holder with its next renewal, and the lock passes on when the holder has released it or
	// its TTL has expired. No two holders work at the same time.
	BreakGraceful BreakMode = iota
	// BreakForce frees the lock at once. The old holder may still be working, until its next renewal at most.
	BreakForce
)

// String returns graceful or force.
func (m BreakMode) String() string {
	switch m {
	case BreakGraceful:
		return "graceful"
	case BreakForce:
		return "force"
	}
	return fmt.Sprintf("BreakMode(%d)", int(m))
}

// Break takes a lock away from one of its holders, or removes a waiting claim, as an operator does. ref is the
// [ClaimInfo].Ref of the claim; "" means the only holder. Its lease ends with [LossBroken]. No other claim is touched.
//
// reason says who breaks the lock, and why: one line of printable text of at most [MaxReason] bytes, or "". The holder
// gets it as the Err of its [*LossError]. Layouts of other clients that have no room for it break the lock without it.
//
// It returns ErrLost if that claim does not exist any more, or if ref is "" and nobody holds the lock; ErrInvalid if
// ref is "" and there are several holders (the text has their refs), if ref cannot be the ref of a claim, or if the
// reason is too long or not one line; ErrUnsupported for [BreakGraceful] on a foreign claim, whose holder cannot be
// notified; ErrUncertain if the store did not answer.
func (c *Client) Break(ctx context.Context, name, ref string, mode BreakMode, reason string) error {
	if err := checkReason(reason); err != nil {
		return c.wrapError("break", name, err)
	}
	how := driver.BreakGraceful
	switch mode {
	case BreakGraceful:
	case BreakForce:
		how = driver.BreakForce
	default:
		return c.wrapError("break", name, newInvalidError("unknown break mode %d", int(mode)))
	}
	return c.breakClaim(ctx, "break", name, ref, driver.Break{Mode: how, Reason: reason})
}

// MaxReason is the largest length of the reason of a break, in bytes.
const MaxReason = driver.MaxReason

// RequestRelease asks the holder of a claim to release it. Nothing is taken away: [Lease.ReleaseRequested] is closed at
// the holder, within a third of its TTL as a rule, and the holder decides. ref and the errors are as for Break; a
// claim that waits is notified once it holds the lock.
func (c *Client) RequestRelease(ctx context.Context, name, ref string) error {
	return c.breakClaim(ctx, "request release", name, ref, driver.Break{Mode: driver.BreakRequestRelease})
}

// checkReason refuses what could confuse a terminal or a log.
func checkReason(reason string) error {
	notPrintable := func(r rune) bool { return !unicode.IsPrint(r) }
	switch {
	case len(reason) > MaxReason:
		return newInvalidError("a reason may have %d bytes, and has %d", MaxReason, len(reason))
	case !utf8.ValidString(reason), strings.ContainsFunc(reason, notPrintable):
		return newInvalidError("a reason must be one line of printable text")
	}
	return nil
}

// breakClaim breaks the claim ref, or if that is empty the only holder.
func (c *Client) breakClaim(ctx context.Context, op, name, ref string, b driver.Break) error {
	_, err := onStore(ctx, c, op, name, func() (none struct{}, err error) {
		if ref == "" {
			if ref, err = c.onlyHolder(ctx, name); err != nil {
				return none, err
			}
		}
		return none, c.store.Break(ctx, name, ref, b)
	})
	return err
}

// onlyHolder is the ref of the holder of a lock that has one.
func (c *Client) onlyHolder(ctx context.Context, name string) (ref string, err error) {
	lock, err := c.store.Inspect(ctx, name)
	switch {
	case err != nil:
		return "", err
	case len(lock.Holders) == 0:
		return "", &LossError{Cause: LossGone, Err: errors.New("nobody holds the lock")}
	case len(lock.Holders) == 1:
		return lock.Holders[0].Ref, nil
	}
	holders := make([]string, len(lock.Holders))
	for i, h := range lock.Holders {
		holders[i] = fmt.Sprintf("%s (%s)", h.Ref, h.Owner)
	}
	return "", newInvalidError("the lock has %d holders; give the ref of one: %s", len(holders),
		strings.Join(holders, ", "))
}

// TokenFloor says how small the tokens to come can be.
type TokenFloor struct {
	// Token: no token that is granted from now on, on any lock of the store, is smaller.
	Token int64
	// ByClock: tokens are at least the store's clock, in microseconds since 1970. So the floor rises with time.
	ByClock bool
}

// ReadTokenFloor asks the store how small the tokens to come can be. An operator compares that with the tokens that
// resources have seen, after a store was restored from a backup or replaced. It returns ErrUnsupported if the store
// cannot tell.
func (c *Client) ReadTokenFloor(ctx context.Context) (TokenFloor, error) {
	return makeCall(ctx, c, "read the token floor", "", func() (TokenFloor, error) {
		ctx, end := c.untilClosed(ctx)
		defer end()
		floor, err := c.store.ReadTokenFloor(ctx)
		if err != nil {
			return TokenFloor{}, c.orClosed(err)
		}
		return TokenFloor(floor), nil
	})
}

// RaiseToken makes sure that no token smaller than atLeast is granted on a lock from now on. A holder keeps its token
// until it has released the lock. It is for an operator, after the store was restored from a backup or replaced, if
// resources have seen larger tokens than the store grants. Nothing is changed if the tokens are large enough already.
//
// Tokens never fall again. If atLeast is far above the floor of the store (see [Client.ReadTokenFloor]), the tokens of
// this lock rise by one per grant from there on, and its record is kept until the floor has passed them.
//
// It returns ErrInvalid if atLeast is not a token, or leaves fewer than 2^40 tokens above it; ErrUnsupported if no
// client can raise the tokens of this store (the text says what can be done instead); ErrUncertain if the store did
// not answer: then it may be called again.
func (c *Client) RaiseToken(ctx context.Context, name string, atLeast int64) error {
	_, err := onStore(ctx, c, "raise the token", name, func() (none struct{}, err error) {
		return none, raiseToken(ctx, c.store, name, atLeast)
	})
	return err
}

// CheckTokens returns nil if no token smaller than atLeast is granted from now on, on any lock of the store, also on
// those that have never been used. Otherwise it returns ErrUnsupported, with a text that says when that will be so,
// or what to do. It changes nothing: most stores make tokens from their clock, and others from a counter of their
// own. [Client.RaiseToken] raises those of one lock. It also returns the errors of RaiseToken.
func (c *Client) CheckTokens(ctx context.Context, atLeast int64) error {
	_, err := makeCall(ctx, c, "check the tokens", "", func() (none struct{}, err error) {
		return none, raiseToken(ctx, c.store, "", atLeast)
	})
	return err
}

// raiseToken checks the number first: a reserve stays above it, because tokens cannot be lowered again.
func raiseToken(ctx context.Context, store driver.Store, name string, atLeast int64) error {
	const reserve = 1 << 40
	if atLeast < 1 || atLeast > driver.MaxToken-reserve {
		return newInvalidError("a token can be raised to at least 1 and at most %d, not %d",
			int64(driver.MaxToken-reserve), atLeast)
	}
	return store.RaiseToken(ctx, name, atLeast)
}
