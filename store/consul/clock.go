package consul

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// datedTransport remembers the Date of the last reply, which Consul's client does not return.
type datedTransport struct {
	inner http.RoundTripper
	date  atomic.Pointer[time.Time]
}

func (d *datedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := d.inner.RoundTrip(r)
	if err == nil {
		if date, err := http.ParseTime(reply.Header.Get("Date")); err == nil {
			d.date.Store(&date)
		}
	}
	return reply, err
}

// ReadClock implements record.ClockReader. Consul tells no time in its data, but the agent's replies have the Date of
// its own clock.
func (tb *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	if tb.life.Err() != nil {
		return now, 0, driver.ErrClosed
	}
	tb.store.dated.date.Store(nil)
	if _, err := tb.Load(ctx, "clock"); err != nil {
		return now, 0, err
	}
	date := tb.store.dated.date.Load()
	if date == nil {
		return now, 0, fmt.Errorf("%w: the agent's replies have no date", driver.ErrUnsupported)
	}
	const cut = time.Second // a Date has no fraction
	return date.Add(cut / 2), cut / 2, nil
}

// Now is this machine's wall clock, which never goes back here. It is good for tokens only.
func (tb *table) Now() (int64, time.Duration) {
	tb.store.mu.Lock()
	defer tb.store.mu.Unlock()
	tb.store.micros = max(tb.store.micros, time.Now().UnixMicro())
	return tb.store.micros, -1
}
