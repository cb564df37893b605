package file

import (
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/windows"
)

// fileWatcher watches the directory of all locks, with all that is in it, by one request of the kernel at a time.
//
// Rejected: fsnotify's watcher, as on other systems. If an event is under way while the watch of a directory is removed,
// it closes the handle of that directory twice, and by then the number may be that of another file: a liveness file,
// whose client would be taken for dead, or one that Go's runtime needs.
type fileWatcher struct {
	Events chan fsnotify.Event
	Errors chan error

	path   string
	stop   windows.Handle // an event of the kernel, which ends the reader
	ended  chan struct{}  // closed when the reader has ended; nil before there is one
	broken atomic.Bool    // the reader is about to end, because the directory cannot be watched any more
}

func newFileWatcher(locks string) (*fileWatcher, error) {
	stop, err := windows.CreateEvent(nil, 1, 0, nil)
	if err != nil {
		return nil, err
	}
	return &fileWatcher{Events: make(chan fsnotify.Event), Errors: make(chan error), path: locks, stop: stop}, nil
}

// Add watches all locks, whichever directory is given. When it returns, no event is missed from then on.
func (w *fileWatcher) Add(string) error {
	if w.ended != nil {
		if !w.broken.Load() {
			return nil
		}
		<-w.ended
	}
	path, err := windows.UTF16PtrFromString(w.path)
	if err != nil {
		return err
	}
	dir, err := windows.CreateFile(path, windows.FILE_LIST_DIRECTORY, shareAll, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_BACKUP_SEMANTICS|windows.FILE_FLAG_OPEN_REPARSE_POINT|windows.FILE_FLAG_OVERLAPPED, 0)
	if err != nil {
		return systemError(err)
	}
	completed, err := windows.CreateEvent(nil, 0, 0, nil)
	if err != nil {
		_ = windows.CloseHandle(dir)
		return err
	}
	w.broken.Store(false)
	r := &changeReader{fileWatcher: w, dir: dir, completed: completed}
	if err := r.request(); err != nil {
		r.closeHandles()
		return systemError(err)
	}
	w.ended = make(chan struct{})
	go r.run(w.ended)
	return nil
}

// Remove does nothing: the directory of all locks is watched until Close.
func (w *fileWatcher) Remove(string) error { return nil }

// Close ends the reader. It is called once, and nothing else is called after that.
func (w *fileWatcher) Close() error {
	if w.ended != nil {
		_ = windows.SetEvent(w.stop)
		<-w.ended
	}
	close(w.Events)
	close(w.Errors)
	return windows.CloseHandle(w.stop)
}

// changeReader reads what changes below an open directory. While a request is under way, the kernel writes into it.
type changeReader struct {
	*fileWatcher
	dir, completed windows.Handle
	overlapped     windows.Overlapped
	buf            [16 << 10]uint32 // aligned as the kernel wants it; 64 KiB is the most for directories of other machines
}

func (r *changeReader) closeHandles() {
	_ = windows.CloseHandle(r.dir)
	_ = windows.CloseHandle(r.completed)
}

// request asks the kernel for the next changes. It notes those between two requests.
func (r *changeReader) request() error {
	r.overlapped = windows.Overlapped{HEvent: r.completed}
	return windows.ReadDirectoryChanges(r.dir, (*byte)(unsafe.Pointer(&r.buf[0])), uint32(unsafe.Sizeof(r.buf)), true,
		windows.FILE_NOTIFY_CHANGE_FILE_NAME|windows.FILE_NOTIFY_CHANGE_DIR_NAME, nil, &r.overlapped, 0)
}

// run waits for requests until the watcher is closed, or until one fails.
func (r *changeReader) run(ended chan<- struct{}) {
	defer close(ended)
	defer r.closeHandles()
	for {
		var n uint32
		first, err := windows.WaitForMultipleObjects([]windows.Handle{r.stop, r.completed}, false, windows.INFINITE)
		if err != nil || first == windows.WAIT_OBJECT_0 {
			_ = windows.CancelIoEx(r.dir, &r.overlapped)
			_ = windows.GetOverlappedResult(r.dir, &r.overlapped, &n, true) // the kernel writes into it until then
			return
		}
		err = windows.GetOverlappedResult(r.dir, &r.overlapped, &n, false)
		if err == nil && n > 0 {
			r.report()
		} else if err == nil {
			r.Errors <- fsnotify.ErrEventOverflow
		}
		if err == nil {
			err = r.request()
		}
		if err != nil {
			r.broken.Store(true) // first: waiters that the error wakes start another reader
			r.Errors <- err
			return
		}
	}
}

// report sends an event for each name that a request has brought.
func (r *changeReader) report() {
	for at := uintptr(0); ; {
		change := (*windows.FileNotifyInformation)(unsafe.Add(unsafe.Pointer(&r.buf[0]), at))
		name := windows.UTF16ToString(unsafe.Slice(&change.FileName, change.FileNameLength/2))
		event := fsnotify.Event{Name: filepath.Join(r.path, name), Op: fsnotify.Remove}
		if change.Action == windows.FILE_ACTION_ADDED || change.Action == windows.FILE_ACTION_RENAMED_NEW_NAME {
			event.Op = fsnotify.Create
		}
		r.Events <- event
		if change.NextEntryOffset == 0 {
			return
		}
		at += uintptr(change.NextEntryOffset)
	}
}
