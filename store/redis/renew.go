package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// maxRenewBatch is how many mutexes one script renews. Redis runs one script at a time, and all other clients wait
// meanwhile. 32 renewals take about 100 us, which others do not notice, and save most of the cost of single requests.
const maxRenewBatch = 32

// Renew sends all renewals at once. Mutexes are renewed many per script, and all scripts are sent in one write to the
// socket (redis.io: "Redis pipelining"). In a Cluster each grant has a request of its own: the keys of two locks are in
// two slots, which one script may not use, and a node that hangs must not delay the replies of the others. Nothing is
// retried: the client does that, and knows how long a retry is of use.
func (s *store) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	if s.life.Err() != nil {
		for i := range grants {
			done(i, driver.Renewal{Err: driver.ErrClosed})
		}
		return
	}
	r := renewCall{store: s, grants: grants, done: done}
	defer r.broken.Wait()
	if s.topology == cluster {
		r.sendEach(ctx, r.makeBatches(1))
		return
	}
	if batches := r.makeBatches(maxRenewBatch); len(batches) > 0 {
		r.sendTogether(ctx, batches)
	}
}

// renewCall is one call of Renew.
type renewCall struct {
	store  *store
	grants []driver.Grant
	done   func(int, driver.Renewal)
	broken sync.WaitGroup // of the grants that operators broke; the answers of the others do not wait for them
}

// renewBatch is one script that renews some of a call's grants.
type renewBatch struct {
	which      []int // indexes of the call's grants
	script     *script
	keys, args []string
}

// makeBatches puts up to size mutexes into a batch. Each shared grant gets a batch of its own, because its script works
// on one lock.
func (r *renewCall) makeBatches(size int) []renewBatch {
	s := r.store
	mutexes, batches := make([]int, 0, len(r.grants)), make([]renewBatch, 0, len(r.grants)/size+1)
	for i := range r.grants {
		if s.scripts.renewShared == nil || !isShared(&r.grants[i]) {
			mutexes = append(mutexes, i)
			continue
		}
		st, keys, args := s.renewScriptFor(&r.grants[i])
		batches = append(batches, renewBatch{[]int{i}, st, keys, args})
	}
	for len(mutexes) > 0 {
		which := mutexes[:min(size, len(mutexes))]
		mutexes = mutexes[len(which):]
		keys, args := s.mutexRenewArgs(r.grants, which)
		batches = append(batches, renewBatch{which, s.scripts.renew, keys, args})
	}
	return batches
}

// sendEach sends each batch as a request of its own, and reports each reply as it arrives.
func (r *renewCall) sendEach(ctx context.Context, batches []renewBatch) {
	var all sync.WaitGroup
	for _, b := range batches {
		all.Go(func() { r.sendOne(ctx, b) })
	}
	all.Wait()
}

// sendOne sends a batch. If the server does not know the script, this sends its text.
func (r *renewCall) sendOne(ctx context.Context, b renewBatch) {
	s, since := r.store, r.store.clock.Now()
	if s.opts.Replicas > 0 {
		m, unconfirmed, err := s.runConfirmed(ctx, b.script, b.keys, b.args)
		r.report(ctx, b.which, m, unconfirmed, err, since)
		return
	}
	m, err := s.runScript(ctx, b.script, b.keys, b.args)
	r.report(ctx, b.which, m, nil, err, since)
}

// sendTogether sends all batches in one write. A server that does not know a script refuses all its batches. These are
// sent again one after the other: the first of them brings the text, and the others find it.
func (r *renewCall) sendTogether(ctx context.Context, batches []renewBatch) {
	s := r.store
	commands := make([]rueidis.Completed, len(batches))
	for i, b := range batches {
		commands[i] = b.script.buildCommand(s.client, b.keys, b.args)
	}
	since := s.clock.Now()
	var replies []rueidis.RedisResult
	var unconfirmed, err error
	if s.opts.Replicas > 0 {
		replies, unconfirmed, err = s.sendConfirmed(ctx, commands...)
	} else {
		replies, err = runAsync(ctx, s,
			func() ([]rueidis.RedisResult, error) { return s.client.DoMulti(ctx, commands...), nil })
	}
	if err != nil { // the call's context or the store has ended before the replies came
		s.linkUncertain.Store(true)
		for _, b := range batches {
			r.report(ctx, b.which, rueidis.RedisMessage{}, nil, err, since)
		}
		return
	}
	for i, reply := range replies {
		m, err := reply.ToMessage()
		s.trackLink(err)
		if isNoScript(err) {
			r.sendOne(ctx, batches[i])
		} else {
			r.report(ctx, batches[i].which, m, unconfirmed, err, since)
		}
	}
}

// report passes the reply to one batch on to its grants. since is when the request began: each renewed grant is trusted
// for its TTL from then, not from the reply, because the server started the TTL at some time in between. A renewal that
// is not confirmed by enough replicas extends no lease: another server may have taken over. The client tries again.
func (r *renewCall) report(ctx context.Context, which []int, m rueidis.RedisMessage, unconfirmed, err error,
	since driver.Instant) {
	var replies []rueidis.RedisMessage
	if err == nil {
		if replies, err = m.ToArray(); err != nil {
			replies, err = []rueidis.RedisMessage{m}, nil // renew_shared.lua replies with a bare number
		}
		if len(replies) != len(which) {
			err = corruptReply(r.grants[which[0]].Name)
		}
	}
	for k, i := range which {
		a := driver.Renewal{Since: since, GrantedTTL: r.grants[i].Claim.TTL}
		one := err
		if one == nil {
			one = replies[k].Error()
		}
		if one != nil {
			a.Err = r.store.renewalError(ctx, one)
		} else {
			readRenewal(&a, readNumber(replies[k]), r.grants[i].Name)
		}
		if a.Err == nil && unconfirmed != nil {
			a.Err = driverutil.Unresolved(unconfirmed)
		}
		// A store that was closed meanwhile may have caused the error, so it is reported as closed, unless the loss is
		// certain.
		if r.store.life.Err() != nil && !errors.Is(a.Err, driver.ErrLost) {
			a.Err = driver.ErrClosed
		}
		if !r.store.mayHaveReason(a.Err) {
			r.done(i, a)
			continue
		}
		r.broken.Go(func() {
			a.Err = r.store.addReason(ctx, r.grants[i].Name, renewID(&r.grants[i]), a.Err)
			r.done(i, a)
		})
	}
}

// readRenewal reads the reply about one grant.
func readRenewal(a *driver.Renewal, reply int64, name string) {
	switch reply {
	case renewDone:
	case renewReleaseRequested:
		a.ReleaseRequested = true
	case renewGone:
		a.Err = &driver.LossError{Cause: driver.LossGone}
	case renewTaken:
		a.Err = &driver.LossError{Cause: driver.LossTaken}
	case renewBroken, renewMarked:
		a.Err = &driver.LossError{Cause: driver.LossBroken, StaysHeld: reply == renewMarked}
	default:
		if ttl, detached := detachedRenewal(reply); detached {
			a.GrantedTTL = ttl
		} else {
			a.Err = corruptReply(name)
		}
	}
}

// renewalError makes the error of a renewal that had no valid reply. The outcome is unknown, unless the error is final:
// the server may have renewed the claim, and the client retries while the lease is valid.
func (s *store) renewalError(ctx context.Context, err error) error {
	switch f := s.finalError(err); {
	case f != nil:
		return f
	case ctx.Err() != nil:
		return driverutil.Unresolved(ctx.Err())
	}
	return driverutil.Unresolved(explainError(err))
}

// isShared reports whether a grant is on a read-write lock or a semaphore, whose holders are kept in keys next to the
// lock. A grant that was made from a handle has no kind, and shows it by its ref.
func isShared(g *driver.Grant) bool {
	return g.Kind != driver.KindMutex && g.Kind != "" || strings.HasSuffix(g.Ref, sharedSuffix)
}

// renewID returns the claim's id. A grant that was made from a handle has only its ref.
func renewID(g *driver.Grant) string {
	if g.ID == "" {
		return idOf(g.Ref)
	}
	return g.ID
}

// renewScriptFor returns the script that renews one grant, with its keys and arguments.
func (s *store) renewScriptFor(g *driver.Grant) (st *script, keys, args []string) {
	if s.scripts.renewShared == nil || !isShared(g) {
		keys, args = s.mutexRenewArgs([]driver.Grant{*g}, []int{0})
		return s.scripts.renew, keys, args
	}
	all := s.keys.allKeys(g.Name)
	return s.scripts.renewShared, all[:4], []string{queueRetentionMillis, renewID(g),
		strconv.FormatInt(g.Token, 10), strconv.FormatInt(g.Claim.TTL.Milliseconds(), 10)}
}

// mutexRenewArgs returns the keys and arguments of renew.lua for some of the grants. In a Cluster that must be one
// grant, since the keys of two are in different slots.
func (s *store) mutexRenewArgs(grants []driver.Grant, which []int) (keys, args []string) {
	keys, args = make([]string, 0, 2*len(which)), make([]string, 0, 3*len(which)+1)
	args = append(args, retentionMillis)
	for _, i := range which {
		g := &grants[i]
		lock := s.keys.lockKey(g.Name)
		keys = append(keys, lock, s.scripts.recordKey(lock))
		args = append(args, renewID(g), strconv.FormatInt(g.Token, 10),
			strconv.FormatInt(g.Claim.TTL.Milliseconds(), 10))
	}
	return keys, args
}
