package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// maxRenewBatch is how many locks one script renews, so that no script keeps the server busy for more than some 100 us.
const maxRenewBatch = 32

// detachedTTL is added to the TTL in ms, by which the renewal of a detached claim is answered.
const detachedTTL = 1_000_000_000

// Renew sends all renewals in one go: of mutexes one script for many where a script may reach them all, else one each. In a
// Cluster each goes by itself: a node that hangs must not keep back what the others have answered. Nothing is tried again: the
// client does that, and knows for how long it is worth it.
func (s *Store) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	if s.life.Err() != nil {
		for i := range grants {
			done(i, driver.Renewal{Err: driver.ErrClosed})
		}
		return
	}
	var mutexes, others []int
	for i := range grants {
		if s.scripts.renewShared != nil && isShared(&grants[i]) {
			others = append(others, i)
		} else {
			mutexes = append(mutexes, i)
		}
	}
	var batches [][]int // which grants each command renews
	var cmds []rueidis.Completed
	steps := make([]*script, 0, len(grants)/maxRenewBatch+1)
	var alone sync.WaitGroup
	defer alone.Wait()
	add := func(st *script, which []int, keys, args []string) {
		if s.topology == cluster {
			alone.Go(func() {
				at := s.clock.Now()
				m, err := s.runScript(ctx, st, keys, args)
				s.reportReplies(ctx, grants, which, m, err, at, done)
			})
			return
		}
		batches, steps = append(batches, which), append(steps, st)
		cmds = append(cmds, st.buildCommand(s.client, keys, args))
	}
	size := maxRenewBatch
	if s.topology == cluster {
		size = 1
	}
	for len(mutexes) > 0 {
		which := mutexes[:min(size, len(mutexes))]
		mutexes = mutexes[len(which):]
		keys, args := s.mutexRenewArgs(grants, which)
		add(s.scripts.renew, which, keys, args)
	}
	for i := range others {
		st, keys, args := s.renewScriptFor(&grants[others[i]])
		add(st, others[i:i+1], keys, args)
	}
	if len(cmds) == 0 {
		return
	}
	at := s.clock.Now()
	replies, err := runAsync(ctx, s, func() ([]rueidis.RedisResult, error) { return s.client.DoMulti(ctx, cmds...), nil })
	if err != nil {
		s.linkUncertain.Store(true)
		for _, which := range batches {
			s.reportReplies(ctx, grants, which, rueidis.RedisMessage{}, err, at, done)
		}
		return
	}
	for i, r := range replies {
		m, err := r.ToMessage()
		s.trackLink(err)
		which, from := batches[i], at
		if isNoScript(err) {
			from = s.clock.Now()
			keys, args := s.mutexRenewArgs(grants, which)
			if steps[i] == s.scripts.renewShared {
				_, keys, args = s.renewScriptFor(&grants[which[0]])
			}
			m, err = s.runScript(ctx, steps[i], keys, args)
		}
		s.reportReplies(ctx, grants, which, m, err, from, done)
	}
}

// isShared reports whether a grant is on a lock whose holders stand beside it, also if it was put together elsewhere.
func isShared(g *driver.Grant) bool {
	return g.Kind != driver.KindMutex && g.Kind != "" || strings.HasSuffix(g.Ref, sharedSuffix)
}

func renewID(g *driver.Grant) string {
	if g.ID == "" {
		return idOf(g.Ref)
	}
	return g.ID
}

// renewScriptFor is the step that renews one grant.
func (s *Store) renewScriptFor(g *driver.Grant) (st *script, keys, args []string) {
	if s.scripts.renewShared == nil || !isShared(g) {
		keys, args = s.mutexRenewArgs([]driver.Grant{*g}, []int{0})
		return s.scripts.renew, keys, args
	}
	all := s.keys.allKeys(g.Name)
	return s.scripts.renewShared, all[:4], []string{queueRetentionMillis, renewID(g),
		strconv.FormatInt(g.Token, 10), strconv.FormatInt(g.Claim.TTL.Milliseconds(), 10)}
}

func (s *Store) mutexRenewArgs(grants []driver.Grant, which []int) (keys, args []string) {
	keys, args = make([]string, 0, 2*len(which)), make([]string, 0, 3*len(which)+1)
	args = append(args, retentionMillis)
	for _, i := range which {
		g := &grants[i]
		lock := s.keys.lockKey(g.Name)
		keys = append(keys, lock, s.scripts.recordKey(lock))
		args = append(args, renewID(g), strconv.FormatInt(g.Token, 10), strconv.FormatInt(g.Claim.TTL.Milliseconds(), 10))
	}
	return keys, args
}

// reportReplies hands the answer of one command to the grants that it renews.
func (s *Store) reportReplies(ctx context.Context, grants []driver.Grant, which []int, m rueidis.RedisMessage, err error, at driver.Instant, done func(int, driver.Renewal)) {
	var answers []rueidis.RedisMessage
	if err == nil {
		if a, aerr := m.ToArray(); aerr == nil {
			answers = a
		} else {
			answers = []rueidis.RedisMessage{m}
		}
		if len(answers) != len(which) {
			err = corruptReply(grants[which[0]].Name)
		}
	}
	for k, i := range which {
		r := driver.Renewal{Since: at, GrantedTTL: grants[i].Claim.TTL}
		one := err
		if one == nil {
			one = answers[k].Error()
		}
		if one != nil {
			r.Err = s.renewalError(ctx, one)
		} else {
			switch n := readNumber(answers[k]); n {
			case 1:
			case 3:
				r.ReleaseRequested = true
			case 0:
				r.Err = &driver.LossError{Cause: driver.LossGone}
			case -1:
				r.Err = &driver.LossError{Cause: driver.LossTaken}
			case -2:
				r.Err = &driver.LossError{Cause: driver.LossBroken}
			default:
				if n < detachedTTL {
					r.Err = corruptReply(grants[i].Name)
				} else {
					r.GrantedTTL = millis(n - detachedTTL)
				}
			}
		}
		if s.life.Err() != nil && !errors.Is(r.Err, driver.ErrLost) {
			r.Err = driver.ErrClosed
		}
		done(i, r)
	}
}

// renewalError gives the error of a renewal its final form: what is unknown stays unknown.
func (s *Store) renewalError(ctx context.Context, err error) error {
	switch f := s.finalError(err); {
	case f != nil:
		return f
	case ctx.Err() != nil:
		return uncertainError(ctx.Err())
	}
	return uncertainError(explainError(err))
}
