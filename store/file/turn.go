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
	if err := t.openStore(ctx, false); err != nil {
		return nil, err
	}
	// In a shared store a member could lead a path elsewhere, and a turn ends with the removal of a file.
	if d, ok := t.fsys.(disk); t.events == nil || ok && d.shared {
		return nil, fmt.Errorf("turns: %w", driver.ErrUnsupported)
	}
	path := filepath.Join(t.path, "turns", encodeName(name))
	for {
		pass, err := tryTurn(path)
		if pass != nil || err != nil {
			return pass, err
		}
		if pass, err = t.awaitTurn(ctx, path); pass != nil || err != nil {
			return pass, err
		}
	}
}

// awaitTurn returns when the turn may be free. It tries once more when it has subscribed, and returns the turn if that
// was in time.
func (t *table) awaitTurn(ctx context.Context, path string) (pass func(), err error) {
	passed, cancel, err := t.events.subscribeFile(path)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // it was removed just now
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	defer cancel()
	if pass, err := tryTurn(path); pass != nil || err != nil {
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
func tryTurn(path string) (pass func(), err error) {
	fd, err := openTurn(path)
	if err != nil {
		return nil, err
	}
	return lockTurn(fd, path)
}

// lockTurn takes over the handle of a turn's file. The file may have been removed since it was opened: then its lock is
// no turn.
func lockTurn(fd int, path string) (pass func(), err error) {
	err = retryInterrupted(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil && isSameFile(fd, path) {
		return func() {
			_ = unix.Unlink(path)
			_ = unix.Close(fd)
		}, nil
	}
	_ = unix.Close(fd)
	if err == nil || errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("flock %s: %w", path, err)
}

// openTurn opens the file of a turn, and makes it, and its directory, if there is none.
func openTurn(path string) (fd int, err error) {
	open := func() error {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CREAT|openFlags, 0o600)
		return err
	}
	if err = retryInterrupted(open); errors.Is(err, unix.ENOENT) {
		if err = unix.Mkdir(filepath.Dir(path), 0o700); err == nil || errors.Is(err, unix.EEXIST) {
			err = retryInterrupted(open)
		}
	}
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return fd, nil
}

// isSameFile reports whether a path still leads to an open file.
func isSameFile(fd int, path string) bool {
	var opened, there unix.Stat_t
	return unix.Fstat(fd, &opened) == nil && unix.Lstat(path, &there) == nil &&
		opened.Dev == there.Dev && opened.Ino == there.Ino
}
