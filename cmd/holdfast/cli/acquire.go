package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/acquire"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/driver"
)

const (
	inspectTimeout     = 2 * time.Second       // the limit of an Inspect that looks for the holder
	ownReleaseInterval = 20 * time.Millisecond // between two looks whether a release of ours has been made
)

// errWaitLimit ends a wait when its --wait has passed.
var errWaitLimit = errors.New("waited long enough")

// lockRequest is the lock that the command line names, or the locks, and how to acquire them.
type lockRequest struct {
	name            string
	also            lockNames            // of --also
	group           *holdfast.LeaseGroup // with --also, once the locks are held; name's lease is one of them
	kind            holdfast.Kind
	shared          bool
	limit, permits  int64
	opts            holdfast.LockOptions
	noWait          bool
	detached        bool // the lock is to be left held without this process
	waitLimit       waitLimit
	labels          claimLabels
	notAcquiredCode int          // exit code if the lock is not acquired
	skipOK          bool         // a newer caller may do the work
	store           driver.Store // set once it is open
	telemetry       *telemetry
	messages        messageFlags
	storeWait       waitLimit // for a store that cannot be reached at first
	began           time.Time // when this program began to open the store
	acquiredAt      time.Time
}

// acquireUntilSignal opens the store and acquires the lock. A signal that would end a program ends the wait. The
// caller closes the client, even after an error, unless it is nil.
func (r *lockRequest) acquireUntilSignal(
	store string, signals *signalQueue, events *eventFile,
) (*holdfast.Client, *holdfast.Lease, error) {
	ctx, cancel := context.WithCancelCause(r.telemetry.withSpan(context.Background()))
	defer cancel(nil)
	stop := signals.watchDuringWait(func(s syscall.Signal) { cancel(&signalError{s}) })
	r.began = time.Now()
	client, lease, err := r.openAndAcquire(ctx, store, events)
	signaled := stop()
	switch {
	case signaled != nil:
		if lease != nil { // the signal arrived after the grant, and would be lost
			_ = r.releaseUnused(client, lease)
		}
		return client, nil, storeError(fmt.Errorf("%w while waiting for %s", signaled, quoteName(r.name)))
	case err != nil:
		exit := storeError(err)
		if refused := (*refusedError)(nil); errors.As(err, &refused) {
			exit.reason = refused.reason
		}
		switch {
		case exit.code == exitNotAcquired:
			exit.code = r.notAcquiredCode
		case exit.code == exitSuperseded && r.skipOK:
			exit.code = 0
		}
		return client, nil, exit
	}
	r.acquiredAt = time.Now()
	waited := r.acquiredAt.Sub(r.began)
	events.addFields(fields{"token": lease.Token(), "id": lease.ID()})
	events.addFields(r.alsoFields())
	events.addEvent(holdfast.EventAcquired, fields{"waited_ms": shown.Millis(waited), "ref": lease.Ref()})
	for _, l := range r.leases(lease) {
		r.messages.printDetail("acquired %s, with token %d, after a wait of %v%s", quoteName(l.Name()), l.Token(),
			waited.Round(time.Millisecond), storeNote(""))
	}
	return client, lease, nil
}

// openAndAcquire opens the store and acquires the lock, unless an enclosing run holds it.
func (r *lockRequest) openAndAcquire(
	ctx context.Context, store string, events *eventFile,
) (*holdfast.Client, *holdfast.Lease, error) {
	options := &holdfast.Options{Owner: r.labels.ownerOrDefault(),
		OnEvent: r.telemetry.handler(newEventHandler(r.name, events, r.messages))}
	opened, err := openPatiently(ctx, store, r.name, r.storeWait, r.messages)
	if err != nil {
		return nil, nil, err
	}
	client, err := newClient(opened, options)
	if err != nil {
		return nil, nil, err
	}
	r.store = opened
	events.addFields(storeSourceFields())
	events.addFields(fields{"store": client.Info().Store})
	if err := r.checkSelfDeadlock(ctx, client); err != nil {
		return client, nil, err
	}
	events.addEvent(holdfast.EventAttempt, nil)
	lease, err := r.acquireWithinLimit(ctx, client)
	return client, lease, err
}

// releaseLease releases the lease, by release, when nothing runs under the lock any more. It returns an error only if
// the lease is known to be lost. A lease that cannot be released now expires after its TTL; that is reported and is
// not a failure. The work was done while the lease was valid, and a scheduler would answer a failure by doing the
// work again. (Only an operator who broke the lock by force just then, and was warned, can have let somebody else run
// next to it.)
func (r *lockRequest) releaseLease(release func() error, lossReported bool, events *eventFile) error {
	timeout := driver.UnreachableTimeout(r.opts.TTL) + time.Second
	if lossReported {
		timeout = time.Second // the store was unreachable for most of a TTL, or has nothing of ours any more
	}
	err := runWithTimeout(timeout, release)
	switch {
	case err == nil:
		events.addEvent(holdfast.EventReleased, nil)
		r.printReleased()
	case errors.Is(err, holdfast.ErrLost):
		if !lossReported {
			printStoreMessage("%s was lost meanwhile: %s", quoteName(lockOf(err, r.name)), lossText(err))
		}
		return err
	default:
		events.addFields(fields{"release": "unknown"})
		events.addEvent(eventReleaseUnconfirmed, fields{"message": errorText(err)})
		printStoreMessage("%s could not be released and stays held until its TTL has passed, "+
			"unless an operator has broken it meanwhile: %s", quoteName(lockOf(err, r.name)), errorText(err))
	}
	return nil
}

// releaseUnused releases a lease under which nothing has run, so that --min-hold does not keep the lock.
func (r *lockRequest) releaseUnused(client *holdfast.Client, lease *holdfast.Lease) error {
	if r.opts.MinHold == 0 {
		return r.releaseAll(lease)
	}
	r.opts.MinHold = 0
	ctx, cancel := context.WithTimeout(context.Background(), driver.UnreachableTimeout(r.opts.TTL))
	defer cancel()
	var errs []error
	for _, l := range r.leases(lease) {
		h, err := l.Detach()
		if err == nil || errors.Is(err, holdfast.ErrUncertain) {
			err = client.Release(ctx, h)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// printReleased says, with --verbose, that the lock was released.
func (r *lockRequest) printReleased() {
	held := time.Since(r.acquiredAt)
	text := ""
	if left := r.opts.MinHold - held; left > 0 {
		text = fmt.Sprintf("; --min-hold keeps it held for %v more", left.Round(time.Millisecond))
	}
	for _, name := range r.names() {
		r.messages.printDetail("released %s after %v%s", quoteName(name), held.Round(time.Millisecond), text)
	}
}

// newEventHandler reports on stderr and in the record what happens to the lease. It reports failing renewals no more
// often than people can read, unless they ask for all. A loss is reported by the code that acts on it.
func newEventHandler(name string, events *eventFile, messages messageFlags) func(holdfast.Event) {
	const pause = 5 * time.Second
	var last time.Time
	return func(e holdfast.Event) {
		switch phase := e.Kind.Phase(); {
		case phase == holdfast.PhaseRenewal && e.Err != nil:
			events.addEvent(e.Kind, fields{"remaining_ms": shown.Millis(e.Remaining), "message": errorText(e.Err)})
			if e.Time.Sub(last) < pause && !messages.verbose {
				return
			}
			last = e.Time
			printStoreMessage("%s cannot be renewed, and is valid for %v more: %s",
				quoteName(name), e.Remaining.Round(100*time.Millisecond), errorText(e.Err))
		case phase == holdfast.PhaseNotice:
			events.addEvent(e.Kind, nil)
		}
		if e.Kind == holdfast.EventReleaseRequested {
			messages.printNotice("somebody requests the release of %s", quoteName(name))
		}
	}
}

// acquireWithinLimit acquires the lock within --wait, or until ctx ends.
func (r *lockRequest) acquireWithinLimit(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	if r.detached && !client.Info().Detached {
		return nil, exitWith(exitUsage, "no handle can be made for %s: the locks of this store end with the process that "+
			"holds them; use run or hold", quoteName(r.name))
	}
	lease, err := r.acquireUntilLimit(ctx, client)
	late, silent := errors.Is(err, errWaitLimit), silenceOf(err)
	if late {
		lease, err = r.tryOnceMore(ctx, client)
	}
	if errors.Is(err, errNoAnswer) {
		why := "the store has not answered"
		if last, ok := errors.AsType[*driver.SilentError](err); ok && last.Reason != nil {
			why = errorText(last.Reason) + "; no request to the store has succeeded"
		}
		return nil, &refusedError{fmt.Sprintf("%s was not acquired within %v: %s for %v",
			quoteName(r.name), r.waitLimit.limit, why, roundSilence(silent+silenceOf(err))), "",
			&holdfast.Error{Op: "lock", Lock: r.name, Silent: silent + silenceOf(err), Err: err}}
	}
	if err != nil {
		return nil, r.explainRefusal(client, err, late)
	}
	return lease, nil
}

// silenceOf is for how long the store had not answered when a call ended with err.
func silenceOf(err error) time.Duration {
	var own *holdfast.Error
	if errors.As(err, &own) {
		return own.Silent
	}
	return 0
}

// roundSilence rounds a silence of the store for people.
func roundSilence(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// tryOnceMore tries once more after --wait has passed. The wait itself does not say whether the lock was busy, was
// released just now, or the store was down: it may be shorter than the time for which the library retries an
// unreachable store.
func (r *lockRequest) tryOnceMore(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, inspectTimeout, errNoAnswer)
	defer cancel()
	once := *r
	once.noWait = true
	lease, err := once.acquireNow(ctx, client)
	// What the wait has held is released in the background, and must not count as held by others.
	for len(r.also) > 0 && r.isOwnClaim(err) && sleepContext(ctx, ownReleaseInterval) == nil {
		lease, err = once.acquireNow(ctx, client)
	}
	r.group = once.group
	return lease, err
}

// acquireUntilLimit acquires the lock, and returns errWaitLimit if that takes longer than --wait.
func (r *lockRequest) acquireUntilLimit(ctx context.Context, client *holdfast.Client) (*holdfast.Lease, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if r.waitLimit.limited && !r.noWait { // the time that it took to open the store counts
		timer := time.AfterFunc(r.waitLimit.limit-time.Since(r.began), func() { cancel(errWaitLimit) })
		defer timer.Stop()
	}
	shown := r.showWaiting(ctx, client)
	lease, err := r.acquireNow(ctx, client)
	cancel(nil)
	guard.WaitWithTimeout(shown, maxMessageTime)
	return lease, err
}

// request is what the loop that acquires needs of the command line. A plain run and a shared run of the same name must
// exclude each other.
func (r *lockRequest) request() *acquire.Request {
	return &acquire.Request{Name: r.name, Kind: r.kind, Shared: r.shared, Limit: r.limit, Weight: r.permits,
		Options: r.opts, Wait: !r.noWait, AnyKind: r.limit == 0, Also: r.also}
}

// explainRefusal returns an error with the reason why the lock was not acquired, and with its holder. late is whether
// all of --wait has passed.
func (r *lockRequest) explainRefusal(client *holdfast.Client, err error, late bool) error {
	var held *holdfast.HeldError
	name := quoteName(lockOf(err, r.name))
	switch {
	case errors.As(err, &held) && late:
		return &refusedError{fmt.Sprintf("%s was not free within %v; it is held by %s", name, r.waitLimit.limit,
			describeHolders(held.Holders)), holdfast.FailureTimeout, err}
	case errors.As(err, &held):
		return &refusedError{fmt.Sprintf("%s is held by %s", name, describeHolders(held.Holders)), "", err}
	case errors.Is(err, holdfast.ErrMismatch):
		return r.explainMismatch(client, err)
	case errors.Is(err, holdfast.ErrSuperseded):
		return &refusedError{fmt.Sprintf("a newer --newest-only caller waits for %s", quoteName(r.name)), "", err}
	case acquire.EndedByStore(err):
		return exitWith(exitUnavailable, "%s was not acquired: %s", name, lossText(err))
	case errors.Is(err, holdfast.ErrLost): // it was waiting, and held nothing that could be lost
		text := fmt.Sprintf("the wait for %s was ended by an operator", name)
		return &refusedError{text, holdfast.FailureLost, holdfast.ErrHeld}
	}
	return err
}

// explainMismatch looks at the lock to say as what it is in use. The error of the library does not name this command's
// flags.
func (r *lockRequest) explainMismatch(client *holdfast.Client, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), inspectTimeout)
	defer cancel()
	name := lockOf(err, r.name)
	lock, _ := client.Inspect(ctx, name)
	return r.mismatchError(name, lock, err)
}

// mismatchError says why a lock of another kind is refused. No flag helps with a foreign client: then the store knows
// what does.
func (r *lockRequest) mismatchError(name string, lock holdfast.Lock, err error) error {
	if slices.ContainsFunc(lock.Holders, func(h holdfast.ClaimInfo) bool { return h.Foreign }) {
		return err
	}
	as := "with another --limit, or without one"
	if lock.Kind != "" {
		as = "as a " + describeKind(lock)
	}
	return &refusedError{fmt.Sprintf("%s is in use %s; all users of one name must give the same --limit, or none",
		quoteName(name), as), "", err}
}

// refusedError describes in this command's words why a lock was not acquired.
type refusedError struct {
	text   string
	reason holdfast.FailureReason // empty: that of err
	err    error
}

func (e *refusedError) Error() string { return e.text }
func (e *refusedError) Unwrap() error { return e.err }

// showWaiting tells on stderr what the wait is for. It closes the channel when ctx has ended and it prints nothing
// more.
func (r *lockRequest) showWaiting(ctx context.Context, client *holdfast.Client) <-chan struct{} {
	if r.noWait {
		done := make(chan struct{})
		close(done)
		return done
	}
	return r.messages.noteWaiting(ctx, "waiting for "+quoteName(r.name), func(ctx context.Context) (waitView, error) {
		lock, err := r.findAwaited(ctx, client)
		if err != nil || len(lock.Holders) == 0 {
			return waitView{}, err
		}
		place := r.queuePosition(lock)
		if lock.Name != r.name {
			return waitView{held: fmt.Sprintf(": %s is held by %s%s", quoteName(lock.Name), describeHolders(lock.Holders), place),
				state: place + lock.Name + listTokens(lock)}, nil
		}
		return waitView{held: fmt.Sprintf(", held by %s%s", describeHolders(lock.Holders), place),
			state: place + listTokens(lock)}, nil
	})
}

// queuePosition says where in the queue this program's claim is, if the claim is in the store. It finds the claim by
// its owner, which is good enough for a message and for nothing else. An owner that the user has named may be that of
// many claims.
func (r *lockRequest) queuePosition(lock holdfast.Lock) string {
	for i, s := range lock.Waiters {
		if r.labels.owner == "" && s.Owner == ownerName() {
			return fmt.Sprintf("; place %d of %d in the queue", i+1, len(lock.Waiters))
		}
	}
	if n := len(lock.Waiters); n > 0 {
		return fmt.Sprintf("; %d in the queue", n)
	}
	return ""
}

// listTokens identifies the holders of a lock, to find out whether they have changed.
func listTokens(lock holdfast.Lock) string {
	tokens := make([]int64, len(lock.Holders))
	for i, h := range lock.Holders {
		tokens[i] = h.Token
	}
	return fmt.Sprint(tokens)
}

// sleepContext waits for d. If ctx ends first, it returns why.
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
