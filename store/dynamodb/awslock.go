package dynamodb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// awslockStore is the layout of the AWS lock client, for tables that it and its ports use: the plain mutex only.
//
// A foreign holder is over when it was seen unchanged for its lease and a margin, on our own clock, by somebody who looked more
// than once; one of ours when the service's clock says so. Foreign holders have no token, and foreign clients drop ours, and our
// notes, when they put an item: tokens are made from the service's clock, so that they rise across that if it takes longer than
// the clients' estimates of it may differ.
type awslockStore struct {
	*tableClient
	info            driver.Info
	leaseFormat     LeaseFormat
	maxForeignWatch time.Duration // up to which lease of a foreign holder one who only tries watches it

	mu           sync.Mutex
	observed     map[string]observation // by lock: who held it when it was last looked at
	pendingTakes map[string]pendingTake // by claim: a take that may yet take effect
}

// pendingTake is a take of unknown outcome.
type pendingTake struct {
	token int64
	since driver.Instant
}

// observation is how long a holder has been seen unchanged.
type observation struct {
	rvn   string
	since driver.Instant
}

// maxObserved bounds how many locks are remembered; past it all are forgotten, at the price of a longer wait.
const maxObserved = 1 << 16

func newAWSLock(l *tableClient, write LeaseFormat, watches time.Duration) *awslockStore {
	return &awslockStore{tableClient: l, leaseFormat: write, maxForeignWatch: watches, observed: map[string]observation{}, pendingTakes: map[string]pendingTake{}, info: driver.Info{
		Store: l.displayURL, Engine: "record", Clock: l.clock.Clock,
		Tier: driver.TierFenceSafe, ExpiredBy: driver.ExpiredByClaimant, ExpiryClock: driver.ExpiryClockObserver, Order: driver.OrderNone,
		Kinds: []driver.Kind{driver.KindMutex}, Survives: driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenGap: tokenGap, TokenRegression: tokenRegression, MinTTL: driver.MinTTL, MaxTTL: driver.MaxTTL, MaxName: driver.MaxName, MaxMeta: driver.MaxMeta, MaxHolders: 1,
	}}
}

func (a *awslockStore) Info() driver.Info { return a.info }

func (a *awslockStore) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{TTL: c.TTL, Keys: []string{fmt.Sprintf("%s %s=%s", a.displayURL, a.partitionKey, c.Name)}}
}

// Warnings says who is not let in, if that is so.
func (a *awslockStore) Warnings(context.Context) ([]string, error) {
	if a.maxForeignWatch > 0 {
		return nil, nil
	}
	return []string{"a foreign holder counts as dead when it was seen unchanged for its lease: after one has died, those who only try (run -n) " +
		"are refused for ever, until somebody waits for as long; set foreign-watch to the longest lease for which they may watch, too"}, nil
}

// Acquire tries blindly first, which costs one request where the lock is free, and then looks until it is. After hours without a
// reply it looks first, so that the claim's end is not set much later than need be. It writes at most once between two pauses, but
// for that first time.
func (a *awslockStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	err := c.Check(a.info)
	switch {
	case err != nil:
		return driver.Grant{}, err
	case c.Kind != driver.KindMutex || c.Fair || c.Detached || c.Limit != 1:
		return driver.Grant{}, fmt.Errorf("%w: the layout of the AWS lock client carries the plain mutex only", driver.ErrUnsupported)
	}
	t := takeAttempt{awslockStore: a, claim: c, mustRead: a.clock.ClockIsStale()}
	var silence driver.Outage
	for tries := 0; ; tries++ {
		g, err := t.tryTake(ctx)
		switch {
		case err == nil:
			return g, nil
		case driver.IsFinal(err) && !(errors.Is(err, driver.ErrHeld) && (c.Wait || t.isWatchingForeign())), ctx.Err() != nil:
			return driver.Grant{}, t.acquireError(ctx, err)
		case errors.Is(err, errRefused) && tries == 0:
			continue // nothing was known yet
		case errors.Is(err, errRefused), errors.Is(err, driver.ErrHeld):
			silence.RequestAnswered()
		case silence.RequestFailed(a.clock.Clock, driver.UnreachableTimeout(c.TTL)):
			return driver.Grant{}, t.acquireError(ctx, err)
		}
		if a.pauseBetweenTries(ctx, tries) != nil {
			return driver.Grant{}, t.acquireError(ctx, cmp.Or(ctx.Err(), driver.ErrClosed))
		}
	}
}

// takeAttempt is one Acquire under way.
type takeAttempt struct {
	*awslockStore
	claim          driver.Claim
	current        *lockItem // as last seen; nil: not known
	mustRead       bool      // it has been tried upon, or is to be looked at first
	heldError      error     // who held it
	watchedRVN     string    // the recordVersionNumber of a foreign holder that this claim watches, though it only tries
	uncertainRVN   string    // the recordVersionNumber of a write of unknown outcome
	uncertainSince driver.Instant
}

// isWatchingForeign reports whether a claim that only tries should look again: at a foreign holder that has not shown that it is alive.
func (t *takeAttempt) isWatchingForeign() bool {
	if t.current.isOurs || t.current.lease == 0 || t.current.lease > t.maxForeignWatch {
		return false
	}
	t.watchedRVN = cmp.Or(t.watchedRVN, t.current.rvn)
	return t.watchedRVN == t.current.rvn
}

// tryTake looks, unless it knows what stands there, and tries to take the lock or to confirm that this claim has it. It is errRefused
// if that is not what stands there any more.
func (t *takeAttempt) tryTake(ctx context.Context) (driver.Grant, error) {
	if t.mustRead {
		at, err := t.readLock(ctx, t.claim.Name)
		if err != nil {
			return driver.Grant{}, err
		}
		t.current, t.mustRead = &at, false
	}
	since := t.clock.Clock.Now()
	now, _ := t.clock.Now()
	r := versionNumber{claimID: t.claim.ID, token: now, expiresAt: t.latestEnd(t.claim.TTL)}
	u := conditionalUpdate{set: map[string]types.AttributeValue{}}
	switch {
	case t.current != nil && t.current.isHeldBy(t.claim.ID):
		r.token = t.current.parsedRVN.token
		if t.current.rvn == t.uncertainRVN {
			return t.newGrant(r, t.uncertainSince), nil
		}
		if t.current.mark == markBroken {
			return driver.Grant{}, &driver.LossError{Cause: driver.LossBroken}
		}
		u.addCondition("#rvn = :seen", ":seen", textValue(t.current.rvn))
		u.addCondition("attribute_not_exists(isReleased)")
	case t.current == nil || t.current.isFree():
		if t.current != nil {
			r.token = max(now, t.current.token+1)
		}
		u.addCondition("(attribute_not_exists(#key) OR attribute_exists(isReleased))")
	case t.isExpired(t.claim.Name, t.current):
		r.token = max(now, t.current.token+1)
		u.addCondition("#rvn = :seen", ":seen", textValue(t.current.rvn))
		if t.current.isOurs {
			u.set[endedAttribute] = t.current.addEndNote("expired", now)
		}
	default:
		t.mustRead, t.heldError = true, &driver.HeldError{Holders: []driver.ClaimInfo{t.claimInfo(t.current)}}
		return driver.Grant{}, t.heldError
	}
	if t.current == nil || !t.current.isHeldBy(t.claim.ID) {
		u.addCondition("(attribute_not_exists(holdfast_token) OR holdfast_token < :token)")
		u.addCondition("attribute_not_exists(isNonAcquirable)")
		u.set[tokenAttribute], u.values = numberValue(r.token), append(u.values, namedValue{":token", numberValue(r.token)})
		u.remove = []string{releasedAttribute, markAttribute}
	}
	version := r.makeUnique()
	u.set[ownerAttribute], u.set[rvnAttribute] = textValue(cmp.Or(t.claim.Owner, t.claim.ID)), textValue(version)
	u.set[leaseAttribute] = textValue(t.leaseFormat.formatLease(t.claim.TTL))
	if t.claim.Meta != "" {
		u.set[metaAttribute] = &types.AttributeValueMemberB{Value: []byte(t.claim.Meta)}
	} else {
		u.remove = append(u.remove, metaAttribute)
	}
	_, old, err := t.updateItem(ctx, t.claim.Name, u)
	t.mustRead = true
	switch {
	case err == nil:
		t.forgetTake(t.claim.ID)
		return t.newGrant(r, since), nil
	case errors.Is(err, errRefused):
		if t.current == nil && old != nil { // the refusal says how it stands
			at := t.observeItem(t.claim.Name, *old)
			t.current, t.mustRead = &at, false
		}
	case !driver.IsFinal(err) && !errors.Is(err, record.ErrUnsent):
		t.uncertainRVN, t.uncertainSince = version, since
		t.rememberTake(t.claim.ID, r.token)
	}
	return driver.Grant{}, err
}

func (t *takeAttempt) newGrant(r versionNumber, since driver.Instant) driver.Grant {
	return driver.Grant{Claim: t.claim, Token: r.token, Since: since, GrantedTTL: t.claim.TTL, Ref: r.claimID}
}

func (t *takeAttempt) acquireError(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, driver.ErrClosed) {
		err = ctx.Err()
		if t.heldError != nil {
			err = fmt.Errorf("%w; %w", err, t.heldError)
		}
	}
	if t.uncertainRVN != "" {
		err = fmt.Errorf("%w: %w", driver.ErrUncertain, err)
	}
	return err
}

// Renew is one conditional update for each grant.
func (a *awslockStore) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	work := make(chan int)
	var workers sync.WaitGroup
	for range min(maxRenewers, len(grants)) {
		workers.Go(func() {
			for i := range work {
				done(i, a.renewGrant(ctx, grants[i]))
			}
		})
	}
	for i := range grants {
		work <- i
	}
	close(work)
	workers.Wait()
}

// maxRenewers is how many grants are renewed at a time, so that one that hangs keeps only its own worker.
const maxRenewers = 256

func (a *awslockStore) renewGrant(ctx context.Context, g driver.Grant) driver.Renewal {
	if a.clock.ClockIsStale() { // so that the claim's end is not set much later than need be
		_, _ = a.readLock(ctx, g.Name)
	}
	since := a.clock.Clock.Now()
	r := versionNumber{claimID: g.ID, token: g.Token, expiresAt: a.latestEnd(g.GrantedTTL)}
	u := conditionalUpdate{set: map[string]types.AttributeValue{rvnAttribute: textValue(r.makeUnique()), leaseAttribute: textValue(a.leaseFormat.formatLease(g.GrantedTTL))}}
	u.requireHolder(r.grantPrefix())
	u.addCondition("(attribute_not_exists(holdfast_mark) OR holdfast_mark <> :broken)", ":broken", textValue(markBroken+":"+g.ID))
	stands, old, err := a.updateItem(ctx, g.Name, u)
	if errors.Is(err, errRefused) {
		var l lockItem
		if old != nil {
			l = a.observeItem(g.Name, *old)
		} else if l, err = a.readLock(ctx, g.Name); err != nil {
			return driver.Renewal{Err: err}
		}
		loss := l.causeOfEnd(g.ID)
		switch {
		case loss == driver.LossBroken:
		case l.isHeldBy(g.ID) && l.mark == markBroken:
			loss = driver.LossBroken
		case l.isHeldBy(g.ID) && l.parsedRVN.token == g.Token:
			return driver.Renewal{Err: fmt.Errorf("the renewal of %q met another: ask again", g.Name)}
		case !l.isFree():
			loss = driver.LossTaken
		}
		return driver.Renewal{Err: &driver.LossError{Cause: cmp.Or(loss, driver.LossGone)}}
	}
	if err != nil {
		return driver.Renewal{Err: driver.Uncertain(err)}
	}
	return driver.Renewal{Since: since, GrantedTTL: g.GrantedTTL, ReleaseRequested: stringOf(stands[markAttribute]) == markReleaseRequested+":"+g.ID}
}

// Release marks the item as released, and keeps it for its token.
func (a *awslockStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	if c.ID != "" && ref != "" && c.ID != ref {
		return &driver.LossError{Cause: driver.LossGone} // no claim is both
	}
	id := cmp.Or(c.ID, ref)
	asked, unsure := a.clock.Clock.Now(), false
	for tries := 0; ; tries++ {
		u := conditionalUpdate{set: map[string]types.AttributeValue{releasedAttribute: textValue("1")}}
		u.requireHolder(versionNumber{claimID: id}.claimPrefix())
		if token, flying := a.pendingToken(id); flying { // and so a take that comes later is refused
			u.set[tokenAttribute] = numberValue(token)
		}
		_, old, err := a.updateItem(ctx, c.Name, u)
		switch {
		case err == nil:
			a.forgetTake(id)
			return nil
		case errors.Is(err, errRefused):
			if err = a.blockPendingTake(ctx, c.Name, id); err == nil {
				err = a.releaseOutcome(ctx, c.Name, id, old, unsure)
			}
			if err == nil || driver.IsFinal(err) || errors.Is(err, driver.ErrUncertain) {
				return err
			}
		case driver.IsFinal(err):
			return err
		default:
			unsure = unsure || !errors.Is(err, record.ErrUnsent)
		}
		if ctx.Err() != nil || a.clock.Clock.Since(asked) > driver.UnreachableTimeout(c.TTL) {
			return driver.Uncertain(cmp.Or(ctx.Err(), err))
		}
		if err := a.pauseBetweenTries(ctx, tries); err != nil {
			return driver.Uncertain(err)
		}
	}
}

// releaseOutcome is that of a release that was refused, since its claim does not hold the lock: by this release itself, whose reply was
// lost, or by somebody else, who has left a note of it. A foreign client leaves none.
func (a *awslockStore) releaseOutcome(ctx context.Context, name, id string, stands *item, unsure bool) error {
	var at lockItem
	if stands != nil {
		at = readLockItem(*stands)
	} else {
		var err error
		if at, err = a.readLock(ctx, name); err != nil {
			return err
		}
	}
	loss := at.causeOfEnd(id)
	switch {
	case loss != "" || !unsure:
		return &driver.LossError{Cause: cmp.Or(loss, driver.LossGone)}
	case !at.exists, !at.isOurs:
		return driver.Uncertain(errors.New("a foreign client has written the item: it may have taken the lock after this release or before"))
	}
	return nil
}

// blockPendingTake makes sure that a take of this claim that is still under way is refused when it arrives: by a token that is not smaller.
func (a *awslockStore) blockPendingTake(ctx context.Context, name, id string) error {
	token, flying := a.pendingToken(id)
	if !flying {
		return nil
	}
	u := conditionalUpdate{set: map[string]types.AttributeValue{tokenAttribute: numberValue(token)}}
	u.addCondition("attribute_exists(#key) AND (attribute_not_exists(holdfast_token) OR holdfast_token < :token)", ":token", numberValue(token))
	_, _, err := a.updateItem(ctx, name, u)
	if errors.Is(err, errRefused) {
		at, lerr := a.readLock(ctx, name)
		switch {
		case lerr != nil:
			return lerr
		case at.isHeldBy(id): // it has arrived
			return errRefused
		case !at.exists: // an item as others leave it when they release it
			u = conditionalUpdate{set: map[string]types.AttributeValue{tokenAttribute: numberValue(token), releasedAttribute: textValue("1"), ownerAttribute: textValue(id),
				leaseAttribute: textValue(a.leaseFormat.formatLease(time.Second)), rvnAttribute: textValue(versionNumber{claimID: id, token: token}.makeUnique())}}
			u.addCondition("attribute_not_exists(#key)")
			_, _, err = a.updateItem(ctx, name, u)
		default:
			err = nil
		}
	}
	if err == nil {
		a.forgetTake(id)
	}
	return err
}

// pendingToken gives the token of a take that may yet take effect.
func (a *awslockStore) pendingToken(id string) (token int64, flying bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, flying := a.pendingTakes[id]
	return f.token, flying
}

// rememberTake notes a take of unknown outcome. Those whose claims were never released, as when the service was away for longer than
// anybody waited, are forgotten after the longest time that a claim can stand: a few are looked at each time.
func (a *awslockStore) rememberTake(id string, token int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, looked := a.clock.Clock.Now(), 0
	for other, f := range a.pendingTakes {
		if now.Monotonic-f.since.Monotonic > driver.MaxTTL {
			delete(a.pendingTakes, other)
		}
		if looked++; looked == 8 {
			break
		}
	}
	a.pendingTakes[id] = pendingTake{max(a.pendingTakes[id].token, token), now}
}

func (a *awslockStore) forgetTake(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pendingTakes, id)
}

// readLock is one consistent read.
func (a *awslockStore) readLock(ctx context.Context, name string) (lockItem, error) {
	out, err := sendRead(ctx, a.tableClient, a.client.GetItem, &sdk.GetItemInput{TableName: &a.tableName, Key: a.itemKey(name), ConsistentRead: new(true)})
	if err != nil {
		return lockItem{}, err
	}
	return a.observeItem(name, out.Item), nil
}

// observeItem notes since when a holder has been seen as it is.
func (a *awslockStore) observeItem(name string, it item) lockItem {
	l, now := readLockItem(it), a.clock.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.isFree() {
		delete(a.observed, name)
	} else if a.observed[name].rvn != l.rvn {
		if len(a.observed) >= maxObserved {
			clear(a.observed)
		}
		a.observed[name] = observation{l.rvn, now}
	}
	return l
}

// latestEnd is the service's clock past which a claim surely was silent for a time that begins now.
func (a *awslockStore) latestEnd(d time.Duration) int64 {
	_, late := a.clock.ClockBounds()
	return late + d.Microseconds()
}

// isExpired reports whether a holder has surely fallen silent.
func (a *awslockStore) isExpired(name string, l *lockItem) bool {
	if early, _ := a.clock.ClockBounds(); l.expiresAt > 0 && early > l.expiresAt {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.observed[name]
	return l.lease > 0 && s.rvn == l.rvn && a.clock.Clock.SinceAtLeast(s.since) > l.lease+driver.Margin(l.lease)
}

// pauseBetweenTries waits between two looks: for a random part of a time that grows to a second.
func (a *awslockStore) pauseBetweenTries(ctx context.Context, tries int) error {
	most := min(time.Second, 20*time.Millisecond<<min(tries, 10))
	timer := time.NewTimer(most/2 + rand.N(most/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-a.closed.Done():
		return driver.ErrClosed
	}
}
