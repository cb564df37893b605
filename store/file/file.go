// Package file keeps locks in a directory, for the processes and containers of one machine. It needs no server.
//
//	store, err := file.New(ctx, "/var/lib/holdfast", nil)
//
// or, by URL, file:///var/lib/holdfast or file:///C:/locks, always an absolute path. The URL's options force=true and group=NAME are
// Options.Force and Options.Group.
//
// The first claim makes the directory if it does not exist. The directory must contain nothing else: one that is not
// empty must have been made by Holdfast, which marks it. It belongs to one user, or to a group of users, and everyone
// who can write in it can take any lock away. It must not be where files are removed by age, such as /tmp. While
// clients run, nothing in it may be edited, added, given a second name (cp -l) or restored from a backup.
//
// # Promises
//
// No process ever waits for another one to continue with a write: a process that is stopped, at any instruction and
// for any time, stops no other. When a process ends, in whichever way, the others notice at once. A power cut never
// lowers a token, and it ends only the claims of processes that it ended; detached claims are on the disk before they
// are granted. The proofs are in the comments of the types versionedFile, dirClock and livenessFile, and the tests
// stop, kill and cut at every single file operation.
//
// The store works on Linux, macOS and Windows, on local file systems; on Windows on NTFS and ReFS, from Windows 10,
// version 1809, on. There a process that is stopped exactly while it renames or removes a file keeps the others from
// that file, and so perhaps from that lock, until it continues or ends. What others may do in the directories above the
// store's is not looked at, a Group is refused, and a power cut was never tried. A network file system orders the renames of several
// machines in ways that have not been proven here, and does not show when a process on another machine has died.
package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options are the settings of a store. The zero value and nil mean the defaults.
type Options struct {
	// Force uses the directory although its file system is not known to be a local one. Set it only if the file system
	// is certainly local: with clients on two machines, two of them may hold the same lock.
	Force bool
	// Group is the name or the number of a group of users who share the store; empty: nobody. All of them must set it.
	// The directory must be the group's, with mode 2770, and is made so; its parent must exist. Members see, break and
	// wait for one another's locks, and any of them can take any lock away. Nobody else has access, and the umask of
	// the members does not matter.
	Group string
	// Clock is where time is read; the default is driver.SystemClock. Its Boottime must be the same clock in all
	// processes of this machine.
	Clock driver.Clock
	// Logger gets a warning for each record that a power cut has torn; nil: none. Examine says so as well, for as long
	// as the copies of torn records are kept.
	Logger *slog.Logger

	isMember func(uid, group int) bool // for tests: asks which users are in a group
}

// New opens the store in a directory. If there is none, New succeeds, reads find no locks, and the first claim makes
// the store. New, or that first claim, returns:
//   - driver.ErrInvalid if the directory is neither empty nor a store;
//   - driver.ErrDenied if this user has no access, if the directory belongs to another user, or if others can write in it
//     (with a Group: if it is not the group's alone);
//   - driver.ErrUnsupported if the file system is not known to be local, or the platform has no file store;
//   - driver.ErrCorrupt if the clock in it cannot be read.
//
// ctx bounds the opening and not the store.
func New(ctx context.Context, dir string, opts *Options) (driver.Store, error) {
	if dir == "" {
		return nil, fmt.Errorf("%w: the directory's name is empty", driver.ErrInvalid)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	t := newTable(dir, opts.withDefaults())
	if err := t.openStore(ctx, false); err != nil && !errors.Is(err, errAbsent) {
		return nil, err
	}
	return &store{Store: record.New(t), table: t, opts: opts}, nil
}

// withDefaults returns a copy with a clock and a logger.
func (o *Options) withDefaults() Options {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Clock.Monotonic == nil || c.Clock.Boottime == nil {
		c.Clock = driver.SystemClock
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}
