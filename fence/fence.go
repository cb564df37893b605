// Package fence is the check at the resource that a lock protects.
//
// A lock alone cannot protect a resource. Its holder may be stopped at any moment, between the last look at the lease
// and the write: by a long garbage collection, a virtual machine that is moved, a network that delays. When it
// continues, the lease has ended, another holder has written, and the old holder writes over it. Only the resource can
// prevent that. It needs the fencing token of the lease for that, a number that is larger for each later holder.
//
// # The contract
//
// All fences of this package, and those of the stores, follow the same rules:
//
//   - The resource keeps the largest token that it has seen, per name. The name is the lock's, or any other name that
//     all writers agree on.
//   - A smaller token is rejected with a [*StaleError], in the same transaction as the write. So nothing of the write
//     remains, and no other write can come between the check and the write.
//   - The same token is accepted again: the holder may write several times, and may repeat a write.
//   - Tokens are compared as numbers.
//   - Tokens that cannot fence are refused: those of readers and of semaphores, which say nothing about who came last
//     (see [Of]), and numbers that are no tokens: 0, negative ones, and those from 2^53 on.
//
// A fence accepts a new holder's token even while the old holder believes that its lease is valid. That is right: by
// the store's rules, the old one has stopped, or is about to.
//
// # Which one
//
//   - [SQL] for databases through database/sql: PostgreSQL, MySQL, MariaDB, SQLite. Users of pgx call postgres.Fence, on
//     the same table.
//   - [Guard] for HTTP services, with [Transport] for their clients.
//   - [WriteFile] and [AppendFile] for files.
//   - [RedisScript] for Redis, with any client.
//   - dynamodb.FencePut and dynamodb.FenceUpdate, gcsfence.Write and azurefence.Write, in packages of those stores.
//
// # Decisions
//
// The check is one statement that writes. It locks the row of the resource until the end of the transaction, so holders
// of different tokens go one after the other under every isolation level. Rejected: a check that reads, and a write
// after it: under read committed, two transactions pass each other.
//
// A gate is for a service that writes somewhere else. It lets writers in and waits until those with smaller tokens have
// left before it lets in a larger one. Otherwise a request that has passed the check could still be at work when the
// next holder's request is served.
//
// A fence takes the token from a lease, or as a fence.Token. So the tokens of readers and of semaphore permits, which
// fence nothing, are refused where they are made. Rejected: to accept any number.
package fence

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
)

// Token is the fencing token of an exclusive lease: 1 to 2^53-1.
type Token int64

// maxToken is the largest number that all resources can keep exactly: Redis computes with floating-point numbers.
const maxToken = 1<<53 - 1

// ErrStale is returned when the resource has seen a larger token. errors.As finds a [*StaleError].
var ErrStale = errors.New("the fencing token is stale")

// ErrInvalid is returned for a token that cannot fence, and for a fence that cannot work. The text says what to do.
var ErrInvalid = driver.ErrInvalid

// StaleError says that a write was rejected because another holder has written since. Nothing was written. It matches
// [ErrStale] and holdfast.ErrLost: the lease of the token has ended.
type StaleError struct {
	Resource string
	Token    Token // the writer's
	Largest  Token // the largest that the resource has seen; 0 if it is not known
}

// Error names both tokens, if the larger one is known.
func (e *StaleError) Error() string {
	if e.Largest == 0 {
		return fmt.Sprintf("%v: %q has seen a larger one than %d", ErrStale, e.Resource, e.Token)
	}
	return fmt.Sprintf("%v: %q has seen %d, which is larger than %d", ErrStale, e.Resource, e.Largest, e.Token)
}

// Unwrap makes errors.Is find ErrStale and holdfast.ErrLost.
func (e *StaleError) Unwrap() []error { return []error{ErrStale, driver.ErrLost} }

// Holder has a token: a *holdfast.Lease or a *holdfast.Run.
type Holder interface {
	Token() int64
	Err() error // nil while it may be used
}

// Of returns the token of a holder. It refuses a lease that is not exclusive with ErrInvalid: several readers, or
// several holders of a semaphore, may work at the same time, so the one with the smaller token is not stale. It does
// not ask whether the lease is still valid, since only the resource can tell.
func Of(h Holder) (Token, error) {
	if h == nil {
		return 0, invalid("the holder is nil")
	}
	if l, ok := h.(interface{ Exclusive() bool }); ok && !l.Exclusive() {
		return 0, invalid("the token %d cannot fence: its lease belongs to a reader or a semaphore, and is not exclusive",
			h.Token())
	}
	t := Token(h.Token())
	return t, t.Check()
}

// Parse reads a token that was passed on as text: decimal digits without a sign. Anything else is [ErrInvalid].
func Parse(text string) (Token, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > maxToken || text[0] == '+' {
		return 0, invalid("%.40q is not a fencing token: it is a decimal number from 1 to %d", text, int64(maxToken))
	}
	t := Token(n)
	return t, t.Check()
}

// String returns the token as decimal digits, as [Parse] reads it.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// Check returns ErrInvalid for a number that no lease has as its token.
func (t Token) Check() error {
	if t < 1 || t > maxToken {
		return invalid("%d is not a fencing token: it is a number from 1 to %d", int64(t), int64(maxToken))
	}
	return nil
}

// checkWrite reports what is wrong with the call of a writer. A nil context would panic only when the writer has to
// wait.
func checkWrite(ctx context.Context, resource string, t Token) error {
	switch {
	case ctx == nil:
		return errNilContext
	case resource == "":
		return invalid("the name of the resource is empty")
	}
	return t.Check()
}

var errNilContext = invalid("the context is nil: pass context.Background() if there is no other")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
