package redis

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// The client returns promptly when a context ends, but for one case: while it connects it waits for that. A call must
// not; so where a connection may have to be made, the request goes on beside the call. That is so for a client of the
// user's, for a Cluster, whose nodes are connected to when first needed, and after anything went wrong.

// runScript runs a step once; see step.do.
func (s *store) runScript(ctx context.Context, st *script, keys, args []string) (rueidis.RedisMessage, error) {
	if s.isConnected() {
		m, err := st.eval(ctx, s.client, keys, args)
		s.trackLink(err)
		return m, err
	}
	// The caller's lists may stand on its stack, and the request may outlive the call.
	itsKeys, itsArgs := append([]string(nil), keys...), append([]string(nil), args...)
	return runAsync(ctx, s, func() (rueidis.RedisMessage, error) {
		m, err := st.eval(ctx, s.client, itsKeys, itsArgs)
		s.trackLink(err)
		return m, err
	})
}

func (s *store) isConnected() bool {
	return s.owned && s.topology != cluster && !s.linkUncertain.Load()
}

// trackLink keeps in mind whether the last request was answered, and leaves a server that has become a replica.
func (s *store) trackLink(err error) {
	r, reply := rueidis.IsRedisErr(err)
	if reply && isReadOnly(r.Error()) && s.owned && s.topology == single {
		s.closeConnection()
	}
	if doubt := err != nil && !reply; s.linkUncertain.Load() != doubt {
		s.linkUncertain.Store(doubt)
	}
}

// closeConnection ends the connection to a server. Its name may mean another one by now, which the next request finds:
// after a failover nobody else ends the connections to a primary that has become a replica.
func (s *store) closeConnection() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil || !s.disconnecting.CompareAndSwap(false, true) {
		return
	}
	s.inBackground.Go(func() {
		defer s.disconnecting.Store(false)
		bounded, cancel := context.WithTimeout(s.life, time.Second)
		defer cancel()
		_ = s.client.Do(bounded, s.client.B().Quit().Build()).Error()
	})
}

// runAsync calls f in the background and returns when it does, or when ctx or the store ends.
func runAsync[T any](ctx context.Context, s *store, f func() (T, error)) (result T, err error) {
	type outcome struct {
		result T
		err    error
	}
	landed := make(chan outcome, 1)
	s.mu.Lock()
	if s.life.Err() != nil {
		s.mu.Unlock()
		return result, driver.ErrClosed
	}
	s.inBackground.Go(func() {
		r, err := f()
		landed <- outcome{r, err}
	})
	s.mu.Unlock()
	select {
	case o := <-landed:
		return o.result, o.err
	case <-ctx.Done():
		return result, ctx.Err()
	case <-s.life.Done():
		return result, driver.ErrClosed
	}
}
