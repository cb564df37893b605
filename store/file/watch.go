package file

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/holdfast-go/holdfast/driver"
)

// hub tells waiters of file events: one watcher for the table, one watch for each directory that somebody waits on. A
// lock that has no directory yet is watched through the directory of all locks. Watches go by path, the records by
// handle: should the two come apart because somebody renames the store, events stay away and the engine's polling is
// what is left.
//
// The watcher has a mutex of its own, which it also holds while it hands over an error. So no call of the watcher is made with the
// mutex held that run needs to take events and errors in.
type hub struct {
	locks string // path

	watching sync.Mutex        // held while the watcher is made, and while watches are added and removed
	watcher  *fsnotify.Watcher // made for the first waiter
	closed   bool
	done     chan struct{}      // closed when run has returned
	watched  map[string]int     // how many wait on each directory
	add      func(string) error // the watcher's

	mu      sync.Mutex
	waiting map[string]*subscription // by lock directory
}

// subscription is shared by those who wait for the same lock.
type subscription struct {
	waiters int
	changed chan struct{} // closed at the next event
}

func newHub(locks string) *hub {
	return &hub{locks: locks, watched: map[string]int{}, waiting: map[string]*subscription{}}
}

// subscribe returns a channel that is closed when something happens to a lock after this call.
func (h *hub) subscribe(entry string) (changed <-chan struct{}, cancel func(), err error) {
	key := filepath.Join(h.locks, entry)
	watch, err := h.addWatch(key)
	if err != nil {
		return nil, nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.waiting[key]
	if s == nil {
		s = &subscription{changed: make(chan struct{})}
		h.waiting[key] = s
	}
	s.waiters++
	return s.changed, func() { h.cancel(key, watch, s) }, nil
}

// addWatch watches a lock's directory, or the directory of all locks if there is none yet, and returns the path that is watched.
func (h *hub) addWatch(key string) (watch string, err error) {
	h.watching.Lock()
	defer h.watching.Unlock()
	if err := h.start(); err != nil {
		return "", err
	}
	watch = key
	// Always added, also when others wait on the same path: theirs may be a directory that has been replaced since.
	err = h.add(watch)
	if errors.Is(err, fs.ErrNotExist) {
		watch = h.locks
		err = h.add(watch)
	}
	if err != nil {
		return "", err
	}
	h.watched[watch]++
	return watch, nil
}

func (h *hub) removeWatch(watch string) {
	h.watching.Lock()
	defer h.watching.Unlock()
	if h.watched[watch]--; h.watched[watch] == 0 {
		delete(h.watched, watch)
		if !h.closed {
			_ = h.watcher.Remove(watch) // an error says that it went with its directory
		}
	}
}

func (h *hub) cancel(key, watch string, s *subscription) {
	h.removeWatch(watch)
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.waiters--; s.waiters == 0 && h.waiting[key] == s {
		delete(h.waiting, key)
	}
}

// start makes the watcher, which can fail: the number of them is limited on each machine.
func (h *hub) start() error {
	if h.closed {
		return driver.ErrClosed
	}
	if h.watcher != nil {
		return nil
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	h.watcher, h.add, h.done = watcher, watcher.Add, make(chan struct{})
	go h.run(watcher)
	return nil
}

func (h *hub) run(watcher *fsnotify.Watcher) {
	defer close(h.done)
	for {
		select {
		case event, ok := <-watcher.Events:
			if !ok {
				return
			}
			h.hear(event)
		case _, ok := <-watcher.Errors:
			if !ok {
				return
			}
			h.wakeAll() // events were dropped: whose is not known
		}
	}
}

// hear wakes those whom an event may concern. Asides and removals of old versions change nothing.
func (h *hub) hear(event fsnotify.Event) {
	parent, name := filepath.Split(event.Name)
	if filepath.Clean(parent) == h.locks {
		h.wake(event.Name) // the lock's directory came or went
		return
	}
	if _, aside, ok := parseFile(name); ok && !aside && event.Has(fsnotify.Create) {
		h.wake(filepath.Clean(parent))
	}
}

func (h *hub) wake(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.waiting[key]; s != nil {
		close(s.changed)
		delete(h.waiting, key)
	}
}

func (h *hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, s := range h.waiting {
		close(s.changed)
		delete(h.waiting, key)
	}
}

// close ends the watcher and waits for its goroutine.
func (h *hub) close() error {
	h.watching.Lock()
	h.closed = true
	watcher := h.watcher
	h.watching.Unlock()
	if watcher == nil {
		return nil
	}
	err := watcher.Close()
	<-h.done
	return err
}
