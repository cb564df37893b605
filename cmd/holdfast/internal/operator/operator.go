// Package operator is what operators do to the locks and runs of others: by the command, by the API of the server and
// on its page. What the three ask of the store, and what they refuse, is here; how they say it is theirs.
package operator

import (
	"context"
	"errors"
	"slices"

	"github.com/holdfast-go/holdfast"
)

// Action is what an operator does. Its values are codes, fit for logs and JSON.
type Action string

// The actions on a claim, and then those on the runs of a key.
const (
	RequestRelease Action = "request-release"
	Break          Action = "break"
	BreakForce     Action = "break-force"
	Retry          Action = "retry"
	Forget         Action = "forget"
)

// Actions are all actions.
var Actions = []Action{RequestRelease, Break, BreakForce, Retry, Forget}

// Rights are what somebody may do with a lock. For a run of a ledger, the lock is the ledger's name, a slash and the
// key.
type Rights struct {
	See   bool // look at it
	Hold  bool // acquire it
	Break bool // all actions of operators
}

// Entry is an action as an audit log has it.
type Entry struct {
	Action      Action
	Lock        string // empty for runs
	Ref         string // of the claim, as it is shown
	Owner       string // of the claim, or of the last run
	Token       int64  // of the claim, or of the last run; 0 if it has none
	Ledger, Key string // empty for locks
	Reason      string // what the operator has given; may be empty
}

// MaxReason is the length of a reason that DescribeBreak makes longer, in bytes: it leaves room for who breaks the
// lock.
const MaxReason = 120

// DescribeBreak is what the holder is told: who has broken the lock, how, and why.
func DescribeBreak(who string, action Action, reason string) string {
	if action == BreakForce {
		who += ", by force"
	}
	if reason != "" {
		who += ": " + reason
	}
	return who
}

// Claim is a claim of a lock on which somebody acts.
type Claim struct {
	holdfast.ClaimInfo
	Lock  holdfast.Lock
	Waits bool
}

// Why there is no claim to act on.
var (
	ErrNoHolder  = errors.New("nobody holds the lock")
	ErrNoClaim   = errors.New("there is no such claim; it may have ended meanwhile")
	ErrAmbiguous = errors.New("the lock has several holders")
)

// FindClaim finds the claim of a lock with a ref, as refs shows it, or the only holder if ref is empty.
func FindClaim(lock holdfast.Lock, ref string, refs func(string) string) (*Claim, error) {
	switch {
	case ref != "":
		for i, c := range slices.Concat(lock.Holders, lock.Waiters) {
			if refs(c.Ref) == ref {
				return &Claim{c, lock, i >= len(lock.Holders)}, nil
			}
		}
		return nil, ErrNoClaim
	case len(lock.Holders) == 0:
		return nil, ErrNoHolder
	case len(lock.Holders) > 1:
		return nil, ErrAmbiguous
	}
	return &Claim{lock.Holders[0], lock, false}, nil
}

// Act carries out an action on the claim. reason is what the holder is told of a break.
func (c *Claim) Act(ctx context.Context, client *holdfast.Client, action Action, reason string) error {
	switch action {
	case RequestRelease:
		return client.RequestRelease(ctx, c.Lock.Name, c.Ref)
	case Break:
		return client.Break(ctx, c.Lock.Name, c.Ref, holdfast.BreakGraceful, reason)
	case BreakForce:
		return client.Break(ctx, c.Lock.Name, c.Ref, holdfast.BreakForce, reason)
	}
	return errNoAction
}

var errNoAction = errors.New("there is no such action")

// CheckRun returns a *holdfast.RunError if an action on a key is not possible, by its last run.
func CheckRun(action Action, last holdfast.RunInfo) error {
	switch {
	case action != Retry && action != Forget:
		return errNoAction
	case last.State == holdfast.RunStarted:
		return &holdfast.RunError{Reason: holdfast.ErrInProgress, Run: last}
	case action == Retry && last.State == holdfast.RunSucceeded:
		return &holdfast.RunError{Reason: holdfast.ErrSucceeded, Run: last}
	}
	return nil
}

// RepeatsSuccess reports whether the work of a key that has succeeded is done again after an action. Then the operator
// must say so.
func RepeatsSuccess(action Action, last holdfast.RunInfo) bool {
	return action == Forget && last.State == holdfast.RunSucceeded
}

// ActOnRun carries out an action on the runs of a key.
func ActOnRun(ctx context.Context, ledger *holdfast.Ledger, action Action, key string) error {
	switch action {
	case Retry:
		return ledger.Retry(ctx, key)
	case Forget:
		return ledger.Forget(ctx, key)
	}
	return errNoAction
}
