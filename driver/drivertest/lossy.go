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

// Fate is what becomes of one request on its way to the store.
type Fate int

// The fates.
const (
	Pass        Fate = iota
	LoseRequest      // it never arrives, and the client hears of no answer
	LoseReply        // it takes effect, and the reply is lost
	Refuse           // the server does nothing, and says that there are too many requests
)

// What a client hears in place of a reply.
var (
	ErrLost    = errors.New("the connection broke")
	ErrRefused = errors.New("too many requests")
)

// Carry has one request meet its fate: for stores whose way to the server is a function call. A store that talks HTTP has
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

// Transport is for stores that talk HTTP: requests meet the fates that are asked for, one for each.
type Transport struct {
	Base http.RoundTripper // default: http.DefaultTransport
	Fate func() Fate
}

// RoundTrip is what http.RoundTripper asks for. A request that is refused is answered with status 503.
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
		return &http.Response{Status: "503 Service Unavailable", StatusCode: http.StatusServiceUnavailable, Proto: "HTTP/1.1", ProtoMajor: 1,
			ProtoMinor: 1, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
	default:
		return base.RoundTrip(r)
	}
}

// lossy reports whether requests are to be lost or refused.
func (o Options) lossy() bool { return o.LostReplies > 0 || o.Refusals > 0 }

// draw gives one request its fate.
func (o Options) draw() Fate {
	switch f := rand.Float64() * 100; {
	case f < o.LostReplies:
		return LoseReply
	case f < o.LostReplies+o.Refusals:
		return Refuse
	default:
		return Pass
	}
}

// openLossy opens a client whose requests meet their fates from then on: opening it is no part of what is checked.
func (s *suite) openLossy(ctx context.Context) (driver.Store, error) {
	var opened atomic.Bool
	st, err := s.lossy(ctx, func() Fate {
		if !opened.Load() {
			return Pass
		}
		return s.opts.draw()
	})
	opened.Store(true)
	return st, err
}

// again does something that may be done twice: once, or where requests get lost, until its outcome is known.
func (e *Env) again(ctx context.Context, do func() error) error {
	start := e.now()
	for {
		err := do()
		switch {
		case err == nil || driverutil.IsFinal(err) || !e.suite.opts.lossy() || e.since(start) > 5*e.slack:
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		}
	}
}

// nextChange waits for the next change of a lock.
func (e *Env) nextChange(ctx context.Context, w driver.LockWatcher, seen driver.Lock) (l driver.Lock, err error) {
	err = e.again(ctx, func() error {
		l, err = w.NextChange(ctx, seen)
		return err
	})
	return l, err
}

// nextEnding waits for the next claim that ends.
func (e *Env) nextEnding(ctx context.Context, w driver.EndWatcher) (end driver.Ending, err error) {
	err = e.again(ctx, func() error {
		end, err = w.NextEnding(ctx)
		return err
	})
	return end, err
}

// detach leaves a grant to stand for a while.
func (e *Env) detach(d driver.Detacher, g driver.Grant, keep time.Duration) error {
	return e.again(e.ctx, func() error { return d.Detach(e.ctx, g, keep) })
}
