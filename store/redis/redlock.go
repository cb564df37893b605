package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// Redlock is locks on a majority of N independent Redis servers, as the Redis documentation describes them. It carries
// the plain mutex and the election, and refuses the rest: which claims stand, and in which order, is known to no server
// alone, and two majorities may have been asked in two orders.
//
// It promises less than it seems to. It counts on the servers' clocks running alike and on no server forgetting what it
// acknowledged: one that restarts empty, or whose clock is stepped, can make two holders. One server with appendonly and
// appendfsync always, or etcd, ZooKeeper or PostgreSQL, is the better choice. Its tokens rise, which those of other
// implementations do not: each is agreed on by a majority before it is used.
type Redlock struct {
	servers      []*Store
	majority     int
	opts         Options
	info         driver.Info
	clock        driver.Clock
	life         context.Context
	end          context.CancelFunc
	inBackground sync.WaitGroup
	mu           sync.Mutex        // held to add to working while life goes on
	pending      []pendingReleases // by server, guarded by mu: what they are still to be told
	rounds       atomic.Int64
}

var (
	_ driver.Store    = (*Redlock)(nil)
	_ driver.Detacher = (*Redlock)(nil)
)

// agreedFlag marks a record whose token a majority has agreed on.
const agreedFlag = "s"

var agreeTokenScript = newScript(tokenText)

// NewRedlock makes a store of clients of three or more servers that know nothing of one another; an odd number is best.
// The clients stay open when it is closed. Its first use in a process logs what speaks against it.
func NewRedlock(clients []rueidis.Client, opts *Options) (*Redlock, error) {
	if len(clients) < 3 {
		return nil, fmt.Errorf("%w: Redlock needs 3 servers or more, not %d; for one use New", driver.ErrInvalid, len(clients))
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Layout == LayoutRedisson || o.Replicas > 0 {
		return nil, fmt.Errorf("%w: Redlock knows neither other layouts nor replicas", driver.ErrUnsupported)
	}
	r := &Redlock{majority: len(clients)/2 + 1}
	for _, c := range clients {
		s, err := New(c, &o)
		if err != nil {
			return nil, err
		}
		if s.topology != single {
			return nil, fmt.Errorf("%w: each client of a Redlock is for one server alone", driver.ErrInvalid)
		}
		r.servers = append(r.servers, s)
	}
	r.pending = make([]pendingReleases, len(r.servers))
	r.opts, r.clock = r.servers[0].opts, r.servers[0].clock
	r.life, r.end = context.WithCancel(context.Background())
	r.info = r.servers[0].info
	r.info.Store = o.Place
	if o.Place == "" {
		r.info.Store = "redlock://"
	}
	r.info.Kinds, r.info.Order, r.info.MaxHolders, r.info.MaxWaiters = []driver.Kind{driver.KindMutex}, driver.OrderNone, 1, 0
	r.info.TokenRegression = "when a majority of the servers have lost their data, and the clocks of the servers are behind the one that drew the last token"
	warnAboutRedlock()
	return r, nil
}

var warnAboutRedlock = sync.OnceFunc(func() {
	slog.Warn("Redlock is not recommended: it counts on the clocks of all its servers, and on none of them forgetting a lock when it restarts. " +
		"One Redis with appendonly yes and appendfsync always promises more, and etcd, ZooKeeper or PostgreSQL much more. Fence what must never be done twice.")
})

func openRedlockURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	p, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	return openRedlock(ctx, p)
}

// openRedlock makes a store with clients of its own. A minority of the servers may be away at that.
func openRedlock(ctx context.Context, p *storeURL) (driver.Store, error) {
	clients := make([]rueidis.Client, len(p.client.InitAddress))
	errs := make([]error, len(clients))
	closeAll := func() {
		for _, c := range clients {
			if c != nil {
				c.Close()
			}
		}
	}
	err := retryConnect(ctx, func() error {
		var wg sync.WaitGroup
		for i, addr := range p.client.InitAddress {
			if clients[i] == nil {
				o := p.client
				o.InitAddress = []string{addr}
				wg.Go(func() { clients[i], errs[i] = connectClient(ctx, o) })
			}
		}
		wg.Wait()
		return replaceUnreachable(clients, errs, p)
	})
	if err != nil {
		closeAll()
		return nil, err
	}
	r, err := NewRedlock(clients, &p.opts)
	if err != nil {
		closeAll()
		return nil, err
	}
	for _, s := range r.servers {
		s.owned = true
	}
	return r, nil
}

// replaceUnreachable puts something in the place of the clients of servers that are away, if they are a minority. Servers that
// answer and refuse are not away.
func replaceUnreachable(clients []rueidis.Client, errs []error, p *storeURL) error {
	var living rueidis.Client
	away := 0
	for i, c := range clients {
		switch {
		case c != nil:
			living = c
		case errors.Is(errs[i], driver.ErrDenied), errors.Is(errs[i], driver.ErrUnsupported):
			return errs[i]
		default:
			away++
		}
	}
	if away > (len(clients)-1)/2 {
		return errors.Join(errs...)
	}
	for i, c := range clients {
		if c == nil {
			o := p.client
			o.InitAddress = []string{p.client.InitAddress[i]}
			clients[i] = &lazyClient{Client: living, options: o}
		}
	}
	return nil
}

// Info tells what a Redlock promises.
func (r *Redlock) Info() driver.Info { return r.info }

// Close ends the calls under way.
func (r *Redlock) Close() error {
	r.mu.Lock()
	closed := r.life.Err() != nil
	r.end()
	r.mu.Unlock()
	if closed {
		return nil
	}
	for _, s := range r.servers { // so that what is under way ends
		s.end(driver.ErrClosed)
	}
	r.inBackground.Wait()
	var errs []error
	for _, s := range r.servers {
		s.inBackground.Wait()
		if s.owned {
			s.client.Close()
		}
	}
	return errors.Join(errs...)
}

// drift is how much two clocks may come apart in a TTL, and a little for expiry being counted in milliseconds.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// serverTime is how long one server is given: little beside the TTL, so that one that is away costs little of it.
func serverTime(ttl time.Duration) time.Duration {
	return min(max(ttl/20, 200*time.Millisecond), 500*time.Millisecond)
}

// serverReply is one server's answer.
type serverReply struct {
	server int
	reply  rueidis.RedisMessage
	err    error
}

// askServers makes one step on the servers that which names, at once, and hands each answer to hear as it comes. When hear has
// heard enough the others have as long again to answer: the more servers know of a claim, the more it can bear. What is
// still under way then goes on for as long as a server is given.
func (r *Redlock) askServers(ctx context.Context, which []int, ttl time.Duration, st *script, keys, args []string, makes string, hear func(serverReply) (enough bool)) error {
	if err := ctx.Err(); err != nil {
		return err // nothing is sent: the requests would not end with ctx
	}
	votes := make(chan serverReply, len(which))
	r.mu.Lock()
	if r.life.Err() != nil {
		r.mu.Unlock()
		return driver.ErrClosed
	}
	for _, i := range which {
		s := r.servers[i]
		if makes != "" {
			s.addInFlight(makes) // until it has answered
		}
		r.inBackground.Go(func() {
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverTime(ttl))
			defer cancel()
			m, err := s.runScript(bounded, st, keys, args)
			if _, reply := rueidis.IsRedisErr(err); makes != "" && (err == nil || reply || isUnsent(err)) {
				s.removeInFlight(makes)
			}
			votes <- serverReply{i, m, err}
		})
	}
	r.mu.Unlock()
	start := time.Now()
	var grace <-chan time.Time
	for range which {
		select {
		case v := <-votes:
			if hear(v) && grace == nil {
				grace = time.After(min(2*time.Since(start)+time.Millisecond, serverTime(ttl)/4))
			}
		case <-grace:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-r.life.Done():
			return driver.ErrClosed
		}
	}
	return nil
}

func (r *Redlock) allServers() []int {
	which := make([]int, len(r.servers))
	for i := range which {
		which[i] = i
	}
	return which
}

// Acquire asks all servers at once, and holds the lock if a majority has granted it and there is time left of it then. It
// takes two rounds: in the second a majority agrees on the token.
func (r *Redlock) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := c.Check(r.info); err != nil {
		return driver.Grant{}, err
	}
	switch {
	case c.ID == "":
		return driver.Grant{}, fmt.Errorf("%w: a claim needs an id", driver.ErrInvalid)
	case c.Kind != driver.KindMutex || c.Fair:
		return driver.Grant{}, fmt.Errorf("%w: Redlock carries the plain mutex only", driver.ErrUnsupported)
	}
	if err := r.servers[0].keys.checkName(c.Name); err != nil {
		return driver.Grant{}, err
	}
	answered := r.clock.Now()
	for n := 0; ; n++ {
		b := &round{redlock: r, claim: c, number: strconv.FormatInt(r.rounds.Add(1), 10), start: r.clock.Now()}
		g, err := b.acquire(ctx)
		if err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrClosed) {
			return g, err
		}
		if ctx.Err() != nil {
			return g, b.endedError(ctx.Err())
		}
		b.giveBack(ctx)
		if b.finalErr != nil {
			return g, b.finalErr
		}
		if b.answers >= r.majority {
			answered = r.clock.Now()
			if !c.Wait && len(b.holders) > 0 && n >= min(splitTries, int(b.granted)*splitTries) {
				if r.hasInFlight(c.ID) {
					_ = r.Release(ctx, c, "") // a request that had no answer may yet make the claim, which its client thinks refused
				}
				return g, &driver.HeldError{Holders: b.holders}
			}
		} else if r.clock.Since(answered) > driver.UnreachableTimeout(c.TTL) || !c.Wait && n > 2 {
			return g, uncertainError(fmt.Errorf("only %d of %d servers answer: %v", b.answers, len(r.servers), cmp.Or(b.denial, err)))
		}
		if err := r.servers[0].sleepOrClosed(ctx, rand.N(min(10*time.Millisecond<<min(n, 5), 150*time.Millisecond))+time.Millisecond); err != nil {
			if errors.Is(err, driver.ErrClosed) {
				return g, err
			}
			return g, b.endedError(err)
		}
	}
}

// splitTries is how often a claim that does not wait asks again when votes were split: when some servers granted it, and
// others had granted another that may not get its majority either.
const splitTries = 3

// round is one attempt to get a majority.
type round struct {
	redlock  *Redlock
	claim    driver.Claim
	number   string // larger than that of every ballot before
	start    driver.Instant
	answers  int
	granted  int
	tokens   map[int]int64 // by server
	agreed   map[int64]int // tokens that servers say a majority has agreed on before
	holders  []driver.ClaimInfo
	refused  int
	broken   bool
	denied   int   // how many servers deny access
	denial   error // what one of them says
	finalErr error
}

func (b *round) endedError(err error) error {
	if len(b.holders) > 0 {
		return fmt.Errorf("%w: %w; %w", driver.ErrUncertain, err, &driver.HeldError{Holders: b.holders})
	}
	return uncertainError(err)
}

var errNoMajority = errors.New("no majority of the servers granted the lock")

func (b *round) acquire(ctx context.Context) (g driver.Grant, err error) {
	r, c := b.redlock, b.claim
	b.tokens, b.agreed = map[int]int64{}, map[int64]int{}
	lock := r.servers[0].keys.lockKey(c.Name)
	keys := []string{lock, sideKey("", lock)}
	args := tryArgs(&c)
	if err := r.askServers(ctx, r.allServers(), c.TTL, plainScripts.acquire, keys, append(args[:], b.number), c.ID, b.countReply); err != nil {
		return g, err
	}
	switch {
	case b.broken:
		return g, &driver.LossError{Cause: driver.LossBroken}
	case b.finalErr != nil:
		return g, b.finalErr
	case b.granted < r.majority:
		return g, errNoMajority
	}
	token, err := b.agreeOnToken(ctx, keys)
	if err != nil {
		return g, err
	}
	if left := c.TTL - r.clock.Since(b.start) - drift(c.TTL); left <= 0 {
		return g, fmt.Errorf("a majority granted the lock too late: %w", errNoMajority)
	}
	return driver.Grant{Claim: c, Token: token, Since: b.start, GrantedTTL: c.TTL, Ref: c.ID}, nil
}

// countReply counts an answer of the first round. It has heard enough when the outcome is certain.
func (b *round) countReply(v serverReply) bool {
	if v.err != nil {
		if f := b.redlock.servers[v.server].finalError(v.err); errors.Is(f, driver.ErrDenied) {
			b.denial = f
			if b.denied++; b.denied > len(b.redlock.servers)-b.redlock.majority { // fewer are as good as away
				b.finalErr = f
			}
		}
		return false
	}
	if v.reply.IsInt64() && readNumber(v.reply) > 0 {
		b.answers++
		b.granted++
		b.tokens[v.server] = readNumber(v.reply)
		return b.granted >= b.redlock.majority
	}
	a, ok := readArray(v.reply, 1)
	if !ok {
		return false
	}
	b.answers++
	switch readNumber(a[0]) {
	case replyGranted: // it stood
		if len(a) < 2 {
			b.answers--
			return false
		}
		b.granted++
		token := readNumber(a[1])
		b.tokens[v.server] = token
		if len(a) > 2 && strings.Contains(readString(a[2]), agreedFlag) {
			b.agreed[token]++
		}
		return b.granted >= b.redlock.majority
	case replyBroken:
		b.broken = true
	case replyHeld:
		b.refused++
		for _, h := range readHolders(a[min(4, len(a)):]) {
			if len(b.holders) == 0 {
				b.holders = append(b.holders, h)
			}
		}
	case replyUseQueue:
		b.refused++
		b.holders = append(b.holders, driver.ClaimInfo{Foreign: true, Owner: "a line on one server", Weight: 1})
	}
	return b.refused > len(b.redlock.servers)-b.redlock.majority && b.granted == 0 && b.answers >= b.redlock.majority
}

// agreeOnToken is the second round. The token is larger than all that the majority has seen, and any later majority shares a
// server with this one: so it will see this token, and draw a larger one. It is written to all servers, since a minority
// may have granted the lock late.
func (b *round) agreeOnToken(ctx context.Context, keys []string) (int64, error) {
	for token, n := range b.agreed {
		if n >= b.redlock.majority {
			return token, nil // asked for again
		}
	}
	var token int64
	for _, t := range b.tokens {
		token = max(token, t)
	}
	for range 8 {
		token++
		taken, largest := 0, token
		err := b.redlock.askServers(ctx, b.redlock.allServers(), b.claim.TTL, agreeTokenScript, keys, []string{b.claim.ID, strconv.FormatInt(token, 10)}, "", func(v serverReply) bool {
			a, ok := readArray(v.reply, 1)
			switch {
			case v.err != nil || !ok:
			case readNumber(a[0]) == 1:
				taken++
			case readNumber(a[0]) == 2 && len(a) > 1:
				largest = max(largest, readNumber(a[1]))
			}
			return taken >= b.redlock.majority
		})
		if err != nil {
			return 0, err
		}
		if taken >= b.redlock.majority {
			return token, nil
		}
		if largest == token {
			break // servers are away, or the claim is
		}
		token = largest
	}
	return 0, fmt.Errorf("no majority agreed on a token: %w", errNoMajority)
}

// giveBack releases what the ballot may have got, everywhere, also where the answer was lost. It may come late, and then
// takes nothing from a later ballot.
func (b *round) giveBack(ctx context.Context) {
	r, c := b.redlock, &b.claim
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverTime(c.TTL))
	defer cancel()
	keys := r.servers[0].keys.allKeys(c.Name)
	_, _ = r.countReplies(bounded, c.TTL, plainScripts.releaseQueued, keys[:], new(queueArgs).fill(r.servers[0], c.ID, "", b.number))
}

// replyCounts counts answers of a step that each server gives a number to.
type replyCounts struct {
	answers        int
	byServer       map[int]int64 // what each server has answered
	outcomeUnknown map[int]bool  // of which servers the outcome is not known
	byReply        map[int64]int
	err            error
}

func (r *Redlock) countReplies(ctx context.Context, ttl time.Duration, st *script, keys, args []string) (replyCounts, error) {
	t := replyCounts{byReply: map[int64]int{}, byServer: map[int]int64{}, outcomeUnknown: map[int]bool{}}
	for i := range r.servers {
		t.outcomeUnknown[i] = true
	}
	err := r.askServers(ctx, r.allServers(), ttl, st, keys, args, "", func(v serverReply) bool {
		if v.err != nil {
			_, refused := rueidis.IsRedisErr(v.err)
			t.err, t.outcomeUnknown[v.server] = v.err, !refused && !isUnsent(v.err)
			return false
		}
		t.answers++
		t.outcomeUnknown[v.server] = false
		t.byServer[v.server] = readNumber(v.reply)
		t.byReply[readNumber(v.reply)]++
		return false
	})
	return t, err
}

// releaseEverywhere removes a claim everywhere, for good: where a request of its Acquire may still be under way all are told to refuse
// that.
func (r *Redlock) releaseEverywhere(ctx context.Context, name, id string, ttl time.Duration) (replyCounts, error) {
	keys := r.servers[0].keys.allKeys(name)
	bar := ""
	if r.hasInFlight(id) {
		bar = "1"
	}
	args := new(queueArgs).fill(r.servers[0], id, bar)
	t, err := r.countReplies(ctx, ttl, plainScripts.releaseQueued, keys[:], args)
	for i, s := range r.servers {
		_, answered := t.byServer[i]
		switch {
		case answered:
			s.forgetInFlight(id)
		case err == nil && t.answers >= r.majority:
			r.scheduleRelease(i, id, pendingRelease{name, bar, ttl, time.Now().Add(ttl)})
		}
	}
	return t, err
}

// hasInFlight reports whether a request to make the claim may still be under way to a server.
func (r *Redlock) hasInFlight(id string) bool {
	return slices.ContainsFunc(r.servers, func(s *Store) bool { return s.isInFlight(id) })
}

// pendingReleases is what a server that is away is still to be told: which claims have left. What it still grants would be missing from
// the next one's majority.
type pendingReleases struct {
	releases map[string]pendingRelease // by claim id
	working  bool                      // somebody is telling it
}

// pendingRelease is a claim's leaving that a server has not heard of.
type pendingRelease struct {
	name, tombstone string
	ttl             time.Duration
	until           time.Time // its TTL has ended it by then
}

// maxPendingReleases bounds how many leaves are kept for a server. What is beyond ends there by its TTL.
const maxPendingReleases = 4096

// scheduleRelease has a server that is away told when it is back, until the claim has ended there by its TTL.
func (r *Redlock) scheduleRelease(server int, id string, l pendingRelease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	late := &r.pending[server]
	switch {
	case r.life.Err() != nil:
		return
	case len(late.releases) >= maxPendingReleases:
		r.servers[server].forgetInFlight(id)
		return
	case late.releases == nil:
		late.releases = map[string]pendingRelease{}
	}
	late.releases[id] = l
	if !late.working {
		late.working = true
		r.inBackground.Go(func() { r.sendPendingReleases(server) })
	}
}

// sendPendingReleases tells a server what it has missed, one leave at a time: so while it is away it is asked twice a second, however many
// there are.
func (r *Redlock) sendPendingReleases(server int) {
	s := r.servers[server]
	for s.sleepOrClosed(r.life, reconnectInterval/2) == nil {
		for {
			id, l, left := r.nextPendingRelease(server)
			if !left {
				return
			}
			if !r.sendRelease(s, id, l) {
				break // it is still away
			}
			r.mu.Lock()
			delete(r.pending[server].releases, id)
			r.mu.Unlock()
			s.forgetInFlight(id)
		}
	}
}

// nextPendingRelease gives a leave that a server is still to be told. With none left its teller ends.
func (r *Redlock) nextPendingRelease(server int) (string, pendingRelease, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	late := &r.pending[server]
	for id, l := range late.releases {
		if time.Now().Before(l.until) {
			return id, l, true
		}
		delete(late.releases, id)
		r.servers[server].forgetInFlight(id)
	}
	late.working = false
	return "", pendingRelease{}, false
}

// sendRelease reports whether a server has answered.
func (r *Redlock) sendRelease(s *Store, id string, l pendingRelease) bool {
	ctx, cancel := context.WithTimeout(r.life, serverTime(l.ttl))
	defer cancel()
	keys := s.keys.allKeys(l.name)
	_, err := s.runScript(ctx, plainScripts.releaseQueued, keys[:], new(queueArgs).fill(s, id, l.tombstone))
	_, reply := rueidis.IsRedisErr(err)
	return err == nil || reply
}

// retryUntilMajority repeats a step until a majority has answered, for as long as patience allows.
func (r *Redlock) retryUntilMajority(ctx context.Context, ttl time.Duration, step func() (replyCounts, error)) (t replyCounts, again bool, err error) {
	start := r.clock.Now()
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return t, again, uncertainError(ctx.Err())
		}
		t, err = step()
		switch {
		case err == nil && t.answers >= r.majority:
			return t, again, nil
		case errors.Is(err, driver.ErrClosed):
			return t, again, err
		case err != nil:
			return t, again, uncertainError(err)
		case r.clock.Since(start) > driver.UnreachableTimeout(ttl):
			return t, again, uncertainError(fmt.Errorf("only %d of %d servers answer: %w", t.answers, len(r.servers), explainError(t.err)))
		}
		if f := r.servers[0].finalError(t.err); f != nil {
			return t, again, f
		}
		again = again || t.byReply[1] > 0
		if err := r.servers[0].sleepOrClosed(ctx, rand.N(10*time.Millisecond<<min(n, 5))); err != nil {
			if errors.Is(err, driver.ErrClosed) {
				return t, again, err
			}
			return t, again, uncertainError(err)
		}
	}
}

// Release removes the claim on all servers. It stood if a majority may have had it: the others' keys can end some
// milliseconds after the lock was another's.
func (r *Redlock) Release(ctx context.Context, c driver.Claim, ref string) error {
	if c.ID != "" && ref != "" && c.ID != ref || c.ID == "" && ref == "" {
		return &driver.LossError{Cause: driver.LossGone}
	}
	id := c.ID
	if id == "" {
		id = ref
	}
	begun := time.Now()
	gave, lost := map[int]bool{}, map[int]bool{} // by server: it has said so, or may have done so unheard, in any round
	t, _, err := r.retryUntilMajority(ctx, max(c.TTL, driver.MinTTL), func() (replyCounts, error) {
		t, err := r.releaseEverywhere(ctx, c.Name, id, max(c.TTL, driver.MinTTL))
		for i := range r.servers {
			gave[i] = gave[i] || t.byServer[i] == 1
			lost[i] = lost[i] || t.outcomeUnknown[i]
		}
		return t, err
	})
	if err != nil {
		return err
	}
	return r.releaseResult(t, gave, lost, isNoteExpired(begun))
}

// releaseResult is the outcome of a release, of what the servers say last and what they said before. over says that notes of a break may
// have been removed.
func (r *Redlock) releaseResult(t replyCounts, gave, lost map[int]bool, over bool) error {
	given, possible, unsure := 0, 0, 0
	for i := range r.servers {
		answer, answered := t.byServer[i]
		switch {
		case gave[i]:
			given++
			possible++
		case !answered, answer == 0 && lost[i] && !over:
			possible++
		case (answer == replyMaybeBroken || answer == 0) && lost[i]:
			unsure++
		}
	}
	switch {
	case given >= r.majority:
		return nil
	case t.byReply[replyBroken] > 0:
		return &driver.LossError{Cause: driver.LossBroken}
	case possible >= r.majority:
		return nil
	case possible+unsure >= r.majority:
		return uncertainError(errMaybeBroken)
	}
	return &driver.LossError{Cause: driver.LossGone}
}

// Renew renews each grant on all servers. It stands if a majority says so.
func (r *Redlock) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	var wg sync.WaitGroup
	for i := range grants {
		wg.Go(func() { done(i, r.renewGrant(ctx, &grants[i])) })
	}
	wg.Wait()
}

func (r *Redlock) renewGrant(ctx context.Context, g *driver.Grant) driver.Renewal {
	a := driver.Renewal{Since: r.clock.Now(), GrantedTTL: g.Claim.TTL}
	if r.life.Err() != nil {
		a.Err = driver.ErrClosed
		return a
	}
	keys, args := r.servers[0].mutexRenewArgs([]driver.Grant{*g}, []int{0})
	by, last := map[int64]int{}, error(nil)
	standing, ttl := 0, driver.MaxTTL
	patience := 6 * g.Claim.TTL // of which each server gets a part; the caller's context is the bound
	err := r.askServers(ctx, r.allServers(), patience, plainScripts.renew, keys, args, "", func(v serverReply) bool {
		if v.err != nil {
			last = v.err
			return false
		}
		if a, ok := readArray(v.reply, 1); ok && a[0].Error() == nil {
			n := readNumber(a[0])
			by[n]++
			if n == 1 || n == 3 || n >= detachedTTL {
				standing++
			}
			if n >= detachedTTL {
				ttl = min(ttl, millis(n-detachedTTL))
			}
		}
		return standing == len(r.servers)
	})
	switch minority := len(r.servers) - r.majority; {
	case err != nil && errors.Is(err, driver.ErrClosed):
		a.Err = err
	case by[-2] > 0:
		a.Err = &driver.LossError{Cause: driver.LossBroken}
	case standing >= r.majority && r.clock.Since(a.Since) < a.GrantedTTL-drift(a.GrantedTTL):
		a.ReleaseRequested = by[3] > 0
		if ttl < driver.MaxTTL {
			a.GrantedTTL = ttl - 2*time.Millisecond - ttl/102 // Detach has added the drift
		}
	case by[0]+by[-1] > minority && by[-1] > 0:
		a.Err = &driver.LossError{Cause: driver.LossTaken}
	case by[0]+by[-1] > minority:
		a.Err = &driver.LossError{Cause: driver.LossGone}
	case err != nil:
		a.Err = uncertainError(err)
	default:
		a.Err = uncertainError(fmt.Errorf("%d of %d servers confirm it: %v", standing, len(r.servers), last))
	}
	return a
}

// Detach leaves the claim standing on a majority.
func (r *Redlock) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if keep <= 0 || keep > driver.MaxTTL {
		return fmt.Errorf("%w: a claim can be left standing for up to %v, not %v", driver.ErrInvalid, driver.MaxTTL, keep)
	}
	keys := r.servers[0].keys.allKeys(g.Name)
	ms := (keep + drift(keep) + time.Millisecond - 1).Milliseconds()
	args := new(queueArgs).fill(r.servers[0], g.ID, strconv.FormatInt(g.Token, 10), strconv.FormatInt(ms, 10))
	t, _, err := r.retryUntilMajority(ctx, g.GrantedTTL, func() (replyCounts, error) {
		return r.countReplies(ctx, g.GrantedTTL, plainScripts.detach, keys[:], args)
	})
	switch {
	case err != nil:
		return err
	case t.byReply[-2] > 0:
		return &driver.LossError{Cause: driver.LossBroken}
	case t.byReply[1] >= r.majority:
		return nil
	case t.byReply[-1] > 0:
		return &driver.LossError{Cause: driver.LossTaken}
	}
	return &driver.LossError{Cause: driver.LossGone}
}

// Break acts on all servers.
func (r *Redlock) Break(ctx context.Context, name, ref string, mode driver.BreakMode) error {
	if ref == "" || mode < driver.BreakGraceful || mode > driver.BreakRequestRelease {
		return fmt.Errorf("%w: a break needs a ref that Inspect gave and a known mode", driver.ErrInvalid)
	}
	if err := driver.CheckName(name, r.info); err != nil {
		return err
	}
	keys := r.servers[0].keys.allKeys(name)
	args := new(queueArgs).fill(r.servers[0], ref, strconv.Itoa(int(mode)))
	t, again, err := r.retryUntilMajority(ctx, driver.MaxTTL, func() (replyCounts, error) {
		return r.countReplies(ctx, 10*time.Second, plainScripts.breakClaim, keys[:], args)
	})
	switch {
	case err != nil:
		return err
	case t.byReply[1] >= r.majority, again && mode == driver.BreakForce:
		return nil
	case t.byReply[-1] > 0:
		return errForeign
	case t.byReply[-2] > 0:
		return errNoLock
	}
	return &driver.LossError{Cause: driver.LossGone}
}

// Inspect asks all servers, and shows who stands on a majority of them.
func (r *Redlock) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	if err := driver.CheckName(name, r.info); err != nil {
		return driver.Lock{}, err
	}
	keys := r.servers[0].keys.allKeys(name)
	var locks []serverLock
	_, _, err := r.retryUntilMajority(ctx, 2*time.Second, func() (replyCounts, error) {
		locks = nil
		t := replyCounts{}
		err := r.askServers(ctx, r.allServers(), 10*time.Second, plainScripts.inspect, keys[:], nil, "", func(v serverReply) bool {
			if v.err != nil {
				t.err = v.err
				return false
			}
			if view, ok := readLockView(v.reply); ok {
				if l, err := view.toLock(name); err == nil {
					locks = append(locks, serverLock{l, strings.Contains(view.flags, agreedFlag)})
					t.answers++
				}
			}
			return false
		})
		return t, err
	})
	if err != nil {
		return driver.Lock{}, err
	}
	return r.mergeLocks(name, locks), nil
}

// serverLock is a lock as one server shows it, and whether a majority has agreed on its holder's token.
type serverLock struct {
	driver.Lock
	agreed bool
}

func (r *Redlock) mergeLocks(name string, locks []serverLock) driver.Lock {
	merged := driver.Lock{Name: name}
	count, of := map[string]int{}, map[string]driver.ClaimInfo{}
	tokens := map[string]int64{}
	for _, l := range locks {
		merged.Token = max(merged.Token, l.Token)
		for _, h := range l.Holders {
			count[h.Ref]++
			if was, ok := of[h.Ref]; ok {
				h.ReleaseRequested, h.Broken, h.Detached = h.ReleaseRequested || was.ReleaseRequested, h.Broken || was.Broken, h.Detached || was.Detached
			}
			if l.agreed {
				tokens[h.Ref] = h.Token
			}
			of[h.Ref] = h
		}
	}
	for ref, n := range count {
		if h := of[ref]; n >= r.majority {
			h.Token = tokens[ref]
			merged.Holders = append(merged.Holders, h)
			merged.Kind, merged.Limit = driver.KindMutex, 1
			if h.Token > 0 {
				merged.Token = h.Token
			}
		}
	}
	merged.Revision = strconv.FormatInt(merged.Token, 10)
	for _, h := range merged.Holders {
		merged.Revision += fmt.Sprintf(" %s%v%v%v", h.Ref, h.ReleaseRequested, h.Broken, h.Detached)
	}
	return merged
}
