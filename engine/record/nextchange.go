package record

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// watchInterval is how often a watched lock is loaded without a notification. A claim that expires changes no record,
// and a table may be unable to notify.
const watchInterval = time.Second

// NextChange costs one load per change, and one per watchInterval.
func (e *engine) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	ctx, stop := e.life.Bind(ctx)
	defer stop()
	var watch Watch
	if e.watcher != nil {
		watch = e.watcher.Watch(seen.Name)
		defer watch.Stop()
	}
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
		waitForRowChange(ctx, watch, row.Version)
	}
}

// waitForRowChange returns when the row may have changed, and after watchInterval at the latest.
func waitForRowChange(ctx context.Context, watch Watch, version string) {
	ctx, cancel := context.WithTimeout(ctx, watchInterval/2+randomPart(watchInterval/2))
	defer cancel()
	if watch != nil {
		if _, err := watch.Wait(ctx, version, Anywhere); err == nil {
			return
		}
	}
	<-ctx.Done()
}
