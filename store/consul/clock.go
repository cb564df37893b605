package consul

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// dateKey is the key of a context's value: where the Date of the replies to its requests goes.
type dateKey struct{}

// datedTransport hands on the Date of replies, which Consul's client does not return, to those who want it.
type datedTransport struct{ inner http.RoundTripper }

func (d datedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := d.inner.RoundTrip(r)
	if last, ok := r.Context().Value(dateKey{}).(*atomic.Pointer[time.Time]); ok && err == nil {
		if date, err := http.ParseTime(reply.Header.Get("Date")); err == nil {
			last.Store(&date)
		}
	}
	return reply, err
}

// ReadClock implements record.Table. Consul tells no time in its data, but the agent's replies have the Date of
// its own clock.
func (tb *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	if tb.life.Err() != nil {
		return now, 0, driver.ErrClosed
	}
	var last atomic.Pointer[time.Time]
	if _, err := tb.Load(context.WithValue(ctx, dateKey{}, &last), "clock"); err != nil {
		return now, 0, err
	}
	date := last.Load()
	if date == nil {
		return now, 0, fmt.Errorf("%w: the agent's replies have no date", driver.ErrUnsupported)
	}
	const cut = time.Second // a Date has no fraction
	return date.Add(cut / 2), cut / 2, nil
}

// TokenFloor is this machine's wall clock, which never goes back here.
func (tb *table) TokenFloor() int64 {
	tb.store.mu.Lock()
	defer tb.store.mu.Unlock()
	tb.store.micros = max(tb.store.micros, time.Now().UnixMicro())
	return tb.store.micros
}

// Clock is nil: each agent tells a time of its own.
func (tb *table) Clock() record.Clock { return nil }
