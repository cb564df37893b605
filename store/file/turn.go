//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
)

// TakeTurn takes the turn to wait for a lock among the clients of this directory. The client that has the turn
// keeps the file turns/<lock> locked (flock), so that the turn ends with its process. It removes the file to pass the turn
// on. The removal wakes the others, and one of them makes the next file.
func (t *table) TakeTurn(ctx context.Context, name string) (pass func(), err error) {
	f, err := t.openTurns(ctx, name)
	if err != nil {
		return nil, err
	}
	passFile, err := t.waitForTurn(ctx, f)
	if passFile == nil {
		t.closeHandle(f.dir)
		return nil, err
	}
	return func() {
		passFile()
		t.closeHandle(f.dir)
	}, nil
}

// turnFile is the file of a turn, in the directory of all turns, which is open. It is used by that handle: in a shared
// store a member could lead a path elsewhere, and a turn ends with the removal of a file.
type turnFile struct {
	disk
	dir  int
	name string
}

// openTurns opens the directory of all turns, for the turn of one lock.
func (t *table) openTurns(ctx context.Context, name string) (turnFile, error) {
	done, err := t.beginCall(ctx)
	if err != nil {
		return turnFile{}, err
	}
	defer done()
	d, ok := t.fsys.(disk)
	if !ok || t.events == nil {
		return turnFile{}, fmt.Errorf("turns: %w", driver.ErrUnsupported)
	}
	dir, err := t.openFolder("turns")
	return turnFile{d, dir, encodeName(name)}, err
}

// waitForTurn returns when this client has the turn, or never will.
func (t *table) waitForTurn(ctx context.Context, f turnFile) (pass func(), err error) {
	for {
		if pass, err = t.tryTurn(ctx, f); pass != nil || err != nil {
			return pass, err
		}
		if pass, err = t.awaitTurn(ctx, f); pass != nil || err != nil {
			return pass, err
		}
	}
}

// awaitTurn returns when the turn may be free. It tries once more when it has subscribed, and returns the turn if that
// was in time.
func (t *table) awaitTurn(ctx context.Context, f turnFile) (pass func(), err error) {
	path := filepath.Join(t.path, "turns", f.name)
	passed, cancel, err := t.events.subscribeFile(path)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // it was removed just now
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	defer cancel()
	if pass, err := t.tryTurn(ctx, f); pass != nil || err != nil {
		return pass, err
	}
	select {
	case <-passed:
		return nil, nil
	case <-t.closed:
		return nil, driver.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// tryTurn takes the turn if nobody has it.
func (t *table) tryTurn(ctx context.Context, f turnFile) (pass func(), err error) {
	done, err := t.beginCall(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	fd, err := f.open()
	if errors.Is(err, unix.ENOENT) {
		fd, err = f.makeLocked(t.tmp, t.newNonce())
	}
	switch {
	case errors.Is(err, unix.EEXIST): // another member was faster
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("open the turn of %s: %w", f.name, err)
	}
	return f.lock(fd)
}

// lock takes over the handle of the file. The file may have been removed since it was opened: then its lock is no turn.
func (f turnFile) lock(fd int) (pass func(), err error) {
	err = retryInterrupted(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil && f.isSameFile(fd) {
		return func() {
			_ = f.removeFile(f.dir, f.name)
			_ = unix.Close(fd)
		}, nil
	}
	_ = unix.Close(fd)
	if err == nil || errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("flock the turn of %s: %w", f.name, err)
}

// open opens the file. In a store of one user it makes the file if there is none.
func (f turnFile) open() (fd int, err error) {
	if f.shared {
		return openAt(f.dir, f.name, unix.O_RDONLY|unix.O_NONBLOCK)
	}
	return openAt(f.dir, f.name, unix.O_RDONLY|unix.O_CREAT)
}

// makeLocked makes the file for all members, in tmp, and then gives it its name: the others must not meet a file that they
// may not open. It is locked before that.
func (f turnFile) makeLocked(tmp int, nonce string) (fd int, err error) {
	fd, err = f.createLocked(tmp, nonce)
	if err != nil {
		return -1, err
	}
	err = unix.Linkat(tmp, nonce, f.dir, f.name, 0)
	_ = f.removeFile(tmp, nonce)
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// isSameFile reports whether the name still leads to an open file.
func (f turnFile) isSameFile(fd int) bool {
	var opened, there unix.Stat_t
	return unix.Fstat(fd, &opened) == nil &&
		unix.Fstatat(f.dir, f.name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		opened.Dev == there.Dev && opened.Ino == there.Ino
}
