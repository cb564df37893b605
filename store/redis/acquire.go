package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Acquire makes a claim. A free mutex takes one round trip, and so does entering the queue. A claim that is promoted is
// notified, and takes one more round trip to confirm.
func (s *store) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := s.checkClaim(c); err != nil {
		return driver.Grant{}, err
	}
	if err := s.ensureChannelsKnown(ctx); err != nil {
		return driver.Grant{}, err
	}
	g, err := s.acquireClaim(ctx, c)
	// The caller takes this claim for refused. But a request that had no reply may still arrive and make it, and a
	// script that is denied a command has done all that it does before that command. So the claim is released, which
	// also leaves a tombstone for the late request.
	inFlight := s.isInFlight(c.ID)
	superseded := errors.Is(err, driver.ErrSuperseded) // it is still in the queue
	if driverutil.IsFinal(err) && inFlight || superseded || errors.Is(err, driver.ErrDenied) {
		if left := s.Release(ctx, c, ""); (inFlight || superseded) && left != nil && !errors.Is(left, driver.ErrLost) {
			err = driverutil.Unresolved(err)
		}
	}
	return g, s.addReason(ctx, c.Name, c.ID, err)
}

// acquireClaim chooses the script. acquire.lua decides for a mutex, fair or not, on which no claim waits, which is the
// usual case and the cheapest. All other claims need acquire_queued.lua, and acquire.lua replies replyUseQueue if it
// finds that.
func (s *store) acquireClaim(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	lock := s.keys.lockKey(c.Name)
	a := s.newAcquireLoop(c)
	if s.opts.Layout == LayoutPlain && (c.Kind != driver.KindMutex || c.Wait && s.isContended(lock)) {
		return a.waitInQueue(ctx)
	}
	g, held, err := a.tryAcquire(ctx, lock)
	switch {
	case err != nil:
		return g, err
	case held == nil:
		return g, s.waitForReplicas(ctx, &g)
	case held.code == replyUseQueue:
		return a.waitInQueue(ctx)
	case !c.Wait:
		return g, held.heldError()
	case s.scripts.acquireQueued == nil:
		return a.waitOutsideQueue(ctx, held)
	}
	return a.waitInQueue(ctx)
}

// tryArgs returns the arguments of acquire.lua.
func tryArgs(c *driver.Claim) [5]string {
	return [5]string{c.ID, strconv.FormatInt(c.TTL.Milliseconds(), 10), c.Owner, c.Meta, detachedFlag(c)}
}

// retentionMillis is retention as the scripts want it.
var retentionMillis = strconv.FormatInt(retention.Milliseconds(), 10)

// detachedFlag returns the flags with which a claim is made: detached claims get their flag at once.
func detachedFlag(c *driver.Claim) string {
	if c.Detached {
		return flagDetached
	}
	return ""
}

// acquireLoop is one call of Acquire. It repeats requests that fail, and runs the script again whenever the claim may
// have a better chance.
type acquireLoop struct {
	retryLoop
	claim driver.Claim
}

// newAcquireLoop begins an Acquire. Its requests may make the claim, so a request without a reply counts as in flight.
func (s *store) newAcquireLoop(c driver.Claim) acquireLoop {
	a := acquireLoop{s.newRetryLoop(c.TTL), c}
	a.mayMake = c.ID
	return a
}

// refusal is the reply to a claim that was not granted.
type refusal struct {
	code      int64
	remaining time.Duration // until the first holder expires if it does not renew; less than 0: unknown
	place     int64         // of the claim in the queue, from 1; or how many claims wait, if it is not in the queue
	lookAtEnd bool          // look again when remaining has passed, however far behind: see acquire_queued.lua
	holders   []driver.ClaimInfo
}

// heldError is the error for a caller that does not wait. It does not count the claim itself as a waiter.
func (r *refusal) heldError() error {
	waiting := int(r.place)
	if r.code == replyWaiting {
		waiting--
	}
	return &driver.HeldError{Holders: r.holders, Waiting: waiting}
}

// runStep runs one of the acquire scripts and reads its reply: a grant, a refusal, or an error.
func (a *acquireLoop) runStep(ctx context.Context, st *script, keys,
	args []string) (g driver.Grant, r *refusal, err error) {
	m, at, err := a.run(ctx, st, keys, args)
	if err != nil {
		return g, nil, err
	}
	// A bare number is the token of a new grant: the usual reply, and the one that is cheapest to make and to read.
	if m.IsInt64() {
		return a.readGrant(m, at)
	}
	b, ok := readArray(m, 1)
	if !ok {
		return g, nil, corruptReply(a.claim.Name)
	}
	code := readNumber(b[0])
	switch {
	case code == replyGranted && len(b) >= 2:
		g, r, err = a.readGrant(b[1], at)
		if err == nil && len(b) >= 3 && a.claim.Kind == driver.KindSemaphore {
			g.Permits = driverutil.ParsePermits(readString(b[2]))
		}
		return g, r, err
	case code == replyBroken:
		return g, nil, &driver.LossError{Cause: driver.LossBroken}
	case code == replyTombstoned:
		return g, nil, &driver.LossError{Cause: driver.LossGone,
			Err: errors.New("the claim was released while it was being acquired")}
	case code == replySuperseded:
		return g, nil, driver.ErrSuperseded
	case code == replyMismatch && len(b) >= 3:
		return g, nil, driverutil.Mismatch(driver.Kind(readString(b[1])), readNumber(b[2]), a.claim.Kind, a.claim.Limit)
	case code == replyFull && len(b) >= 3:
		return g, nil, fmt.Errorf("%w: %d %s", driver.ErrQueueFull, readNumber(b[1]), readString(b[2]))
	case code == replyUseQueue:
		return g, &refusal{code: code}, nil
	case (code == replyHeld || code == replyWaiting) && len(b) >= 4:
		return g, &refusal{code, millis(readNumber(b[1])), readNumber(b[2]), readNumber(b[3]) == 1,
			readHolders(b[4:])}, nil
	}
	return g, nil, corruptReply(a.claim.Name)
}

// tryAcquire runs acquire.lua, which never enters the queue.
func (a *acquireLoop) tryAcquire(ctx context.Context, lock string) (driver.Grant, *refusal, error) {
	args := tryArgs(&a.claim)
	n := len(args)
	for args[n-1] == "" { // what is empty at the end need not be sent: a claim has an id
		n--
	}
	return a.runStep(ctx, a.store.scripts.acquire, a.store.tryKeys(lock), args[:n])
}

// tryKeys returns the keys of acquire.lua: the lock, its record, and in Redisson's layout the token.
func (s *store) tryKeys(lock string) []string {
	if s.scripts.tokenKey == nil {
		return []string{lock, s.scripts.recordKey(lock)}
	}
	return []string{lock, s.scripts.recordKey(lock), s.scripts.tokenKey(lock)}
}

// readGrant makes a grant from a reply that is a token. Since is the start of the request, which is before the server
// started the TTL: so the client stops trusting the grant before the server expires it. A token must fit in 53 bits,
// since Lua's numbers are floating-point numbers, which are exact up to that.
func (a *acquireLoop) readGrant(answer rueidis.RedisMessage,
	at driver.Instant) (g driver.Grant, r *refusal, err error) {
	token := readNumber(answer)
	if token <= 0 || token >= 1<<53 {
		return g, nil, fmt.Errorf("%w: the token of %q would be %d; its record was damaged", driver.ErrCorrupt,
			a.claim.Name, token)
	}
	a.store.hasGranted.Store(true)
	return driver.Grant{Claim: a.claim, Token: token, Since: at, GrantedTTL: a.claim.TTL,
		Ref: refOf(a.claim.ID, a.claim.Kind)}, nil, nil
}

// isPlain reports whether the claim is one on a plain mutex, which promises no order.
func (a *acquireLoop) isPlain() bool { return a.claim.Kind == driver.KindMutex && !a.claim.Fair }

// enterQueue runs acquire_queued.lua, which grants the claim, confirms its promotion, lets it enter the queue, or
// refuses it. For a claim in the queue this also shows that it is alive. Only a claim that may wait enters.
func (a *acquireLoop) enterQueue(ctx context.Context, keys *[5]string) (driver.Grant, *refusal, error) {
	c, queue := &a.claim, "0"
	switch {
	case c.Wait && a.isPlain():
		queue = "plain"
	case c.Wait:
		queue = "1"
	}
	var args queueArgs
	return a.runStep(ctx, a.store.scripts.acquireQueued, keys[:],
		args.fill(a.store, c.ID, string(c.Kind), strconv.FormatInt(c.Limit, 10), strconv.FormatInt(c.Weight, 10),
			strconv.FormatInt(c.TTL.Milliseconds(), 10), c.Owner, c.Meta, detachedFlag(c), queue, a.store.session))
}

// queueArgs has room for the arguments of a script on a lock with a queue. It is an array on the caller's stack, as are
// the lists of keys and the arguments of acquire.lua: that saves an allocation for each list, as
// BenchmarkUncontended shows.
type queueArgs [15]string

// fill returns the arguments that all these scripts begin with (see shared/state.lua), and mine after them.
func (a *queueArgs) fill(s *store, mine ...string) []string {
	a[0], a[1], a[2] = s.publishCommand(), queueRetentionMillis, strconv.FormatInt(s.confirmWindow(), 10)
	a[3], a[4] = maxHoldersText, strconv.Itoa(s.opts.MaxWaiters)
	return a[:5+copy(a[5:], mine)]
}

var (
	// How long the keys of a lock with a queue are kept. It is longer than retention by the maximum TTL, because the
	// claims and holders, which are kept for a day less than the record, must outlive every claim in them.
	queueRetentionMillis = strconv.FormatInt((retention + driver.MaxTTL).Milliseconds(), 10)
	maxHoldersText       = strconv.Itoa(driver.MaxHolders)
)

// waitInQueue makes a claim on a lock with a queue. A fair or shared claim that may wait enters the queue, and then
// repeats the script now and then to show that it is alive. So does a plain mutex claim that found the lock held, so
// that a release wakes one of them and not all; but when its turn comes, the lock is not reserved for it (see
// release_queued.lua).
//
// A claim can be promoted as soon as it is in the queue, even before its client has the reply. If the notice came
// before the subscription, it would be lost, and the claim would learn of its turn only by its next request. So if this
// client listens to the lock already, the claim subscribes before it enters. If not, it enters first, then listens, and
// repeats the script once it listens: that finds whatever happened in between. Only the first waiting claim of a client
// on a lock pays for the additional request.
func (a *acquireLoop) waitInQueue(ctx context.Context) (driver.Grant, error) {
	keys := a.store.keys.allKeys(a.claim.Name)
	var sub *subscription
	if a.claim.Wait {
		if sub = a.store.subscribeIfListening(keys[0], a.claim.ID); sub != nil {
			defer sub.unsubscribe()
		}
	}
	var foreign foreignLooks
	full := 0 // how often in a row it found the queue full
	for first := true; ; {
		g, r, err := a.enterQueue(ctx, &keys)
		switch {
		case errors.Is(err, driver.ErrQueueFull) && a.claim.Wait && a.isPlain():
			if err := a.store.life.Sleep(ctx, delayFullQueue(full)); err != nil {
				return g, err
			}
			full++
			continue
		case err != nil:
			return g, a.addHolders(ctx, r, err)
		case r == nil:
			return g, a.store.waitForReplicas(ctx, &g)
		// A claim that does not wait is not in the queue, and leaves nothing behind.
		case r.code == replyHeld:
			return g, r.heldError()
		}
		a.Uncertain = true // it is in the queue, and only for an uncertain outcome will the client release it
		if sub == nil {
			var live bool
			if sub, live = a.store.subscribeToLock(keys[0], a.claim.ID); sub == nil {
				return g, driver.ErrClosed
			}
			// The hub was only just started. Its first notice is that it listens, and the script runs once more then.
			// If the server allows no subscriptions, that happens after a timeout, and the claim goes on by polling.
			defer sub.unsubscribe()
			if !live {
				if _, err := a.waitForNotice(ctx, sub, hubListenTimeout); err != nil {
					return g, a.addHolders(ctx, r, err)
				}
			}
			continue
		}
		wait := a.delayInQueue(r, first)
		// Foreign clients send no notice when they release, so the first in the queue has to poll. Those behind it are
		// promoted or notified by our own scripts.
		if r.place <= 1 && heldByForeign(r) {
			wait = min(wait, foreign.delay(a, r, a.store.clock.Now()))
		} else {
			foreign = foreignLooks{}
		}
		notified, err := a.waitForNotice(ctx, sub, wait)
		if err != nil {
			return g, a.addHolders(ctx, r, err)
		}
		first = first && notified
	}
}

// delayInQueue returns when a waiting claim runs its script again if no notice comes:
//   - within a third of its TTL, to show that it is alive: a waiting claim that sends nothing for its TTL is removed;
//   - if it is near, or if its script has promoted a claim, or during a roll call, just after the holder or the promoted
//     claim may have expired, since then nobody may be left to notify it; those between may be dead, too;
//   - else after half a second per place, to find out whether those ahead of it are dead, and the queue may have moved on
//     fast meanwhile. The further behind, the less often, so that a long queue costs little more than a short one: but a
//     near claim looks within the confirm window, and then knows its end; up to place 64 it takes 4 s at most, and
//     further behind a minute.
//
// The first time it comes within a second: a script promises to notify the next claim only if that has been in the
// queue for SOON (shared/state.lua). The delay is random within a quarter, so that many claims do not come at the same
// time.
func (a *acquireLoop) delayInQueue(r *refusal, first bool) time.Duration {
	longest := time.Minute
	switch {
	case first:
		longest = time.Second
	case r.place <= nearPlaces:
		longest = 1500 * time.Millisecond
	case r.place <= 64:
		longest = 4 * time.Second
	}
	if driver.IsNewestOnly(a.claim.ID) { // it looks for a newer one, of which nobody notifies it
		longest = min(longest, 1500*time.Millisecond)
	}
	d := min(max(time.Second, time.Duration(r.place)*500*time.Millisecond), longest, a.claim.TTL/3)
	d = d*3/4 + rand.N(d/4)
	if (r.place <= nearPlaces || r.lookAtEnd) && r.remaining >= 0 {
		d = min(d, r.remaining+time.Millisecond+rand.N(2*time.Millisecond))
	}
	return d
}

// nearPlaces is how many places at the front of the queue are near: NEAR in shared/state.lua.
const nearPlaces = 5

// delayFullQueue returns when a plain mutex claim, which nobody refuses because others wait, tries again to enter a
// full queue, which it found full n times before.
func delayFullQueue(n int) time.Duration {
	d := 100 * time.Millisecond << min(n, 4)
	return d/2 + rand.N(d/2)
}

// waitOutsideQueue waits for a mutex in a layout without a queue, and writes nothing. It tries again when it is
// notified that the lock is free, when the holder's TTL has expired, and now and then.
func (a *acquireLoop) waitOutsideQueue(ctx context.Context, r *refusal) (g driver.Grant, err error) {
	lock := a.store.keys.lockKey(a.claim.Name)
	sub, live := a.store.subscribeToLock(lock, a.claim.ID)
	if sub == nil {
		return g, driver.ErrClosed
	}
	defer sub.unsubscribe()
	for n := 0; ; n++ {
		wait := a.delayOutsideQueue(r, n)
		// As in waitInQueue: the lock may have become free before the hub listened, so the first try comes when it
		// does.
		if n == 0 && !live {
			wait = hubListenTimeout
		}
		notified, err := a.waitForNotice(ctx, sub, wait)
		if err != nil {
			return g, a.addHolders(ctx, r, err)
		}
		if notified {
			n = 0
		}
		// The next refusal may name no holders: the error of a caller that gives up has the last ones that are known.
		last := r
		g, r, err = a.tryAcquire(ctx, lock)
		switch {
		case err != nil:
			return g, a.addHolders(ctx, last, err)
		case r == nil:
			return g, a.store.waitForReplicas(ctx, &g)
		}
	}
}

// heldByForeign reports whether another kind of client holds the lock. Such a client sends no notice when it releases.
func heldByForeign(r *refusal) bool { return len(r.holders) == 1 && r.holders[0].Foreign }

// foreignLooks is what the first claim in the queue knows of the foreign clients that hold the lock.
type foreignLooks struct {
	ref     string         // of the holder that it found last: each grant of a foreign client has another value
	since   driver.Instant // when it found that one first
	times   int            // how often in a row it found it
	changed bool           // it has found another one before
}

const (
	// The first claim in the queue looks again at a lock for which foreign clients contend after half of this time at
	// least, and at every lock that a foreign client holds after maxForeignLook at most.
	minForeignLook = 4 * time.Millisecond
	maxForeignLook = 100 * time.Millisecond
)

// delay returns when the first in the queue looks again behind the foreign holder of a refusal. If it was another one
// before, then the lock was free in between, and foreign clients contend for it. Such a moment is about as short as a
// round trip. So the claim looks every few round trips, or it would hardly ever find the lock free. The longer a holder
// stays, the less often, so that the looks at one holder are a few hundred at most before they are as seldom as at a
// lock for which nobody contends.
func (f *foreignLooks) delay(a *acquireLoop, r *refusal, now driver.Instant) time.Duration {
	if ref := r.holders[0].Ref; ref != f.ref {
		*f = foreignLooks{ref: ref, since: now, changed: f.ref != ""}
	}
	f.times++
	if !f.changed {
		return a.delayOutsideQueue(r, f.times-1)
	}
	rtt := time.Duration(a.store.rtt.Load())
	d := min(max(now.Since(f.since)/64, minForeignLook, 8*rtt), maxForeignLook)
	return endOfHold(r, d/2+rand.N(d/2))
}

// delayOutsideQueue returns when a claim outside of the queue tries again if no notice comes. n is how often it has
// tried in a row without one. It also serves the first in the queue behind a foreign holder, which is polled more
// often, since only polling finds its release. The delay is random, so that clients do not poll in step, and ends just
// after the holder's key expires, because an expiry sends no notice either.
func (a *acquireLoop) delayOutsideQueue(r *refusal, n int) time.Duration {
	maxDelay := 2 * time.Second
	if heldByForeign(r) {
		maxDelay = maxForeignLook
	}
	d := min(10*time.Millisecond<<min(n, 10), maxDelay)
	return endOfHold(r, d/2+rand.N(d/2))
}

// endOfHold shortens a delay so that it ends just after the holder's key expires.
func endOfHold(r *refusal, d time.Duration) time.Duration {
	if r.remaining >= 0 {
		d = min(d, r.remaining+time.Millisecond+rand.N(4*time.Millisecond))
	}
	return d
}

// waitForNotice waits until the subscription is notified, which also happens when its hub begins to listen, or until d
// has passed.
func (a *acquireLoop) waitForNotice(ctx context.Context, sub *subscription,
	d time.Duration) (notified bool, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case w := <-sub.notices:
			if w == 0 {
				return true, nil
			}
			// The claim ahead was just promoted. If that is dead, its confirm window ends at this time, and a request
			// from this claim is what finds it out. Until then it must not look dead.
			timer.Reset(min(w, a.claim.TTL/3))
		case <-timer.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		case <-a.store.life.Done():
			return false, driver.ErrClosed
		}
	}
}

// addHolders adds the holders to the error of a caller whose context has ended, so that it learns for whom it waited.
func (a *acquireLoop) addHolders(ctx context.Context, r *refusal, err error) error {
	if ctx.Err() != nil && r != nil && len(r.holders) > 0 && !errors.Is(err, driver.ErrClosed) &&
		errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w; %w", err, r.heldError())
	}
	return err
}
