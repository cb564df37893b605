package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// absent stands in for the client of a server that could not be reached when a Redlock was opened, and connects to it as
// soon as that can be done. It answers what a Redlock asks of a server, and nothing else.
type absent struct {
	rueidis.Client // of another server: it lends how commands are built, and is never asked
	option         rueidis.ClientOption

	mu    sync.Mutex
	real  rueidis.Client
	tried time.Time
	err   error
}

// retryAbsent is how often it is tried to connect.
const retryAbsent = time.Second

func (a *absent) client() (rueidis.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.real == nil && time.Since(a.tried) > retryAbsent && !errors.Is(a.err, rueidis.ErrClosing) {
		a.real, a.err = rueidis.NewClient(a.option)
		if a.err != nil {
			a.real = nil
		}
		a.tried = time.Now()
	}
	return a.real, a.err
}

func (a *absent) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	c, err := a.client()
	if err != nil {
		return a.failed(err)
	}
	return c.Do(ctx, cmd)
}

func (a *absent) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	c, err := a.client()
	if err != nil {
		rs := make([]rueidis.RedisResult, len(cmds))
		for i := range rs {
			rs[i] = a.failed(err)
		}
		return rs
	}
	return c.DoMulti(ctx, cmds...)
}

func (a *absent) failed(err error) rueidis.RedisResult {
	return rueidis.NewErrorResult(&unsentError{err})
}

func (a *absent) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = rueidis.ErrClosing
	if a.real != nil {
		a.real.Close()
	}
}
