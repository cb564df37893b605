package shedlock

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Table is ShedLock's table on a database. It makes one attempt at what it is asked for, and decides nothing about
// locks. All methods may be called from many goroutines at once.
//
// A write finds the row by the name, and changes it only if a condition holds, which the server checks in the same step
// and by its own clock. A claim holds the lock if locked_by begins with the claim's prefix and lock_until has not
// passed. done says that the write was done. Otherwise the row is as it was seen shortly before or after the attempt,
// so it may look as if the write should have been done: then the write is tried again.
//
// Errors are as in package driver. Besides them a write may return record.ErrConflict if the server has refused it
// because of another write, and any request record.ErrUnsent if it was certainly not sent. After an error that is not
// final a write may have been done, and after one that is neither of these two it may still be done later.
type Table interface {
	// Examine finds weak settings: see driver.Store.Examine.
	Examine(ctx context.Context) ([]driver.Finding, error)
	// Info returns what is particular to the database.
	Info() driver.Info
	Close() error
	// Keys names the row of a lock, for people.
	Keys(name string) []string
	// Sleep waits for d. It returns driver.ErrClosed or the error of ctx if the table is closed or ctx ends before.
	Sleep(ctx context.Context, d time.Duration) error

	// TakeRow signs the row, and makes it if there is none, if no claim holds the lock, or if that of the signature
	// does and is not broken. lock_until becomes the server's time and ttl. A claim that holds the lock keeps its
	// locked_at; for another one locked_at becomes the server's time, and larger than it was. The flag and the id of
	// a previous holder of ours become the signature's note.
	TakeRow(ctx context.Context, name string, s Signature, ttl time.Duration) TakeResult
	// RenewRow makes lock_until the server's time and d, if the claim holds the lock since lockedAt and is not broken.
	// With detach it also sets the flag for that; without it, it does nothing if the flag is set. It never lowers a
	// lock_until that another renewal has set. Of the row after a renewal, only Claim.ReleaseRequested counts.
	RenewRow(
		ctx context.Context, name, prefix, lockedAt string, d time.Duration, detach bool,
	) (v Row, done bool, err error)
	// ReleaseRow makes lock_until the server's time and sets FlagReleased, if the claim holds the lock.
	ReleaseRow(ctx context.Context, name, prefix string) (v Row, done bool, err error)
	// FlagRow sets a character of the signature, counted from 1, if the claim holds the lock.
	FlagRow(ctx context.Context, name, prefix string, position int, flag string) (v Row, done bool, err error)
	// ForceRow makes lock_until the server's time, if the claim holds the lock, or a foreign holder does since
	// lockedAt. It sets FlagForced in the signature of a claim. lockedAt may be empty.
	ForceRow(ctx context.Context, name, prefix, lockedAt string) (v Row, done bool, err error)

	// ReadRow reads the row of a lock. It returns the zero Row if there is none.
	ReadRow(ctx context.Context, name string) (Row, error)
	// ListRows reads the first rows that are held, in the order of the bytes of their names, of those names that are
	// larger than after. There may be no more with the prefix, and then it may return others.
	ListRows(ctx context.Context, prefix, after string) ([]Row, error)
	// ReadClock reads the server's clock, in microseconds since 1970.
	ReadClock(ctx context.Context) (int64, error)
	// WatchRow begins to watch the row of a lock for one waiter. It returns nil if the database does not notify.
	WatchRow(name string) RowWatch
}

// TakeResult is what came of an attempt to take a lock.
type TakeResult struct {
	Token int64 // locked_at of the claim that was granted the lock; 0: it was not taken
	Seen  Row   // if it was not taken
	Err   error
	// Pending is set if the call has ended before the server has answered: then the lock may still be taken, until
	// Pending is closed.
	Pending <-chan struct{}
}

// RowWatch notifies a waiter of the changes that our clients make to a row. It is for one goroutine.
type RowWatch interface {
	// Wait returns when the row may have changed since the last Wait began, and after d at the latest. It returns
	// driver.ErrClosed or the error of ctx if the table is closed or ctx ends before.
	Wait(ctx context.Context, d time.Duration) error
	Close()
}
