package holdfast

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// DefaultTTL is the TTL of a claim whose options name none, on every store whose bounds allow it.
const DefaultTTL = 30 * time.Second

// Options are a client's. The zero value, and nil, are fine.
type Options struct {
	// TTL is how long a holder that falls silent keeps its place, for locks whose LockOptions name none: whole
	// milliseconds, within the bounds of the store (usually 1 s to 24 h). Default: 30 s, or the nearest the store allows.
	//
	// A lease is renewed each third of it, so a store that cannot be reached for less than a third loses no lease; one
	// that cannot be reached for longer than about half may.
	TTL time.Duration
	// Owner is shown to others as the holder; it is never compared. At most 256 bytes of UTF-8 without NUL.
	// Default: host, program and process id.
	Owner string
	// Meta is a note shown beside the owner, for locks whose LockOptions have none; at most 1 KiB of UTF-8 without NUL.
	Meta string
	// OnEvent is told what happens to the client's leases, one event at a time and in order, by a goroutine of its own:
	// a slow OnEvent delays later events, never a renewal or a deadline. When it is more than 16384 events behind,
	// new ones are dropped and counted in Event.Dropped. It must not call Client.Close.
	OnEvent func(Event)
	// Logger is given the same events: losses as errors, failing renewals as warnings, requests to give up as infos, the
	// rest for debugging. Default: none.
	Logger *slog.Logger
}

// LockOptions are those of one lock, the same for all primitives. The zero value, and nil, are fine.
type LockOptions struct {
	// TTL is as Options.TTL, for this lock. Default: the client's.
	TTL time.Duration
	// Fair asks a Mutex to be granted in order of arrival among all clients of the store. Without it only callers of one
	// client stand in order. A fair claim waits at the store, which carries a bounded number (ErrQueueFull).
	// Read-write locks and semaphores are always fair.
	Fair bool
	// Meta is as Options.Meta, for this lock. Default: the client's.
	Meta string
	// Reentrant lets a context that carries the lease enter the lock again: locking under Lease.Context, or a context made
	// from it or handed to the function of a Do, returns at once with another [Lease] on the same claim. The lock is given
	// back when as many leases have been unlocked as were given out. To be of use it must be set at both ends, and both
	// must use the same client.
	//
	// What is held may be entered for as much or less: a writer may read, a reader that wants to write, or a semaphore's
	// holder that wants more, gets ErrInvalid, since it would wait for itself. After a loss entering is ErrLost.
	// The other options are those of the first lease.
	Reentrant bool
	// MinHold is for how long, from when the caller is given it, the lock stays held though it was unlocked before, or
	// its client closed: work that is done too quickly is not done again at once by the next one. At most Info.MaxTTL.
	// ErrUnsupported on stores whose Info.Detached is false. A holder that dies keeps the lock for its TTL only.
	MinHold time.Duration
	// MaxHold is for how long, from when the caller is given it, the lease lasts at most; it is then lost, with cause
	// [LossMaxHold], whether or not it could be renewed. The claim is released a margin later, a second at most, so that
	// others get in soon; that of a holder that is dead or cut off then stands until its TTL is over, as ever. At least
	// Info.MinTTL and MinHold; 0: no bound.
	//
	// A lease that needs no more renewal to last until its MaxHold is not renewed, and so hears of no Break any more.
	MaxHold time.Duration
}

func (o *LockOptions) orZero() LockOptions {
	if o == nil {
		return LockOptions{}
	}
	return *o
}

// checkTimes reports what is wrong with the times that a lock is to be held.
func (o *LockOptions) checkTimes(info driver.Info) error {
	switch {
	case o.MinHold < 0 || o.MinHold > info.MaxTTL:
		return newInvalidError("MinHold must be 0 to %v on this store, not %v", info.MaxTTL, o.MinHold)
	case o.MaxHold != 0 && o.MaxHold < max(o.MinHold, info.MinTTL):
		return newInvalidError("MaxHold must be 0 or at least %v, not %v", max(o.MinHold, info.MinTTL), o.MaxHold)
	}
	return nil
}

// withDefaults is o with its defaults filled in and checked against what the store allows.
func (o *Options) withDefaults(info driver.Info) (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.TTL == 0 {
		r.TTL = min(max(DefaultTTL, info.MinTTL), info.MaxTTL)
	}
	if r.Owner == "" {
		r.Owner = defaultOwner()
	}
	return r, driver.Claim{Name: "any", Limit: 1, Weight: 1, TTL: r.TTL, Owner: r.Owner, Meta: r.Meta}.Check(info)
}

func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	owner := fmt.Sprintf("%s %s[%d]", host, filepath.Base(os.Args[0]), os.Getpid())
	owner = owner[max(0, len(owner)-driver.MaxOwner):] // perhaps in the middle of a character
	return strings.ReplaceAll(strings.ToValidUTF8(owner, "?"), "\x00", "?")
}
