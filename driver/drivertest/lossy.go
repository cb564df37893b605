package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Fate is what happens to one request to the store.
type Fate int

const (
	Pass        Fate = iota // it is sent and answered
	LoseRequest             // it never arrives, and the client gets no reply
	LoseReply               // it takes effect, and the reply is lost
	Refuse                  // the server does nothing and replies that there are too many requests
)

// These are the errors that a client gets instead of a reply.
var (
	ErrLost    = errors.New("the connection broke")
	ErrRefused = errors.New("too many requests")
)

// Carry applies a fate to one request, for stores that reach the server by a function call. Stores that use HTTP have
// [Transport].
func Carry[T any](f Fate, request func() (T, error)) (reply T, err error) {
	switch f {
	case LoseRequest:
		return reply, ErrLost
	case LoseReply:
		_, _ = request()
		return reply, ErrLost
	case Refuse:
		return reply, ErrRefused
	default:
		return request()
	}
}

// Transport applies fates to the requests of stores that use HTTP. It calls Fate once per request.
type Transport struct {
	Base http.RoundTripper // default: http.DefaultTransport
	Fate func() Fate
}

// RoundTrip implements http.RoundTripper. A refused request is answered with status 503.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	switch t.Fate() {
	case LoseRequest:
		return nil, ErrLost
	case LoseReply:
		if resp, err := base.RoundTrip(r); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		return nil, ErrLost
	case Refuse:
		return &http.Response{Status: "503 Service Unavailable", StatusCode: http.StatusServiceUnavailable,
			Proto: "HTTP/1.1", ProtoMajor: 1,
			ProtoMinor: 1, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
	default:
		return base.RoundTrip(r)
	}
}

// losesRequests reports whether replies are lost or requests refused.
func (o Options) losesRequests() bool { return o.LostReplies > 0 || o.Refusals > 0 }

// drawFate chooses the fate of one request at random.
func (o Options) drawFate() Fate {
	switch f := rand.Float64() * 100; {
	case f < o.LostReplies:
		return LoseReply
	case f < o.LostReplies+o.Refusals:
		return Refuse
	default:
		return Pass
	}
}

// openLossy opens a client. Fates are applied to its requests only after that, since opening is not part of the check.
func (s *suite) openLossy(ctx context.Context) (driver.Store, error) {
	var opened atomic.Bool
	st, err := s.openWithFates(ctx, func() Fate {
		if !opened.Load() {
			return Pass
		}
		return s.opts.drawFate()
	})
	opened.Store(true)
	return st, err
}

// retryIfLossy calls do, which can safely be repeated: once, or, if requests get lost, until its outcome is known.
func (e *Env) retryIfLossy(ctx context.Context, do func() error) error {
	start := e.now()
	for {
		err := do()
		switch {
		case err == nil || driverutil.IsFinal(err) || !e.suite.opts.losesRequests() || e.since(start) > 5*e.slack:
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		}
	}
}

// retryRead calls do, which only reads, until the store answers: on a busy machine its servers may fail for a while.
func (e *Env) retryRead(do func() error) error {
	start := e.now()
	for {
		err := do()
		if err == nil || driverutil.IsFinal(err) || e.ctx.Err() != nil || e.since(start) > 5*e.slack {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// nextChange waits for the next change of a lock.
func (c *client) nextChange(ctx context.Context, seen driver.Lock) (l driver.Lock, err error) {
	err = c.e.retryIfLossy(ctx, func() error {
		l, err = c.store.NextChange(ctx, seen)
		return err
	})
	return l, err
}

// nextEnding waits for the next claim that ends.
func (c *client) nextEnding(ctx context.Context) (end driver.Ending, err error) {
	err = c.e.retryIfLossy(ctx, func() error {
		end, err = c.store.NextEnding(ctx)
		return err
	})
	return end, err
}

// detach detaches a grant for the given time.
func (c *client) detach(g driver.Grant, keep time.Duration) error {
	return c.e.retryIfLossy(c.e.ctx, func() error { return c.store.Detach(c.e.ctx, g, keep) })
}
