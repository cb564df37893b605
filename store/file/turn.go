//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
)

// takeTurn takes the turn to wait for a lock among the clients of this directory. The client that has the turn keeps
// the file turns/<lock> locked (flock), so that the turn ends with its process. Each of the others listens to a pipe
// of its own there, a ticket. To pass the turn on, a client removes the file and notifies the living client with the
// oldest ticket, which makes the next file.
func (t *table) takeTurn(ctx context.Context, name string) (pass func(), err error) {
	f, err := t.openTurns(ctx, name)
	if err != nil {
		return nil, err
	}
	fd, err := t.waitForTurn(ctx, f)
	if err != nil {
		t.closeHandle(f.dir)
		return nil, err
	}
	return func() {
		// Without its name the file is nobody's turn, even if a child of this process still has it open for a moment.
		_ = f.removeFile(f.dir, f.name)
		_ = unix.Close(fd)
		t.notifyNext(f) // the one that came before that has a ticket by now
		t.closeHandle(f.dir)
	}, nil
}

// turnFile is the file of a turn, in the directory of all turns, which is open. It is used by that handle: in a shared
// store a member could lead a path elsewhere, and a turn ends with the removal of a file.
type turnFile struct {
	noticeDir
	name   string
	prefix string // of the pipes of those that wait
}

// openTurns opens the directory of all turns, for the turn of one lock.
func (t *table) openTurns(ctx context.Context, name string) (turnFile, error) {
	if err := t.beginCall(ctx); err != nil {
		return turnFile{}, err
	}
	defer t.endCall()
	return t.openTurnFile(name)
}

// openTurnFile is openTurns within a call.
func (t *table) openTurnFile(name string) (turnFile, error) {
	d, ok := t.fsys.(disk)
	if !ok {
		return turnFile{}, fmt.Errorf("turns: %w", driver.ErrUnsupported)
	}
	dir, err := t.openFolder("turns")
	return turnFile{noticeDir{d, dir, filepath.Join(t.path, "turns")}, encodeName(name), noticePrefix(name)}, err
}

// waitForTurn returns the handle of the locked file when this client has the turn.
func (t *table) waitForTurn(ctx context.Context, f turnFile) (fd int, err error) {
	if fd, err := t.tryTurn(ctx, f, true); fd >= 0 || err != nil {
		return fd, err
	}
	for place := t.clock.readMicros(); ; place++ { // each ticket has a name of its own: see notifyTicket
		ticket := fmt.Sprintf("%s%016x%s", f.prefix, place, t.liveness.session)
		if fd, err := t.awaitTurn(ctx, f, ticket); fd >= 0 || err != nil {
			return fd, err
		}
	}
}

// turnRetry is after how long a client tries again to take the turn although nobody has notified it: the one that had
// it, or was notified, may have been killed. It may have held the lock as well, which must pass on within half a
// second. If a try finds no file, somebody may be passing the turn on just now, and the turn is left to the client that
// is notified. If the next try finds none either, this client takes it.
const turnRetry = 250 * time.Millisecond

// awaitTurn returns when this client is notified. It tries once more when it listens, and returns the turn if that was
// in time.
func (t *table) awaitTurn(ctx context.Context, f turnFile, ticket string) (fd int, err error) {
	noticed, stop, err := f.listen(ticket)
	if err != nil {
		return -1, fmt.Errorf("make turns/%s: %w", ticket, err)
	}
	defer func() {
		if err != nil && f.removeFile(f.dir, ticket) != nil {
			t.notifyNext(f) // it was notified just now, and does not wait any more
		}
		stop()
	}()
	if fd, err := t.tryTurn(ctx, f, true); fd >= 0 || err != nil {
		return fd, err
	}
	missing := false // whether the last try found no file: somebody may be passing the turn on just now
	retry := time.NewTicker(turnRetry)
	defer retry.Stop()
	for {
		select {
		case <-noticed:
			return t.tryTurn(ctx, f, true)
		case <-retry.C:
			if there, err := f.entryExists(f.dir, ticket); err == nil && !there {
				return t.tryTurn(ctx, f, true) // the one that notifies was killed before it had
			}
			fd, err := t.tryTurn(ctx, f, missing)
			missing = !missing && errors.Is(err, unix.ENOENT)
			if fd >= 0 || err != nil && !missing {
				return fd, err
			}
		case <-t.closed:
			return -1, driver.ErrClosed
		case <-ctx.Done():
			return -1, ctx.Err()
		}
	}
}

// listTickets returns the tickets, the oldest first: after the prefix, their names have the time and the session.
func (f turnFile) listTickets() []string {
	names, _, err := f.listNames(f.dir)
	if err != nil {
		return nil
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return len(name) != len(f.prefix)+16+sessionLength || !strings.HasPrefix(name, f.prefix)
	})
	slices.Sort(names)
	return names
}

// notifyNext notifies the living client with the oldest ticket.
func (t *table) notifyNext(f turnFile) {
	for _, ticket := range f.listTickets() {
		if t.notifyTicket(f, ticket) {
			return
		}
	}
}

// notifyTicket notifies the client with that ticket, unless it is dead or another client notifies it. It removes the
// ticket first: only the client that has removed it may notify. A client that finds the turn taken when it was notified
// makes a ticket with another name, so that no late removal can meet that.
func (t *table) notifyTicket(f turnFile, ticket string) (notified bool) {
	fd, err := f.openForNotice(ticket)
	switch {
	case err == nil:
		defer unix.Close(fd)
		return f.removeFile(f.dir, ticket) == nil && writeNotice(fd)
	case errors.Is(err, unix.ENOENT):
	case errors.Is(err, errNoPipe), t.IsDead(ticket[len(ticket)-sessionLength:]):
		_ = f.removeFile(f.dir, ticket)
	default: // perhaps its client has not opened it yet: then it tries to take the turn when it has
	}
	return false
}

// tryTurn takes the turn if nobody has it. Otherwise it returns -1. If it may not make the file and there is none, the
// error is ENOENT.
func (t *table) tryTurn(ctx context.Context, f turnFile, mayMake bool) (fd int, err error) {
	if err := t.beginCall(ctx); err != nil {
		return -1, err
	}
	defer t.endCall()
	fd, err = f.open(mayMake)
	if mayMake && errors.Is(err, unix.ENOENT) {
		fd, err = f.makeLocked(t.tmp, t.newNonce())
	}
	switch {
	case errors.Is(err, unix.EEXIST): // another member was faster
		return -1, nil
	case err != nil:
		return -1, fmt.Errorf("open the turn of %s: %w", f.name, err)
	}
	return f.lock(fd)
}

// lock takes over the handle of the file, and returns it if it could lock it, and otherwise -1. The file may have been
// removed since it was opened: then its lock is no turn.
func (f turnFile) lock(fd int) (locked int, err error) {
	err = retryInterrupted(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil && f.isSameFile(f.name, fd) {
		return fd, nil
	}
	_ = unix.Close(fd)
	if err == nil || errors.Is(err, unix.EWOULDBLOCK) {
		return -1, nil
	}
	return -1, fmt.Errorf("flock the turn of %s: %w", f.name, err)
}

// open opens the file. In a store of one user it makes the file if there is none and it may.
func (f turnFile) open(mayMake bool) (fd int, err error) {
	if f.shared || !mayMake {
		return openAt(f.dir, f.name, unix.O_RDONLY|unix.O_NONBLOCK)
	}
	return openAt(f.dir, f.name, unix.O_RDONLY|unix.O_CREAT)
}

// makeLocked makes the file for all members, in tmp, and then gives it its name: the others must not meet a file that
// they may not open. It is locked before that.
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
