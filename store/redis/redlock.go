package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// redlockStore keeps locks on a majority of independent servers (redis.io: "Distributed Locks with Redis"). It refuses
// all but the plain mutex: no single server knows which claims exist and in which order they came, and two majorities
// may have received two claims in different orders.
type redlockStore struct {
	driver.Unsupported

	servers  []*store
	majority int
	info     driver.Info
	clock    driver.Clock
	life     *driverutil.Lifetime
	mu       sync.Mutex
	pending  []pendingReleases // by server, guarded by mu
	rounds   atomic.Int64      // the number of the last round
}

var _ driver.Store = (*redlockStore)(nil)

// agreeTokenScript stores the token that a majority is to agree on.
var agreeTokenScript = loadScript("agree_token.lua")

// NewRedlock makes a store that keeps locks on a majority of independent servers (redis.io: "Distributed Locks with
// Redis"). It needs clients of three or more servers; an odd number is best, since of four servers only one may fail,
// as of three. They stay open when the store is closed. The store supports the plain mutex and the election, and
// refuses the rest.
//
// Redlock promises less than it seems to. It relies on the servers' clocks running at the same rate, and on no server
// forgetting what it acknowledged: a server that restarts empty, or whose clock is stepped, can lead to two holders.
// One server with appendonly and appendfsync always, or etcd, ZooKeeper or PostgreSQL, is the better choice. The tokens
// rise, unlike those of other implementations: a majority agrees on each token before it is used.
//
// NewRedlock does no I/O, and ctx is not used. It returns ErrInvalid if there are too few clients, if one of them is
// nil or is not for one server alone, or if an option cannot work; and ErrUnsupported if the options ask for a layout
// or for replicas, which Redlock does not have.
func NewRedlock(ctx context.Context, clients []rueidis.Client, opts *Options) (driver.Store, error) {
	r, err := newRedlock(clients, opts)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// fewestServers are those of which a majority can remain when one fails.
const fewestServers = 3

// newRedlock makes one store for each server. Of these stores, only the scripts, the keys and the record of requests in
// flight are used: a decision is made from the replies of all of them.
func newRedlock(clients []rueidis.Client, opts *Options) (*redlockStore, error) {
	if len(clients) < fewestServers {
		return nil, fmt.Errorf("%w: Redlock needs %d servers or more, not %d; for one use New", driver.ErrInvalid,
			fewestServers, len(clients))
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Layout == LayoutRedisson || o.Replicas > 0 || o.ForeignTurn != 0 {
		return nil, fmt.Errorf("%w: Redlock supports no other layouts, no replicas and no turns of foreign clients: it has no queue",
			driver.ErrUnsupported)
	}
	r := &redlockStore{majority: len(clients)/2 + 1}
	for _, c := range clients {
		s, err := newStore(c, &o)
		if err != nil {
			return nil, err
		}
		if s.topology != single {
			return nil, fmt.Errorf("%w: each client of a Redlock must connect to exactly one server", driver.ErrInvalid)
		}
		r.servers = append(r.servers, s)
	}
	r.pending = make([]pendingReleases, len(r.servers))
	r.clock = r.servers[0].clock
	r.life = driverutil.NewLifetime()
	r.info = r.servers[0].info
	r.info.Store = cmp.Or(o.Place, "redlock://")
	r.info.Kinds, r.info.Order, r.info.MaxHolders, r.info.MaxWaiters = []driver.Kind{driver.KindMutex}, driver.OrderNone, 1, 0
	// A majority agrees on each token, so tokens fall only if a majority forgets the last one.
	a := &r.info.Abilities
	a.SetWeight, a.NewestOnly, a.Permits, a.Ledger = false, false, false, false
	r.info.TokenRegression = "when a majority of the servers have lost their data, and the clocks of the servers are behind the one " +
		"that drew the last token"
	return r, nil
}

// Info returns what a Redlock promises.
func (r *redlockStore) Info() driver.Info { return r.info }

// Close ends the calls under way. Claims stay on the servers until their TTL expires. All servers' calls are ended
// first, and waited for afterwards, so that one that hangs does not delay the others.
func (r *redlockStore) Close() error {
	if !r.life.End() {
		return nil
	}
	for _, s := range r.servers { // so that the requests under way end
		s.life.End()
	}
	r.life.Wait()
	for _, s := range r.servers {
		s.life.Wait()
		if s.owned {
			s.client.Close()
		}
	}
	return nil
}

// maxSplitRetries is how often a claim that does not wait asks again if the servers are split: some granted it, others
// granted another claim, and maybe neither gets a majority. Without retries two such claims could refuse each other a
// free lock.
const maxSplitRetries = 3

// Acquire asks all servers at once, and holds the lock if a majority has granted it and some of the TTL is left then.
// It takes two rounds of requests: in the second, a majority agrees on the token.
// An attempt without a majority is given back on all servers before the next one, after a random pause, so that
// competing claims do not split the servers again and again.
func (r *redlockStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := c.Check(r.info); err != nil {
		return driver.Grant{}, err
	}
	switch {
	case c.ID == "":
		return driver.Grant{}, fmt.Errorf("%w: a claim needs an id", driver.ErrInvalid)
	case c.Kind != driver.KindMutex || c.Fair:
		return driver.Grant{}, driverutil.OnlyUnfairMutexes("of Redlock")
	}
	if err := r.servers[0].keys.checkName(c.Name); err != nil {
		return driver.Grant{}, err
	}
	// The retries end when no majority has replied for the unreachable timeout, counted from the last time that one
	// did.
	majorityReplied := r.clock.Now()
	for n := 0; ; n++ {
		// Each round counts its TTL from its own start.
		b := &round{redlock: r, claim: c, number: strconv.FormatInt(r.rounds.Add(1), 10), start: r.clock.Now()}
		g, err := b.acquire(ctx)
		if err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrClosed) {
			return g, r.addReason(ctx, c.Name, c.ID, err)
		}
		// The caller's context has ended, so nothing is given back here: the driver's client releases the claim then.
		if ctx.Err() != nil {
			return g, b.endedError(majorityReplied, ctx.Err())
		}
		b.giveBack(ctx)
		if b.finalErr != nil {
			return g, r.refuse(ctx, c, b.finalErr)
		}
		if b.replies >= r.majority {
			majorityReplied = r.clock.Now()
			if !c.Wait && len(b.holders) > 0 && n >= min(maxSplitRetries, b.granted*maxSplitRetries) {
				return g, r.refuse(ctx, c, &driver.HeldError{Holders: b.holders})
			}
		} else if r.clock.Since(majorityReplied) > driver.UnreachableTimeout(c.TTL) || !c.Wait && n > 2 {
			// No majority replies. A claim that waits retries for as long as with a single server, and one that does
			// not wait retries three times.
			return g, driverutil.Unresolved(&driver.SilentError{For: r.clock.Since(majorityReplied), Reason: b.denial,
				Err: fmt.Errorf("only %d of %d servers answer: %v", b.replies, len(r.servers), cmp.Or(b.denial, err))})
		}
		pause := rand.N(min(10*time.Millisecond<<min(n, 5), 150*time.Millisecond)) + time.Millisecond
		if err := r.servers[0].life.Sleep(ctx, pause); err != nil {
			if errors.Is(err, driver.ErrClosed) {
				return g, err
			}
			return g, b.endedError(majorityReplied, err)
		}
	}
}

// refuse returns the refusal of a claim. Its caller takes the claim for refused, but a request without a reply may
// still make it. So it is released, and if that fails while a majority may get such a request, the outcome is
// uncertain.
func (r *redlockStore) refuse(ctx context.Context, c driver.Claim, refusal error) error {
	late := r.countInFlight(c.ID)
	if late == 0 {
		return refusal
	}
	if err := r.Release(ctx, c, ""); late >= r.majority && err != nil && !errors.Is(err, driver.ErrLost) {
		return driverutil.Unresolved(refusal)
	}
	return refusal
}

// Release removes the claim from all servers. The claim was held if a majority may have had it. A minority proves
// nothing: its keys may expire some milliseconds after another claim got the lock.
func (r *redlockStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	if c.ID != "" && ref != "" && c.ID != ref || c.ID == "" && ref == "" {
		return &driver.LossError{Cause: driver.LossGone}
	}
	id, ttl := cmp.Or(c.ID, ref), max(c.TTL, driver.MinTTL)
	startedAt := time.Now()
	// By server, over all rounds: a server that had removed the claim in an earlier round finds none in the last one.
	released, unknown := map[int]bool{}, map[int]bool{}
	t, _, err := r.retryUntilMajority(ctx, ttl, func() (replyCounts, error) {
		t, err := r.releaseEverywhere(ctx, c.Name, id, ttl)
		for i := range r.servers {
			released[i] = released[i] || t.byServer[i] == replyDone
			unknown[i] = unknown[i] || t.outcomeUnknown[i]
		}
		return t, err
	})
	if err != nil {
		return err
	}
	return r.addReason(ctx, c.Name, id, r.releaseResult(t, released, unknown, isNoteExpired(startedAt)))
}

// Renew renews each grant on all servers. A grant is renewed if a majority says so. Nothing is batched: each grant
// needs its own count of replies.
func (r *redlockStore) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	var wg sync.WaitGroup
	for i := range grants {
		wg.Go(func() { done(i, r.renewGrant(ctx, &grants[i])) })
	}
	wg.Wait()
}

// renewGrant renews one grant. It is valid if a majority has renewed it before its TTL, counted from the start of the
// requests, less the clock drift, has passed. It is lost only if so many servers do not have it that no majority can be
// left; else the outcome is unknown, and the client retries. One note of a break is enough: a break acts on all
// servers.
func (r *redlockStore) renewGrant(ctx context.Context, g *driver.Grant) driver.Renewal {
	a := driver.Renewal{Since: r.clock.Now(), GrantedTTL: g.Claim.TTL}
	if r.life.Err() != nil {
		a.Err = driver.ErrClosed
		return a
	}
	keys, args := r.servers[0].mutexRenewArgs([]driver.Grant{*g}, []int{0})
	counts, lastErr := map[int64]int{}, error(nil)
	renewed, detachedTTL := 0, driver.MaxTTL
	// askServers gives each server a twentieth of the TTL that it is passed, within bounds (see serverTime). A renewal
	// may take longer than other requests, since its caller's context bounds it.
	const serverShare = 6
	q := serverScript{script: plainScripts.renew, keys: keys, args: args}
	err := r.askServers(ctx, serverShare*g.Claim.TTL, q, func(v serverReply) bool {
		if v.err != nil {
			lastErr = v.err
			return false
		}
		a, ok := readArray(v.reply, 1)
		if !ok || a[0].Error() != nil {
			return false
		}
		n := readNumber(a[0])
		counts[n]++
		if ttl, detached := detachedRenewal(n); detached {
			renewed++
			detachedTTL = min(detachedTTL, ttl)
		} else if n == renewDone || n == renewReleaseRequested {
			renewed++
		}
		return renewed == len(r.servers)
	})
	lost := counts[renewGone] + counts[renewTaken]
	switch minority := len(r.servers) - r.majority; {
	case err != nil && errors.Is(err, driver.ErrClosed):
		a.Err = err
	case counts[renewBroken]+counts[renewMarked] > 0:
		a.Err = r.addReason(ctx, g.Name, renewID(g),
			&driver.LossError{Cause: driver.LossBroken, StaysHeld: counts[renewMarked] >= r.majority})
	case renewed >= r.majority && r.clock.Since(a.Since) < a.GrantedTTL-drift(a.GrantedTTL):
		a.ReleaseRequested = counts[renewReleaseRequested] > 0
		if detachedTTL < driver.MaxTTL {
			a.GrantedTTL = detachedTTL - 2*time.Millisecond - detachedTTL/102 // without the drift that Detach has added
		}
	case lost > minority && counts[renewTaken] > 0:
		a.Err = &driver.LossError{Cause: driver.LossTaken}
	case lost > minority:
		a.Err = &driver.LossError{Cause: driver.LossGone}
	case err != nil:
		a.Err = driverutil.Unresolved(err)
	default:
		a.Err = driverutil.Unresolved(fmt.Errorf("%d of %d servers confirm it: %v", renewed, len(r.servers), lastErr))
	}
	return a
}

// Detach leaves the claim on all servers for as long as keep says. A majority must confirm it. The clock drift is added
// on the servers, so that the claim is held for at least keep by the client's clock.
func (r *redlockStore) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := checkKeep(keep); err != nil {
		return err
	}
	keys := r.servers[0].keys.allKeys(g.Name)
	ms := millisRoundedUp(keep + drift(keep))
	args := new(queueArgs).fill(r.servers[0], g.ID, strconv.FormatInt(g.Token, 10), strconv.FormatInt(ms, 10))
	q := serverScript{script: plainScripts.detach, keys: keys[:], args: args}
	t, _, err := r.retryUntilMajority(ctx, g.GrantedTTL,
		func() (replyCounts, error) { return r.countReplies(ctx, g.GrantedTTL, q) })
	switch {
	case err != nil:
		return err
	case t.byReply[detachBroken] > 0:
		return r.addReason(ctx, g.Name, renewID(&g), &driver.LossError{Cause: driver.LossBroken})
	case t.byReply[replyDone] >= r.majority:
		return nil
	case t.byReply[detachTaken] > 0:
		return &driver.LossError{Cause: driver.LossTaken}
	}
	return &driver.LossError{Cause: driver.LossGone}
}

// breakTTL takes the place of the TTL, which an operator's call does not know. It only decides how long a server may
// take to reply.
const breakTTL = 10 * time.Second

// Break acts on all servers. With force, one removal in an earlier round is enough: the later rounds find nothing left
// there. All servers keep the reason.
func (r *redlockStore) Break(ctx context.Context, name, ref string, b driver.Break) error {
	if err := checkBreak(name, ref, b, r.info); err != nil {
		return err
	}
	keys := r.servers[0].keys.allKeys(name)
	args := new(queueArgs).fill(r.servers[0], ref, strconv.Itoa(int(b.Mode)), b.Reason)
	q := serverScript{script: plainScripts.breakClaim, keys: keys[:], args: args}
	t, done, err := r.retryUntilMajority(ctx, driver.MaxTTL,
		func() (replyCounts, error) { return r.countReplies(ctx, breakTTL, q) })
	switch {
	case err != nil:
		return err
	case t.byReply[replyDone] >= r.majority, done && b.Mode == driver.BreakForce:
		return nil
	case t.byReply[breakForeign] > 0:
		return errForeign
	case t.byReply[breakNoLock] > 0:
		return errNoLock
	}
	return &driver.LossError{Cause: driver.LossGone}
}
