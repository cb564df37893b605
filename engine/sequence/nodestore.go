package sequence

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// NodeStore is what a store must be able to do for this engine: keep the ordered nodes of locks, each bound to a
// session, and remove the nodes of a session that has expired. It makes no decision about locks.
//
// All methods may be called from many goroutines at once, and honor ctx. Reads return the state at a quorum, never
// that of a stale replica. No method retries a write in a way that hides its outcome: an error that is neither
// [ErrSessionExpired] nor one of the driver's final errors (ErrDenied, ErrCorrupt, ErrClosed, ErrUnsupported,
// ErrInvalid) means that the outcome is not known, and the engine asks again.
type NodeStore interface {
	// Info returns what the store promises. The engine fills in its own part: Engine, ExpiredBy, ExpiryClock, Order,
	// Kinds, NativeQueue, the Abilities but Forget and Ledger, and the limits that are zero.
	Info() driver.Info

	// Traits say what the store can do beyond the rest. The engine asks once. A store that lacks any of it embeds
	// [Unsupported].
	Traits() Traits

	// OpenSession begins a session. The store removes the session's nodes when it has received no keep-alive for the
	// session's TTL. That is ttl or more, counted by the store's own clock from the last KeepAlive that it received,
	// or from OpenSession. If a server would grant less than ttl, the error is an ErrInvalid that says so.
	OpenSession(ctx context.Context, ttl time.Duration) (Session, error)

	// KeepAlive extends a session. It returns nil only if the store then keeps the session for its TTL, less at most
	// the margin of that TTL (driver.Margin): either because the store's quorum has received the keep-alive; or
	// because the server that answered counts the session's time, and a server that replaces it counts each TTL from
	// its own start, which is late enough. ErrSessionExpired: the store has ended the session, and its nodes are
	// gone. If a session can be kept alive by other processes, they know its ID from a node; if it cannot, they get
	// ErrUnsupported.
	//
	// The promise is for how long the store keeps the session from this keep-alive on, or 0 if the reply does not
	// say. A promise smaller than the session's TTL ends the session at once on this side: what its claims were
	// promised is no longer true.
	KeepAlive(ctx context.Context, session string) (promise time.Duration, err error)

	// EndSession ends a session and removes the nodes that are left of it. If the session had ended before, the error
	// is ErrSessionExpired.
	EndSession(ctx context.Context, session string) error

	// Add adds a node behind all nodes of the lock, bound to the session, and returns the lock as it is then. It is
	// idempotent: if the claim's node exists from an earlier call with the same session and number, no other is
	// added. The engine gives each claim a number, counted from 0, that it uses for no other claim of that session,
	// except as Traits.ReusesNumbers says. A call takes effect at most once, however late: neither the network link
	// nor the SDK repeats it.
	//
	// With a condition the node is added only if that is true, in one atomic step; the returned snapshot shows
	// whether it was added. A store that cannot do this in one step reads the lock, adds if the condition is true
	// there, and reads again: the engine removes the node if it came too late.
	Add(ctx context.Context, name string, s Session, number int64, payload Payload,
		condition AddCondition) (Snapshot, error)

	// Withdraw removes the node of an Add whose outcome is not known, and makes sure that this Add cannot take effect
	// any more, in whatever order requests arrive. It reports whether the node existed.
	Withdraw(ctx context.Context, name string, s Session, number int64, id string) (existed bool, err error)

	// List returns the nodes of a lock. Unless full is set, the store may leave out what costs it a request per node:
	// all nodes then have Key, Foreign, ID, Kind, Limit and Weight, and those of live sessions have Session.
	List(ctx context.Context, name string, full bool) (Snapshot, error)

	// Read returns single nodes in full, at most [MaxRead], in one request where the store can. Where no node exists
	// under a key, it returns a zero Node. The keys come from nodes that the store returned before.
	Read(ctx context.Context, refs []NodeRef) ([]Node, error)

	// Change replaces a node's payload if the node has the version n.Version and all is as among says, and returns the
	// node with its new version. It returns false if that is not so, or the node does not exist. among is the zero
	// value unless Traits.ComparesNodes is set.
	Change(ctx context.Context, name string, n Node, payload Payload, among Among) (Node, bool, error)

	// Move binds a node to another session, with another payload, if the node has the version n.Version. Key and
	// Token do not change. In the same step it makes sure that no Add of that node can take effect any more: the node
	// may be removed before a delayed Add arrives, and nobody would look for a new one under the session it was made
	// for. It is called if Traits.Moves is set.
	Move(ctx context.Context, name string, n Node, to Session, payload Payload) (Node, bool, error)

	// Remove removes the node with n.Key and n.Token if it exists, and, if n.Version is not zero, only at that
	// version. It never removes another node. The snapshot is what then asks for, as it is after that; it has no
	// Revision if nothing was read.
	Remove(ctx context.Context, name string, n Node, then Then) (existed bool, left Snapshot, err error)

	// BreakNode removes the node with n.Key and n.Token if it exists, and in the same step leaves a note of the claim
	// n.ID, which ReadBreakNote finds for at least [BreakNoteTime] of n.TTL. The note expires without a request, and is
	// part of no lock. It contains the reason, which may be empty. It is called if Traits.LeavesNotes is set. Without
	// such a note, a holder whose lock was broken, and whose first request to release it got no reply, mistakes the
	// break for its own release.
	BreakNode(ctx context.Context, name string, n Node, reason string) (existed bool, err error)
	// ReadBreakNote reports whether there is such a note of a claim, and its reason. n has the claim's ID, Key and
	// Token.
	ReadBreakNote(ctx context.Context, name string, n Node) (found bool, reason string, err error)

	// MayHaveLeftovers reports whether something of a claim may still exist although its node, under this key, is gone:
	// on some stores a claim can have more than one node. Withdraw removes that, too.
	MayHaveLeftovers(key string) bool

	// Watch calls changed, from a goroutine of the store's own, whenever the node may have changed or gone since the
	// snapshot of the given revision (0: unknown). With the key [WatchRemovals] it does so whenever any node of the
	// lock may have gone, and with [WatchChanges] whenever any may have come, changed or gone. A call is only a hint:
	// it may come without a change, and it comes when a broken subscription has been restored. Once the subscription
	// exists, no change is missed. Watch does no I/O that the caller waits for.
	Watch(name, key string, revision int64, changed func()) Subscription

	// ConfirmWatches returns nil if all that had happened to watched nodes of the session when it was called has been
	// reported: of a subscription that is live, changed was called before ConfirmWatches returns. Like a read, it must
	// not be satisfied by a stale replica. The session is one that this client has opened and that is not detached.
	ConfirmWatches(ctx context.Context, session string) error

	// ReadLastToken returns a number such that every node that is added from now on has a larger token, and what an
	// operator does to the servers, in one or two sentences, so that all tokens to come are at least that large: only
	// the store itself makes them, so no client can raise them. It is called if Traits.ReportsTokens is set.
	ReadLastToken(ctx context.Context) (last int64, adviseRaise func(atLeast int64) string, err error)

	// Walk yields, each as List would return it in full, the locks whose names start with prefix and that have a node
	// of ours or one that certainly belongs to a foreign client. An error ends the walk, unless it comes with the
	// name of a lock: then only that lock cannot be read. A snapshot without nodes says that the store has answered
	// and there is more to read.
	Walk(ctx context.Context, prefix string) iter.Seq2[Snapshot, error]

	// Close releases the store's resources and ends its goroutines. It does not end the sessions.
	Close() error
}

// Traits are what a NodeStore can do beyond what all of them can.
type Traits struct {
	// Moves: a node can outlive the session that it was made under, by Move.
	Moves bool
	// ComparesNodes: Change can compare several nodes in the step that changes one. So the weight of a claim can grow.
	ComparesNodes bool
	// ReadsNext: Remove can read one node in the step that removes another.
	ReadsNext bool
	// LeavesNotes: BreakNode leaves a note, which ReadBreakNote finds.
	LeavesNotes bool
	// ReportsTokens: ReadLastToken can tell how large the tokens are.
	ReportsTokens bool
	// ReusesNumbers is for stores that keep something of each key that was ever used, and read a lock more slowly the
	// more keys it has had. On them the engine gives the number of a claim to another one when nothing can come of the
	// first any more: all its adds have had replies, and its node is known to be gone. The store promises that a Remove
	// that comes late compares the token, as all stores must, also where a node of another claim has the same key, and
	// that each listing has the tokens.
	ReusesNumbers bool
}

// Unsupported is embedded by a NodeStore that has not all traits. Its methods answer that the store has none.
type Unsupported struct{}

// Move returns ErrUnsupported.
func (Unsupported) Move(context.Context, string, Node, Session, Payload) (Node, bool, error) {
	return Node{}, false, driver.ErrUnsupported
}

// BreakNode returns ErrUnsupported.
func (Unsupported) BreakNode(context.Context, string, Node, string) (bool, error) {
	return false, driver.ErrUnsupported
}

// ReadBreakNote finds no note.
func (Unsupported) ReadBreakNote(context.Context, string, Node) (bool, string, error) {
	return false, "", nil
}

// MayHaveLeftovers returns false.
func (Unsupported) MayHaveLeftovers(string) bool { return false }

// ReadLastToken returns ErrUnsupported.
func (Unsupported) ReadLastToken(context.Context) (int64, func(int64) string, error) {
	return 0, nil, fmt.Errorf("%w: the store cannot tell how large its tokens are", driver.ErrUnsupported)
}

// Among is a condition of a Change about the other nodes of the lock: all Nodes, of which the changed one is one, have
// their versions, and no other node has come. Exactly: every other node of the lock is in Nodes, or has a token no
// larger than Revision. The zero value is no condition.
type Among struct {
	Nodes    []Node
	Revision int64
}

// Then says what is read in the step that removes a node. The zero value asks for nothing.
type Then struct {
	// List asks for the whole lock, if that comes with the same reply.
	List bool
	// Next is the key of the one node to read, as a snapshot of only that node, if Traits.ReadsNext is set.
	Next string
}

// BreakNoteTime is how long a note of a broken claim must be kept: as long as the claim's holder may believe in its
// lock, and then ask for the outcome of its release.
func BreakNoteTime(ttl time.Duration) time.Duration { return ttl + driver.UnreachableTimeout(ttl) }

// Subscription is one Watch.
type Subscription interface {
	// IsLive reports whether changed has been, or will be, called for every change of the node since the revision that
	// was given to Watch, and whether ConfirmWatches can tell that it has been. While the subscription is being set
	// up or restored, it is not live until changed was called for what may have been missed. A store may have
	// subscriptions that never are: their nodes are read at each renewal.
	IsLive() bool
	// Stop may be called twice, and from changed.
	Stop()
}

// Session is a session of the store.
type Session struct {
	ID  string
	TTL time.Duration // as granted
	// ConfirmDelay says how a keep-alive is confirmed. 0: the reply proves that the server that would end the session
	// has received the keep-alive. More: that server receives it only later; a keep-alive counts once another one,
	// sent at least this much later, has had its reply. The engine then sends keep-alives that often. At most a
	// thirteenth of the TTL.
	ConfirmDelay time.Duration
	// KeepAliveWithin is for stores that may answer a keep-alive although they have begun to end the session: how long
	// after the start of an answered keep-alive the store has certainly not begun. The TTL or more. If the reply to the
	// next keep-alive comes later than that, the engine does not trust it, and ends the session with all its claims. 0:
	// the store never answers so.
	KeepAliveWithin time.Duration
	// Ended, if it is not nil, is closed by the store when it knows that the session has expired, or will expire
	// sooner than its TTL. All claims under the session are lost then.
	Ended <-chan struct{}
}

// AddCondition says when a node is added: always if it is negative, only to a lock without nodes if it is
// [AddIfAlone], and otherwise only if no claim has joined the lock since the snapshot of that revision.
type AddCondition int64

// The conditions that are not revisions.
const (
	// AddBatched is AddAlways for a claim that will wait: others of this client wait for the lock already. The store
	// may delay the request a little to send it together with others.
	AddBatched AddCondition = -2
	AddAlways  AddCondition = -1
	AddIfAlone AddCondition = 0
)

// Snapshot is the nodes of a lock at one moment.
type Snapshot struct {
	Name     string
	Nodes    []Node // the earliest first; with foreign nodes, without keys that are no nodes
	Revision int64  // of the store, at that moment; rises with every change; 0: nothing was read
	Full     bool   // the nodes are complete
}

// NodeRef names one node of one lock.
type NodeRef struct{ Name, Key string }

// Node is one claim on a lock, as the store keeps it.
type Node struct {
	Key string // unique within the lock, valid in all processes; printable, without '@'
	// larger than that of every node added to the lock before; 0 if a listing that is not full left it out
	Token   int64
	Version int64 // changes with every change of the node
	// Ref is FormatRef of Key and Token, if the store keeps a string of which it is a part; otherwise empty, and the
	// engine makes it.
	Ref     string
	Session string
	// made by another kind of client; of the payload it has at most Kind, Limit and Weight, and an Owner if that is not
	// the session
	Foreign bool
	// KindConflictHint is set if the node is foreign and its client ignores claims of another Kind than its own, so
	// that such claims cannot be allowed. It says what the user can do about that.
	KindConflictHint string
	Payload
}

// Payload is what a node says about its claim. Stores keep it in the node's data, or in its name.
type Payload struct {
	ID     string        `json:"id"`
	Kind   driver.Kind   `json:"kind"`
	Limit  int64         `json:"limit"`
	Weight int64         `json:"weight"`
	TTL    time.Duration `json:"ttl"`             // as granted
	Owner  string        `json:"owner,omitempty"` // shown, never compared
	Meta   string        `json:"meta,omitempty"`
	// microseconds since 1970 by the client's wall clock; only shown
	CreatedAt        int64 `json:"at,omitempty"`
	Detached         bool  `json:"detached,omitempty"`
	ReleaseRequested bool  `json:"asked,omitempty"`  // its holder is asked to release it
	Broken           bool  `json:"broken,omitempty"` // it is not renewed any more
	// what the operator said who broke it; only shown
	BreakReason string `json:"reason,omitempty"`
	// granted after a wait; the claim behind it watches for this mark
	Admitted bool  `json:"in,omitempty"`
	Renewed  int64 `json:"renewed,omitempty"` // grows when another process renews it
}

// The keys for Watch that name no single node.
const (
	WatchRemovals = ""
	WatchChanges  = "*"
)

// MaxRead is how many nodes the engine reads in one call of Read. Consul takes so many in one request.
const MaxRead = 64

// ErrSessionExpired says that the store has ended a session. What was requested has not happened, and the session's
// nodes are gone.
var ErrSessionExpired = errors.New("the session has expired")
