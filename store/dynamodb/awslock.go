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

// awslock is the layout of the AWS lock client, for tables that it and its ports use: the plain mutex only.
//
// A foreign holder is over when it was seen unchanged for its lease and a margin, on our own clock, by somebody who looked more
// than once; one of ours when the service's clock says so. Foreign holders have no token, and foreign clients drop ours, and our
// notes, when they put an item: tokens are made from the service's clock, so that they rise across that if it takes longer than
// the clients' estimates of it may differ.
type awslock struct {
	*link
	info    driver.Info
	write   Lease
	watches time.Duration // up to which lease of a foreign holder one who only tries watches it

	mu     sync.Mutex
	seen   map[string]sight  // by lock: who held it when it was last looked at
	flying map[string]flight // by claim: a take that may yet take effect
}

// flight is a take of unknown outcome.
type flight struct {
	token int64
	since driver.Instant
}

// sight is how long a holder has been seen unchanged.
type sight struct {
	rvn  string
	from driver.Instant
}

// maxSeen bounds how many locks are remembered; past it all are forgotten, at the price of a longer wait.
const maxSeen = 1 << 16

func newAWSLock(l *link, write Lease, watches time.Duration) *awslock {
	return &awslock{link: l, write: write, watches: watches, seen: map[string]sight{}, flying: map[string]flight{}, info: driver.Info{
		Store: l.place, Engine: "record", Clock: l.clock.Clock,
		Tier: driver.TierFenceSafe, ExpiredBy: driver.ExpiredByClaimant, ExpiryClock: driver.ExpiryClockObserver, Order: driver.OrderNone,
		Kinds: []driver.Kind{driver.KindMutex}, Survives: driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenGap: tokenGap, TokenRegression: tokensFall, MinTTL: driver.MinTTL, MaxTTL: driver.MaxTTL, MaxName: driver.MaxName, MaxMeta: driver.MaxMeta, MaxHolders: 1,
	}}
}

func (a *awslock) Info() driver.Info { return a.info }

func (a *awslock) Explain(c driver.Claim) driver.Plan {
	return driver.Plan{TTL: c.TTL, Keys: []string{fmt.Sprintf("%s %s=%s", a.place, a.key, c.Name)}}
}

// Warnings says who is not let in, if that is so.
func (a *awslock) Warnings(context.Context) ([]string, error) {
	if a.watches > 0 {
		return nil, nil
	}
	return []string{"a foreign holder counts as dead when it was seen unchanged for its lease: after one has died, those who only try (run -n) " +
		"are refused for ever, until somebody waits for as long; set foreign-watch to the longest lease for which they may watch, too"}, nil
}

// Acquire tries blindly first, which costs one request where the lock is free, and then looks until it is. After hours without a
// reply it looks first, so that the claim's end is not set much later than need be. It writes at most once between two pauses, but
// for that first time.
func (a *awslock) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	err := c.Check(a.info)
	switch {
	case err != nil:
		return driver.Grant{}, err
	case c.Kind != driver.KindMutex || c.Fair || c.Detached || c.Limit != 1:
		return driver.Grant{}, fmt.Errorf("%w: the layout of the AWS lock client carries the plain mutex only", driver.ErrUnsupported)
	}
	t := take{awslock: a, claim: c, stale: a.clock.ClockIsStale()}
	var silence driver.Outage
	for tries := 0; ; tries++ {
		g, err := t.step(ctx)
		switch {
		case err == nil:
			return g, nil
		case driver.IsFinal(err) && !(errors.Is(err, driver.ErrHeld) && (c.Wait || t.watching())), ctx.Err() != nil:
			return driver.Grant{}, t.failure(ctx, err)
		case errors.Is(err, errRefused) && tries == 0:
			continue // nothing was known yet
		case errors.Is(err, errRefused), errors.Is(err, driver.ErrHeld):
			silence.RequestAnswered()
		case silence.RequestFailed(a.clock.Clock, driver.UnreachableTimeout(c.TTL)):
			return driver.Grant{}, t.failure(ctx, err)
		}
		if a.pause(ctx, tries) != nil {
			return driver.Grant{}, t.failure(ctx, cmp.Or(ctx.Err(), driver.ErrClosed))
		}
	}
}

// take is one Acquire under way.
type take struct {
	*awslock
	claim    driver.Claim
	at       *lockItem // as last seen; nil: not known
	stale    bool      // it has been tried upon, or is to be looked at first
	held     error     // who held it
	watched  string    // the recordVersionNumber of a foreign holder that this claim watches, though it only tries
	unsure   string    // the recordVersionNumber of a write of unknown outcome
	unsureAt driver.Instant
}

// watching reports whether a claim that only tries should look again: at a foreign holder that has not shown that it is alive.
func (t *take) watching() bool {
	if t.at.ours || t.at.lease == 0 || t.at.lease > t.watches {
		return false
	}
	t.watched = cmp.Or(t.watched, t.at.rvn)
	return t.watched == t.at.rvn
}

// step looks, unless it knows what stands there, and tries to take the lock or to confirm that this claim has it. It is errRefused
// if that is not what stands there any more.
func (t *take) step(ctx context.Context) (driver.Grant, error) {
	if t.stale {
		at, err := t.look(ctx, t.claim.Name)
		if err != nil {
			return driver.Grant{}, err
		}
		t.at, t.stale = &at, false
	}
	since := t.clock.Clock.Now()
	now, _ := t.clock.Now()
	r := rvn{id: t.claim.ID, token: now, ends: t.endsAfter(t.claim.TTL)}
	u := update{set: map[string]types.AttributeValue{}}
	switch {
	case t.at != nil && t.at.is(t.claim.ID):
		r.token = t.at.rvnParts.token
		if t.at.rvn == t.unsure {
			return t.granted(r, t.unsureAt), nil
		}
		if t.at.mark == markBroken {
			return driver.Grant{}, &driver.LossError{Cause: driver.LossBroken}
		}
		u.when("#rvn = :seen", ":seen", text(t.at.rvn))
		u.when("attribute_not_exists(isReleased)")
	case t.at == nil || t.at.free():
		if t.at != nil {
			r.token = max(now, t.at.token+1)
		}
		u.when("(attribute_not_exists(#key) OR attribute_exists(isReleased))")
	case t.over(t.claim.Name, t.at):
		r.token = max(now, t.at.token+1)
		u.when("#rvn = :seen", ":seen", text(t.at.rvn))
		if t.at.ours {
			u.set[endedAttribute] = t.at.noteEnd("expired", now)
		}
	default:
		t.stale, t.held = true, &driver.HeldError{Holders: []driver.ClaimInfo{t.standing(t.at)}}
		return driver.Grant{}, t.held
	}
	if t.at == nil || !t.at.is(t.claim.ID) {
		u.when("(attribute_not_exists(holdfast_token) OR holdfast_token < :token)")
		u.when("attribute_not_exists(isNonAcquirable)")
		u.set[tokenAttribute], u.values = numeral(r.token), append(u.values, value{":token", numeral(r.token)})
		u.remove = []string{releasedAttribute, markAttribute}
	}
	version := r.fresh()
	u.set[ownerAttribute], u.set[rvnAttribute] = text(cmp.Or(t.claim.Owner, t.claim.ID)), text(version)
	u.set[leaseAttribute] = text(t.write.text(t.claim.TTL))
	if t.claim.Meta != "" {
		u.set[noteAttribute] = &types.AttributeValueMemberB{Value: []byte(t.claim.Meta)}
	} else {
		u.remove = append(u.remove, noteAttribute)
	}
	_, old, err := t.update(ctx, t.claim.Name, u)
	t.stale = true
	switch {
	case err == nil:
		t.settled(t.claim.ID)
		return t.granted(r, since), nil
	case errors.Is(err, errRefused):
		if t.at == nil && old != nil { // the refusal says how it stands
			at := t.saw(t.claim.Name, *old)
			t.at, t.stale = &at, false
		}
	case !driver.IsFinal(err) && !errors.Is(err, record.ErrUnsent):
		t.unsure, t.unsureAt = version, since
		t.fly(t.claim.ID, r.token)
	}
	return driver.Grant{}, err
}

func (t *take) granted(r rvn, since driver.Instant) driver.Grant {
	return driver.Grant{Claim: t.claim, Token: r.token, Since: since, GrantedTTL: t.claim.TTL, Ref: r.id}
}

func (t *take) failure(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, driver.ErrClosed) {
		err = ctx.Err()
		if t.held != nil {
			err = fmt.Errorf("%w; %w", err, t.held)
		}
	}
	if t.unsure != "" {
		err = fmt.Errorf("%w: %w", driver.ErrUncertain, err)
	}
	return err
}

// Renew is one conditional update for each grant.
func (a *awslock) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	work := make(chan int)
	var workers sync.WaitGroup
	for range min(renewers, len(grants)) {
		workers.Go(func() {
			for i := range work {
				done(i, a.renew(ctx, grants[i]))
			}
		})
	}
	for i := range grants {
		work <- i
	}
	close(work)
	workers.Wait()
}

// renewers is how many grants are renewed at a time, so that one that hangs keeps only its own worker.
const renewers = 256

func (a *awslock) renew(ctx context.Context, g driver.Grant) driver.Renewal {
	if a.clock.ClockIsStale() { // so that the claim's end is not set much later than need be
		_, _ = a.look(ctx, g.Name)
	}
	since := a.clock.Clock.Now()
	r := rvn{id: g.ID, token: g.Token, ends: a.endsAfter(g.GrantedTTL)}
	u := update{set: map[string]types.AttributeValue{rvnAttribute: text(r.fresh()), leaseAttribute: text(a.write.text(g.GrantedTTL))}}
	u.holds(r.grant())
	u.when("(attribute_not_exists(holdfast_mark) OR holdfast_mark <> :broken)", ":broken", text(markBroken+":"+g.ID))
	stands, old, err := a.update(ctx, g.Name, u)
	if errors.Is(err, errRefused) {
		var l lockItem
		if old != nil {
			l = a.saw(g.Name, *old)
		} else if l, err = a.look(ctx, g.Name); err != nil {
			return driver.Renewal{Err: err}
		}
		loss := l.endedBy(g.ID)
		switch {
		case loss == driver.LossBroken:
		case l.is(g.ID) && l.mark == markBroken:
			loss = driver.LossBroken
		case l.is(g.ID) && l.rvnParts.token == g.Token:
			return driver.Renewal{Err: fmt.Errorf("the renewal of %q met another: ask again", g.Name)}
		case !l.free():
			loss = driver.LossTaken
		}
		return driver.Renewal{Err: &driver.LossError{Cause: cmp.Or(loss, driver.LossGone)}}
	}
	if err != nil {
		return driver.Renewal{Err: driver.Uncertain(err)}
	}
	return driver.Renewal{Since: since, GrantedTTL: g.GrantedTTL, ReleaseRequested: stringOf(stands[markAttribute]) == markAsked+":"+g.ID}
}

// Release marks the item as released, and keeps it for its token.
func (a *awslock) Release(ctx context.Context, c driver.Claim, ref string) error {
	if c.ID != "" && ref != "" && c.ID != ref {
		return &driver.LossError{Cause: driver.LossGone} // no claim is both
	}
	id := cmp.Or(c.ID, ref)
	asked, unsure := a.clock.Clock.Now(), false
	for tries := 0; ; tries++ {
		u := update{set: map[string]types.AttributeValue{releasedAttribute: text("1")}}
		u.holds(rvn{id: id}.claim())
		if token, flying := a.flight(id); flying { // and so a take that comes later is refused
			u.set[tokenAttribute] = numeral(token)
		}
		_, old, err := a.update(ctx, c.Name, u)
		switch {
		case err == nil:
			a.settled(id)
			return nil
		case errors.Is(err, errRefused):
			if err = a.bar(ctx, c.Name, id); err == nil {
				err = a.outcome(ctx, c.Name, id, old, unsure)
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
		if err := a.pause(ctx, tries); err != nil {
			return driver.Uncertain(err)
		}
	}
}

// outcome is that of a release that was refused, since its claim does not hold the lock: by this release itself, whose reply was
// lost, or by somebody else, who has left a note of it. A foreign client leaves none.
func (a *awslock) outcome(ctx context.Context, name, id string, stands *item, unsure bool) error {
	var at lockItem
	if stands != nil {
		at = readLockItem(*stands)
	} else {
		var err error
		if at, err = a.look(ctx, name); err != nil {
			return err
		}
	}
	loss := at.endedBy(id)
	switch {
	case loss != "" || !unsure:
		return &driver.LossError{Cause: cmp.Or(loss, driver.LossGone)}
	case !at.exists, !at.ours:
		return driver.Uncertain(errors.New("a foreign client has written the item: it may have taken the lock after this release or before"))
	}
	return nil
}

// bar makes sure that a take of this claim that is still under way is refused when it arrives: by a token that is not smaller.
func (a *awslock) bar(ctx context.Context, name, id string) error {
	token, flying := a.flight(id)
	if !flying {
		return nil
	}
	u := update{set: map[string]types.AttributeValue{tokenAttribute: numeral(token)}}
	u.when("attribute_exists(#key) AND (attribute_not_exists(holdfast_token) OR holdfast_token < :token)", ":token", numeral(token))
	_, _, err := a.update(ctx, name, u)
	if errors.Is(err, errRefused) {
		at, lerr := a.look(ctx, name)
		switch {
		case lerr != nil:
			return lerr
		case at.is(id): // it has arrived
			return errRefused
		case !at.exists: // an item as others leave it when they release it
			u = update{set: map[string]types.AttributeValue{tokenAttribute: numeral(token), releasedAttribute: text("1"), ownerAttribute: text(id),
				leaseAttribute: text(a.write.text(time.Second)), rvnAttribute: text(rvn{id: id, token: token}.fresh())}}
			u.when("attribute_not_exists(#key)")
			_, _, err = a.update(ctx, name, u)
		default:
			err = nil
		}
	}
	if err == nil {
		a.settled(id)
	}
	return err
}

// flight gives the token of a take that may yet take effect.
func (a *awslock) flight(id string) (token int64, flying bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, flying := a.flying[id]
	return f.token, flying
}

// fly notes a take of unknown outcome. Those whose claims were never released, as when the service was away for longer than
// anybody waited, are forgotten after the longest time that a claim can stand: a few are looked at each time.
func (a *awslock) fly(id string, token int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, looked := a.clock.Clock.Now(), 0
	for other, f := range a.flying {
		if now.Monotonic-f.since.Monotonic > driver.MaxTTL {
			delete(a.flying, other)
		}
		if looked++; looked == 8 {
			break
		}
	}
	a.flying[id] = flight{max(a.flying[id].token, token), now}
}

func (a *awslock) settled(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.flying, id)
}

// look is one consistent read.
func (a *awslock) look(ctx context.Context, name string) (lockItem, error) {
	out, err := look(ctx, a.link, a.client.GetItem, &sdk.GetItemInput{TableName: &a.name, Key: a.id(name), ConsistentRead: new(true)})
	if err != nil {
		return lockItem{}, err
	}
	return a.saw(name, out.Item), nil
}

// saw notes since when a holder has been seen as it is.
func (a *awslock) saw(name string, it item) lockItem {
	l, now := readLockItem(it), a.clock.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.free() {
		delete(a.seen, name)
	} else if a.seen[name].rvn != l.rvn {
		if len(a.seen) >= maxSeen {
			clear(a.seen)
		}
		a.seen[name] = sight{l.rvn, now}
	}
	return l
}

// endsAfter is the service's clock past which a claim surely was silent for a time that begins now.
func (a *awslock) endsAfter(d time.Duration) int64 {
	_, late := a.clock.ClockBounds()
	return late + d.Microseconds()
}

// over reports whether a holder has surely fallen silent.
func (a *awslock) over(name string, l *lockItem) bool {
	if early, _ := a.clock.ClockBounds(); l.ends > 0 && early > l.ends {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.seen[name]
	return l.lease > 0 && s.rvn == l.rvn && a.clock.Clock.SinceAtLeast(s.from) > l.lease+driver.Margin(l.lease)
}

// pause waits between two looks: for a random part of a time that grows to a second.
func (a *awslock) pause(ctx context.Context, tries int) error {
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
