package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// A Redlock sends each script to all servers at once. This file sends the requests, counts the replies, and repeats
// until a majority has replied.

// drift is how far two clocks may move apart during a TTL: 1 % of it, and 2 ms because Redis counts expiry in whole
// milliseconds. The holder subtracts it from the validity of its lock (redis.io: "Distributed Locks with Redis", clock
// drift).
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// serverTime is how long one server may take to reply. It is short compared with the TTL: the requests run at the same
// time, but a claim without a majority waits for the slowest server, and the validity of a grant is the TTL less this
// wait.
func serverTime(ttl time.Duration) time.Duration {
	return min(max(ttl/20, 200*time.Millisecond), 500*time.Millisecond)
}

// serverReply is the reply of one server, or the error instead.
type serverReply struct {
	server int
	reply  rueidis.RedisMessage
	err    error
}

// serverScript is a script with its keys and arguments, which are the same on all servers.
type serverScript struct {
	script     *script
	keys, args []string
	// mayMake is the id of the claim that the script may make; empty if it makes none. Until a server has replied, the
	// claim counts as in flight there, so that its release leaves a tombstone.
	mayMake string
}

// askServers runs a script on all servers at once, and passes each reply to handle as it arrives. When handle returns
// true, the outcome is known, and the other servers get a little more time to reply: the more servers have a claim, the
// more failures it survives. The requests do not end with ctx, since only its reply shows that a request is not in
// flight any more. They end after serverTime.
func (r *redlockStore) askServers(ctx context.Context, ttl time.Duration, q serverScript,
	handle func(serverReply) (enough bool)) error {
	if err := ctx.Err(); err != nil {
		// Nothing may be sent then, since the requests would not end with ctx.
		return err
	}
	replies := make(chan serverReply, len(r.servers))
	for i, s := range r.servers {
		if q.mayMake != "" {
			s.addInFlight(q.mayMake)
		}
		started := r.life.Go(func() {
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverTime(ttl))
			defer cancel()
			m, err := s.runScript(bounded, q.script, q.keys, q.args)
			if q.mayMake != "" && (err == nil || isRedisReply(err) || isUnsent(err)) {
				s.removeInFlight(q.mayMake)
			}
			replies <- serverReply{i, m, err}
		})
		if !started {
			return driver.ErrClosed
		}
	}
	start := time.Now()
	var grace <-chan time.Time
	for range r.servers {
		select {
		case reply := <-replies:
			if handle(reply) && grace == nil {
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

// replyCounts counts the replies of a script that replies with a number.
type replyCounts struct {
	replies        int
	byServer       map[int]int64 // the reply of each server that has replied
	outcomeUnknown map[int]bool  // the servers on which the script may have run without a reply
	byReply        map[int64]int // how many servers have given each reply
	err            error         // of one of the servers that did not run the script
	refusals       int           // how many servers refuse for good, so that a retry does not help there
	refusal        error         // the error of one of them
}

// countReplies runs a script on all servers, and counts their replies. It never ends early, since the caller needs the
// reply of every server that sends one in time.
func (r *redlockStore) countReplies(ctx context.Context, ttl time.Duration, q serverScript) (replyCounts, error) {
	t := replyCounts{byReply: map[int64]int{}, byServer: map[int]int64{}, outcomeUnknown: map[int]bool{}}
	for i := range r.servers {
		t.outcomeUnknown[i] = true
	}
	err := r.askServers(ctx, ttl, q, func(v serverReply) bool {
		if v.err != nil {
			t.err, t.outcomeUnknown[v.server] = v.err, !isRedisReply(v.err) && !isUnsent(v.err)
			if f := r.servers[v.server].finalError(v.err); f != nil {
				t.refusals++
				t.refusal = f
			}
			return false
		}
		n := readNumber(v.reply)
		t.replies++
		t.outcomeUnknown[v.server] = false
		t.byServer[v.server] = n
		t.byReply[n]++
		return false
	})
	return t, err
}

// mayHaveRun reports whether the script has run on a server, or may have done so without a reply.
func (t *replyCounts) mayHaveRun() bool {
	for _, unknown := range t.outcomeUnknown {
		if unknown {
			return true
		}
	}
	return t.replies > 0
}

// isRedisReply reports whether a server has replied with this error: the request has arrived, and was refused.
func isRedisReply(err error) bool {
	_, is := rueidis.IsRedisErr(err)
	return is
}

// retryUntilMajority repeats step until a majority has replied in one round, or none has for the unreachable timeout.
// done reports whether in an earlier round, without a majority, a server has replied that it did what was asked: its
// reply in the last round may then be that there is nothing to do.
func (r *redlockStore) retryUntilMajority(
	ctx context.Context, ttl time.Duration, step func() (replyCounts, error),
) (t replyCounts, done bool, err error) {
	loop := driverutil.RetryLoop{Clock: r.clock, Limit: driver.UnreachableTimeout(ttl), Pause: r.servers[0].pause}
	loop.Restart()
	for {
		if ctx.Err() != nil {
			return t, done, loop.End(ctx.Err())
		}
		t, err = step()
		switch {
		case err == nil && t.replies >= r.majority:
			return t, done, nil
		case err != nil:
		case t.refusals > len(r.servers)-r.majority: // no majority is left; the others may just have been slow
			err = t.refusal
		default: // what a minority says is not final
			err = fmt.Errorf("only %d of %d servers answer: %v", t.replies, len(r.servers), explainError(t.err))
		}
		done = done || t.byReply[replyDone] > 0
		if err = loop.PauseAfterFailure(ctx, err, t.mayHaveRun()); err != nil {
			return t, done, err
		}
	}
}
