package dynamodb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// awslockStore keeps locks in the layout of the AWS lock client, in tables that this client and its ports use.
// It supports the plain mutex only.
//
// A holder of ours has expired when the service's clock says so. A foreign holder has expired when this client has seen
// it unchanged for its lease and a margin, by its own clock. That needs more than one read.
//
// Foreign holders have no token. When a foreign client puts an item, it removes our last token and our notes.
// So tokens are made from the service's clock: then they rise even across a foreign holder, if that holds the
// lock for longer than the estimates of this clock by two clients can differ.
type awslockStore struct {
	driver.Unsupported

	*tableClient
	info            driver.Info
	leaseFormat     LeaseFormat
	maxForeignWatch time.Duration // see Options.ForeignWatch

	mu           sync.Mutex
	observed     map[string]observation // by lock: the holder that was seen last
	pendingTakes map[string]pendingTake // by claim id: takes that may still take effect
}

// pendingTake is a take whose outcome is not known. It may be anywhere on its way to the service, and take effect after
// its claim was released. What bars it is the token: every take demands that the item's largest token is less than its
// own, so a release that raises the item's token to that of the take makes the service refuse the take.
type pendingTake struct {
	token int64
	since driver.Instant
}

// observation says since when a holder has been seen unchanged.
type observation struct {
	rvn   string
	since driver.Instant
}

// maxObserved limits how many locks are remembered. When it is reached all are forgotten: then it takes longer
// until a foreign holder counts as dead.
const maxObserved = 1 << 16

// newAWSLock makes the store. watches is Options.ForeignWatch.
func newAWSLock(l *tableClient, write LeaseFormat, watches time.Duration) *awslockStore {
	return &awslockStore{tableClient: l, leaseFormat: write, maxForeignWatch: watches,
		observed: map[string]observation{}, pendingTakes: map[string]pendingTake{}, info: driver.Info{
			Store: l.displayURL, Engine: "script", Clock: l.clock.Clock,
			Tier: driver.TierFenceSafe, ExpiredBy: driver.ExpiredByClaimant,
			ExpiryClock: driver.ExpiryClockObserver, Order: driver.OrderNone,
			Kinds: []driver.Kind{driver.KindMutex}, Abilities: driver.Abilities{Tokens: true}, Survives: driver.Survives{Restart: true, PowerCut: true,
				Failover: true},
			TokenGap: tokenGap, TokenRegression: tokenRegression, MinTTL: driver.MinTTL, MaxTTL: driver.MaxTTL,
			MaxName: driver.MaxName, MaxMeta: driver.MaxMeta, MaxHolders: 1,
		}}
}

func (a *awslockStore) Info() driver.Info { return a.info }

func (a *awslockStore) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{TTL: c.TTL, Keys: []string{fmt.Sprintf("%s %s=%s", a.displayURL, a.partitionKey, c.Name)}}
}

// Acquire first tries without a read, which costs one request if the lock is free. After that it reads and tries again
// until the lock is free. A client that has had no reply for hours reads first: it knows the service's clock badly, and
// would set the claim's expiry much too late. There is at most one write between two pauses, except for the first two.
func (a *awslockStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	err := c.Check(a.info)
	switch {
	case err != nil:
		return driver.Grant{}, err
	case c.Kind != driver.KindMutex || c.Fair || c.Detached || c.Limit != 1:
		return driver.Grant{}, driverutil.OnlyUnfairMutexes(LayoutAWSLock)
	}
	t := takeAttempt{awslockStore: a, claim: c, mustRead: a.clock.IsStale()}
	loop := a.newLoop(c.TTL)
	for first := true; ; first = false {
		loop.RequestStarted(a.clock.Clock.Now())
		g, err := t.tryTake(ctx)
		loop.Uncertain = t.uncertainRVN != ""
		switch {
		case err == nil:
			return g, nil
		case ctx.Err() != nil,
			driverutil.IsFinal(err) && !(errors.Is(err, driver.ErrHeld) && (c.Wait || t.isWatchingForeign())):
			return driver.Grant{}, loop.End(t.acquireError(ctx, err))
		case errors.Is(err, errRefused) && first:
			continue // the first try knew nothing about the item; no pause is needed
		case errors.Is(err, errRefused), errors.Is(err, driver.ErrHeld):
			err = loop.PauseAfterAnswer(ctx)
		default:
			err = loop.PauseAfterFailure(ctx, err, false) // tryTake has noted what was sent
		}
		if err != nil {
			return driver.Grant{}, loop.End(t.acquireError(ctx, err))
		}
	}
}

// takeAttempt is one Acquire.
type takeAttempt struct {
	*awslockStore
	claim          driver.Claim
	current        *lockItem // the item as it was seen last; nil: not known
	mustRead       bool      // the item must be read before the next write
	heldError      error     // names the holder that was seen last
	watchedRVN     string    // recordVersionNumber of the foreign holder that this claim watches, though it only tries
	uncertainRVN   string    // recordVersionNumber of a write whose outcome is not known
	uncertainSince driver.Instant
}

// isWatchingForeign reports whether a claim that only tries should read again: a foreign holder has not shown yet that
// it is alive, and its lease is short enough to watch it.
func (t *takeAttempt) isWatchingForeign() bool {
	if t.current.isOurs || t.current.lease == 0 || t.current.lease > t.maxForeignWatch {
		return false
	}
	t.watchedRVN = cmp.Or(t.watchedRVN, t.current.rvn)
	return t.watchedRVN == t.current.rvn
}

// tryTake tries to take the lock, or to confirm that this claim has it. It reads the item first if it does not know it.
// It returns errRefused if the item has changed since.
func (t *takeAttempt) tryTake(ctx context.Context) (driver.Grant, error) {
	if t.mustRead {
		at, err := t.readLock(ctx, t.claim.Name)
		if err != nil {
			return driver.Grant{}, err
		}
		t.current, t.mustRead = &at, false
	}
	since := t.clock.Clock.Now()
	now := t.clock.TokenFloor()
	r := versionNumber{claimID: t.claim.ID, token: now, expiresAt: t.latestEnd(t.claim.TTL)}
	u := conditionalUpdate{set: map[string]types.AttributeValue{}}
	switch {
	case t.current != nil && t.current.isHeldBy(t.claim.ID):
		// An earlier call of this claim, or an earlier try whose reply was lost, has taken the lock. If it was the last
		// try, its version says so, and its start is known. Otherwise the claim is written once more: a grant counts
		// from the start of a request that is known to have succeeded.
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
		// The first keeps tokens rising, also against a take that is late: see pendingTake.
		u.addCondition("(attribute_not_exists(holdfast_token) OR holdfast_token < :token)")
		u.addCondition("attribute_not_exists(isNonAcquirable)")
		u.set[tokenAttribute], u.values = numberValue(r.token), append(u.values,
			namedValue{":token", numberValue(r.token)})
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
		if t.current == nil && old != nil { // the service returned the item with the refusal
			at := t.observeItem(t.claim.Name, *old)
			t.current, t.mustRead = &at, false
		}
	case !driverutil.IsFinal(err) && !errors.Is(err, record.ErrUnsent):
		t.uncertainRVN, t.uncertainSince = version, since
		t.rememberTake(t.claim.ID, r.token)
	}
	return driver.Grant{}, err
}

// newGrant is the grant of the lock to this claim.
func (t *takeAttempt) newGrant(r versionNumber, since driver.Instant) driver.Grant {
	return driver.Grant{Claim: t.claim, Token: r.token, Since: since, GrantedTTL: t.claim.TTL, Ref: r.claimID}
}

// acquireError names the last holder in the error of an Acquire whose ctx has ended.
func (t *takeAttempt) acquireError(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, driver.ErrClosed) {
		err = ctx.Err()
		if t.heldError != nil {
			err = fmt.Errorf("%w; %w", err, t.heldError)
		}
	}
	return err
}

// Renew sends one conditional update per grant. DynamoDB has transactions over many items, but one refused condition
// would refuse all of them, and each item would be billed twice.
func (a *awslockStore) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	renewEach(grants, func(i int, g driver.Grant) { done(i, a.renewGrant(ctx, g)) })
}

// maxRenewers is how many grants are renewed at a time. A request that hangs holds up only one of them.
const maxRenewers = 256

// renewEach calls renew for every grant, for many at a time.
func renewEach(grants []driver.Grant, renew func(int, driver.Grant)) {
	work := make(chan int)
	var workers sync.WaitGroup
	for range min(maxRenewers, len(grants)) {
		workers.Go(func() {
			for i := range work {
				renew(i, grants[i])
			}
		})
	}
	for i := range grants {
		work <- i
	}
	close(work)
	workers.Wait()
}

// renewGrant renews one grant. If it is refused, it finds out whether and how the claim ended.
func (a *awslockStore) renewGrant(ctx context.Context, g driver.Grant) driver.Renewal {
	if a.clock.IsStale() { // else the claim's expiry might be set much too late
		_, _ = a.readLock(ctx, g.Name)
	}
	since := a.clock.Clock.Now()
	r := versionNumber{claimID: g.ID, token: g.Token, expiresAt: a.latestEnd(g.GrantedTTL)}
	u := conditionalUpdate{set: map[string]types.AttributeValue{rvnAttribute: textValue(r.makeUnique()),
		leaseAttribute: textValue(a.leaseFormat.formatLease(g.GrantedTTL))}}
	u.requireHolder(r.grantPrefix())
	u.addCondition("(attribute_not_exists(holdfast_mark) OR holdfast_mark <> :broken)",
		":broken", textValue(markBroken+":"+g.ID))
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
			return driver.Renewal{Err: &driver.LossError{Cause: driver.LossBroken, StaysHeld: true}}
		case l.isHeldBy(g.ID) && l.parsedRVN.token == g.Token:
			return driver.Renewal{Err: fmt.Errorf("another renewal of %q is in progress; try again", g.Name)}
		case !l.isFree():
			loss = driver.LossTaken
		}
		return driver.Renewal{Err: &driver.LossError{Cause: cmp.Or(loss, driver.LossGone)}}
	}
	if err != nil {
		return driver.Renewal{Err: driverutil.Uncertain(err)}
	}
	return driver.Renewal{Since: since, GrantedTTL: g.GrantedTTL,
		ReleaseRequested: stringOf(stands[markAttribute]) == markReleaseRequested+":"+g.ID}
}

// Release marks the item as released. It keeps the item, for its token. Foreign clients take a lock with that mark
// at once, as they take one whose item was deleted.
func (a *awslockStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	if c.ID != "" && ref != "" && c.ID != ref {
		return &driver.LossError{Cause: driver.LossGone} // no claim has both
	}
	id := cmp.Or(c.ID, ref)
	loop := a.newLoop(c.TTL)
	loop.Restart()
	for {
		u := conditionalUpdate{set: map[string]types.AttributeValue{releasedAttribute: textValue("1")}}
		u.requireHolder(versionNumber{claimID: id}.claimPrefix())
		if token, pending := a.pendingToken(id); pending { // a take that arrives later is refused by its token
			u.set[tokenAttribute] = numberValue(token)
		}
		_, old, err := a.updateItem(ctx, c.Name, u)
		sent := !errors.Is(err, record.ErrUnsent)
		switch {
		case err == nil:
			a.forgetTake(id)
			return nil
		case errors.Is(err, errRefused):
			sent = false
			if err = a.blockPendingTake(ctx, c.Name, id); err == nil {
				err = a.releaseOutcome(ctx, c.Name, id, old, loop.Uncertain)
			}
			if err == nil || driverutil.IsFinal(err) || errors.Is(err, driver.ErrUncertain) {
				return err
			}
		}
		if err := loop.PauseAfterFailure(ctx, err, sent); err != nil {
			return err
		}
	}
}

// releaseOutcome says what became of a claim whose release was refused, because the claim does not hold the
// lock. An earlier try of the release may have ended it, if its reply was lost; or another client of ours has,
// and left a note. A foreign client leaves none.
func (a *awslockStore) releaseOutcome(ctx context.Context, name, id string, stands *item, uncertain bool) error {
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
	case loss != "" || !uncertain:
		return &driver.LossError{Cause: cmp.Or(loss, driver.LossGone)}
	case !at.exists, !at.isOurs:
		return driverutil.Uncertain(errors.New("a foreign client has written the item: " +
			"it may have taken the lock after this release or before"))
	}
	return nil
}

// blockPendingTake makes sure that a take of this claim that is still under way is refused when it arrives: it raises
// the item's token to that of the take.
func (a *awslockStore) blockPendingTake(ctx context.Context, name, id string) error {
	token, pending := a.pendingToken(id)
	if !pending {
		return nil
	}
	u := conditionalUpdate{set: map[string]types.AttributeValue{tokenAttribute: numberValue(token)}}
	u.addCondition("attribute_exists(#key) AND (attribute_not_exists(holdfast_token) OR holdfast_token < :token)",
		":token", numberValue(token))
	_, _, err := a.updateItem(ctx, name, u)
	if errors.Is(err, errRefused) {
		at, lerr := a.readLock(ctx, name)
		switch {
		case lerr != nil:
			return lerr
		case at.isHeldBy(id): // the take has arrived
			return errRefused
		case at.exists && at.token < token: // another client has made the item after the refusal: it bars nothing yet
			return errRefused
		case !at.exists: // make an item like that of a released lock
			u = conditionalUpdate{set: map[string]types.AttributeValue{
				tokenAttribute: numberValue(token), releasedAttribute: textValue("1"), ownerAttribute: textValue(id),
				leaseAttribute: textValue(a.leaseFormat.formatLease(time.Second)),
				rvnAttribute:   textValue(versionNumber{claimID: id, token: token}.makeUnique())}}
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

// pendingToken returns the token of a take that may still take effect.
func (a *awslockStore) pendingToken(id string) (token int64, pending bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, pending := a.pendingTakes[id]
	return f.token, pending
}

// rememberTake notes a take whose outcome is not known. Its claim may never be released, for example if the service was
// unreachable for longer than the caller waited. Such takes are forgotten after the longest time that a claim can last.
// Each call looks at a few, so that none takes long.
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

// forgetTake notes that no take of the claim can take effect any more.
func (a *awslockStore) forgetTake(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pendingTakes, id)
}

// readLock is one consistent read.
func (a *awslockStore) readLock(ctx context.Context, name string) (lockItem, error) {
	out, err := sendRead(ctx, a.tableClient, a.client.GetItem,
		&sdk.GetItemInput{TableName: &a.tableName, Key: a.itemKey(name), ConsistentRead: new(true)})
	if err != nil {
		return lockItem{}, err
	}
	return a.observeItem(name, out.Item), nil
}

// observeItem notes since when a holder has been seen unchanged. It notes the time of the reply, which is later than
// the read itself, so a holder is never watched for less than its lease.
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

// isExpired reports whether a holder has certainly stopped renewing for its lease.
func (a *awslockStore) isExpired(name string, l *lockItem) bool {
	if early, _, _ := a.clock.Bounds(); l.expiresAt > 0 && early > l.expiresAt {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.observed[name]
	return l.lease > 0 && s.rvn == l.rvn && a.clock.Clock.SinceAtLeast(s.since) > l.lease+driver.Margin(l.lease)
}
