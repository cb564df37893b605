package record

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// This file tells the store's time to what is stored for later: the ends of runs, the pauses after them, and how long
// records are kept. A wall clock of a client has no part in that, since another client's may differ by any amount.
// Where the table has a Clock, it is that one. Elsewhere the store is asked, and the answer is used for a minute.

// TimeBounds are the times between which the store's clock certainly is, in microseconds since 1970.
type TimeBounds struct {
	Early, Late int64
	Known       bool // false: the store does not tell its time
}

// maxReadingAge is how long an answer of ReadClock is used. Meanwhile its bounds move apart by 1.2 seconds.
const maxReadingAge = time.Minute

// clockReading is what ReadClock has answered. The zero value is stale.
type clockReading struct {
	bounds  TimeBounds
	at      driver.Instant // when the answer came
	asked   bool
	askedAt driver.Instant // for the last time
}

// storeTime returns the bounds of the store's clock by its Clock or by the last reading.
func (e *engine) storeTime() (b TimeBounds) {
	if e.storeClock != nil {
		b.Early, b.Late, b.Known = e.storeClock.Bounds()
		return b
	}
	e.mu.Lock()
	last := e.reading
	e.mu.Unlock()
	if b = last.bounds; b.Known {
		least, most := e.clock.SinceAtLeast(last.at), e.clock.Since(last.at)
		b.Early += (least - least/clockDrift).Microseconds()
		b.Late += (most + most/clockDrift).Microseconds()
	}
	return b
}

// isReadingStale reports whether the store must be asked for its time before a step that stores times.
func (e *engine) isReadingStale() bool {
	if e.storeClock != nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.reading.asked || e.clock.Since(e.reading.askedAt) > maxReadingAge
}

// refreshReading asks the store for its time if that is needed. A store that tells no time is asked again after a
// minute, and so is one that told it before and does not now: the last answer is still right, only less exact.
func (e *engine) refreshReading(ctx context.Context) error {
	if !e.isReadingStale() {
		return nil
	}
	from := e.clock.Now()
	now, maxError, err := e.table.ReadClock(ctx)
	to := e.clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	r := &e.reading
	switch {
	case err == nil:
		r.bounds = TimeBounds{now.Add(-maxError).UnixMicro(), now.Add(maxError + to.Since(from)).UnixMicro(), true}
		r.at = to
	case ctx.Err() != nil, !r.bounds.Known && !errors.Is(err, driver.ErrUnsupported):
		return err
	}
	r.asked, r.askedAt = true, to
	return nil
}

// loadForStep loads a record for a step that stores times.
func (e *engine) loadForStep(ctx context.Context, name string) (Row, *Record, error) {
	if err := e.refreshReading(ctx); err != nil {
		return Row{}, nil, e.errorOrClosed(err)
	}
	return e.loadRecord(ctx, name)
}

// estimateTime returns the best estimate of the store's time, for tokens and for times that are shown.
func (e *engine) estimateTime() int64 {
	if e.storeClock == nil {
		if b := e.storeTime(); b.Known {
			return b.Early + (b.Late-b.Early)/2
		}
	}
	return e.table.TokenFloor()
}
