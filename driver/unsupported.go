package driver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"
)

// Unsupported is embedded by a [Store] that has not all abilities. Its methods refuse, with ErrUnsupported, what the
// store does not have. A store that wraps another one does not embed it.
type Unsupported struct{}

// Detach returns ErrUnsupported.
func (Unsupported) Detach(context.Context, Grant, time.Duration) error {
	return fmt.Errorf("%w: on this store a claim ends with its client", ErrUnsupported)
}

// SetWeight returns ErrUnsupported.
func (Unsupported) SetWeight(context.Context, Grant, int64) error {
	return fmt.Errorf("%w: changing what a lease holds", ErrUnsupported)
}

// NextEnding returns ErrUnsupported.
func (Unsupported) NextEnding(context.Context) (Ending, error) {
	return Ending{}, fmt.Errorf("%w: it reports no endings", ErrUnsupported)
}

// Forget returns ErrUnsupported.
func (Unsupported) Forget(context.Context, string) error {
	return fmt.Errorf("%w: what is kept of a lock cannot be removed", ErrUnsupported)
}

// ReadTokenFloor returns ErrUnsupported.
func (Unsupported) ReadTokenFloor(context.Context) (TokenFloor, error) {
	return TokenFloor{}, errTokensFixed
}

// RaiseToken returns ErrUnsupported.
func (Unsupported) RaiseToken(context.Context, string, int64) error { return errTokensFixed }

var errTokensFixed = fmt.Errorf("%w: this store cannot raise its tokens", ErrUnsupported)

// Explain returns the TTL that the claim asks for.
func (Unsupported) Explain(c Claim) Plan { return Plan{TTL: c.TTL} }

// Examine returns no findings, because the store has nothing to set up.
func (Unsupported) Examine(context.Context) ([]Finding, error) { return nil, nil }

// LivenessFile returns ErrUnsupported.
func (Unsupported) LivenessFile() (*os.File, error) {
	return nil, fmt.Errorf("%w: no file keeps the claims of a client alive", ErrUnsupported)
}

// OpenLedger returns ErrUnsupported.
func (Unsupported) OpenLedger(context.Context) (Ledger, error) {
	return nil, fmt.Errorf("%w: it keeps no run ledger", ErrUnsupported)
}

// pollInterval is the longest time between two reads of PollChange.
const pollInterval = time.Second

// PollChange is the NextChange of a store that reports no changes: it calls inspect about once per second until the
// lock differs from seen. It pauses before each call, so that a lock that changes all the time costs no more.
func PollChange(ctx context.Context, seen Lock, inspect func(context.Context, string) (Lock, error)) (Lock, error) {
	for {
		select {
		case <-time.After(pollInterval/2 + rand.N(pollInterval/2)): // so that many clients do not read at the same time
		case <-ctx.Done():
			return seen, context.Cause(ctx)
		}
		l, err := inspect(ctx, seen.Name)
		if err != nil || l.Revision != seen.Revision {
			return l, err
		}
	}
}
