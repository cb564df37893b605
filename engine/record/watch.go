package record

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// watchInterval is how often a lock that is watched is looked at though nothing was heard: a claim whose time is over changes
// no record, and a table may be unable to tell.
const watchInterval = time.Second

// NextChange is one load a change, and one every watchPoll.
func (e *engine) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	ctx, stop := e.bindContext(ctx)
	defer stop()
	for {
		row, rec, err := e.loadRecord(ctx, seen.Name)
		if ctx.Err() != nil {
			return driver.Lock{}, context.Cause(ctx)
		}
		if err != nil {
			return driver.Lock{}, err
		}
		if lock := e.describeRow(row, rec); lock.Revision != seen.Revision {
			return lock, nil
		}
		e.waitForRowChange(ctx, row)
	}
}

// waitForRowChange returns when the row may have changed, after watchPoll at the latest.
func (e *engine) waitForRowChange(ctx context.Context, row Row) {
	ctx, cancel := context.WithTimeout(ctx, watchInterval/2+randomPart(watchInterval/2))
	defer cancel()
	if e.notifier == nil || e.notifier.Wait(ctx, row.Name, row.Version) != nil {
		<-ctx.Done()
	}
}
