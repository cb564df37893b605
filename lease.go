package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Lease is a granted claim: what a caller gets for a lock. It ends by Release, by Detach, by loss, or when its client
// is closed. Until then it is renewed in the background, even if the caller keeps no reference to it. All methods may
// be called from any goroutine.
//
// A re-entrant lock gives a Lease each time it is entered. All of them are one claim, which is released with the last
// of them; a loss ends them all.
type Lease struct {
	hold   *hold
	values context.Context // of the caller that locked

	// Guarded by the mutex of the hold.
	context *leaseContext // made when it is first asked for
	state   leaseState
}

type leaseContext struct {
	context.Context
	cancel context.CancelCauseFunc
}

// leaseState says whether a lease was released or detached, and so what its error is.
type leaseState uint8

const (
	leaseOpen     leaseState = iota // it was not: it ends when its hold does
	leaseReleased                   // while its hold went on: its error is ErrReleased
	leaseEnded                      // with its hold, or after it: it has the hold's error
)

// releaseErr is nil until the lease was released or detached, then its error. It is called with the mutex of the hold
// held.
func (l *Lease) releaseErr() error {
	switch l.state {
	case leaseReleased:
		return ErrReleased
	case leaseEnded:
		return l.hold.err()
	}
	return nil
}

// Context returns a context that ends when the lease does. Its cause is then a [*LossError], [ErrReleased] or
// [ErrClosed].
//
// It carries the values of the context that was given to Lock, but does not end with it: that context bounds the
// waiting only. Timers fire late in a process that was paused, so a context may end late as well: before an act that
// cannot be undone, ask Valid, and let the resource check Token.
func (l *Lease) Context() context.Context {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	if l.context == nil {
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(l.values))
		l.context = &leaseContext{ctx, cancel}
		if err := cmp.Or(l.releaseErr(), l.hold.err()); err != nil {
			cancel(err)
		}
	}
	return l.context.Context
}

// endContext ends the context if there is one. It is called with the mutex of the hold held.
func (l *Lease) endContext(err error) {
	if l.context != nil {
		l.context.cancel(err)
	}
}

// String shows the lease for logs: its lock, its token and whether it is valid.
func (l *Lease) String() string {
	state := "valid"
	if err := l.Err(); err != nil {
		state = err.Error()
	}
	return fmt.Sprintf("lease on %q, token %d: %s", l.Name(), l.Token(), state)
}

// Token returns the fencing token: positive, below 2^53, and larger than every token granted before on this lock. It
// fences only while the lease is [Lease.Exclusive].
func (l *Lease) Token() int64 { return l.hold.token }

// Name returns the lock's name.
func (l *Lease) Name() string { return l.hold.name }

// Ref names the claim to other processes, for Client.Break and Client.RequestRelease. It is printable.
func (l *Lease) Ref() string { return l.hold.ref }

// ID returns the claim's own id, which no other claim ever has.
func (l *Lease) ID() string { return l.hold.id }

// Permits returns the numbers of the permits that the lease has of its semaphore: as many as its weight, from 0 to the
// limit less one, in rising order. No other lease has one of them at the same time, so a number can stand for a part of
// what the semaphore guards: a device, a port, a directory. It does not fence: the holder before may still be writing.
//
// The error is ErrUnsupported if the lease has no numbers: on stores where Info.Permits is false; on other locks; for a
// weight above 64; and for a lease that was granted next to a holder without numbers: a program of the version before
// this one, or a holder whose numbers such a program has forgotten.
func (l *Lease) Permits() ([]int64, error) {
	if numbers := l.hold.permitNumbers(); numbers != nil {
		return slices.Clone(numbers), nil
	}
	return nil, l.hold.client.wrapError("permits", l.Name(), l.hold.explainNoPermits())
}

// Exclusive reports whether no other claim can be granted next to this lease: a mutex, a writer, or all permits of a
// semaphore.
func (l *Lease) Exclusive() bool {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	return l.hold.currentGrant().Exclusive()
}

// Valid reports whether the lease is valid, by the clock and at this moment. Once it has returned false it always does.
func (l *Lease) Valid() bool { return l.Remaining() > 0 }

// Remaining is how long the lease stays valid if no renewal succeeds any more; 0 when it has ended. It is shorter than
// what is left of the TTL by a margin: a tenth of the TTL, and at most 1 s plus a hundredth of the TTL. It is
// never more than what is left of LockOptions.MaxHold, or of LockOptions.Progress.
func (l *Lease) Remaining() time.Duration {
	left := l.hold.checkExpiry()
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	if l.state != leaseOpen {
		return 0
	}
	return left
}

// Progress notes that the work under the lease gets on, and reports whether the lease is valid, as Valid does. A lease
// whose LockOptions.Progress is set ends if Progress is not called for that long. It does no I/O. A lock that was
// entered again has progress if one of its leases has.
func (l *Lease) Progress() bool {
	l.hold.noteProgress(l)
	return l.Valid()
}

// Err is nil while the lease is valid, then the reason why it ended: a [*LossError], [ErrReleased] or [ErrClosed].
func (l *Lease) Err() error {
	l.hold.checkExpiry()
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	return cmp.Or(l.releaseErr(), l.hold.err())
}

// ReleaseRequested returns a channel that is closed when somebody has asked the holder to release the lock: see
// Client.RequestRelease. The client learns of it with a renewal, so within a third of the TTL as a rule. This is only a
// request: the lease stays valid until the holder releases it. The channel is made at the first call.
func (l *Lease) ReleaseRequested() <-chan struct{} {
	h := l.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	x := h.ensureExtras()
	if x.releaseRequestedC == nil {
		x.releaseRequestedC = make(chan struct{})
		if h.releaseRequested {
			close(x.releaseRequestedC)
		}
	}
	return x.releaseRequestedC
}

// Release releases the lock and ends the lease's context. It takes at most 10 s, or the TTL if that is less.
//
// The first call releases; later calls return [ErrReleased]. After a loss, or if the store reports that the claim had
// ended before, all calls return the [*LossError]. After Client.Close they return ErrClosed. If the store cannot be
// reached in time, Release returns [ErrUncertain], and the client goes on trying in the background for as long as the
// TTL: nobody needs to call Release again. If the store refuses ([ErrDenied], [ErrCorrupt]), the lock expires by its
// TTL.
//
// A lock whose LockOptions.MinHold has not passed stays held for the rest of it, without a holder; Release does not
// wait.
func (l *Lease) Release() error {
	return l.ReleaseContext(l.hold.client.timeouts.contextFor(driver.UnreachableTimeout(l.hold.asked.TTL)))
}

// ReleaseContext is Release with ctx as its bound. Even if ctx has ended, the lease's own context ends at once, and a
// lock that could not be released is released in the background.
//
// It does not wait for a renewal that is under way: a store never makes a claim by renewing it, and the answer is
// ignored.
func (l *Lease) ReleaseContext(ctx context.Context) error { return l.giveUp(ctx, "release", ending{}) }

// giveUp ends one lease, and with the last lease of the hold the claim.
func (l *Lease) giveUp(ctx context.Context, op string, e ending) error {
	h, c := l.hold, l.hold.client
	if ctx == nil {
		return c.wrapError(op, l.Name(), errNilContext)
	}
	if c.inflight.enterHeld() {
		defer c.inflight.exit()
	} else {
		return c.wrapError(op, l.Name(), l.errAfterClose())
	}
	h.checkExpiry() // a lease that has expired is lost, not released
	last, cleanUpDue, err := h.releaseLease(l, e)
	if cleanUpDue {
		c.cleanUp(h.asked.TTL, h.tryRelease)
	}
	if last {
		if err = h.releaseClaim(ctx); errors.Is(err, ErrLost) { // not known before
			h.mu.Lock()
			h.loss = lossOf(err)
			h.mu.Unlock()
		}
	}
	if err != nil {
		return c.wrapError(op, l.Name(), err)
	}
	return nil
}

// errAfterClose is what Release returns when the client is closed, or is being closed and about to end this lease.
func (l *Lease) errAfterClose() error {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	return cmp.Or(l.releaseErr(), l.hold.err(), ErrClosed)
}

// runUnder runs f under a lease, and releases it.
func (l *Lease) runUnder(ctx context.Context, f func(ctx context.Context, l *Lease) error) (err error) {
	ctx, stop := bindContext(ctx, l.Context())
	defer func() { // also while a panic goes by, which then goes on
		stop()
		if releaseErr := l.Release(); releaseErr != nil && !errors.Is(releaseErr, ErrReleased) {
			err = errors.Join(err, releaseErr)
		}
	}()
	return f(ctx, l)
}

// bindContext returns a context that ends with ctx, and with that of a lease as well. stop ends it.
func bindContext(ctx, ends context.Context) (bound context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(withHoldsOf(ctx, ends))
	stopAfter := context.AfterFunc(ends, func() { cancel(context.Cause(ends)) })
	return ctx, func() { stopAfter(); cancel(context.Canceled) }
}
