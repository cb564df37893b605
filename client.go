package holdfast

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

const (
	closeTimeout = 10 * time.Second       // how long Close waits for what is in flight
	maxCleanUps  = 32                     // how many Releases clean up at the same time
	maxReleases  = 32                     // how many Releases a Close makes at the same time, unless some are slow
	slowRelease  = 100 * time.Millisecond // from when on a Release makes room for another one
	minPause     = 10 * time.Millisecond  // the first pause between attempts; it doubles
	maxPause     = 5 * time.Second        // the longest pause between attempts
	// bounds one Release that cleans up, so that there is time for a second one within a Close
	cleanUpTry    = 3 * time.Second
	inspectBudget = 10 * time.Second // bounds the read that finds out who holds a lock
)

// lastingErrors are the errors that another attempt would return again.
var lastingErrors = []error{ErrDenied, ErrCorrupt, ErrInvalid, ErrUnsupported, ErrClosed}

// Client makes claims on the locks of one store and renews the leases that it was granted. One client per process and
// store is enough. All methods may be called from any number of goroutines at the same time.
//
// An idle client has no goroutines. A busy one has a few, however many leases it holds; they exit about a second after
// the last lease has ended.
type Client struct {
	store driver.Store
	runs  driver.Ledger // the store, if this client keeps the runs of a ledger; otherwise nil
	clock driver.Clock
	opts  Options

	inflight inflight
	waiting  *driverutil.Lifetime // ends when the client closes: for calls that wait
	base     context.Context      // ends when Close has waited long enough: for work in the background
	endBase  context.CancelFunc
	queue    queue
	timeouts timeoutCache
	renewer  renewer
	terms    sharedTerms
	events   *eventQueue // nil if nobody receives events; the client of a ledger has that of its parent
	ledger   ledgerClient
	cleaning chan struct{} // has an element for each cleanup that is calling the store
	closing  atomic.Bool
	closed   chan struct{} // closed when Close is done
}

// Open opens the store that a URL names, and makes a client of it. The store's package must be imported, if only for
// its side effect:
//
//	import _ "github.com/holdfast-go/holdfast/store/file"
//
//	client, err := holdfast.Open(ctx, "file:///var/lib/holdfast", nil)
//
// A program that has a connection of its own makes a store of it with New of the store's package, and calls [New].
//
// ctx bounds the opening and not the client; opts may be nil. Open returns ErrInvalid if the URL or the options are
// wrong, and the error of the store if it cannot be opened. No error contains a secret of the URL.
func Open(ctx context.Context, url string, opts *Options) (*Client, error) {
	if ctx == nil {
		return nil, &Error{Op: "open", Err: errNilContext}
	}
	store, err := driver.Open(ctx, url)
	if err != nil {
		return nil, &Error{Op: "open", Err: err}
	}
	c, err := New(store, opts)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return c, nil
}

// New makes a client of a store. The store then belongs to the client: Close closes it. opts may be nil. New does no
// I/O. It returns ErrInvalid if the store is nil or the options are wrong.
func New(store driver.Store, opts *Options) (*Client, error) {
	if store == nil {
		return nil, &Error{Op: "new client",
			Err: newInvalidError("the store is nil: open one first, with Open or a constructor of its package")}
	}
	info := store.Info()
	resolved, err := opts.withDefaults(info)
	if err != nil {
		return nil, &Error{Op: "new client", Store: info.Store, Err: err}
	}
	c := &Client{store: store, clock: info.Clock, opts: resolved, cleaning: make(chan struct{}, maxCleanUps),
		ledger: ledgerClient{opening: make(chan struct{}, 1)}, closed: make(chan struct{})}
	c.inflight.idle = make(chan struct{})
	c.waiting = driverutil.NewLifetime()
	c.base, c.endBase = context.WithCancel(context.Background())
	c.timeouts.base = c.base
	c.renewer.init(c)
	if resolved.OnEvent != nil || resolved.Logger != nil {
		c.events = newEventQueue(&c.inflight, c.deliverEvent)
	}
	return c, nil
}

// Info returns what the store promises, and its bounds. It does no I/O.
func (c *Client) Info() Info { return infoFromDriver(c.store.Info()) }

// takeLock is how every primitive gets a lease: it checks the claim, looks for a lease that can be entered again, and
// acquires the lock.
func (c *Client) takeLock(ctx context.Context, op string, s lockSpec, wait bool) (*Lease, error) {
	if err := checkCall(c, ctx); err != nil {
		return nil, c.wrapError(op, s.name, err)
	}
	claim, err := c.newClaim(s)
	if err != nil {
		return nil, c.wrapError(op, s.name, err)
	}
	claim.Wait = wait
	if s.opts.Reentrant {
		if lease, err := c.reenter(ctx, claim); err != nil {
			return nil, c.wrapError(op, s.name, err)
		} else if lease != nil {
			return lease, nil
		}
	}
	return c.acquireClaim(ctx, op, &claim, &s.opts)
}

// doLocked acquires a lock, runs f under it, and releases it.
func (c *Client) doLocked(ctx context.Context, op string, s lockSpec,
	f func(ctx context.Context, l *Lease) error) error {
	if f == nil {
		return c.wrapError(op, s.name, errNilFunction)
	}
	lease, err := c.takeLock(ctx, op, s, true)
	if err != nil {
		return err
	}
	return lease.runUnder(ctx, f)
}

// newClaim is the claim that a lock and its options describe, without an id, checked against the bounds of the store.
func (c *Client) newClaim(s lockSpec) (driver.Claim, error) {
	claim := driver.Claim{
		Name: s.name, Kind: s.kind, Limit: s.limit, Weight: s.weight,
		TTL:   cmp.Or(s.opts.TTL, c.opts.TTL),
		Owner: cmp.Or(s.opts.Owner, c.opts.Owner),
		Meta:  cmp.Or(s.opts.Meta, c.opts.Meta),
		Fair:  (s.opts.Fair || s.opts.NewestOnly) && s.kind == KindMutex,

		ForOthers: c.opts.ForOthers,
	}
	info := c.store.Info()
	if err := s.opts.checkTimes(info); err != nil {
		return claim, err
	}
	if s.opts.MinHold > 0 && !c.store.Info().Abilities.Detach {
		return claim, errNotDetached
	}
	switch {
	case !s.opts.NewestOnly:
	case s.kind == KindRW && s.weight < s.limit:
		return claim, newInvalidError("readers hold the lock together, so none of them can be NewestOnly")
	case !info.Abilities.NewestOnly:
		return claim, fmt.Errorf("%w: the store has no order of arrival, which NewestOnly needs", ErrUnsupported)
	}
	return claim, claim.Check(info)
}

// A claim that was refused because the queue is full is not released. The store has left nothing of it, as with all
// refusals. So 1,000 claims that come at once cost ZooKeeper less than 6,000 requests in 15 s. Rejected: to release
// each of them. A release has the store look for the claim by its id, which takes a request for each claim of the lock:
// 350,000 to 500,000 requests in these 15 s. That kept the servers so busy that adds got no answer, and to settle
// those, all claims were read as well.

// acquireClaim makes a claim, in its turn where the claims of this client take turns, and waits if the claim says so.
func (c *Client) acquireClaim(ctx context.Context, op string, claim *driver.Claim, o *LockOptions) (*Lease, error) {
	if !c.inflight.enter() {
		return nil, c.wrapError(op, claim.Name, ErrClosed)
	}
	defer c.inflight.exit()
	if ctx.Err() != nil {
		return nil, c.wrapError(op, claim.Name, contextError(ctx))
	}
	claim.ID = o.newClaimID()
	var lease *Lease
	var err error
	start := time.Now()
	c.emitAttempt(ctx, claim, o, start)
	if claim.Kind == KindMutex && !claim.Fair {
		lease, err = c.claimPlain(ctx, claim, o, start)
	} else {
		lease, err = c.claimAtStore(ctx, claim, o, start, false)
	}
	if err != nil {
		c.emitFailure(ctx, claim, o, start, err)
		return nil, c.wrapError(op, claim.Name, err)
	}
	return lease, nil
}

// claimPlain makes a claim of a plain mutex. On stores where waiting costs nothing, claims take turns in this process
// only while the store's queue is full: the one that found it full, and all that come after it. So nobody is
// overtaken by a later caller of this client.
func (c *Client) claimPlain(ctx context.Context, claim *driver.Claim, o *LockOptions, start time.Time) (*Lease, error) {
	if c.store.Info().NativeQueue && !c.queue.isUsed(claim.Name) {
		lease, err := c.claimAtStore(ctx, claim, o, start, false)
		if !claim.Wait || !errors.Is(err, ErrQueueFull) {
			c.queue.noteRoom(claim.Name)
			return lease, err
		}
	}
	return c.claimInTurn(ctx, claim, o, start)
}

// claimInTurn waits for the claim's turn in this process before it goes to the store. A claim that does not wait passes
// no other: if another one has the turn, the lock counts as held.
func (c *Client) claimInTurn(ctx context.Context, claim *driver.Claim, o *LockOptions, start time.Time) (*Lease, error) {
	if claim.Wait {
		if err := c.queue.waitForTurn(ctx, c.waiting, claim.Name, claim.TTL); err != nil {
			return nil, err
		}
	} else if !c.queue.tryTurn(claim.Name) {
		return nil, c.heldError(ctx, claim.Name)
	}
	lease, err := c.claimAtStore(ctx, claim, o, start, true)
	for tries := 0; claim.Wait && errors.Is(err, ErrQueueFull) && c.store.Info().NativeQueue; tries++ {
		c.queue.awaitRoom(ctx, c.waiting, claim.Name, delayAtFullQueue(tries))
		lease, err = c.claimAtStore(ctx, claim, o, start, true)
	}
	if err == nil {
		return lease, nil
	}
	var ended *waitEndedError
	switch {
	case errors.As(err, &ended) || isOneOf(err, ErrHeld, ErrQueueFull, ErrInvalid, ErrLost):
		c.queue.passTurn(claim.Name) // the reason concerns this claim alone; the next may succeed
	case claim.Wait:
		c.queue.failTurn(claim.Name, err, driver.UnreachableTimeout(claim.TTL))
	default:
		c.queue.failTurn(claim.Name, err, 0)
	}
	return nil, err
}

// delayAtFullQueue is when a plain claim tries again to join a queue in the store that it has found full so many times:
// after 50 to 100 ms at first, and after 0.8 to 1.6 s in the end.
func delayAtFullQueue(tries int) time.Duration {
	d := 50 * time.Millisecond << min(tries, 4)
	return d + randomPart(d)
}

// heldError says who holds a lock, as far as one read of the store can tell.
func (c *Client) heldError(ctx context.Context, name string) error {
	ctx, end := c.untilClosed(ctx)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, inspectBudget)
	defer cancel()
	lock, err := c.store.Inspect(ctx, name)
	if err != nil {
		return &HeldError{}
	}
	return &HeldError{Holders: claimsFromDriver(lock.Holders), Waiting: len(lock.Waiters)}
}

// claimAtStore makes the claim in the store. If the answer to a grant arrives after the lease would have ended already,
// the claim is released, and one that waits is made again, with another id: in the events, these are two attempts.
func (c *Client) claimAtStore(ctx context.Context, claim *driver.Claim, o *LockOptions, start time.Time,
	hasTurn bool) (*Lease, error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		if c.waiting.Err() != nil {
			return nil, ErrClosed
		}
		if ctx.Err() != nil {
			return nil, &waitEndedError{err: contextError(ctx)}
		}
		grant, err := c.callAcquire(ctx, *claim)
		if err != nil {
			return nil, err
		}
		grant.Withdrawn = claim.Withdrawn
		h, lease := c.newHold(ctx, grant, hasTurn, o)
		if hasTurn {
			c.queue.setHold(claim.Name, h)
		}
		err = c.renewer.addHold(h, start)
		if err == nil {
			return lease, nil
		}
		if hasTurn {
			c.queue.setHold(claim.Name, nil)
		}
		c.cleanUp(claim.TTL, c.withdrawalOf(*claim))
		if !claim.Wait || errors.Is(err, ErrClosed) {
			return nil, err
		}
		c.emitFailure(ctx, claim, o, start, err)
		sleepContext(ctx, pause)
		claim.ID = o.newClaimID()
		c.emitAttempt(ctx, claim, o, time.Now())
	}
}

// untilClosed returns a context that ends with ctx, and with the client as well. For a ctx that never ends it costs
// next to nothing, which the plain Lock(context.Background()) benefits from.
func (c *Client) untilClosed(ctx context.Context) (context.Context, func()) {
	if ctx.Done() == nil {
		return valued{c.waiting, ctx}, func() {}
	}
	return c.waiting.Bind(ctx)
}

// valued ends as its own context does, and has the values of another one.
type valued struct {
	context.Context
	values context.Context
}

// Value looks in values first, and then in the context that ends.
func (v valued) Value(key any) any {
	if x := v.values.Value(key); x != nil {
		return x
	}
	return v.Context.Value(key)
}

// callAcquire calls the store, until ctx ends or the client closes. After an error it removes a claim that may exist.
func (c *Client) callAcquire(ctx context.Context, claim driver.Claim) (driver.Grant, error) {
	bounded, end := c.untilClosed(ctx)
	defer end()
	grant, err := c.store.Acquire(bounded, claim)
	if err == nil {
		return grant, nil
	}
	if !mayExist(err) {
		return grant, err
	}
	c.cleanUp(claim.TTL, c.withdrawalOf(claim))
	switch {
	case c.waiting.Err() != nil:
		return grant, ErrClosed
	case ctx.Err() != nil:
		return grant, newWaitEndedError(ctx, err)
	}
	return grant, err
}

// cleanUp removes, in the background, a claim that nobody wants any more and that may exist. It calls release until the
// store has confirmed it, or until the claim has expired by its TTL. A store that denies it may do so for a moment
// only, while its passwords are changed.
func (c *Client) cleanUp(ttl time.Duration, release func(context.Context) error) {
	c.inflight.start(func() {
		ctx, cancel := context.WithTimeout(c.base, ttl)
		defer cancel()
		for pause := minPause; ctx.Err() == nil; pause = min(2*pause, maxPause) {
			if c.tryCleanUp(ctx, release) {
				return
			}
			sleepContext(ctx, pause)
		}
	})
}

// tryCleanUp sends the release of a claim that nobody uses once more, and reports whether no further attempt is
// worth making: the claim is gone, the client gives up, or the store will go on refusing. Only one such release is
// sent at a time, so that an outage leaves no crowd of them.
func (c *Client) tryCleanUp(ctx context.Context, release func(context.Context) error) (done bool) {
	select {
	case c.cleaning <- struct{}{}:
		defer func() { <-c.cleaning }()
	case <-ctx.Done():
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, cleanUpTry)
	defer cancel()
	err := release(ctx)
	switch {
	case err == nil, errors.Is(err, ErrLost):
		return true
	case isOneOf(err, ErrUncertain, ErrDenied):
		return false
	}
	return isOneOf(err, lastingErrors...)
}

// withdrawalOf releases a claim that nobody was told of. If it begins a run, no run is left.
func (c *Client) withdrawalOf(claim driver.Claim) func(context.Context) error {
	claim.Withdrawn = true
	return func(ctx context.Context) error { return c.store.Release(ctx, claim, "") }
}

// Shutdown closes the client when the work under its leases has ended. New calls and calls that wait end with
// [ErrClosed] at once. Leases that are held are renewed until their work releases them, and can be downgraded, detached
// and released as usual, and a run can be reported; the function of [Election.Run] leads until it returns. Shutdown
// tells nobody to stop: that is up to the caller, who also ends ctx when the work has had time enough.
//
// When nothing is held any more, Shutdown closes the client as [Client.Close] does, and returns what that returns. If
// ctx ends first, it closes the client at once. The leases that are still held then end. The error matches that of ctx,
// and its text says how many there were.
func (c *Client) Shutdown(ctx context.Context) error {
	if err := checkCall(c, ctx); err != nil {
		return c.wrapError("shut down", "", err)
	}
	held := c.drain(ctx)
	err := c.Close()
	if held > 0 {
		err = errors.Join(c.wrapError("shut down", "",
			fmt.Errorf("%w: ended %d that were still held", contextError(ctx), held)), err)
	}
	return err
}

// drain refuses new calls and leases, and waits until nothing is held or ctx ends. It returns how many leases are held
// then.
func (c *Client) drain(ctx context.Context) (held int) {
	clients := []*Client{c}
	if opened := c.ledger.client.Load(); opened != nil {
		clients = append(clients, opened)
	}
	for _, each := range clients { // all, before it waits for one of them
		each.inflight.refuseCalls()
		each.waiting.End()
		each.renewer.refuseHolds()
	}
	for _, each := range clients {
		held += each.renewer.awaitEmpty(ctx)
	}
	return held
}

// Close ends all leases with [ErrClosed] as the cause, releases their locks, waits for what is under way in the
// background, and closes the store. It takes about 10 s at most. Calls that wait for a lock return ErrClosed, and so do
// later calls.
//
// Close does not wait for the work under the leases: stop that first, or use [Client.Shutdown], which waits. Nor does
// it wait for the body of a loop over List or [Ledger.List], which then end with ErrClosed. A lock that could not be
// released in time expires by its TTL, and Close then returns ErrUncertain. A second Close waits for the first one
// and does nothing else.
func (c *Client) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return c.CloseContext(ctx)
}

// CloseContext is Close with ctx as its bound instead of 10 s.
func (c *Client) CloseContext(ctx context.Context) error {
	if err := checkCall(c, ctx); err != nil {
		return c.wrapError("close", "", err)
	}
	if c.closing.CompareAndSwap(false, true) {
		defer close(c.closed)
		return c.releaseAndClose(ctx)
	}
	select {
	case <-c.closed:
	case <-ctx.Done():
	}
	select {
	case <-c.closed:
		return nil
	default:
		return c.wrapError("close", "", fmt.Errorf("%w: %w", ErrUncertain, contextError(ctx)))
	}
}

// releaseAndClose is what the first Close does: it ends all waits, releases the leases and the ledger's runs at
// the same time, and closes the store when nothing of this client uses it any more. Claims that could not be
// released are counted in the error.
func (c *Client) releaseAndClose(ctx context.Context) error {
	c.inflight.enterHeld()
	c.inflight.close()
	c.waiting.End()
	var ledgerErr error
	var ledger sync.WaitGroup
	ledger.Go(func() { ledgerErr = c.closeLedger(ctx) }) // it may take all the time that there is
	left := c.releaseAll(ctx, c.renewer.takeAll())
	ledger.Wait() // the ledger uses the store
	if c.events != nil {
		c.events.close()
	}
	c.inflight.exit()
	waited := c.inflight.waitIdle(ctx)
	c.endBase()
	if !waited { // stores return promptly when their context ends
		soon, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.inflight.waitIdle(soon)
	}
	err := errors.Join(ledgerErr, c.store.Close())
	if left > 0 {
		err = errors.Join(fmt.Errorf("%w: %d claims may exist until their TTL has expired", ErrUncertain, left), err)
	} else if !waited {
		err = errors.Join(fmt.Errorf("%w: gave up waiting for work in the background", ErrUncertain), err)
	}
	if err != nil {
		return c.wrapError("close", "", err)
	}
	return nil
}

// releaseAll ends all leases at once, then releases their claims, and returns how many may still exist. Part of a store
// may hang: so a release that takes longer than slowRelease makes room for another one.
func (c *Client) releaseAll(ctx context.Context, holds []*hold) (left int64) {
	held := holds[:0]
	for _, h := range holds {
		if h.endAs(stateClosed, nil) {
			h.cancelContexts(ErrClosed)
			held = append(held, h)
		}
	}
	var failed atomic.Int64
	var releases sync.WaitGroup
	room := make(chan struct{}, maxReleases)
	for _, h := range held {
		room <- struct{}{}
		slow := time.AfterFunc(slowRelease, func() { <-room })
		releases.Go(func() {
			if err := h.releaseClaim(ctx); err != nil && !errors.Is(err, ErrLost) {
				failed.Add(1)
			}
			if slow.Stop() {
				<-room
			}
		})
	}
	releases.Wait()
	return failed.Load()
}

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func newID() string {
	var id [16]byte
	rand.Read(id[:])
	return idEncoding.EncodeToString(id[:])
}

// newClaimID is the id of a claim with these options.
func (o *LockOptions) newClaimID() string {
	if o.NewestOnly {
		return driver.MarkNewestOnly(newID())
	}
	return newID()
}

// sleepContext waits for d, or until ctx ends.
func sleepContext(ctx context.Context, d time.Duration) {
	if d <= 0 { // a timer of 0 costs more, and many at once crash the race detector's runtime in testing/synctest
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// randomPart is a random time from 0 to d, which must be positive. It spreads out what many clients would do at the
// same moment.
func randomPart(d time.Duration) time.Duration { return mathrand.N(d) }

// readLock is onStore for a read. The read ends when the client closes: nothing is lost by that, and Close need not
// wait for a store that does not answer.
func (c *Client) readLock(ctx context.Context, op, name string,
	read func(context.Context) (driver.Lock, error)) (driver.Lock, error) {
	return onStore(ctx, c, op, name, func() (driver.Lock, error) {
		ctx, end := c.untilClosed(ctx)
		defer end()
		lock, err := read(ctx)
		return lock, c.orClosed(err)
	})
}

func (c *Client) inspectLock(ctx context.Context, op, name string) (driver.Lock, error) {
	return c.readLock(ctx, op, name,
		func(ctx context.Context) (driver.Lock, error) { return c.store.Inspect(ctx, name) })
}

// orClosed is the error of a read, which is ErrClosed if the client has ended the read.
func (c *Client) orClosed(err error) error {
	if err != nil && c.waiting.Err() != nil {
		return ErrClosed
	}
	return err
}

// onStore is makeCall for a call about a lock. It refuses the call for a bad name.
func onStore[T any](ctx context.Context, c *Client, op, name string, call func() (T, error)) (T, error) {
	return makeCall(ctx, c, op, name, func() (result T, err error) {
		if err = driver.CheckName(name, c.store.Info()); err != nil {
			return result, err
		}
		return call()
	})
}

// makeCall makes one call to the store. It refuses the call after Close, and for a nil context, and it wraps the error.
// name is for the error; it may be empty.
func makeCall[T any](ctx context.Context, c *Client, op, name string, call func() (T, error)) (result T, err error) {
	if err := checkCall(c, ctx); err != nil {
		return result, c.wrapError(op, name, err)
	}
	if !c.inflight.enter() {
		return result, c.wrapError(op, name, ErrClosed)
	}
	defer c.inflight.exit()
	if result, err = call(); err != nil {
		err = c.wrapError(op, name, err)
	}
	return result, err
}
