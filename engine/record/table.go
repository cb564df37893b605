package record

import (
	"context"
	"errors"
	"iter"
	"os"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Table is what a store must be able to do for this engine: keep small records under names and move each by
// compare-and-swap. It decides nothing about locks. All methods may be called from many goroutines at once, honour
// ctx, give up after some seconds a request that hangs, and are never retried inside in a way that hides an outcome: a
// Swap or Delete whose outcome is not known returns an error that is neither ErrConflict nor one of the driver's final
// errors (ErrDenied, ErrCorrupt, ErrClosed, ErrUnsupported, ErrInvalid), and the engine looks again.
//
// Names are 1 to 512 bytes of UTF-8 without NUL; no two of them may ever share a record, also where the store folds
// case or has special characters. Data is at most [MaxData] bytes.
type Table interface {
	// Info gives what the store promises. The engine sets what is its own part of it: Engine, EndedBy, Order, Kinds and
	// Detached, and the limits that are zero; all else is the table's: Store, Clock, Tier, Judge, Survives, TokenGap, TokensFall,
	// TakeoverDead and Pace.
	Info() driver.Info

	// Now estimates the store's clock, in microseconds since 1970, without I/O: the true value lies within maxError of
	// it. It must not fall while the store lives: tokens are made from it. A negative maxError says that the estimate is
	// good for tokens only, and silent holders must be watched instead of being judged by it.
	Now() (micros int64, maxError time.Duration)

	// Load reads a record as it is now: never from a cache or a stale replica. An absent record is a Row with an empty
	// Version and no error.
	Load(ctx context.Context, name string) (Row, error)

	// Swap replaces the record row.Name by row.Data if its version is still row.Version (empty: if there is none), in
	// one atomic step, and returns the row with its new version. If the record is otherwise it returns an error that
	// Is ErrConflict, and beside it the row as it is now if that comes at no cost, else a zero Row. A version is never
	// used twice for one name, also across a deletion and for the same data: by that a Release bars what is under way.
	Swap(ctx context.Context, row Row) (Row, error)

	// Delete removes the record if its version is still row.Version; ErrConflict if not, nil if there is none. The engine
	// deletes only records of locks that have been idle for ten minutes and ten times Info.TokenGap.
	Delete(ctx context.Context, row Row) error

	// List yields the records whose names start with prefix, in no certain order, each as Load would give it. A record
	// that cannot be read is yielded with its Name and an error; an error without a name ends the listing.
	List(ctx context.Context, prefix string) iter.Seq2[Row, error]

	// Close gives up what the table holds. Calls under way and later ones return driver.ErrClosed.
	Close() error
}

// Row is one record.
type Row struct {
	Name    string
	Version string // opaque; empty: there is no record
	Data    []byte // not to be changed by anybody once it is in a Row

	// Token is set for Swap: the largest token in Data. A store on which a record can be lost (a file after a power cut)
	// makes sure, before the swap takes effect, that Now will stay above it for ever. A store in which nothing is left of
	// an idle lock may make another one, as it writes, for a grant that Data holds; it gives that back, and Load shows it.
	Token int64
	// Durable is set for Swap if Data must survive the crash of the store's machine even where records otherwise need
	// not, because a claim in it has nobody behind it.
	Durable bool
	// ExpiresAt is set for Swap: the store's clock, in microseconds, past which nobody holds the lock, or was called to,
	// unless he is heard of again; 0: nobody. A table whose records foreign clients judge as well shows it to them.
	ExpiresAt int64

	// Foreign is set by the table where a foreign client has taken the record in a way of its own: the store's clock, in
	// microseconds, up to which that one holds the lock. Nobody of ours does then, whatever the data say: of them, if
	// there are any, only the token still counts. The engine leaves the record alone until then.
	Foreign int64
}

// Notifier is implemented by tables that can tell of a change.
type Notifier interface {
	// Wait returns nil when the record may have changed since it had the given version, or an error when ctx ends or
	// the store cannot tell at present. It subscribes first and looks second, so that no change is missed. It is a
	// hint only: the engine loads again, and polls behind it.
	Wait(ctx context.Context, name, version string) error
}

// LivenessChecker is implemented by tables that can tell whether the client behind a claim is still there, better than by its
// TTL.
type LivenessChecker interface {
	// Session names this table's own client: stored with its claims, unique for ever, at most 64 bytes.
	Session() string
	// IsDead reports whether the client of that session is surely gone. It is cheap enough to be asked ten times a
	// second. False when in doubt.
	IsDead(session string) bool
}

// LivenessFiler is implemented by tables with a Presence that another process can hold up: see driver.Heritable.
type LivenessFiler interface {
	LivenessFile() (*os.File, error)
}

// ClockRefresher is implemented by tables whose estimate of the store's clock grows worse while nothing is asked of the store.
type ClockRefresher interface {
	// ClockIsStale reports whether a Load would make the estimate better by much. The engine asks before it makes a claim or renews
	// one, so that no claim's end is set much later than need be.
	ClockIsStale() bool
}

// ClockBounder is implemented by tables that know the store's clock better to one side than to the other. By what Now says alone
// it may be off by the larger of both.
type ClockBounder interface {
	// ClockBounds gives between what the store's clock is, in microseconds since 1970. Claims are judged by the first, and their
	// ends are set by the second. Not asked where the error that Now gives is negative.
	ClockBounds() (early, late int64)
}

// SelfExpiring is implemented by tables whose store removes the records of idle locks itself. The engine then never looks for
// them.
type SelfExpiring interface {
	ExpiresIdleRecords()
}

// ResumableLister is implemented by tables that list the records in an order of their own, and can begin anywhere. A sweep of many records,
// which takes a few seconds at a time, then goes on where it stopped; otherwise idle records behind many others are never seen.
type ResumableLister interface {
	// ListAfter is List of all names that come behind a text in that order. The text is the last name that was listed, or any.
	ListAfter(ctx context.Context, after string) iter.Seq2[Row, error]
}

// SizeLimiter is implemented by tables that cannot keep a record of [MaxData] bytes.
type SizeLimiter interface {
	// MaxRecordSize is the largest record in bytes. A claim that would fill it is refused while those that stand still have the
	// room to be renewed.
	MaxRecordSize() int
}

// TracelessReleaser is implemented by tables in which nothing is left of a lock that is free, and so no note of who has ended a claim.
type TracelessReleaser interface {
	ReleasesWithoutTrace()
}

// KeyLister is implemented by tables that can tell people where the record of a name is kept.
type KeyLister interface {
	Keys(name string) []string
}

// ErrConflict says that a record was not as a Swap or Delete expected. Nothing was changed.
var ErrConflict = errors.New("the record has changed")

// ErrUnsent says that a request has surely not reached the store, since there was no connection to send it by. A table may say so of
// a Swap or Delete: its outcome is not unknown then.
var ErrUnsent = errors.New("nothing was sent")

// MaxData is the largest record in bytes. 256 holders and 64 waiters, each with its notes, stay below it.
const MaxData = 768 << 10
