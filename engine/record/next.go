package record

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// watchPoll is how often a lock that is watched is looked at though nothing was heard: a claim whose time is over changes
// no record, and a table may be unable to tell.
const watchPoll = time.Second

// NextChange is one load a change, and one every watchPoll.
func (e *engine) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	ctx, stop := e.bind(ctx)
	defer stop()
	for {
		row, rec, err := e.load(ctx, seen.Name)
		if ctx.Err() != nil {
			return driver.Lock{}, context.Cause(ctx)
		}
		if err != nil {
			return driver.Lock{}, err
		}
		if lock := e.show(row, rec); lock.Revision != seen.Revision {
			return lock, nil
		}
		e.await(ctx, row)
	}
}

// await returns when the row may have changed, after watchPoll at the latest.
func (e *engine) await(ctx context.Context, row Row) {
	ctx, cancel := context.WithTimeout(ctx, watchPoll/2+randomPart(watchPoll/2))
	defer cancel()
	if e.notifier == nil || e.notifier.Wait(ctx, row.Name, row.Version) != nil {
		<-ctx.Done()
	}
}
