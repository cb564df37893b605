package tabletest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/engine/record"
)

// Fate is what becomes of one request.
type Fate int

// The fates.
const (
	Pass        Fate = iota
	LoseRequest      // it never arrives, and the client hears of no answer
	LoseReply        // it takes effect, and the reply is lost
	Refuse           // the server does nothing, and says that there are too many requests
)

// ErrLost is what the client of a [Transport] hears in place of a reply.
var ErrLost = errors.New("the connection broke")

// Transport is for tables that talk HTTP: requests meet the fates that are asked for.
type Transport struct {
	Base http.RoundTripper // default: http.DefaultTransport
	Fate func() Fate
}

// RoundTrip is what http.RoundTripper asks for.
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

// lossy is a client of the harness whose requests meet a fate while it is set. A table that asks again by itself meets it again.
func (e *env) lossy() (record.Table, *atomic.Int64, error) {
	if e.h.Lossy == nil {
		return nil, nil, skipped("needs Harness.Lossy")
	}
	var fate atomic.Int64
	t, err := e.h.Lossy(e.ctx, func() Fate { return Fate(fate.Load()) })
	if err != nil {
		return nil, nil, fmt.Errorf("opening a client: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tables = append(e.tables, t)
	return t, &fate, nil
}

func lostReply(e *env) error {
	t, fate, err := e.lossy()
	if err != nil {
		return err
	}
	for round := range 3 {
		name := e.name(fmt.Sprint(round))
		now := record.Row{Name: name}
		if round > 0 {
			if now, err = put(e, t, row(name, "", base)); err != nil {
				return err
			}
		}
		fate.Store(int64(LoseReply))
		what := "Swap"
		if round == 2 {
			what = "Delete"
			err = t.Delete(e.ctx, now)
		} else {
			_, err = t.Swap(e.ctx, row(name, now.Version, base+1))
		}
		fate.Store(int64(Pass))
		if !unknown(err) {
			return fmt.Errorf("a %s took effect and its reply was lost, and it says: %v", what, err)
		}
	}
	return nil
}

func lostRequest(e *env) error { return e.fails(LoseRequest, "never arrived") }

func refusedRequest(e *env) error { return e.fails(Refuse, "was turned away for now") }

// fails has every method meet a fate that keeps it from reaching the store.
func (e *env) fails(f Fate, what string) error {
	t, fate, err := e.lossy()
	if err != nil {
		return err
	}
	now, err := put(e, t, row(e.name("m"), "", base))
	if err != nil {
		return err
	}
	now.Data, _ = content(base)
	fate.Store(int64(f))
	err = each(e, t, e.ctx, now, func(method string, err error) error {
		if !unknown(err) {
			return fmt.Errorf("a %s whose request %s says: %v", method, what, err)
		}
		return nil
	})
	fate.Store(int64(Pass))
	if err != nil {
		return err
	}
	return see(e, t, now)
}
