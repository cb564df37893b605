package record

import "context"

// Files write a notice into a pipe of the client, and PostgreSQL sends it on a channel of the client. NATS puts the
// clients' sessions into a header of the message, and Kubernetes into an annotation of the object: the waiting clients
// get those anyway, and read the record only if they are named.
//
// PostgreSQL, NATS and Kubernetes send notices with the swap, and a client knows when it may have missed one: then it
// reads. On files the clients notify each other after the swap (Traits.PeerNotices). One that is stopped in between
// notifies nobody. So there each swap notifies the whole head of the queue, and who depends on another's notice or turn
// polls every second. Elsewhere waiters poll every few seconds.
//
// One Watcher. A table has one, or none: then the engine polls. Its Watch is kept for a lock from the first claim of
// the client that waits to the last, with what must last as long: a place among those that wait for their turn, or a
// pipe. The engine says where its claims stand (Place), and the table decides what ends the wait. Wait blocks and
// returns an error when it cannot notify. Rejected: a channel that gets signs. It needs a goroutine in each table, and
// an answer to who closes it; a function that blocks is what tables have, and WatcherFunc makes a Watcher of it.
// Rejected: a place for the head of the queue. What concerns the head, it is notified of; to look at each change costs
// a read for each renewal of the holder.

// Watcher notifies a client of changes for which its claims wait. A notice is a hint: the engine loads the record,
// unless the notice has brought it, and polls as well.
type Watcher interface {
	// Session names this table's own client in [Row].Notify. It is empty if the store cannot notify single clients.
	// Otherwise it is stored with the client's claims that wait in the queue. It is unique forever, and at most 64
	// bytes. If the table has a [LivenessChecker], this is the same session.
	Session() string
	// Watch begins to watch a record, without I/O. The engine keeps the Watch from the first claim of this client
	// that waits for the lock to the last, so that a place among other clients is not lost with each notice.
	Watch(name string) Watch
}

// Watch is how a client watches one record. It is used by one call at a time.
type Watch interface {
	// Wait returns without an error when the record may have changed since it had the given version, as far as that
	// concerns claims at that place. It subscribes first and then compares the version, so that it misses no change,
	// neither during the call nor between two calls. It returns an error when ctx ends, or when the store cannot
	// notify at present.
	//
	// If the notice has brought the row, Wait returns that, with its Name, Version and Data, and the engine need not
	// load it. The row may be older than the given version, but not than the last notice; when Wait is called with its
	// version, it waits for another one. The engine takes it as one that it remembers: a swap shows whether it is the present one.
	Wait(ctx context.Context, version string, place Place) (Row, error)
	// HasTurn reports whether Wait waits for changes, and not for this client's turn to look at them: see [WithTurns].
	HasTurn() bool
	// PassTurn says that a claim of this client had its chance at the lock after a notice. If there are turns, this
	// one is over.
	PassTurn()
	// Stop ends the watch.
	Stop()
}

// Place is where the claims stand for which a client waits.
type Place int

// The places.
const (
	Anywhere Place = iota // each change may concern them
	Outside               // outside of the queue: so does each change, but it suffices that one client at a time looks
	InQueue               // in the queue: it suffices to be notified of swaps that name this client in Row.Notify
)

// WatcherFunc makes a Watcher of a function that returns nil when the record may have changed since it had that
// version, as [Watch].Wait does. It notifies of all changes, wherever the claims stand.
type WatcherFunc func(ctx context.Context, name, version string) error

// Session returns "".
func (WatcherFunc) Session() string { return "" }

// Watch implements [Watcher].
func (wait WatcherFunc) Watch(name string) Watch { return funcWatch{wait: wait, name: name} }

type funcWatch struct {
	PlainWatch
	wait WatcherFunc
	name string
}

func (w funcWatch) Wait(ctx context.Context, version string, _ Place) (Row, error) {
	return Row{}, w.wait(ctx, w.name, version)
}

// PlainWatch is embedded by a [Watch] without turns, which keeps nothing between two calls of Wait.
type PlainWatch struct{}

// HasTurn returns true.
func (PlainWatch) HasTurn() bool { return true }

// PassTurn does nothing.
func (PlainWatch) PassTurn() {}

// Stop does nothing.
func (PlainWatch) Stop() {}
