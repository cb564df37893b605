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
	leastLook   = 25 * time.Millisecond  // between two looks at a lock that cannot be waited for in line
	mostLook    = time.Second            //
	waitNotice  = 300 * time.Millisecond // how long somebody at a terminal waits without a word
	waitAgain   = 2 * time.Second        // between two looks at whether what was said still holds
	inspectTime = 2 * time.Second        // for finding out who stands in the way
)

// errWaited ends a wait that was limited.
var errWaited = errors.New("waited long enough")

// request is a lock as the command line asks for it.
type request struct {
	name           string
	kind           holdfast.Kind
	shared         bool
	limit, permits int64
	opts           holdfast.LockOptions
	noWait         bool
	patience       patience
	refusal        int // exit code if it is not acquired
}

// acquired opens the store and takes the lock, until a signal comes that would end the program. The client is for the
// caller to close, also after an error.
func (r *request) acquired(store string, signals *signals, rec *record) (*holdfast.Client, *holdfast.Lease, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	stop := signals.duringWait(func(s syscall.Signal) { cancel(&signalError{s}) })
	began := time.Now()
	client, lease, err := r.open(ctx, store, rec)
	signalled := stop()
	switch {
	case signalled != nil:
		if lease != nil { // the signal came a moment too late, and would be forgotten
			_ = lease.Release()
		}
		return client, nil, storeError(fmt.Errorf("%w while waiting for %s", signalled, shown(r.name)))
	case err != nil:
		exit := storeError(err)
		if exit.code == exitNotAcquired {
			exit.code = r.refusal
		}
		return client, nil, exit
	}
	rec.set(fields{"token": lease.Token(), "id": lease.ID()})
	rec.event("acquired", fields{"waited_ms": time.Since(began).Milliseconds(), "ref": lease.Ref()})
	return client, lease, nil
}

func (r *request) open(ctx context.Context, store string, rec *record) (*holdfast.Client, *holdfast.Lease, error) {
	client, err := openClient(ctx, store, &holdfast.Options{Owner: ownName(), OnEvent: tellEvent(r.name, rec)})
	if err != nil {
		return nil, nil, err
	}
	rec.set(fields{"store": client.Info().Store})
	if err := r.checkHeld(ctx, client); err != nil {
		return client, nil, err
	}
	rec.event("waiting", nil)
	lease, err := r.wait(ctx, client)
	return client, lease, err
}

// giveBack unlocks, now that nobody works under the lock. It returns an error only for a lease that is known to be lost. One
// that cannot be given back now ends by its TTL. The work was done while the lock was believed in, and only an operator who broke
// it by force just then, and was warned, can have let somebody in beside it: so that is told, and does not make a failure of it,
// which a scheduler would answer by doing the work again.
func (r *request) giveBack(lease *holdfast.Lease, lossTold bool, rec *record) error {
	patience := driver.UnreachableTimeout(r.opts.TTL) + time.Second
	if lossTold {
		patience = time.Second // the store has been silent for most of a TTL, or has nothing of ours any more
	}
	err := within(patience, lease.Release)
	switch {
	case err == nil:
		rec.event("released", nil)
	case errors.Is(err, holdfast.ErrLost):
		if !lossTold {
			say("%s was lost meanwhile: %s", shown(r.name), lossReason(err))
		}
		return err
	default:
		rec.set(fields{"release": "unknown"})
		rec.event("not released", fields{"reason": reason(err)})
		say("%s could not be given back and stands until its TTL is over, unless an operator has broken it meanwhile: %s", shown(r.name), reason(err))
	}
	return nil
}

// tellEvent says on stderr what happens to the lease, failing renewals not more often than people can read. A loss is
// told by whoever acts on it.
func tellEvent(name string, rec *record) func(holdfast.Event) {
	const pause = 5 * time.Second
	var last time.Time
	return func(e holdfast.Event) {
		switch e.Kind {
		case holdfast.EventRenewalFailing:
			rec.event("renewal failing", fields{"left_ms": e.Remaining.Milliseconds(), "reason": reason(e.Err)})
			if e.Time.Sub(last) < pause {
				return
			}
			last = e.Time
			say("%s cannot be renewed, and is good for %v more: %s", shown(name), e.Remaining.Round(100*time.Millisecond), reason(e.Err))
		case holdfast.EventReleaseRequested:
			rec.event("asked", nil)
			say("somebody asks for %s", shown(name))
		}
	}
}

// wait takes the lock within its patience, or until ctx ends.
func (r *request) wait(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	lease, err := r.waitLimited(ctx, client)
	late := errors.Is(err, errWaited)
	if late {
		lease, err = r.tryLast(ctx, client)
	}
	if err != nil {
		return nil, r.explain(client, err, late)
	}
	return lease, nil
}

// tryLast tries once more after a wait that was limited. That ends without telling which it was, a busy lock, one that was let
// go just now, or a store that is down, since it may be shorter than the library's own patience with a silent store.
func (r *request) tryLast(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTime)
	defer cancel()
	last := *r
	last.noWait = true
	return last.acquire(ctx, client)
}

func (r *request) waitLimited(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if r.patience.limited && !r.noWait {
		timer := time.AfterFunc(r.patience.limit, func() { cancel(errWaited) })
		defer timer.Stop()
	}
	told := r.tellWaiting(ctx, client)
	lease, err := r.acquire(ctx, client)
	cancel(nil)
	<-told
	return lease, err
}

// acquire takes the lock as the kind that it stands as. A plain run and a shared one of the same name must exclude each
// other, but a mutex and a read-write lock are two kinds, and a lock is used as one at a time. So a plain run that meets
// readers joins their line as a writer. A shared one that meets a mutex looks again until that is gone: the mutex's own
// line would give it the lock for itself alone, and shared runs would go one by one from then on.
func (r *request) acquire(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	kind := r.kind
	for pause := leastLook; ; pause = min(2*pause, mostLook) {
		lease, err := r.take(ctx, client, kind)
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
		if err := sleep(ctx, rand.N(pause)+pause/2); err != nil {
			return nil, err
		}
	}
}

// endedByStore reports whether a wait has ended though nobody ended it: with the session that it stood under, as a rule.
func endedByStore(err error) bool {
	var loss *holdfast.LossError
	return errors.As(err, &loss) && loss.Cause != holdfast.LossBroken
}

// take asks for the lock as one kind.
func (r *request) take(ctx context.Context, client *holdfast.Client, kind holdfast.Kind) (*holdfast.Lease, error) {
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

// explain says why the lock was not had, and who had it. late is whether that was after all of the time to wait.
func (r *request) explain(client *holdfast.Client, err error, late bool) error {
	var held *holdfast.HeldError
	switch {
	case errors.As(err, &held) && late:
		return &refused{fmt.Sprintf("%s was not free within %v; it is held by %s", shown(r.name), r.patience.limit, holders(held.Holders)), err}
	case errors.As(err, &held):
		return &refused{fmt.Sprintf("%s is held by %s", shown(r.name), holders(held.Holders)), err}
	case errors.Is(err, holdfast.ErrMismatch):
		return r.explainMismatch(client, err)
	case endedByStore(err):
		return exitWith(exitUnavailable, "%s was not acquired: %s", shown(r.name), lossReason(err))
	case errors.Is(err, holdfast.ErrLost): // it waited, and had nothing that could be lost
		return &refused{fmt.Sprintf("the wait for %s was ended by an operator", shown(r.name)), holdfast.ErrHeld}
	}
	return err
}

func (r *request) explainMismatch(client *holdfast.Client, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), inspectTime)
	defer cancel()
	lock, _ := client.Inspect(ctx, r.name)
	return r.mismatch(lock, err)
}

func (r *request) mismatch(lock holdfast.Lock, err error) error {
	as := "with another --limit, or without one"
	if lock.Kind != "" {
		as = "as a " + usedAs(lock)
	}
	return &refused{fmt.Sprintf("%s is in use %s; all who use one name must agree on --limit, or all go without", shown(r.name), as), err}
}

// refused is a lock not acquired, in words of this command.
type refused struct {
	text string
	err  error
}

func (e *refused) Error() string { return e.text }
func (e *refused) Unwrap() error { return e.err }

// tellWaiting tells somebody at a terminal what takes so long, and again when that has changed. The channel is closed when
// it has nothing more to say.
func (r *request) tellWaiting(ctx context.Context, client *holdfast.Client) <-chan struct{} {
	done := make(chan struct{})
	if r.noWait || !isTerminal(os.Stderr) {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		said := ""
		for pause := waitNotice; sleep(ctx, pause) == nil; pause = waitAgain {
			look, cancel := context.WithTimeout(ctx, inspectTime)
			lock, err := client.Inspect(look, r.name)
			cancel()
			if ctx.Err() != nil || err != nil || len(lock.Holders) == 0 {
				continue
			}
			place := placeInLine(lock)
			if now := place + holderTokens(lock); now != said {
				said = now
				say("waiting for %s, held by %s%s", shown(r.name), holders(lock.Holders), place)
			}
		}
	}()
	return done
}

// placeInLine says where this program's claim stands, if it stands in the store. Claims are told apart by their owners:
// good enough for a message, and for nothing else.
func placeInLine(lock holdfast.Lock) string {
	for i, s := range lock.Waiters {
		if s.Owner == ownName() {
			return fmt.Sprintf("; place %d of %d in line", i+1, len(lock.Waiters))
		}
	}
	if n := len(lock.Waiters); n > 0 {
		return fmt.Sprintf("; behind %d in line", n)
	}
	return ""
}

func holderTokens(lock holdfast.Lock) string {
	tokens := make([]int64, len(lock.Holders))
	for i, h := range lock.Holders {
		tokens[i] = h.Token
	}
	return fmt.Sprint(tokens)
}

// ownName is the owner of this program's claims.
var ownName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s holdfast[%d]", strings.ToValidUTF8(host, "?"), os.Getpid())
})

// sleep waits for d, or returns why ctx ended.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
