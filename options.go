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

// DefaultTTL is the TTL of a claim whose options name none, or the nearest TTL that the store allows.
const DefaultTTL = 30 * time.Second

// Options are the options of a client. The zero value and nil are valid.
type Options struct {
	// TTL is how long a holder that stops renewing keeps the lock, for locks whose LockOptions name none: whole
	// milliseconds, within the bounds of the store (usually 1 s to 24 h). Default: 30 s, or the nearest the store
	// allows.
	//
	// A lease is renewed every third of its TTL. A store that cannot be reached for less than a third of the TTL loses
	// no lease; one that cannot be reached for longer than about half of it may. On etcd, ZooKeeper and Consul a client
	// has a session, with requests that keep it alive, for each TTL that its locks have: use a few.
	TTL time.Duration
	// Owner is shown to others as the holder; it is never compared. At most 256 bytes of UTF-8 without NUL.
	// Default: host, program and process id.
	Owner string
	// Meta is a note shown next to the owner, for locks whose LockOptions have none; at most 1 KiB of UTF-8 without
	// NUL.
	Meta string
	// ForOthers says that the client holds locks and runs for somebody outside of this process, as a server does. They
	// may work on when this process dies. So each lock and run then lasts until its TTL has passed, on all stores;
	// without ForOthers, the file store frees the locks of a dead process at once. There, each grant and each renewal
	// waits for the disk, since a restart of the machine must not end them either.
	ForOthers bool
	// OnEvent is called with what happens to the client's locks and runs, one event at a time and in order, by a
	// goroutine of its own: a slow OnEvent delays later events, never a lock, a renewal or a deadline. Losses, failing
	// renewals and release requests are delivered at once, the rest within 10 ms. When OnEvent is more than 16384
	// events behind, new ones are dropped and counted in Event.Dropped. Close waits until all events have been
	// delivered, within its bound. OnEvent must not call Client.Close. Nil: no calls.
	OnEvent func(Event)
	// Logger is given the same events, one line each: losses as errors; failing renewals, failed runs, and locks that
	// were not acquired because of an error as warnings; release requests as infos; the rest for debugging. A logger
	// that hangs delays OnEvent, and nothing else. Nil: the library logs nothing.
	Logger *slog.Logger
}

// LockOptions are the options of one lock, for all primitives. The zero value and nil are valid.
type LockOptions struct {
	// TTL is Options.TTL for this lock. Default: the client's.
	TTL time.Duration
	// Fair makes a Mutex be granted in order of arrival among all clients of the store. Without it, only the callers of
	// one client are served in order. A fair claim waits in the store, which has room for a bounded number
	// (Info.MaxWaiters); the others are refused with ErrQueueFull. It has no effect on read-write locks and semaphores,
	// which are always fair.
	Fair bool
	// NewestOnly makes a claim that waits give up, with [ErrSuperseded], as soon as another one with NewestOnly has
	// begun to wait behind it, from any client of the store: of the waiters that have it, only the newest is granted
	// the lock. A claim that is granted at once, or holds the lock, is not affected: see Client.RequestRelease. The
	// claim learns of the newer one within about two seconds, and in any case when its turn comes. What counts is the
	// order of arrival in the store, so NewestOnly implies Fair. A newer one that gives up later for another reason,
	// or whose client dies, leaves nobody. A claim that has lost its place, because its client was stopped for longer
	// than the TTL, waits again as the newest. Readers of a read-write lock cannot have it. ErrUnsupported on stores
	// that have no order of arrival.
	NewestOnly bool
	// Meta is Options.Meta for this lock. Default: the client's.
	Meta string
	// Owner is Options.Owner for this lock, for a program that holds locks on behalf of others. Default: the client's.
	Owner string
	// Reentrant lets a context that carries the lease enter the lock again: locking with Lease.Context, with a context
	// made from it, or with the context of a Do returns at once with another [Lease] on the same claim. The lock is
	// released when as many leases have been released as were returned. It must be set in both calls, and both must use
	// the same client.
	//
	// A lock can be entered again for as much or less: a writer may read. A reader that wants to write, or a holder of
	// a semaphore that wants more, gets ErrInvalid, because it would wait for itself. After a loss, entering returns
	// ErrLost. The other options of the first call apply.
	Reentrant bool
	// MinHold keeps the lock held for at least this long after it is granted, even if it is released or its client is
	// closed earlier, so that a job that finishes quickly is not run again at once by another machine. At most
	// Info.MaxTTL. ErrUnsupported on stores whose Info.Detached is false. If the holder dies, the lock is held for its
	// TTL only.
	MinHold time.Duration
	// MaxHold ends the lease this long after it is granted, whether or not it could be renewed: it is then lost, with
	// cause [LossMaxHold]. The claim is released a margin later, one second at most, so that others get the lock soon;
	// if the holder is dead or cut off, the claim lasts until its TTL has expired. At least Info.MinTTL and MinHold; 0:
	// no bound.
	//
	// A lease that lasts until its MaxHold without another renewal is not renewed, and does not learn of a Break any
	// more.
	MaxHold time.Duration
	// Progress ends the lease this long after it was granted, or after the last [Lease.Progress], so that a holder that
	// hangs does not keep the lock: the lease is then lost, with cause [LossNoProgress], whether or not it could be
	// renewed. The claim is released as after MaxHold. The time that the machine slept counts. At least Info.MinTTL;
	// 0: the lease is renewed whether or not its holder gets on.
	Progress time.Duration
	// Expected is how long the lock is usually held. It changes nothing about the lock: it is shown in events, and the
	// metrics count the holds that last longer than three times as long. 0: not known.
	Expected time.Duration
}

// orZero returns the options, or the defaults for nil.
func (o *LockOptions) orZero() LockOptions {
	if o == nil {
		return LockOptions{}
	}
	return *o
}

// checkTimes reports what is wrong with MinHold, MaxHold, Progress and Expected.
func (o *LockOptions) checkTimes(info driver.Info) error {
	switch {
	case o.MinHold < 0 || o.MinHold > info.MaxTTL:
		return newInvalidError("MinHold must be 0 to %v on this store, not %v", info.MaxTTL, o.MinHold)
	case o.MaxHold != 0 && o.MaxHold < max(o.MinHold, info.MinTTL):
		return newInvalidError("MaxHold must be 0 or at least %v, not %v", max(o.MinHold, info.MinTTL), o.MaxHold)
	}
	if err := checkProgress(o.Progress, info); err != nil {
		return err
	}
	if o.Expected < 0 {
		return newInvalidError("Expected must be 0 or more, not %v", o.Expected)
	}
	return nil
}

// checkProgress refuses an interval that is too short to tell slow progress from none.
func checkProgress(d time.Duration, info driver.Info) error {
	if d != 0 && d < info.MinTTL {
		return newInvalidError("Progress must be 0 or at least %v, not %v", info.MinTTL, d)
	}
	return nil
}

// withDefaults is o with its defaults filled in, checked against the bounds of the store.
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

// defaultOwner is the host, the program and the process, shortened at the front if that is too long.
func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	owner := fmt.Sprintf("%s %s[%d]", host, filepath.Base(os.Args[0]), os.Getpid())
	owner = owner[max(0, len(owner)-driver.MaxOwner):] // perhaps in the middle of a character
	return strings.ReplaceAll(strings.ToValidUTF8(owner, "?"), "\x00", "?")
}
