package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// lazyClient takes the place of the client of a server that could not be reached when a Redlock was opened. It connects
// to the server as soon as that is possible. rueidis makes no client without a connection, and a Redlock must open
// while a minority of its servers is away. It has the methods that a Redlock uses, and no others.
type lazyClient struct {
	rueidis.Client // of another server: it only builds commands, and gets no request
	options        rueidis.ClientOption

	mu      sync.Mutex
	real    rueidis.Client
	triedAt time.Time
	err     error
}

// reconnectInterval is the minimum time between two attempts to connect. Between them, requests fail at once with the
// last error, so that a server which is away does not slow the others down.
const reconnectInterval = time.Second

// connectOnce returns the client, and connects if that is due. Other requests wait meanwhile; each runs in a goroutine
// with a time limit, see askServers.
func (a *lazyClient) connectOnce() (rueidis.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// After Close, err is ErrClosing, and nothing connects any more.
	if a.real == nil && time.Since(a.triedAt) > reconnectInterval && !errors.Is(a.err, rueidis.ErrClosing) {
		a.real, a.err = rueidis.NewClient(a.options)
		if a.err != nil {
			a.real = nil
		}
		a.triedAt = time.Now()
	}
	return a.real, a.err
}

// Do returns an unsentError if the server cannot be reached.
func (a *lazyClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	c, err := a.connectOnce()
	if err != nil {
		return a.errorResult(err)
	}
	return c.Do(ctx, cmd)
}

// DoMulti returns an unsentError for each command if the server cannot be reached.
func (a *lazyClient) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	c, err := a.connectOnce()
	if err != nil {
		rs := make([]rueidis.RedisResult, len(cmds))
		for i := range rs {
			rs[i] = a.errorResult(err)
		}
		return rs
	}
	return c.DoMulti(ctx, cmds...)
}

// errorResult marks the error as that of a request that was not sent: no claim can come of it.
func (a *lazyClient) errorResult(err error) rueidis.RedisResult {
	return rueidis.NewErrorResult(&unsentError{err})
}

// Close also prevents later attempts to connect, by the error.
func (a *lazyClient) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = rueidis.ErrClosing
	if a.real != nil {
		a.real.Close()
	}
}
