package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// lazyClient stands in for the client of a server that could not be reached when a Redlock was opened, and connects to
// it as soon as that can be done. It answers what a Redlock asks of a server, and nothing else.
type lazyClient struct {
	rueidis.Client // of another server: it lends how commands are built, and is never asked
	options        rueidis.ClientOption

	mu      sync.Mutex
	real    rueidis.Client
	triedAt time.Time
	err     error
}

// reconnectInterval is how often it is tried to connect.
const reconnectInterval = time.Second

func (a *lazyClient) connectOnce() (rueidis.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.real == nil && time.Since(a.triedAt) > reconnectInterval && !errors.Is(a.err, rueidis.ErrClosing) {
		a.real, a.err = rueidis.NewClient(a.options)
		if a.err != nil {
			a.real = nil
		}
		a.triedAt = time.Now()
	}
	return a.real, a.err
}

func (a *lazyClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	c, err := a.connectOnce()
	if err != nil {
		return a.errorResult(err)
	}
	return c.Do(ctx, cmd)
}

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

func (a *lazyClient) errorResult(err error) rueidis.RedisResult {
	return rueidis.NewErrorResult(&unsentError{err})
}

func (a *lazyClient) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = rueidis.ErrClosing
	if a.real != nil {
		a.real.Close()
	}
}
