package sequence

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// NodeStore is what a store must be able to do for this engine: keep the ordered children of locks, each bound to a session,
// and remove those of a session that has fallen silent. It decides nothing about locks.
//
// All methods may be called from many goroutines at once, and honour ctx. What they read they read as it stands at a
// quorum, never from a stale replica. None retries a write in a way that hides its outcome: an error that is neither
// [ErrSessionOver] nor one of the driver's final errors (ErrDenied, ErrCorrupt, ErrClosed, ErrUnsupported, ErrInvalid)
// means that the outcome is not known, and the engine asks again.
type NodeStore interface {
	// Info gives what the store promises. The engine fills in what is its own part of it: Engine, EndedBy, Judge, Order,
	// Kinds, Detached, QueuesPlain, and the limits that are zero.
	Info() driver.Info

	// OpenSession begins a session. The store removes the session's nodes when it has not heard from it for its TTL, which is
	// ttl or more, counted by the store's own clock from the last Beat that it has taken in, or from Open. A server that
	// would grant less than ttl is an ErrInvalid that says so.
	OpenSession(ctx context.Context, ttl time.Duration) (Session, error)

	// KeepAlive tells the store that the session lives. It returns nil only if the session is then kept for its TTL, less at most
	// the margin of that TTL: because the store's quorum has heard of the beat; or because the server that answered counts
	// the session's time, and one that replaces it counts each TTL anew, from so late that the old one had noticed before.
	// ErrSessionOver: the store has ended the session, and its nodes are gone. Where a session is good for other
	// processes, too, its ID comes from a node; else the answer is ErrUnsupported.
	//
	// The promise is for how long the store keeps the session from this beat on, where the answer says so, and else 0. One
	// that is smaller than the session's TTL ends the session here, at once: what its claims were told is not true any more.
	KeepAlive(ctx context.Context, session string) (promise time.Duration, err error)

	// EndSession ends a session, and removes what is left of its nodes. Of one that is over it says ErrSessionOver.
	EndSession(ctx context.Context, session string) error

	// Add adds a node behind all that stand on the lock, bound to the session, and returns how the lock stands then.
	// It is idempotent: if the claim's node stands from an earlier call under the same session and number, none is
	// added. The engine gives each claim a number that it uses for no other claim of that session, counted from 0. A call
	// takes effect once at the most, however late: neither the link nor the SDK doubles it.
	//
	// With a condition the node is added only if that holds, in one atomic step; the look that comes back then tells
	// whether it was. A tree that cannot make one step of it looks first, adds if the guard holds by that look, and looks
	// again: the engine takes the node back if it came too late.
	Add(ctx context.Context, name string, s Session, number int64, note Payload, guard AddCondition) (Snapshot, error)

	// Withdraw removes the node of an Add whose outcome is not known, and makes sure that this Add cannot take effect any
	// more, in whatever order requests travel. It reports whether the node stood.
	Withdraw(ctx context.Context, name string, s Session, number int64, id string) (stood bool, err error)

	// List tells how a lock stands. Unless full, the tree may leave out what costs it a request for each node: all of
	// them have Key, Foreign, ID, Kind, Limit and Weight then, and those of live sessions Session.
	List(ctx context.Context, name string, full bool) (Snapshot, error)

	// Read gives single nodes in full, at most [MaxRead], in one request where the store can; a zero Node where none stands
	// under that key. Keys are as some Node had them.
	Read(ctx context.Context, at []NodeRef) ([]Node, error)

	// Change replaces a node's note if the node stands at n.Version, and gives it back with its new version; false if it
	// stands otherwise or not at all.
	Change(ctx context.Context, name string, n Node, note Payload) (Node, bool, error)

	// Remove removes the node with n.Key and n.Token, if it stands; with n.Version, too, if that is not zero. It never
	// removes another. If look is set it may give back how the lock stands then, where that comes with the same request,
	// and else a Look without a Revision.
	Remove(ctx context.Context, name string, n Node, look bool) (stood bool, l Snapshot, err error)

	// Watch calls changed, from a goroutine of the tree's own, whenever the node may have changed or gone since the look
	// of the given revision (0: not known); with [AnyGone] for a key, whenever any node of the lock may have gone, and with
	// [AnyChange], whenever any may have come, changed or gone. It is a hint: it may come
	// for nothing, and it comes when a subscription that was broken stands again. Nothing that happens once the
	// subscription stands is missed. stop may be called twice, and from changed. It does no I/O that the caller waits for.
	Watch(name, key string, revision int64, changed func()) (stop func())

	// Walk yields the locks whose names start with prefix and on which a node of ours stands, or what is certain to be a foreign
	// client's, each as List would give it in full. An error ends the walk, unless it comes with the name of a lock: that one cannot be read. A Look without nodes
	// says that the store has answered, and that there is more to go through.
	Walk(ctx context.Context, prefix string) iter.Seq2[Snapshot, error]

	// Close gives up what the tree holds, ends its goroutines, and leaves the sessions to themselves.
	Close() error
}

// Mover is implemented by trees on which a node can outlive the session that made it.
type Mover interface {
	// Move binds a node to another session, with another note, if it stands at n.Version; Key and Token stay as they are.
	// In the same step it makes sure that no Add of that node can take effect any more: the node may go before one that
	// is still on its way arrives, and nobody looks for it under the session that it was made for.
	Move(ctx context.Context, name string, n Node, to Session, note Payload) (Node, bool, error)
}

// WeightChanger is implemented by trees on which a claim can change its weight: that compare several nodes in the step that
// changes one, and where the weight is no part of what cannot change.
type WeightChanger interface {
	// ChangeAmong is Change, if all of these nodes, n among them, stand at their versions, and nobody has come since: to be
	// exact, if every other node on the lock is one of these, or came before the revision.
	ChangeAmong(ctx context.Context, name string, n Node, note Payload, among []Node, revision int64) (Node, bool, error)
}

// SuccessorReader is implemented by trees that can show a node in the step that removes another.
type SuccessorReader interface {
	// RemoveAndReadNext removes the node with n.Key and n.Token, if it stands, and looks at the one under next alone, as it stands
	// then. If n did not stand there is no look.
	RemoveAndReadNext(ctx context.Context, name string, n Node, next string) (stood bool, l Snapshot, err error)
}

// LeftoverChecker is implemented by trees on which a claim may have more nodes than one.
type LeftoverChecker interface {
	// MayHaveLeftovers reports whether something of a claim may stand although its node, under this key, is gone. Withdraw removes that, too.
	MayHaveLeftovers(key string) bool
}

// Breaker is implemented by trees that can leave a note of a node that was removed by force. Without it the holder of a lock
// that was broken takes that for its own release, if its first try of that had no answer.
type Breaker interface {
	// BreakNode removes the node with n.Key and n.Token, if it stands, and in the same step leaves a note of the claim n.ID,
	// which WasBroken finds for [NoteTime] of n.TTL at least. The note goes by itself, and stands on no lock.
	BreakNode(ctx context.Context, name string, n Node) (stood bool, err error)
	// WasBroken reports whether there is such a note of a claim, of which n has the ID, the Key and the Token.
	WasBroken(ctx context.Context, name string, n Node) (bool, error)
}

// BreakNoteTime is how long it must be found that a claim was broken: for as long as its holder may believe in it, and then ask for
// the outcome of its release.
func BreakNoteTime(ttl time.Duration) time.Duration { return ttl + driver.UnreachableTimeout(ttl) }

// Session is a session of the store.
type Session struct {
	ID  string
	TTL time.Duration // as granted
	// ConfirmDelay is how much later than a beat another one must have been sent, and confirmed, before the engine may count from the
	// start of the former: 0 where the answer to a beat proves that the one who will end the session has taken it in, more
	// where that one hears of it only afterwards. The engine beats that often then. At most a thirteenth of the TTL.
	ConfirmDelay time.Duration
	// Ended, if it is not nil, is closed when the tree knows that the session is over, or that the store would end it sooner than its
	// TTL: all claims under it are lost then.
	Ended <-chan struct{}
}

// AddCondition says under which condition a node is added: none, if it is negative, that none stands, or that no claim has come to
// the lock since the look of that revision.
type AddCondition int64

// The guards that are no revisions.
const (
	AddBatched AddCondition = -2 // as Always, and without haste: others of this client wait for the lock
	AddAlways  AddCondition = -1
	AddIfAlone AddCondition = 0 // no node stands on the lock
)

// Snapshot is how a lock stands, at one moment.
type Snapshot struct {
	Name     string
	Nodes    []Node // in order, the first comer first; foreign ones among them, other keys not
	Revision int64  // of the store, at that moment; rises with every change; 0: there is no look
	Full     bool   // the nodes are complete
}

// NodeRef is where a node is found again.
type NodeRef struct{ Name, Key string }

// Node is one child of a lock.
type Node struct {
	Key              string // finds it within its lock, also from another process; printable, without '@'
	Token            int64  // larger than that of every node added to the lock before; 0 if not known to a light listing
	Version          int64  // another one after every change
	Session          string
	Foreign          bool   // made by another kind of client; of the Note it has Kind, Limit and Weight at the most
	KindConflictHint string // of a foreign node whose client does not see claims of another Kind than the node's: what to do about that
	Payload
}

// Payload is what a node says about the claim that it is. Trees keep it in the node's data, or in its name.
type Payload struct {
	ID               string        `json:"id"`
	Kind             driver.Kind   `json:"kind"`
	Limit            int64         `json:"limit"`
	Weight           int64         `json:"weight"`
	TTL              time.Duration `json:"ttl"`             // as granted
	Owner            string        `json:"owner,omitempty"` // shown, never compared
	Meta             string        `json:"meta,omitempty"`
	CreatedAt        int64         `json:"at,omitempty"` // microseconds since 1970 by the claimer's wall clock, only shown
	Detached         bool          `json:"detached,omitempty"`
	ReleaseRequested bool          `json:"asked,omitempty"`   // its holder is asked to give up
	Broken           bool          `json:"broken,omitempty"`  // it is not renewed any more
	Admitted         bool          `json:"in,omitempty"`      // let in after a wait: the next in line looks for itself now
	Renewed          int64         `json:"renewed,omitempty"` // grows when another process renews it
}

// The keys that name no node, for Watch.
const (
	WatchRemovals = ""
	WatchChanges  = "*"
)

// MaxRead is how many nodes are read at a time.
const MaxRead = 100

// ErrSessionExpired says that the store has ended a session. What was asked has not happened, and the session's nodes are gone.
var ErrSessionExpired = errors.New("the session is over")
