package record

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Table is what a store must provide for this engine: it keeps small records under names and changes each by
// compare-and-swap. It decides nothing about locks.
//
// All methods may be called from many goroutines at once. They honor ctx, and return an error some seconds after a
// request got stuck. They may retry a request only if that cannot hide an outcome: a Swap or Delete whose outcome is
// not known returns an error that is neither [ErrConflict] nor one of the driver's final errors (ErrDenied,
// ErrCorrupt, ErrClosed, ErrUnsupported, ErrInvalid). The engine then loads the record again.
//
// Names are 1 to 512 bytes of UTF-8 without NUL. No two names may ever share a record, even where the store folds
// case or has special characters. Data is at most [MaxData] bytes.
//
// A table that has not all of this embeds [Unsupported]; one that wraps another embeds Table.
type Table interface {
	// Info returns what the store promises. The engine sets Engine, ExpiredBy, Order, Kinds and Abilities, and the
	// limits that are zero. The table sets all else: Store, Clock, Tier, ExpiryClock, Survives, TokenGap,
	// TokenRegression, DeadHolderTimeout and WriteInterval.
	Info() driver.Info

	// Traits say what the store does beyond the rest, or less. The engine asks once, when it is made.
	Traits() Traits

	// TokenFloor returns a time in microseconds since 1970, without I/O. It never falls while the table is open. Tokens
	// and times that are only shown are made from it, and nothing else: it may be the wall clock of this machine, which
	// may be wrong by any amount.
	TokenFloor() int64

	// Clock returns the store's clock, as far as it is known without I/O. It is nil if the store tells no time by which
	// claims may expire; then they are watched. The engine asks for it once.
	Clock() Clock

	// ReadClock asks the store what time it is: see driver.Ledger.ReadClock. The engine of a table without a Clock
	// counts the ends of runs, the pauses after them, and how long records are kept by this alone.
	ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error)

	// Load reads a record as it is now, never from a cache or from a replica that may be behind. An absent record is a
	// Row with an empty Version, and no error.
	Load(ctx context.Context, name string) (Row, error)

	// Swap replaces the record row.Name with row.Data in one atomic step, if its version is still row.Version; an empty
	// version means that there is no record. It returns the row with its new version. If the version is another one it
	// returns ErrConflict, with the current row if that costs nothing, and otherwise with a zero Row.
	//
	// A version is never used twice for one name, not even across a deletion or for the same data. A Release relies on
	// that: by changing the version it makes a Swap impossible that is still on its way.
	Swap(ctx context.Context, row Row) (Row, error)

	// Delete removes the record if its version is still row.Version. It returns ErrConflict if the version is another
	// one, and nil if there is no record. The engine deletes only records of locks that have been idle for ten minutes
	// plus ten times Info.TokenGap, and those of names that are not used again (driver.Store.Forget).
	Delete(ctx context.Context, row Row) error

	// List yields the records whose names start with prefix, in any order, each as Load would return it. A record that
	// cannot be read is yielded with its Name and an error. An error without a name ends the listing. after is empty
	// unless Traits.ListsInOrder is set. Then only those names are listed that come after it in the order of the
	// listing; it is the last name that was listed, or any other text.
	List(ctx context.Context, prefix, after string) iter.Seq2[Row, error]

	// Keys says where the record of a name is kept, for people. It does no I/O, and may return nil.
	Keys(name string) []string

	// Liveness returns what tells sooner than the TTL that the client of a claim is dead, or nil. The engine asks for
	// it once.
	Liveness() LivenessChecker

	// Watcher returns what notifies this client of changes, or nil if it must poll: the store cannot notify, or this
	// client may not listen. The engine asks for it once.
	Watcher() Watcher

	// OpenLedgerTable opens the table for the run ledger of the same store, whose records are apart from this one's. It
	// uses the same connection: closing it leaves this table open, and it is closed first. It returns the errors of
	// driver.Store.OpenLedger.
	OpenLedgerTable(ctx context.Context) (Table, error)

	// Examine finds weak settings: see driver.Store.Examine.
	Examine(ctx context.Context) ([]driver.Finding, error)

	// Close releases the table's resources. Calls in flight and later calls return driver.ErrClosed.
	Close() error
}

// Row is one record as a table keeps it.
type Row struct {
	Name    string
	Version string // opaque; empty if there is no record
	Data    []byte // never changed by anybody once it is in a Row

	// Token is set by the engine for Swap: the largest token in Data. A store on which a record can be lost, such as
	// a file after a power cut, makes sure before the swap takes effect that TokenFloor stays above it forever. A
	// store in which nothing remains of an idle lock may replace the token of a grant in Data as it writes. It then
	// returns the new token, and Load shows it.
	Token int64
	// Durable is set by the engine for Swap if Data must survive a crash of the store's machine even where records
	// otherwise need not, because it has a claim that no process renews.
	Durable bool
	// ExpiresAt is set by the engine for Swap: the time of the store's clock, in microseconds, at which the last
	// holder and the last promoted claim expire if none is renewed; 0 if there are none. A table whose records are
	// also read by foreign clients shows it to them.
	ExpiresAt int64

	// Notify is set by the engine for the Swap of a table whose Watcher has a session: the sessions of other clients
	// that the change concerns. If the swap takes effect, each of them gets a notice for the record's name, if it
	// waits for one. It is empty if this client has no Watcher. If other clients of the store have one, such a swap
	// notifies all of them.
	Notify []string

	// KeepUntil is set by the engine for the Swap of a table with Traits.ExpiresIdle: the time of the store's clock, in
	// microseconds, until which the row must be kept if it is not replaced before; 0: forever. The table has its store
	// remove the row after that time, or later. In that step, the row must still be the one for which the time was set.
	KeepUntil int64

	// Marked is set by a table with Traits.Marks on the rows that it returns: the row's mark exists. The engine
	// passes it back to Swap.
	Marked bool
	// MarkTTL is set by the engine for the Swap of a table with Traits.Marks. If it is positive, the mark is written
	// again and lasts for at least that long from the start of the call; [RemoveMark] removes it, and 0 leaves it as
	// it is.
	MarkTTL time.Duration

	// untimed is set by the engine: a notice has brought the row, so this client may not have read the store's clock
	// since it was written. See [StepInput.Untimed].
	untimed bool

	// Foreign is set by the table if a foreign client has taken the record in its own way: the time of the store's
	// clock, in microseconds, up to which that client holds the lock. No claim of ours holds it then, whatever Data
	// says; of Data only the token still counts, if there is any. The engine leaves the record alone until then.
	Foreign int64
}

// LivenessChecker tells whether the client of a claim is dead.
type LivenessChecker interface {
	// Session names this table's own client. It is stored with the client's claims. It is unique forever, and at most
	// 64 bytes.
	Session() string
	// IsDead reports whether the client of that session is certainly dead; false if in doubt. The engine removes the
	// claims of a dead client at once. It may be called fifty times per second for each session. A client that is dead
	// remains dead.
	IsDead(session string) bool
	// LivenessFile is driver.Store.LivenessFile.
	LivenessFile() (*os.File, error)
}

// RemoveMark is the [Row.MarkTTL] that removes the mark.
const RemoveMark = -1

// Clock is the store's clock as a client knows it between requests. [ServerClock] learns it from replies.
type Clock interface {
	// Bounds returns the times between which the store's clock certainly is, in microseconds since 1970. Claims
	// expire by the first, and their ends are set by the second. If known is false, the store has not told its time
	// yet.
	Bounds() (early, late int64, known bool)
	// IsStale reports whether a Load would bring the bounds much closer together. The engine asks before it makes or
	// renews a claim, and loads first if so. Otherwise the claim's end would be set later than necessary.
	IsStale() bool
}

// ExactClock is the Clock of a store whose clock every client reads itself, in microseconds since 1970.
type ExactClock func() int64

// Bounds implements [Clock].
func (c ExactClock) Bounds() (early, late int64, known bool) {
	now := c()
	return now, now, true
}

// IsStale implements [Clock].
func (ExactClock) IsStale() bool { return false }

// ReadClockByLoad is the ReadClock of a table whose Clock learns the store's time from each reply. It loads a record
// that never exists.
func ReadClockByLoad(ctx context.Context, t Table) (now time.Time, maxError time.Duration, err error) {
	if _, err := t.Load(ctx, pageMark); err != nil {
		return now, 0, err
	}
	early, late, known := t.Clock().Bounds()
	if !known {
		return now, 0, fmt.Errorf("%w: the replies of the store do not tell the time", driver.ErrUnsupported)
	}
	half := (late - early + 1) / 2
	return time.UnixMicro(early + half), time.Duration(half) * time.Microsecond, nil
}

// Traits are what a Table does beyond what all of them do, or less.
type Traits struct {
	// MaxRecord is the size of the largest record in bytes, if the table cannot keep one of [MaxData] bytes; else 0.
	// A new claim is refused with ErrQueueFull while the existing ones still have the room to be renewed.
	MaxRecord int
	// ExpiresIdle: the store removes the records of idle locks itself (see Row.KeepUntil), or must not remove them at
	// all. The engine never sweeps them.
	ExpiresIdle bool
	// Traceless: nothing remains of a lock that is free, and so no note of who has ended a claim.
	Traceless bool
	// NoQueue: a record has room for one holder and for nothing else, so no plain claim joins a queue.
	NoQueue bool
	// ListsInOrder: List has a fixed order, and can begin anywhere in it. A sweep has a few seconds at a time; with
	// this it continues where it stopped. Without it, idle records that come after very many others would never be
	// seen.
	ListsInOrder bool
	// Marks is for a table whose store has no clock that could expire claims, but ends sessions by itself. Such a table
	// keeps a mark next to each row with a claim. The mark belongs to a session, with which the store removes it. Each
	// renewal writes the mark again, and a claim without its mark has expired. So even a client that reads the row
	// for the first time can tell.
	//
	// Swap changes the mark together with the row, in one atomic step, and is refused with ErrConflict if the mark
	// does not exist although Row.Marked says so. Rows are read together with their marks, so that both are from the
	// same moment. A mark that was written for some time must not vanish earlier, except by a Swap. Nor may it last
	// much longer if it is not written again, whatever else its client does: a client that lives may have lost the
	// claim.
	Marks bool
	// PeerNotices: the clients notify each other, after the swap, as processes of one machine do. A client that is
	// stopped or killed in between notifies nobody. So the engine sends notices again with later swaps, and loads the
	// record once per second for those that depend on one. It also takes it that clients take turns at looking: see
	// [WithTurns].
	PeerNotices bool
	// Ledger: OpenLedgerTable works.
	Ledger bool
}

// Unsupported is embedded by a [Table] that has not all of this. Its methods answer that the table has none.
type Unsupported struct{}

// Traits returns none.
func (Unsupported) Traits() Traits { return Traits{} }

// Keys returns nil.
func (Unsupported) Keys(string) []string { return nil }

// Watcher returns nil.
func (Unsupported) Watcher() Watcher { return nil }

// Liveness returns nil.
func (Unsupported) Liveness() LivenessChecker { return nil }

// OpenLedgerTable returns ErrUnsupported.
func (Unsupported) OpenLedgerTable(context.Context) (Table, error) {
	return nil, fmt.Errorf("%w: it keeps no run ledger", driver.ErrUnsupported)
}

// Examine finds nothing.
func (Unsupported) Examine(context.Context) ([]driver.Finding, error) { return nil, nil }

// ErrConflict is returned by Swap and Delete if the record does not have the expected version. Nothing was changed.
var ErrConflict = errors.New("the record has changed")

// ErrUnsent says that a request has certainly not reached the store, since there was no connection to send it on. If a
// Swap or Delete returns it, the outcome is known: nothing was changed.
var ErrUnsent = errors.New("nothing was sent")

// MaxData is the size of the largest record in bytes. A record with 256 holders and 64 waiters, and a note for each,
// stays below it.
const MaxData = 768 << 10
