package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Options.Replicas says how many replicas must have a step that gives a client more than it had: a grant, a renewal, a
// larger weight, a detached claim, a row of the run ledger. What was only written to the primary counts as unknown. So
// a lease ends at its deadline if its primary was cut off from the replicas, one of which may have taken over. A step
// that takes something from the client need not be confirmed: if a failover forgets a release, the claim expires.

// sendConfirmed sends commands that write, and WAIT after them, in one write to a connection of their own. WAIT counts
// the replicas that have all that its own connection has written before (redis.io: "WAIT"), so one is enough for any
// number of commands. unconfirmed says why the writes are not known to have reached enough replicas; nil if they have.
func (s *store) sendConfirmed(ctx context.Context,
	commands ...rueidis.Completed) (replies []rueidis.RedisResult, unconfirmed, err error) {
	// WAIT ends before the call, so that its reply says how many replicas are missing. A limit of 0 would be none.
	limit := s.opts.ReplicaTimeout
	if end, ok := ctx.Deadline(); ok {
		limit = max(min(limit, time.Until(end)*3/4), time.Millisecond)
	}
	wait := s.client.B().Wait().Numreplicas(int64(s.opts.Replicas)).Timeout(limit.Milliseconds()).Build()
	commands = append(commands[:len(commands):len(commands)], wait)
	// The context is for a server that hangs and keeps no limit.
	within, cancel := context.WithTimeout(ctx, s.opts.ReplicaTimeout+time.Second)
	defer cancel()
	replies, err = runAsync(within, s, func() (replies []rueidis.RedisResult, err error) {
		err = s.client.Dedicated(func(d rueidis.DedicatedClient) error {
			replies = d.DoMulti(within, commands...)
			for _, r := range replies {
				if refused, ok := rueidis.IsRedisErr(r.Error()); ok && isReadOnly(refused.Error()) {
					d.Close() // so that the next one may reach the new primary: see closeConnection
				}
			}
			return nil
		})
		return replies, err
	})
	if err != nil {
		return nil, nil, err
	}
	last := len(replies) - 1
	reached, err := replies[last].AsInt64()
	switch {
	case err != nil:
		unconfirmed = fmt.Errorf("the write is not known to have reached the replicas: %w", explainError(err))
	case reached < int64(s.opts.Replicas):
		unconfirmed = fmt.Errorf("only %d of %d replicas have the write", reached, s.opts.Replicas)
	}
	return replies[:last], unconfirmed, nil
}

// runConfirmed runs a script as runScript does, and waits for the replicas.
func (s *store) runConfirmed(ctx context.Context, st *script,
	keys, args []string) (m rueidis.RedisMessage, unconfirmed, err error) {
	replies, unconfirmed, err := s.sendConfirmed(ctx, st.buildCommand(s.client, keys, args))
	if err == nil && isNoScript(replies[0].Error()) {
		replies, unconfirmed, err = s.sendConfirmed(ctx, st.buildWithText(s.client, keys, args))
	}
	if err == nil {
		m, err = replies[0].ToMessage()
	}
	s.trackLink(err)
	return m, unconfirmed, err
}

// confirmHeld makes sure that the server has a grant, and that as many replicas as the user wants have it as it is now.
//
// The step before may have been written by another connection, or by an earlier request, and WAIT says nothing of
// those. So the grant is renewed on the connection that then waits. That is a write, and its reply shows whether the
// server still has the grant: after a failover WAIT would succeed on a new primary that never had it. Even then a
// failover may promote a replica that is behind, so this lowers the risk and does not remove it.
func (s *store) confirmHeld(ctx context.Context, g *driver.Grant) error {
	if s.opts.Replicas == 0 {
		return nil
	}
	st, keys, args := s.renewScriptFor(g)
	m, unconfirmed, err := s.runConfirmed(ctx, st, keys, args)
	if err != nil {
		return fmt.Errorf("the write is not known to have reached the replicas: %w", explainError(err))
	}
	if a, ok := readArray(m, 1); ok {
		m = a[0]
	}
	if readNumber(m) <= 0 {
		return errors.New("the grant does not exist any more: another server may have taken over before it reached the replicas")
	}
	return unconfirmed
}

// waitForReplicas confirms a new grant, and releases it if that fails.
func (s *store) waitForReplicas(ctx context.Context, g *driver.Grant) error {
	err := s.confirmHeld(ctx, g)
	switch {
	case err == nil:
		return nil
	// The caller's cleanup releases the claim: it knows that the outcome is unknown.
	case ctx.Err() != nil:
		return driverutil.Unresolved(ctx.Err())
	}
	// The claim must not stay behind, since its caller gets an error.
	bounded, done := context.WithTimeout(ctx, time.Second)
	defer done()
	if rerr := s.Release(bounded, g.Claim, ""); rerr != nil && !errors.Is(rerr, driver.ErrLost) {
		return driverutil.Unresolved(fmt.Errorf("%w; and the grant could not be released, so it ends with its TTL: %w", err,
			explainError(rerr)))
	}
	return fmt.Errorf("%w; the grant was released", err)
}

// confirmChange confirms a change of a grant. If that fails, the change stays, and its outcome is unknown.
func (s *store) confirmChange(ctx context.Context, g *driver.Grant) error {
	switch err := s.confirmHeld(ctx, g); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return driverutil.Unresolved(ctx.Err())
	default:
		return driverutil.Unresolved(err)
	}
}
