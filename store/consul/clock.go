package consul

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/record"
)

// ReadClock implements record.Table. Consul tells no time in its data, but the agent's replies have the Date of
// its own clock.
func (tb *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	if tb.life.Err() != nil {
		return now, 0, driver.ErrClosed
	}
	var last atomic.Pointer[time.Time]
	dated := httpclient.WithDate(ctx, func(date time.Time) { last.Store(&date) })
	if _, err := tb.Load(dated, "clock"); err != nil {
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
