package holdfast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Lease is a granted claim: what a caller gets for a lock. It ends by Unlock, by Lapse, by loss, or when its client is
// closed, and is renewed in the background until then, also if nobody has kept it. All methods may be called from any
// goroutine.
//
// A re-entrant lock gives a Lease each time it is entered. Together they stand for one claim, which is given back by the
// last of them; a loss ends them all.
type Lease struct {
	hold   *hold
	values context.Context // of whoever locked

	// Guarded by the tenure's mu.
	ctx    context.Context // made when it is first asked for
	cancel context.CancelCauseFunc
	err    error // set when this handle was given up
}

// Context ends when the lease does. Its cause is then a [*LossError], [ErrReleased] or [ErrClosed].
//
// It carries the values of the context that was given to Lock, but not its end: that one bounds the waiting only.
// A context tells with a delay; before an act that cannot be undone, ask Valid, and let the resource check Token.
func (l *Lease) Context() context.Context {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	if l.ctx == nil {
		l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(l.values))
		if err := cmp.Or(l.err, l.hold.err); err != nil {
			l.cancel(err)
		}
	}
	return l.ctx
}

// endContext ends the context if there is one. Called with the tenure's mu held.
func (l *Lease) endContext(err error) {
	if l.cancel != nil {
		l.cancel(err)
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

// Token is the fencing token: positive, below 2^53, and larger than every token granted before on this lock. It fences
// only if the lease is [Lease.Exclusive].
func (l *Lease) Token() int64 { return l.hold.grant.Token }

// Name is the lock's.
func (l *Lease) Name() string { return l.hold.grant.Name }

// Ref names the claim to other processes, for Client.Break. It is printable.
func (l *Lease) Ref() string { return l.hold.grant.Ref }

// ID is the claim's own, unique for ever.
func (l *Lease) ID() string { return l.hold.grant.ID }

// Exclusive reports whether nobody else can be granted beside this lease: a mutex, a writer, a whole semaphore.
func (l *Lease) Exclusive() bool {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	return l.hold.currentGrant().Exclusive()
}

// Valid reports whether the lease may still be believed in, by the clock and now. Once it has said false it always will.
func (l *Lease) Valid() bool { return l.Remaining() > 0 }

// Remaining is how long the lease may be believed in if no renewal came through any more; 0 when it has ended. It is
// shorter than what is left of the TTL by a margin: a tenth of the TTL, or 1 s and a hundredth if that is less. It is
// never more than what is left of LockOptions.MaxHold.
func (l *Lease) Remaining() time.Duration {
	left := l.hold.checkExpiry()
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	if l.err != nil {
		return 0
	}
	return left
}

// Err is nil while the lease is valid, then why it ended: a [*LossError], [ErrReleased] or [ErrClosed].
func (l *Lease) Err() error {
	l.hold.checkExpiry()
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	return l.hold.err
}

// ReleaseRequested gives a channel that is closed when somebody has asked the holder to give up: by Client.Break with [BreakAsk].
// The client hears of it with a renewal, so within a third of the TTL as a rule. Nothing has changed then, and nothing
// will if the holder does not follow. The channel is made at the first call.
func (l *Lease) ReleaseRequested() <-chan struct{} {
	h := l.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.releaseRequestedC == nil {
		h.releaseRequestedC = make(chan struct{})
		if h.releaseRequested {
			close(h.releaseRequestedC)
		}
	}
	return h.releaseRequestedC
}

// Release gives the lock back and ends the lease's context. It takes at most 10 s, or the TTL if that is less.
//
// The first call releases; later ones return an error that Is [ErrReleased]. After a loss, or if the store says that the
// claim was lost before, all calls return the [*LossError]; the claim is seen to be gone, without waiting for that. After
// Client.Close they return ErrClosed.
// If the store cannot be reached in time, the error Is [ErrUncertain] and the release is tried on in the background for
// as long as the TTL: nobody needs to call Unlock again. If the store refuses ([ErrDenied], [ErrCorrupt]), the lock ends by
// its TTL.
//
// A lock with a MinHold that is not over stays held for the rest of it, with nobody behind it; Unlock does not wait.
func (l *Lease) Release() error {
	return l.ReleaseContext(l.hold.client.timeouts.contextFor(driver.UnreachableTimeout(l.hold.grant.Claim.TTL)))
}

// ReleaseContext is Unlock bounded by ctx instead. Whatever happens to ctx, the lease's own context ends at once, and
// what could not be released is released in the background.
//
// A renewal under way is not waited for: a store never makes a claim by renewing it, and the answer is ignored.
func (l *Lease) ReleaseContext(ctx context.Context) error { return l.giveUp(ctx, "release", 0) }

// giveUp ends the handle, and with the last of them the claim, or leaves that standing for the time of the lapse.
func (l *Lease) giveUp(ctx context.Context, op string, lapse time.Duration) error {
	h, c := l.hold, l.hold.client
	if ctx == nil {
		return c.wrapError(op, l.Name(), errNilContext)
	}
	if c.inflight.enter() {
		defer c.inflight.exit()
	} else {
		return c.wrapError(op, l.Name(), l.errAfterClose())
	}
	h.checkExpiry() // what has expired is lost, not released
	last, sweep, err := h.releaseLease(l, lapse)
	if sweep {
		c.cleanUp(h.grant.Claim.TTL, h.tryRelease)
	}
	if last {
		if err = h.releaseClaim(ctx); errors.Is(err, ErrLost) { // not known before
			h.mu.Lock()
			l.err, h.err = err, err
			h.mu.Unlock()
		}
	}
	if err != nil {
		return c.wrapError(op, l.Name(), err)
	}
	return nil
}

// errAfterClose is what Unlock says when the client is closed, or being closed and about to end this lease.
func (l *Lease) errAfterClose() error {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	switch {
	case l.err != nil:
		return l.err
	case l.hold.err != nil:
		return l.hold.err
	}
	return ErrClosed
}

// runUnder runs f under a lease, and releases it.
func (l *Lease) runUnder(ctx context.Context, f func(ctx context.Context, l *Lease) error) (err error) {
	ends := l.Context()
	ctx, cancel := context.WithCancelCause(withHoldsOf(ctx, ends))
	stop := context.AfterFunc(ends, func() { cancel(context.Cause(ends)) })
	defer func() { // also while a panic goes by, which then goes on
		stop()
		cancel(context.Canceled)
		if releaseErr := l.Release(); releaseErr != nil && !errors.Is(releaseErr, ErrReleased) {
			err = errors.Join(err, releaseErr)
		}
	}()
	return f(ctx, l)
}
