package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

const (
	minRetryPause      = 25 * time.Millisecond  // between two looks at a lock that cannot be waited for in line
	maxRetryPause      = time.Second            //
	firstWaitNotice    = 300 * time.Millisecond // how long somebody at a terminal waits without a word
	waitNoticeInterval = 2 * time.Second        // between two looks at whether what was said still holds
	inspectTimeout     = 2 * time.Second        // for finding out who stands in the way
)

// errWaitLimit ends a wait that was limited.
var errWaitLimit = errors.New("waited long enough")

// lockRequest is a lock as the command line asks for it.
type lockRequest struct {
	name            string
	kind            holdfast.Kind
	shared          bool
	limit, permits  int64
	opts            holdfast.LockOptions
	noWait          bool
	waitLimit       waitLimit
	notAcquiredCode int          // exit code if it is not acquired
	store           driver.Store // that the lock is acquired in, once it is open
}

// acquireUntilSignal opens the store and takes the lock, until a signal comes that would end the program. The client is for the
// caller to close, also after an error.
func (r *lockRequest) acquireUntilSignal(store string, signals *signalQueue, rec *runRecord) (*holdfast.Client, *holdfast.Lease, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	stop := signals.watchDuringWait(func(s syscall.Signal) { cancel(&signalError{s}) })
	began := time.Now()
	client, lease, err := r.openAndAcquire(ctx, store, rec)
	signalled := stop()
	switch {
	case signalled != nil:
		if lease != nil { // the signal came a moment too late, and would be forgotten
			_ = lease.Release()
		}
		return client, nil, storeError(fmt.Errorf("%w while waiting for %s", signalled, quoteName(r.name)))
	case err != nil:
		exit := storeError(err)
		if exit.code == exitNotAcquired {
			exit.code = r.notAcquiredCode
		}
		return client, nil, exit
	}
	rec.addFields(fields{"token": lease.Token(), "id": lease.ID()})
	rec.addEvent("acquired", fields{"waited_ms": time.Since(began).Milliseconds(), "ref": lease.Ref()})
	return client, lease, nil
}

func (r *lockRequest) openAndAcquire(ctx context.Context, store string, rec *runRecord) (*holdfast.Client, *holdfast.Lease, error) {
	opened, client, err := openStore(ctx, store, &holdfast.Options{Owner: ownerName(), OnEvent: newEventHandler(r.name, rec)})
	if err != nil {
		return nil, nil, err
	}
	r.store = opened
	rec.addFields(fields{"store": client.Info().Store})
	if err := r.checkSelfDeadlock(ctx, client); err != nil {
		return client, nil, err
	}
	rec.addEvent("waiting", nil)
	lease, err := r.acquireWithinLimit(ctx, client)
	return client, lease, err
}

// releaseLease unlocks, now that nobody works under the lock. It returns an error only for a lease that is known to be lost. One
// that cannot be given back now ends by its TTL. The work was done while the lock was believed in, and only an operator who broke
// it by force just then, and was warned, can have let somebody in beside it: so that is told, and does not make a failure of it,
// which a scheduler would answer by doing the work again.
func (r *lockRequest) releaseLease(lease *holdfast.Lease, lossTold bool, rec *runRecord) error {
	patience := driver.UnreachableTimeout(r.opts.TTL) + time.Second
	if lossTold {
		patience = time.Second // the store has been silent for most of a TTL, or has nothing of ours any more
	}
	err := runWithTimeout(patience, lease.Release)
	switch {
	case err == nil:
		rec.addEvent("released", nil)
	case errors.Is(err, holdfast.ErrLost):
		if !lossTold {
			printMessage("%s was lost meanwhile: %s", quoteName(r.name), lossText(err))
		}
		return err
	default:
		rec.addFields(fields{"release": "unknown"})
		rec.addEvent("not released", fields{"reason": errorText(err)})
		printMessage("%s could not be given back and stands until its TTL is over, unless an operator has broken it meanwhile: %s", quoteName(r.name), errorText(err))
	}
	return nil
}

// newEventHandler says on stderr what happens to the lease, failing renewals not more often than people can read. A loss is
// told by whoever acts on it.
func newEventHandler(name string, rec *runRecord) func(holdfast.Event) {
	const pause = 5 * time.Second
	var last time.Time
	return func(e holdfast.Event) {
		switch e.Kind {
		case holdfast.EventRenewalFailing:
			rec.addEvent("renewal failing", fields{"left_ms": e.Remaining.Milliseconds(), "reason": errorText(e.Err)})
			if e.Time.Sub(last) < pause {
				return
			}
			last = e.Time
			printMessage("%s cannot be renewed, and is good for %v more: %s", quoteName(name), e.Remaining.Round(100*time.Millisecond), errorText(e.Err))
		case holdfast.EventReleaseRequested:
			rec.addEvent("asked", nil)
			printMessage("somebody asks for %s", quoteName(name))
		}
	}
}

// acquireWithinLimit takes the lock within its patience, or until ctx ends.
func (r *lockRequest) acquireWithinLimit(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	lease, err := r.acquireUntilLimit(ctx, client)
	late := errors.Is(err, errWaitLimit)
	if late {
		lease, err = r.tryOnceMore(ctx, client)
	}
	if err != nil {
		return nil, r.explainRefusal(client, err, late)
	}
	return lease, nil
}

// tryOnceMore tries once more after a wait that was limited. That ends without telling which it was, a busy lock, one that was let
// go just now, or a store that is down, since it may be shorter than the library's own patience with a silent store.
func (r *lockRequest) tryOnceMore(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	last := *r
	last.noWait = true
	return last.acquireAnyKind(ctx, client)
}

func (r *lockRequest) acquireUntilLimit(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if r.waitLimit.limited && !r.noWait {
		timer := time.AfterFunc(r.waitLimit.limit, func() { cancel(errWaitLimit) })
		defer timer.Stop()
	}
	told := r.showWaiting(ctx, client)
	lease, err := r.acquireAnyKind(ctx, client)
	cancel(nil)
	<-told
	return lease, err
}

// acquireAnyKind takes the lock as the kind that it stands as. A plain run and a shared one of the same name must exclude each
// other, but a mutex and a read-write lock are two kinds, and a lock is used as one at a time. So a plain run that meets
// readers joins their line as a writer. A shared one that meets a mutex looks again until that is gone: the mutex's own
// line would give it the lock for itself alone, and shared runs would go one by one from then on.
func (r *lockRequest) acquireAnyKind(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	kind := r.kind
	for pause := minRetryPause; ; pause = min(2*pause, maxRetryPause) {
		lease, err := r.acquireAs(ctx, client, kind)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case endedByStore(err) && !r.noWait: // this program was stopped for longer than the TTL, or the store was away
		case errors.Is(err, holdfast.ErrQueueFull) && !r.noWait:
		case errors.Is(err, holdfast.ErrMismatch) && r.limit == 0:
			stands, lookErr := client.Inspect(ctx, r.name)
			switch {
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case lookErr != nil:
				return nil, lookErr
			case stands.Kind == holdfast.KindSemaphore:
				return nil, err
			case stands.Kind == "": // gone meanwhile
			case !r.shared:
				kind = stands.Kind
				continue
			case r.noWait:
				return nil, &holdfast.HeldError{Holders: stands.Holders}
			}
		default:
			return lease, err
		}
		if err := sleepContext(ctx, rand.N(pause)+pause/2); err != nil {
			return nil, err
		}
	}
}

// endedByStore reports whether a wait has ended though nobody ended it: with the session that it stood under, as a rule.
func endedByStore(err error) bool {
	var loss *holdfast.LossError
	return errors.As(err, &loss) && loss.Cause != holdfast.LossBroken
}

// acquireAs asks for the lock as one kind.
func (r *lockRequest) acquireAs(ctx context.Context, client *holdfast.Client, kind holdfast.Kind) (*holdfast.Lease, error) {
	switch {
	case kind == holdfast.KindSemaphore:
		s := client.Semaphore(r.name, r.limit, &r.opts)
		if r.noWait {
			return s.TryAcquire(ctx, r.permits)
		}
		return s.Acquire(ctx, r.permits)
	case kind == holdfast.KindMutex:
		return lockOrTry(ctx, client.Mutex(r.name, &r.opts), r.noWait)
	case !r.shared:
		return lockOrTry(ctx, client.RWMutex(r.name, &r.opts), r.noWait)
	case r.noWait:
		return client.RWMutex(r.name, &r.opts).TryRLock(ctx)
	}
	return client.RWMutex(r.name, &r.opts).RLock(ctx)
}

// lockable is the lock as the request wants to hold it.
func (r *lockRequest) lockable(client *holdfast.Client) holdfast.Lockable {
	switch {
	case r.kind == holdfast.KindSemaphore:
		return client.Semaphore(r.name, r.limit, &r.opts).Permits(r.permits)
	case r.kind == holdfast.KindMutex:
		return client.Mutex(r.name, &r.opts)
	case r.shared:
		return client.RWMutex(r.name, &r.opts).Reader()
	}
	return client.RWMutex(r.name, &r.opts)
}

type locker interface {
	Lock(context.Context) (*holdfast.Lease, error)
	TryLock(context.Context) (*holdfast.Lease, error)
}

func lockOrTry(ctx context.Context, l locker, noWait bool) (*holdfast.Lease, error) {
	if noWait {
		return l.TryLock(ctx)
	}
	return l.Lock(ctx)
}

// explainRefusal says why the lock was not had, and who had it. late is whether that was after all of the time to wait.
func (r *lockRequest) explainRefusal(client *holdfast.Client, err error, late bool) error {
	var held *holdfast.HeldError
	switch {
	case errors.As(err, &held) && late:
		return &refusedError{fmt.Sprintf("%s was not free within %v; it is held by %s", quoteName(r.name), r.waitLimit.limit, describeHolders(held.Holders)), err}
	case errors.As(err, &held):
		return &refusedError{fmt.Sprintf("%s is held by %s", quoteName(r.name), describeHolders(held.Holders)), err}
	case errors.Is(err, holdfast.ErrMismatch):
		return r.explainMismatch(client, err)
	case endedByStore(err):
		return exitWith(exitUnavailable, "%s was not acquired: %s", quoteName(r.name), lossText(err))
	case errors.Is(err, holdfast.ErrLost): // it waited, and had nothing that could be lost
		return &refusedError{fmt.Sprintf("the wait for %s was ended by an operator", quoteName(r.name)), holdfast.ErrHeld}
	}
	return err
}

func (r *lockRequest) explainMismatch(client *holdfast.Client, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), inspectTimeout)
	defer cancel()
	lock, _ := client.Inspect(ctx, r.name)
	return r.mismatchError(lock, err)
}

func (r *lockRequest) mismatchError(lock holdfast.Lock, err error) error {
	as := "with another --limit, or without one"
	if lock.Kind != "" {
		as = "as a " + describeKind(lock)
	}
	return &refusedError{fmt.Sprintf("%s is in use %s; all who use one name must agree on --limit, or all go without", quoteName(r.name), as), err}
}

// refusedError is a lock not acquired, in words of this command.
type refusedError struct {
	text string
	err  error
}

func (e *refusedError) Error() string { return e.text }
func (e *refusedError) Unwrap() error { return e.err }

// showWaiting tells somebody at a terminal what takes so long, and again when that has changed. The channel is closed when
// it has nothing more to say.
func (r *lockRequest) showWaiting(ctx context.Context, client *holdfast.Client) <-chan struct{} {
	done := make(chan struct{})
	if r.noWait || !isTerminal(os.Stderr) {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		said := ""
		for pause := firstWaitNotice; sleepContext(ctx, pause) == nil; pause = waitNoticeInterval {
			look, cancel := context.WithTimeout(ctx, inspectTimeout)
			lock, err := client.Inspect(look, r.name)
			cancel()
			if ctx.Err() != nil || err != nil || len(lock.Holders) == 0 {
				continue
			}
			place := queuePosition(lock)
			if now := place + listTokens(lock); now != said {
				said = now
				printMessage("waiting for %s, held by %s%s", quoteName(r.name), describeHolders(lock.Holders), place)
			}
		}
	}()
	return done
}

// queuePosition says where this program's claim stands, if it stands in the store. Claims are told apart by their owners:
// good enough for a message, and for nothing else.
func queuePosition(lock holdfast.Lock) string {
	for i, s := range lock.Waiters {
		if s.Owner == ownerName() {
			return fmt.Sprintf("; place %d of %d in line", i+1, len(lock.Waiters))
		}
	}
	if n := len(lock.Waiters); n > 0 {
		return fmt.Sprintf("; behind %d in line", n)
	}
	return ""
}

func listTokens(lock holdfast.Lock) string {
	tokens := make([]int64, len(lock.Holders))
	for i, h := range lock.Holders {
		tokens[i] = h.Token
	}
	return fmt.Sprint(tokens)
}

// ownerName is the owner of this program's claims.
var ownerName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s holdfast[%d]", strings.ToValidUTF8(host, "?"), os.Getpid())
})

// sleepContext waits for d, or returns why ctx ended.
func sleepContext(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
