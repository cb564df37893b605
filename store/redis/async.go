package redis

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// rueidis returns promptly when a context ends, except while it connects: then a call waits until the connection is
// made or has failed. A caller of this package must not wait for that. So if a connection may have to be made, the
// request runs in a goroutine of its own, and the call returns when its context ends. That is the case for a client of
// the user's, for a Cluster, whose nodes are connected when first needed, and after a request that was not answered.

// runScript runs a script once; see script.eval. It does not retry: retryLoop and the callers of Renew do.
func (s *store) runScript(ctx context.Context, st *script, keys, args []string) (rueidis.RedisMessage, error) {
	alone := s.direct.calls.Add(1) == 1
	defer s.direct.calls.Add(-1)
	if s.isConnected() {
		if alone {
			if c := s.takeDirect(); c != nil {
				return s.runDirect(ctx, c, st, keys, args)
			}
		}
		m, err := st.eval(ctx, s.client, keys, args)
		s.trackLink(err)
		return m, err
	}
	// The caller may keep the lists on its stack and use them again (see queueArgs), and the request may outlive the
	// call.
	itsKeys, itsArgs := append([]string(nil), keys...), append([]string(nil), args...)
	return runAsync(ctx, s, func() (rueidis.RedisMessage, error) {
		m, err := st.eval(ctx, s.client, itsKeys, itsArgs)
		s.trackLink(err)
		return m, err
	})
}

// isConnected reports whether a request needs no new connection, as far as is known. If that is wrong, one call may
// return late; the next one knows better.
func (s *store) isConnected() bool {
	return s.owned && s.topology != cluster && !s.linkUncertain.Load()
}

// trackLink remembers whether the last request on the shared connection was answered, and leaves a server that has
// become a replica.
func (s *store) trackLink(err error) {
	_, reply := rueidis.IsRedisErr(err)
	s.leaveReplica(err)
	if err == nil {
		s.admission.CredentialsAccepted()
	}
	s.linkUncertain.Store(err != nil && !reply)
}

// leaveReplica ends the connections to a server that refuses writes, because it has become a replica.
func (s *store) leaveReplica(err error) {
	if r, reply := rueidis.IsRedisErr(err); reply && isReadOnly(r.Error()) && s.owned && s.topology == single {
		s.closeConnection()
	}
}

// closeConnection ends the connections to a server. After a failover nobody else ends the connections to a primary that
// has become a replica. The name of the server may mean another server by now, as in clouds that move a DNS name, and
// the next request connects by the name.
// It runs in the background, once at a time, and asks the server to close (QUIT): rueidis has no call that ends a
// connection and keeps the client.
func (s *store) closeConnection() {
	s.dropDirect(s.direct.conn.Load())
	if !s.disconnecting.CompareAndSwap(false, true) {
		return
	}
	s.life.Go(func() {
		defer s.disconnecting.Store(false)
		bounded, cancel := context.WithTimeout(s.life, time.Second)
		defer cancel()
		_ = s.client.Do(bounded, s.client.B().Quit().Build()).Error()
	})
}

// runAsync calls f in a goroutine and returns when f does, or when ctx or the store ends. Then f goes on, and its
// result is dropped. Close waits for it.
func runAsync[T any](ctx context.Context, s *store, f func() (T, error)) (result T, err error) {
	type outcome struct {
		result T
		err    error
	}
	outcomes := make(chan outcome, 1) // with room, so that f's goroutine ends even if nobody receives
	if !s.life.Go(func() {
		r, err := f()
		outcomes <- outcome{r, err}
	}) {
		return result, driver.ErrClosed
	}
	select {
	case o := <-outcomes:
		return o.result, o.err
	case <-ctx.Done():
		return result, ctx.Err()
	case <-s.life.Done():
		return result, driver.ErrClosed
	}
}
