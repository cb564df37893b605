package nats

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// watch is the watch of one key, which all calls of Wait for it share. It stays for a moment when nobody waits: a hub
// that was woken reads the key, and waits again.
//
// The server makes a consumer for each watch. A subscription to the key's subject alone would cost less, but it shows
// a write before it is done, and those that are refused.
type watch struct {
	stop context.CancelFunc

	// Guarded by the table's mu.
	waiting  int
	idle     *time.Timer // ends the watch when nobody has waited for a while
	revision uint64      // the last one that was reported
	removed  bool        // it is a marker
	err      error       // the watch has ended
	changed  chan struct{}
}

// idleWatch is when a watch ends that no call waits for, counted from the end of the last call.
const idleWatch = 5 * time.Second

// Wait implements record.Notifier.
func (t *table) Wait(ctx context.Context, name, version string) error {
	known, err := parseVersion(version)
	if err != nil {
		return err
	}
	w, err := t.joinWatch(name)
	if err != nil {
		return err
	}
	defer t.leaveWatch(w)
	for {
		t.mu.Lock()
		news, err, changed := w.revision > known.revision && (known.revision > 0 || !w.removed), w.err, w.changed
		t.mu.Unlock()
		switch {
		case news:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// joinWatch returns the watch of a name, and begins one if there is none.
func (t *table) joinWatch(name string) (*watch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.watches[name]
	if w == nil {
		w = &watch{changed: make(chan struct{})}
		var ctx context.Context
		ctx, w.stop = context.WithCancel(t.life)
		w.idle = time.AfterFunc(idleWatch, w.stop)
		if !t.life.Go(func() { t.runWatch(ctx, name, w) }) {
			w.stop()
			return nil, t.life.Err()
		}
		t.watches[name] = w
	}
	w.waiting++
	w.idle.Stop()
	return w, nil
}

func (t *table) leaveWatch(w *watch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.waiting--; w.waiting == 0 {
		w.idle.Reset(idleWatch)
	}
}

// runWatch watches a key until ctx ends or the watch fails.
func (t *table) runWatch(ctx context.Context, name string, w *watch) {
	err := t.watchKey(ctx, name, w)
	w.stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	w.idle.Stop()
	if t.watches[name] == w {
		delete(t.watches, name)
	}
	w.err = err
	close(w.changed)
}

func (t *table) watchKey(ctx context.Context, name string, w *watch) error {
	if err := t.checkConnected(); err != nil {
		return err
	}
	tooLong := time.AfterFunc(t.opts.Timeout, w.stop)
	watcher, err := t.kv.Watch(ctx, t.key(name), jetstream.MetaOnly())
	if err != nil {
		tooLong.Stop()
		return err
	}
	tooLong.Stop()
	defer func() { _ = watcher.Stop() }() // this needs no reply
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-watcher.Updates():
			switch {
			case !ok:
				return errors.New("the watch has ended")
			case e == nil: // what existed before has been reported
				continue
			}
			t.mu.Lock()
			w.revision, w.removed = e.Revision(), e.Operation() != jetstream.KeyValuePut
			close(w.changed)
			w.changed = make(chan struct{})
			t.mu.Unlock()
		}
	}
}
