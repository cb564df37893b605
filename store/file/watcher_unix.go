//go:build linux || darwin

package file

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Watcher notifies claims in the queue by pipes. The others take turns at looking at file events.
func (t *table) Watcher() record.Watcher { return t }

// Traits say that clients notify each other.
func (t *table) Traits() record.Traits { return record.Traits{PeerNotices: true} }

// Watch implements record.Watcher.
func (t *table) Watch(name string) record.Watch {
	take := func(ctx context.Context) (pass func(), err error) { return t.takeTurn(ctx, name) }
	return record.WithTurns(&watch{table: t, name: name}, take)
}

// watch is a record.Watch.
type watch struct {
	record.PlainWatch
	table   *table
	name    string
	noticed <-chan struct{} // buffered, so that it misses no notice between two calls of Wait
	stop    func()          // ends the listening to the pipe
}

// Wait listens to a pipe for claims in the queue. What is written before it listens, again or for the first time, may
// have been missed. If it cannot, it looks at each change.
func (w *watch) Wait(ctx context.Context, version string, place record.Place) (none record.Row, err error) {
	if place == record.InQueue {
		switch {
		case w.stop != nil && w.table.listens(w.name, w.noticed):
			select {
			case <-w.noticed:
				return none, nil
			case <-w.table.closed:
				return none, driver.ErrClosed
			case <-ctx.Done():
				return none, ctx.Err()
			}
		case w.listen(ctx):
			return none, nil
		}
	}
	return none, w.table.wait(ctx, w.name, version)
}

func (w *watch) listen(ctx context.Context) (ok bool) {
	noticed, stop, err := w.table.listenForNotice(ctx, w.name)
	if err == nil {
		w.noticed, w.stop = noticed, stop
	}
	return err == nil
}

// Stop ends the listening.
func (w *watch) Stop() {
	if w.stop != nil {
		w.stop()
	}
}
