// Package file keeps locks in a directory, for the processes and containers of one machine. It needs no server.
//
//	store, err := file.New("/var/lib/holdfast", nil)
//
// or, by URL, file:///var/lib/holdfast, always an absolute path. The URL's option force=true is Options.Force.
//
// The directory is made by the first claim if it is missing, holds nothing else (one that is not empty must have been made
// by Holdfast, which marks it), belongs to one user, and is trusted: whoever can write in it can take any lock away. It must
// not be where files are removed by age, as in /tmp; what is in it is not to be edited, copied into, or restored from a
// backup while clients run.
//
// # Promises
//
// No process ever waits for another to get on with a write: one that is stopped, at any instruction and for any time,
// stops nobody. A process that ends, however it ends, is noticed at once. A power cut never lowers a token, and the claims
// that it ends are only those of processes that it ended; detached claims are on the disk before they are granted. The
// arguments are with the types cell, dirClock and presence, and the tests stop, kill and cut at every single file
// operation.
//
// It works on Linux and macOS, on local file systems: a network file system orders the renames of several machines in
// ways that nobody here has proven, and does not tell when another machine's process has died.
package file

import (
	"context"
	"log/slog"

	"github.com/holdfast-go/holdfast/driver"
)

// Options for New; nil means the defaults.
type Options struct {
	// Force uses a directory although its file system is not known to be a local one. Only for one that is local
	// beyond doubt: with clients on two machines two of them may hold the same lock.
	Force bool
	// Clock is where time is read; the default is driver.SystemClock. Its Real hand must be the same clock in all
	// processes of this machine.
	Clock driver.Clock
	// Logger is told of records that a power cut has torn; the default is slog.Default().
	Logger *slog.Logger
}

// New opens the store in a directory. If there is none it is made by the first claim, whose errors are then these: ErrInvalid if the directory is neither empty
// nor a store; ErrDenied if this user may not, if the
// directory belongs to another user or others can write in it; ErrUnsupported if the file system is not known to be
// local, or the platform is not Linux or macOS; ErrCorrupt if the clock in it cannot be read.
func New(dir string, opts *Options) (driver.Store, error) {
	return newStore(context.Background(), dir, opts)
}

func (o *Options) withDefaults() Options {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Clock.Monotonic == nil || c.Clock.Boottime == nil {
		c.Clock = driver.SystemClock
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}
