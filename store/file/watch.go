package file

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/holdfast-go/holdfast/driver"
)

// eventHub notifies waiters of file events. It has one watcher for the table and one watch per directory that somebody
// waits on. A lock that has no directory yet is watched through the directory of all locks. Watches go by path, and
// the records by handle: if the two diverge because somebody renames the store, there are no events, and the engine
// still polls.
//
// The watcher has a mutex of its own, which it also holds while it delivers an error. So no call of the watcher is
// made while the mutex is held that run needs to receive events and errors.
type eventHub struct {
	locksPath string

	watcherMu sync.Mutex   // held while the watcher is made, and while watches are added and removed
	watcher   *fileWatcher // made for the first waiter
	closed    bool
	done      chan struct{}      // closed when run has returned
	watched   map[string]int     // the number of waiters per directory
	addPath   func(string) error // the watcher's Add; tests replace it

	mu      sync.Mutex
	waiting map[string]*subscription // by lock directory
}

// subscription is shared by all waiters of a lock.
type subscription struct {
	waiters int
	changed chan struct{} // closed at the next event
}

func newEventHub(locks string) *eventHub {
	return &eventHub{locksPath: locks, watched: map[string]int{}, waiting: map[string]*subscription{}}
}

// subscribe returns a channel that is closed at the first change of a lock after this call.
func (h *eventHub) subscribe(entry string) (changed <-chan struct{}, cancel func(), err error) {
	key := filepath.Join(h.locksPath, entry)
	watch := key
	err = h.addWatch(watch)
	if errors.Is(err, fs.ErrNotExist) {
		watch = h.locksPath
		err = h.addWatch(watch)
	}
	if err != nil {
		return nil, nil, err
	}
	changed, cancel = h.addSubscription(key, watch)
	return changed, cancel, nil
}

// addSubscription subscribes to the events of a key, for which a path is watched.
func (h *eventHub) addSubscription(key, watch string) (changed <-chan struct{}, cancel func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.waiting[key]
	if s == nil {
		s = &subscription{changed: make(chan struct{})}
		h.waiting[key] = s
	}
	s.waiters++
	return s.changed, func() { h.cancelSubscription(key, watch, s) }
}

// addWatch watches a path.
func (h *eventHub) addWatch(path string) error {
	h.watcherMu.Lock()
	defer h.watcherMu.Unlock()
	if err := h.startWatcher(); err != nil {
		return err
	}
	// Add it even if others wait on the same path: they may watch a directory that has been replaced since.
	if err := h.addPath(path); err != nil {
		return err
	}
	h.watched[path]++
	return nil
}

// removeWatch removes a waiter from a watched directory, and the watch with the last of them.
func (h *eventHub) removeWatch(watch string) {
	h.watcherMu.Lock()
	defer h.watcherMu.Unlock()
	if h.watched[watch]--; h.watched[watch] == 0 {
		delete(h.watched, watch)
		if !h.closed {
			_ = h.watcher.Remove(watch) // an error means that the directory was removed
		}
	}
}

func (h *eventHub) cancelSubscription(key, watch string, s *subscription) {
	h.removeWatch(watch)
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.waiters--; s.waiters == 0 && h.waiting[key] == s {
		delete(h.waiting, key)
	}
}

// startWatcher makes the watcher. This can fail, since the number of watchers per machine is limited.
func (h *eventHub) startWatcher() error {
	if h.closed {
		return driver.ErrClosed
	}
	if h.watcher != nil {
		return nil
	}
	watcher, err := newFileWatcher(h.locksPath)
	if err != nil {
		return err
	}
	h.watcher, h.addPath, h.done = watcher, watcher.Add, make(chan struct{})
	go h.run(watcher)
	return nil
}

// run receives events and errors until the watcher is closed.
func (h *eventHub) run(watcher *fileWatcher) {
	defer close(h.done)
	for {
		select {
		case event, ok := <-watcher.Events:
			if !ok {
				return
			}
			h.handleEvent(event)
		case _, ok := <-watcher.Errors:
			if !ok {
				return
			}
			h.wakeAllWaiters() // events were dropped, and it is not known of which locks
		}
	}
}

// handleEvent wakes the waiters that an event may affect. Staged files and removals of old versions change no record.
func (h *eventHub) handleEvent(event fsnotify.Event) {
	parent, name := filepath.Split(event.Name)
	if filepath.Clean(parent) == h.locksPath { // the lock's directory was made or removed
		h.wakeWaiters(event.Name)
		return
	}
	if _, staged, ok := parseFile(name); ok && !staged && event.Has(fsnotify.Create) {
		h.wakeWaiters(filepath.Clean(parent))
	}
}

// wakeWaiters wakes the waiters of one lock. Their next subscription is a new one.
func (h *eventHub) wakeWaiters(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.waiting[key]; s != nil {
		close(s.changed)
		delete(h.waiting, key)
	}
}

func (h *eventHub) wakeAllWaiters() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, s := range h.waiting {
		close(s.changed)
		delete(h.waiting, key)
	}
}

// close stops the watcher and waits for its goroutine.
func (h *eventHub) close() error {
	h.watcherMu.Lock()
	h.closed = true
	watcher := h.watcher
	h.watcherMu.Unlock()
	if watcher == nil {
		return nil
	}
	err := watcher.Close()
	<-h.done
	return err
}
