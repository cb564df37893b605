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

// Acquire takes a free mutex in one round trip, and comes to stand in line in one. A claim whose turn has come is told,
// and takes one more to confirm.
func (s *store) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := s.checkClaim(c); err != nil {
		return driver.Grant{}, err
	}
	if err := s.ensureChannelsKnown(ctx); err != nil {
		return driver.Grant{}, err
	}
	g, err := s.acquireClaim(ctx, c)
	if driverutil.IsFinal(err) && s.isInFlight(c.ID) || errors.Is(err, driver.ErrDenied) {
		// A request that had no answer may yet make the claim, and a script that is denied a command has run as far as
		// that.
		_ = s.Release(ctx, c, "") // its client thinks it refused
	}
	return g, err
}

func (s *store) acquireClaim(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if s.opts.Layout == LayoutPlain && (c.Fair || c.Kind != driver.KindMutex) {
		a := s.newAcquireLoop(c)
		return a.waitInQueue(ctx)
	}
	lock := s.keys.lockKey(c.Name)
	a := s.newAcquireLoop(c)
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
	}
	return a.waitOutsideQueue(ctx, held)
}

// tryArgs are the arguments of try.
func tryArgs(c *driver.Claim) [6]string {
	return [6]string{c.ID, strconv.FormatInt(c.TTL.Milliseconds(), 10), c.Owner, c.Meta, detachedFlag(c),
		retentionMillis}
}

var retentionMillis = strconv.FormatInt(retention.Milliseconds(), 10)

func detachedFlag(c *driver.Claim) string {
	if c.Detached {
		return flagDetached
	}
	return ""
}

// acquireLoop is one Acquire under way.
type acquireLoop struct {
	retryLoop
	claim driver.Claim
}

func (s *store) newAcquireLoop(c driver.Claim) acquireLoop {
	a := acquireLoop{s.newRetryLoop(c.TTL), c}
	a.mayMake = c.ID
	return a
}

// refusal is the answer to a claim that was not granted.
type refusal struct {
	code      int64
	remaining time.Duration // until the holder would have fallen silent; less than 0: not known
	place     int64         // in line, or how many stand there
	rollCall  bool          // all in line are asked to show themselves
	holders   []driver.ClaimInfo
}

func (r *refusal) heldError() error {
	waiting := int(r.place)
	if r.code == replyWaiting {
		waiting--
	}
	return &driver.HeldError{Holders: r.holders, Waiting: waiting}
}

// runStep makes one step and reads its answer: a grant, a refusal, or an error.
func (a *acquireLoop) runStep(ctx context.Context, st *script, keys,
	args []string) (g driver.Grant, r *refusal, err error) {
	m, at, err := a.run(ctx, st, keys, args)
	if err != nil {
		return g, nil, err
	}
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
		return a.readGrant(b[1], at)
	case code == replyBroken:
		return g, nil, &driver.LossError{Cause: driver.LossBroken}
	case code == replyTombstoned:
		return g, nil, &driver.LossError{Cause: driver.LossGone,
			Err: errors.New("it was released while it was being made")}
	case code == replyMismatch && len(b) >= 3:
		return g, nil, fmt.Errorf("%w: it stands as %s of %s, and was asked for as %s of %d",
			driver.ErrMismatch, readString(b[1]), readString(b[2]), a.claim.Kind, a.claim.Limit)
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

// tryAcquire makes the step of a claim that stands in no line.
func (a *acquireLoop) tryAcquire(ctx context.Context, lock string) (driver.Grant, *refusal, error) {
	args := tryArgs(&a.claim)
	return a.runStep(ctx, a.store.scripts.acquire, a.store.tryKeys(lock), args[:])
}

// tryKeys are the keys that such a step works on.
func (s *store) tryKeys(lock string) []string {
	if s.scripts.tokenKey == nil {
		return []string{lock, s.scripts.recordKey(lock)}
	}
	return []string{lock, s.scripts.recordKey(lock), s.scripts.tokenKey(lock)}
}

// readGrant is the grant of an answer that is a token.
func (a *acquireLoop) readGrant(answer rueidis.RedisMessage,
	at driver.Instant) (g driver.Grant, r *refusal, err error) {
	token := readNumber(answer)
	if token <= 0 || token >= 1<<53 {
		return g, nil, fmt.Errorf("%w: the token of %q would be %d; its record was damaged", driver.ErrCorrupt,
			a.claim.Name, token)
	}
	if !a.store.hasGranted.Load() {
		a.store.hasGranted.Store(true)
	}
	return driver.Grant{Claim: a.claim, Token: token, Since: at, GrantedTTL: a.claim.TTL,
		Ref: refOf(a.claim.ID, a.claim.Kind)}, nil, nil
}

// enterQueue makes the step of a claim on a lock with a line.
func (a *acquireLoop) enterQueue(ctx context.Context, keys *[5]string) (driver.Grant, *refusal, error) {
	c, queue := &a.claim, "0"
	if c.Wait && (c.Fair || c.Kind != driver.KindMutex) {
		queue = "1"
	}
	var args queueArgs
	return a.runStep(ctx, a.store.scripts.acquireQueued, keys[:],
		args.fill(a.store, c.ID, string(c.Kind), strconv.FormatInt(c.Limit, 10), strconv.FormatInt(c.Weight, 10),
			strconv.FormatInt(c.TTL.Milliseconds(), 10), c.Owner, c.Meta, detachedFlag(c), queue, a.store.session))
}

// queueArgs is room for the arguments of a step on a line, on the stack of its caller.
type queueArgs [15]string

// fill gives the arguments that all such steps begin with (see head.lua), and then mine.
func (a *queueArgs) fill(s *store, mine ...string) []string {
	a[0], a[1], a[2], a[3], a[4] = s.publishCommand(), queueRetentionMillis, s.window.Load().text, maxHoldersText, s.maxWaitersText
	return a[:5+copy(a[5:], mine)]
}

var (
	queueRetentionMillis = strconv.FormatInt((retention + driver.MaxTTL).Milliseconds(), 10)
	maxHoldersText       = strconv.Itoa(driver.MaxHolders)
)

// waitInQueue makes a claim on a lock with a line. If it may wait it stands there, and gives a sign of life from time
// to time.
//
// It can be called as soon as it stands there, before it knows that it does: so it sits down first where this client
// listens already, and looks again where it begins to listen only then.
func (a *acquireLoop) waitInQueue(ctx context.Context) (driver.Grant, error) {
	keys := a.store.keys.allKeys(a.claim.Name)
	var seat *subscription
	if a.claim.Wait {
		if seat = a.store.subscribeIfListening(keys[0], a.claim.ID); seat != nil {
			defer seat.unsubscribe()
		}
	}
	behind := 0 // how often in a row it was the next behind a foreign holder
	for first := true; ; {
		g, r, err := a.enterQueue(ctx, &keys)
		switch {
		case err != nil:
			return g, a.addHolders(ctx, r, err)
		case r == nil:
			return g, a.store.waitForReplicas(ctx, &g)
		case r.code == replyHeld && !a.claim.Wait:
			return g, r.heldError()
		case r.code == replyHeld:
			return a.waitOutsideQueue(ctx, r)
		}
		if seat == nil {
			var live bool
			if seat, live = a.store.subscribeToLock(keys[0], a.claim.ID, true); seat == nil {
				return g, driver.ErrClosed
			}
			defer seat.unsubscribe()
			if !live {
				if _, err := a.waitForNotice(ctx, seat, a.store.listenTimeout()); err != nil {
					return g, a.addHolders(ctx, r, err)
				}
			}
			continue
		}
		wait := a.delayInQueue(r, first)
		if r.place <= 1 && heldByForeign(r) {
			wait = min(wait, a.delayOutsideQueue(r, behind))
			behind++
		} else {
			behind = 0
		}
		told, err := a.waitForNotice(ctx, seat, wait)
		if err != nil {
			return g, a.addHolders(ctx, r, err)
		}
		first = first && told
	}
}

// delayInQueue is when a claim in line comes again if it is not told to: in time to be seen as alive, when the holder
// may have fallen silent if it is the next, and now and then to find out whether those ahead are dead. The further
// behind, the more seldom, so that a long line costs little more than a short one; but once soon after it came, since
// until then nobody tells it that it is the next (SOON in head.lua).
func (a *acquireLoop) delayInQueue(r *refusal, first bool) time.Duration {
	d := max(time.Second, time.Duration(r.place)*500*time.Millisecond)
	if first {
		d = time.Second
	}
	d = min(d, a.claim.TTL/3)
	d = d*3/4 + rand.N(d/4)
	if (r.place <= 1 || r.rollCall) && r.remaining >= 0 {
		d = min(d, r.remaining+time.Millisecond+rand.N(2*time.Millisecond))
	}
	return d
}

// waitOutsideQueue waits outside of the line: it writes nothing, and tries again when it is told that the lock is free,
// when the holder's TTL is over, and now and then.
func (a *acquireLoop) waitOutsideQueue(ctx context.Context, r *refusal) (g driver.Grant, err error) {
	keys := a.store.keys.allKeys(a.claim.Name)
	seat, live := a.store.subscribeToLock(keys[0], a.claim.ID, false)
	if seat == nil {
		return g, driver.ErrClosed
	}
	defer seat.unsubscribe()
	for n := 0; ; n++ {
		wait := a.delayOutsideQueue(r, n)
		if n == 0 && !live {
			wait = a.store.listenTimeout()
		}
		told, err := a.waitForNotice(ctx, seat, wait)
		if err != nil {
			return g, a.addHolders(ctx, r, err)
		}
		if told {
			n = 0
		}
		last := r
		g, r, err = a.tryAcquire(ctx, keys[0])
		if err == nil && r != nil && r.code == replyUseQueue {
			g, r, err = a.enterQueue(ctx, &keys)
		}
		switch {
		case err != nil:
			return g, a.addHolders(ctx, last, err)
		case r == nil:
			return g, a.store.waitForReplicas(ctx, &g)
		}
	}
}

// heldByForeign reports whether another kind of client holds the lock, which tells nothing when it leaves.
func heldByForeign(r *refusal) bool { return len(r.holders) == 1 && r.holders[0].Foreign }

// delayOutsideQueue is when a claim outside of the line tries again if it is told nothing, and the first in line behind
// a foreign holder, which is looked at more often.
func (a *acquireLoop) delayOutsideQueue(r *refusal, n int) time.Duration {
	most := 2 * time.Second
	if heldByForeign(r) {
		most = 100 * time.Millisecond
	}
	d := min(10*time.Millisecond<<min(n, 10), most)
	d = d/2 + rand.N(d/2)
	if r.remaining >= 0 {
		d = min(d, r.remaining+time.Millisecond+rand.N(4*time.Millisecond))
	}
	return d
}

// waitForNotice waits until the seat is told something, also that its hub listens now, or d has passed.
func (a *acquireLoop) waitForNotice(ctx context.Context, seat *subscription, d time.Duration) (told bool, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case w := <-seat.notices:
			if w == 0 {
				return true, nil
			}
			// it is the next after one that was called, and has to be seen as alive till then
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

// addHolders gives the error of a wait its final form: a caller whose context has ended is told for whom it waited.
func (a *acquireLoop) addHolders(ctx context.Context, r *refusal, err error) error {
	if ctx.Err() != nil && r != nil && len(r.holders) > 0 && !errors.Is(err, driver.ErrClosed) &&
		errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w; %w", err, r.heldError())
	}
	return err
}

// waitForReplicas makes sure that a grant has reached as many replicas as the user wants, and gives it up if it has
// not.
func (s *store) waitForReplicas(ctx context.Context, g *driver.Grant) error {
	if s.opts.Replicas == 0 {
		return nil
	}
	st, keys, args := s.renewScriptFor(g)
	type reach struct {
		replicas int64
		stands   bool
	}
	// WAIT speaks of what its own connection has written. So the grant is renewed on the same one: that writes, and
	// shows that it stands there, which is not said where another server has just taken over. A server may hang at
	// that.
	within, cancel := context.WithTimeout(ctx, s.opts.ReplicaTimeout+time.Second)
	defer cancel()
	got, err := runAsync(within, s, func() (got reach, err error) {
		err = s.client.Dedicated(func(d rueidis.DedicatedClient) error {
			rs := d.DoMulti(within,
				d.B().Eval().Script(st.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build(),
				d.B().Wait().Numreplicas(int64(s.opts.Replicas)).Timeout(s.opts.ReplicaTimeout.Milliseconds()).Build())
			m, err := rs[0].ToMessage()
			if err != nil {
				return err
			}
			if a, ok := readArray(m, 1); ok {
				m = a[0]
			}
			got.stands = readNumber(m) > 0
			got.replicas, err = rs[1].AsInt64()
			return err
		})
		return got, err
	})
	switch {
	case err == nil && got.stands && got.replicas >= int64(s.opts.Replicas):
		return nil
	case ctx.Err() != nil:
		return uncertainError(ctx.Err())
	}
	bounded, done := context.WithTimeout(ctx, time.Second)
	defer done()
	if rerr := s.Release(bounded, g.Claim, ""); rerr != nil && !errors.Is(rerr, driver.ErrLost) {
		return uncertainError(fmt.Errorf("the grant is not known to have reached the replicas, and was not given back: %w", explainError(rerr)))
	}
	switch {
	case err != nil:
		return fmt.Errorf("the grant is not known to have reached the replicas: %w", explainError(err))
	case !got.stands:
		return errors.New("the grant does not stand any more: another server may have taken over before it reached the replicas")
	}
	return fmt.Errorf("only %d replicas of %d have the grant; it was given back", got.replicas, s.opts.Replicas)
}
