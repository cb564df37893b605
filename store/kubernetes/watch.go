package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// watches are the watches of one store.
type watches struct {
	mu       sync.Mutex
	byObject map[string]*objectWatch
}

func newWatches() *watches { return &watches{byObject: map[string]*objectWatch{}} }

// objectWatch is the watch of one object, which all calls of Wait for it share. It stays for a moment when nobody
// waits: a waiter that was woken reads the object, and waits again.
//
// It begins at the version that its first waiter has read, and the server sends each change after that. So a waiter
// that knows an older version than the last one here has missed something, and one that knows a newer version waits
// until the watch has got as far: resource versions grow with each change ("Kubernetes API Concepts", "Resource
// versions").
type objectWatch struct {
	object string
	stop   context.CancelCauseFunc

	// The rest is guarded by the mutex of watches.
	waiting int
	idle    *time.Timer   // runs while nobody waits, and ends the watch
	last    version       // what the watch has shown last
	shown   *lease        // the object as of then, if it has shown anything
	notice  version       // what it has shown last of what concerns this client, or what it began with
	isLate  bool          // a waiter has read what comes after that
	late    *time.Timer   // runs while isLate, and ends the watch
	err     error         // why the watch has ended
	changed chan struct{} // closed when one of the above changes that a waiter looks at
}

const (
	// idleWatch is when a watch ends that no call waits for.
	idleWatch = 5 * time.Second
	// maxLate is when a watch is taken for broken that shows nothing although a read has shown a change. Nothing else
	// tells of a connection that was cut.
	maxLate = requestTimeout
)

var (
	errIdle    = errors.New("nobody waits")
	errLate    = errors.New("it does not show what was read")
	errChanged = errors.New("the object has changed")
)

// version is a state of an object: its last change, after which it exists or does not. That change is not known, and 0,
// if the object was found absent by a read.
type version struct {
	revision uint64
	exists   bool
}

// parseVersion parses the version of a row.
func parseVersion(s string) (version, error) {
	if s == "" {
		return version{}, nil
	}
	_, text, _ := strings.Cut(s, " ")
	revision, err := parseRevision(text)
	return version{revision, true}, err
}

// parseRevision parses a resource version, which is a number on all API servers of Kubernetes.
func parseRevision(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%w: the resource version %q is not a number", driver.ErrUnsupported, text)
	}
	return n, nil
}

// Watcher watches objects.
func (t *table) Watcher() record.Watcher { return t }

// Session is a random one.
func (t *table) Session() string { return t.session }

// Watch implements record.Watcher.
func (t *table) Watch(name string) record.Watch {
	return &watch{table: t, name: name, object: objectName(t.prefix, name)}
}

// watch is a record.Watch. Its part in the watch of the object is kept for a while after each Wait.
type watch struct {
	record.PlainWatch
	table  *table
	name   string
	object string
}

// Wait joins the watch of a lock's object, and returns the object that this has shown last. That is newer than what was
// seen.
func (one *watch) Wait(ctx context.Context, seen string, place record.Place) (record.Row, error) {
	t := one.table
	known, err := parseVersion(seen)
	if err != nil {
		return record.Row{}, err
	}
	w, err := t.joinWatch(one.object, known)
	if err != nil {
		return record.Row{}, err
	}
	defer t.leaveWatch(w)
	if err := one.await(ctx, w, known, place); err != nil {
		return record.Row{}, err
	}
	t.watches.mu.Lock()
	defer t.watches.mu.Unlock()
	if w.shown == nil || w.err != nil || !w.last.exists || w.last.revision <= known.revision {
		return record.Row{}, nil // a read tells
	}
	row, err := t.readRow(w.shown)
	if err != nil || row.Name != one.name {
		return record.Row{}, nil
	}
	return row, nil
}

// await returns when the watch has shown what concerns claims at that place, or a read is needed to tell.
func (one *watch) await(ctx context.Context, w *objectWatch, known version, place record.Place) error {
	t := one.table
	asked := version{revision: math.MaxUint64}
	for {
		t.watches.mu.Lock()
		last, awaited, err, changed := w.last, w.last, w.err, w.changed
		if place == record.InQueue {
			awaited = w.notice
		}
		t.watches.mu.Unlock()
		isComparable := last.revision > 0 && known.revision > 0
		switch {
		case isComparable && awaited.revision > known.revision:
			return nil
		case errors.Is(err, errChanged):
			return nil
		case errors.Is(err, driver.ErrClosed):
			return err
		case err != nil:
			return fmt.Errorf("the watch has ended: %w", err)
		case !isComparable && last.exists != known.exists && last != asked:
			// Either the object has changed, or the watch shows what came before the waiter's read. A read tells. If
			// it is the second, what comes after this read is still to be shown.
			now, err := t.readVersion(ctx, one.object)
			if err != nil || now != known {
				return err
			}
			asked = last
		}
		if last == asked || isComparable && last.revision < known.revision {
			t.expectChange(w, last)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readVersion reads what the version of an object is now.
func (c *client) readVersion(ctx context.Context, object string) (version, error) {
	l, err := c.get(ctx, object)
	if errors.Is(err, errNotFound) {
		return version{}, nil
	}
	if err != nil {
		return version{}, err
	}
	return parseVersion(l.version())
}

// joinWatch returns the watch of an object for a waiter that has read a version of it, and begins one if there is none.
func (c *client) joinWatch(object string, known version) (*objectWatch, error) {
	c.watches.mu.Lock()
	defer c.watches.mu.Unlock()
	w := c.watches.byObject[object]
	if w == nil {
		w = &objectWatch{object: object, last: known, notice: known, changed: make(chan struct{})}
		var ctx context.Context
		ctx, w.stop = context.WithCancelCause(c.life)
		w.idle = time.AfterFunc(idleWatch, func() { c.endIf(w, errIdle, func() bool { return w.waiting == 0 }) })
		w.late = time.AfterFunc(maxLate, func() { c.endIf(w, errLate, func() bool { return w.isLate }) })
		if !c.life.Go(func() { c.runWatch(ctx, w, known) }) {
			w.stop(nil)
			return nil, driver.ErrClosed
		}
		c.watches.byObject[object] = w
	}
	w.waiting++
	w.idle.Stop()
	return w, nil
}

func (c *client) leaveWatch(w *objectWatch) {
	c.watches.mu.Lock()
	defer c.watches.mu.Unlock()
	if w.waiting--; w.waiting == 0 && w.err == nil {
		w.idle.Reset(idleWatch)
	}
}

// expectChange notes that there is more than what a watch has shown last.
func (c *client) expectChange(w *objectWatch, last version) {
	c.watches.mu.Lock()
	defer c.watches.mu.Unlock()
	if w.last == last && w.err == nil {
		w.expectMore()
	}
}

// expectShown notes that a version of an object was read. If there is a watch, it shows that version soon. Otherwise it
// is broken. Nothing else tells that to a client that listens for notices only.
func (c *client) expectShown(object string, read version) {
	c.watches.mu.Lock()
	defer c.watches.mu.Unlock()
	if w := c.watches.byObject[object]; w != nil && w.last.revision < read.revision {
		w.expectMore()
	}
}

// expectMore is called with mu held.
func (w *objectWatch) expectMore() {
	if !w.isLate {
		w.isLate = true
		w.late.Reset(maxLate)
	}
}

// endIf ends a watch if its timer has found what is still so.
func (c *client) endIf(w *objectWatch, err error, isSo func() bool) {
	c.watches.mu.Lock()
	defer c.watches.mu.Unlock()
	if w.err == nil && isSo() {
		c.endLocked(w, err)
	}
}

// endLocked ends a watch. It is called with mu held.
func (c *client) endLocked(w *objectWatch, err error) {
	w.stop(err)
	w.idle.Stop()
	w.late.Stop()
	delete(c.watches.byObject, w.object)
	w.err = err
	close(w.changed)
}

// runWatch watches an object until the watch breaks, the server ends it, or nobody waits. It does not go on by itself:
// the waiters read the object, and the first that waits again begins a watch at the version that it has read.
func (c *client) runWatch(ctx context.Context, w *objectWatch, known version) {
	err := c.watchFrom(ctx, w, known)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	c.watches.mu.Lock()
	defer c.watches.mu.Unlock()
	if w.err == nil {
		c.endLocked(w, err)
	}
}

// watchFrom watches an object from a version on. The server knows the changes of the last minutes. If the version is
// older, or there was no object, the watch begins with what the server has in its cache, and a read after that finds
// what the cache does not have yet.
func (c *client) watchFrom(ctx context.Context, w *objectWatch, known version) error {
	show := func(now shownChange) { c.showChange(w, now) }
	if known.exists {
		err := c.watch(ctx, w.object, strconv.FormatUint(known.revision, 10), func() error { return nil }, show)
		if !errors.Is(err, errExpired) {
			return err
		}
	}
	return c.watch(ctx, w.object, "0", func() error {
		now, err := c.readVersion(ctx, w.object)
		switch {
		case err != nil:
			return err
		case now != known:
			return errChanged
		}
		return nil
	}, show)
}

// showChange shows a change to the waiters. A watch that begins with the server's cache may show what is older than the
// version that it has begun with.
func (c *client) showChange(w *objectWatch, now shownChange) {
	c.watches.mu.Lock()
	defer c.watches.mu.Unlock()
	if w.err != nil || now.revision <= w.last.revision {
		return
	}
	w.last, w.shown, w.isLate = now.version, now.object, false
	w.late.Stop()
	close(w.changed)
	w.changed = make(chan struct{})
	sessions, ok := now.object.Meta.Annotations[notifyAnnotation]
	if !now.exists || !ok || record.NamesSession(sessions, c.session) {
		w.notice = w.last
	}
}
