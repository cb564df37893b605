// Package driver is the contract between Holdfast's client and the stores that keep its locks.
//
// A user of locks never imports this package. It is for those who build a store, and it is written so that one can be
// built from these pages alone: every method says who calls it, when, what it must promise, and what each error means.
// The suite in drivertest checks the same promises against a running store.
//
// # The model
//
// A lock is a name on which claims are made. The claims have one order, the order of their arrival. A claim is granted
// when the weight of all claims ahead of it, plus its own weight, fits within the lock's limit; until then it waits. A
// mutex has limit 1 and weight 1. A semaphore of n has limit n. A read-write lock has limit [RWLimit]; a reader weighs
// 1 and a writer the whole limit. Kind and limit are fixed while the lock has any claim; an idle lock takes those of
// its next claim.
//
// # Who does what
//
// The client (package holdfast) decides about leases: it makes claim ids, queues plain claims inside the process,
// counts how long a grant is valid, calls Renew in time, and cleans up after a context that ended. The store decides
// about claims: it orders, grants and expires them, and makes tokens, each in one atomic step. A store never decides
// for a caller whether a lease is valid; it reports instants, and the client does the arithmetic.
//
// # Time
//
// Every confirmation of a grant carries Since, an [Instant] by the clock [Info].Clock. The grant is valid until Since +
// TTL - margin by that clock. The store must not grant the lock to anybody else before Since + TTL, however late the
// reply came. If each claim has a TTL of its own, Since is the *start* of the request that wrote it, because the write
// cannot happen earlier. If claims live with a session, Since is the earlier of two instants: the start of the request
// that saw the claim granted, and the start of the session's last confirmed keep-alive, from which the store counts. So
// it may lie before the call, by up to a sixth of the TTL.
//
// A claim ends when its client does not renew it, whatever else the client does. A store that renews by session removes
// a claim itself if Renew was not called for it within its TTL.
//
// # Unknown outcomes
//
// A write is done, refused, or unknown: the request or its reply was lost, or a retry inside an SDK turned "done" into
// "refused". Every step is idempotent by claim id, so a driver resolves an unknown outcome by looking for its own claim
// id, inside the same call. All methods that change something do so, except Renew, which tries once and is repeated by
// the client. A refusal that another try cannot mend ends the call. Everything else is tried again until ctx ends, or
// the store has given no answer for the [UnreachableTimeout] or 10 s. If the outcome is then not known, the error wraps
// [ErrUncertain], also if the store refuses to answer. It does not if nothing can have been written. An unknown outcome
// is never reported as done or as refused.
//
// An error matches context.Canceled or context.DeadlineExceeded only if the context of the call has ended. A store's
// own timeouts are other errors.
//
// # Leaves and wrappers
//
// Every ability is a method of [Store]. A store that has not all of them embeds [Unsupported], which refuses the rest,
// and says in [Abilities] what it can do. A Store that wraps another one embeds it, and so passes on all that it does
// not change.
package driver

import (
	"context"
	"iter"
	"os"
	"time"
)

// Store is one place where locks are kept. All methods may be called from many goroutines at once.
//
// When a context ends, a method returns promptly with the context's error, together with [ErrUncertain] if a write may
// have taken effect. It does not clean up: the client does, by Release with the claim's id. No method blocks for longer
// than its context allows, and none starts a goroutine that outlives Close.
type Store interface {
	// # What it is

	// Info returns the promises and bounds of the store, as far as they are known by now. It does no I/O and may be
	// called at any time, even after Close. What is learned from the store (such as a session time that the server
	// granted) may change between calls; the rest may not.
	Info() Info

	// # Claims, for the client

	// Acquire makes a claim with an id that no other claim ever had. At most one call per id is in flight.
	//
	// With c.Wait false it makes one attempt: the claim is granted at once or leaves no trace, and then the error is a
	// [*HeldError]. It never overtakes a waiter. With c.Wait true it returns when the claim is granted or ctx ends. A
	// claim with c.Fair, and every claim of another kind than KindMutex, queues in the store while it waits. A plain
	// one queues there if [Info].NativeQueue says that waiting costs nothing on this store. On others it may queue or
	// not; it promises no order.
	//
	// A grant is returned only if a request of this very call has seen it: a waiter that was promoted by another client
	// holds nothing until a request of its own has confirmed it. If the claim is already granted from an earlier call
	// (the caller asks again because it does not know), it is renewed and keeps its token. Another process uses Renew
	// or Release with the Ref instead.
	//
	// Errors: ErrHeld (only with Wait false), ErrQueueFull (the lock has too many claims), ErrSuperseded (a newer claim
	// waits), ErrMismatch (the lock is in use with another kind or limit), ErrLost (a *LossError: somebody has ended
	// the claim), ErrUnsupported (this store or layout lacks the kind or an option), ErrDenied (credentials,
	// permissions), ErrCorrupt (the stored lock cannot be understood), ErrInvalid, ErrClosed, ErrUncertain, and the
	// context's own error.
	//
	// A claim whose id is marked (see MarkNewestOnly) and that has waited returns ErrSuperseded, and leaves nothing,
	// once another marked one waits behind it: within some seconds, and at the latest when its own turn comes. It is
	// not granted if the store shows a newer one at that moment. A claim that is granted when it comes does not look
	// behind itself.
	//
	// A waiter that lost its place because its client was stopped or the store was silent queues again, without an
	// error; so does every lost waiter on a store that cannot tell the two causes apart. An unreachable store is
	// retried with backoff for the [UnreachableTimeout], and then its error is returned. ErrDenied and ErrCorrupt are
	// never retried.
	//
	// After any error but ErrHeld, ErrQueueFull, ErrSuperseded, ErrMismatch, ErrInvalid, ErrUnsupported and ErrDenied
	// the claim may exist, and the client calls Release. It also does so after any error that matches ErrUncertain or
	// a context's error. After the others nothing is left of the claim, also if it has waited: hundreds may be
	// refused at once, and to have the store look for each of them would cost more than the refusals.
	//
	// An error of a call that got no answer in its time is a *SilentError as well, found by errors.As.
	// When ctx ends a wait, the error should also be a *HeldError (found by errors.As) with the holders that were seen
	// last, so that the client can tell its caller who held the lock.
	Acquire(ctx context.Context, c Claim) (Grant, error)

	// Renew extends each grant by its TTL. It calls done(i, r) once for each g[i] as answers come in, before it
	// returns. done may be called by several goroutines at once, and returns quickly. One grant that hangs must not
	// delay the answers of the others.
	//
	// The client calls Renew a third of the way through a TTL, with all grants that are then due, and again after an
	// unknown answer. A renewal never creates a claim: if the claim does not exist, or has another token, it is lost. A
	// Grant that another process has put together from Name, ID, Token, Ref and TTL is renewed like this client's own.
	// If only a claim's own client can keep its session alive ([Abilities].Detach is false then), the answer is
	// ErrUnsupported and never nil, because nobody knows whether that client is alive.
	//
	// A store whose session is its renewal may use a keep-alive that was started at most a sixth of the TTL before the
	// call. That the claim exists, unbroken and with this token, is read in this call, or known from notifications that
	// are ordered before the answer of the keep-alive. Since is the earlier of the two starts.
	Renew(ctx context.Context, g []Grant, done func(i int, r Renewal))

	// Release removes a claim, whether granted, waiting or unknown. It finds the claim by its id, or by the ref if
	// another process made it (then c may have no ID; if both are given, both must match). It removes that claim and
	// never another one, however late it arrives. It notifies the waiters that can now be granted, plus the next one.
	//
	// It returns nil only if this release ended the claim. It returns an error that matches ErrLost if the claim had
	// ended before, with the cause if known. A caller that cleans up takes that for success.
	//
	// After an attempt with an unknown outcome, a missing claim proves nothing. Therefore a client that ends another
	// client's granted claim (a forced break, a takeover from an expired holder) leaves a note of its id with the
	// cause, in the same step and for longer than the claim's TTL. A release that finds the claim gone looks for the
	// note. If the outcome cannot be known, the error matches ErrUncertain. Other errors: ErrDenied, ErrCorrupt,
	// ErrClosed, the context's.
	//
	// Once Release has returned nil or ErrLost, no request of an earlier Acquire of that claim may still take effect,
	// in whatever order they travel. Stores with sessions rule that out. On other stores a request may still take
	// effect if the link delayed it beyond what the store can see; then the claim ends by its TTL. The id is not used
	// again.
	Release(ctx context.Context, c Claim, ref string) error

	// Detach leaves a grant in place without a client. The claim expires after keep, not earlier and soon after, or
	// ends when Release names it. This client does not renew it any more. Another process that knows its name, id,
	// token and ref may; Renew then extends it to keep from then on. It returns the errors of Renew's answers, and
	// ErrUnsupported where [Abilities].Detach is false.
	Detach(ctx context.Context, g Grant, keep time.Duration) error

	// SetWeight gives a grant a new weight, from 1 to its limit, instead of g.Weight, in one step, so that a writer
	// becomes a reader, or a reader a writer, and nobody else can get in between. The claim keeps its id, its token
	// and its place in the order: no exclusive claim can have been granted since, so the token still fences.
	//
	// A smaller weight always succeeds; the waiters that can now be granted, plus the next one, are notified. A larger
	// weight succeeds if the claims ahead, the new weight, and everything granted behind it fit within the limit.
	// Otherwise the error is a [*HeldError] at once, and nothing has changed; the same if others come so fast that this
	// cannot be made sure of. Claims that wait behind it do not count, because this claim came before them.
	//
	// If the claim has the weight already, nothing changes, so a repeated call resolves an unknown outcome. A request
	// that arrives late, behind a later one, changes nothing. SetWeight is not a renewal. It also returns the errors of
	// Renew's answers, and ErrUnsupported where [Abilities].SetWeight is false, and for a claim on a semaphore, whose
	// holder would not learn which permits it then has.
	SetWeight(ctx context.Context, g Grant, weight int64) error

	// # What others see

	// Inspect reads the state of a lock and changes nothing. A lock without claims is a Lock with no holders and no
	// waiters, not an error. A foreign client's hold is shown as a holder with Foreign set.
	Inspect(ctx context.Context, name string) (Lock, error)

	// List yields the locks that have a claim and whose names start with prefix, in no particular order. Locks that
	// only foreign clients ever used may be missing. A lock that cannot be read is yielded with its name and an error,
	// and the listing continues; an error with an empty name ends it.
	List(ctx context.Context, prefix string) iter.Seq2[Lock, error]

	// NextChange blocks until the lock differs from seen, and returns its state. It subscribes first, reads second and
	// blocks third, so that no change is missed. A store that reports no changes uses [PollChange].
	NextChange(ctx context.Context, seen Lock) (Lock, error)

	// NextEnding blocks until something happened to a grant of this store's client, or ctx ends, on stores that learn
	// of the end of a grant before the next renewal would. Endings are kept until they are fetched. They are hints:
	// the client ends the lease if Err is set, and reports ReleaseRequested. The client keeps one call in flight
	// while it holds anything, and makes none where [Abilities].Endings is false.
	NextEnding(ctx context.Context) (Ending, error)

	// # What operators do

	// Break acts on one claim as an operator: see [Break]. The ref is the one that Inspect returned. It never touches
	// another claim. Errors: one that matches ErrLost if the claim does not exist any more; ErrInvalid if the ref is
	// malformed; ErrUnsupported for BreakGraceful and BreakRequestRelease of a foreign claim, whose holder cannot be
	// notified; ErrUncertain.
	Break(ctx context.Context, name, ref string, b Break) error

	// Forget removes what the store keeps of a lock that has no claims, such as its last token. It is for names that
	// are not used again: a later token of that name may be smaller. If there are claims, the error is a *HeldError,
	// and nothing has changed. If nothing is kept, it returns nil. Other errors: ErrUnsupported where
	// [Abilities].Forget is false, ErrInvalid, ErrDenied, ErrCorrupt, ErrClosed, the context's, and those of the
	// store.
	Forget(ctx context.Context, name string) error

	// ReadTokenFloor returns the floor of the tokens to come. An operator compares it, after the store was restored
	// from a backup or replaced, with the tokens that resources have seen. The error is ErrUnsupported where
	// [Abilities].Tokens is false.
	ReadTokenFloor(ctx context.Context) (TokenFloor, error)

	// RaiseToken makes sure that no token smaller than atLeast is granted on a lock from now on. A holder keeps its
	// token. It succeeds without a change if that is so already. atLeast is 1 to MaxToken. If the name is empty, it
	// changes nothing, and succeeds if no smaller token is granted from now on, on any lock of the store.
	//
	// It returns an error that wraps ErrUnsupported if no client can do that; the text says what the operator can do
	// instead. ErrUncertain means that the tokens may or may not have been raised; it may be called again.
	RaiseToken(ctx context.Context, name string, atLeast int64) error

	// Explain says how a claim would be kept in the store, for people to read. It does no I/O.
	Explain(c Claim) Plan

	// Examine asks the store for its settings, and returns what makes its locks less safe than they could be, or shows
	// that another store may have been meant. A finding with SeverityUnknown says what could not be seen, and which
	// permission is missing. Nothing that Examine writes outlives it, and nothing touches a lock. A store that has
	// nothing to set up has no findings. There is an error if the store cannot be asked at all.
	Examine(ctx context.Context) ([]Finding, error)

	// # The store as a whole

	// LivenessFile returns a file, on stores that recognize a dead client by a file that a living one has open. As
	// long as any process has it open, the claims of this client count as those of a living client: they expire after
	// their TTL if nobody renews them, and not before. So a supervisor that outlives the client can keep the claims
	// until the work under them has ended too. The caller closes the file, and may pass it to other processes.
	// Closing the store ends the client, even if another process has the file. Without such a file the error is
	// ErrUnsupported, and only the TTL ends the claims of a dead client.
	LivenessFile() (*os.File, error)

	// OpenLedger opens the store's run ledger. Its keys and the names of the store's locks never meet. ctx bounds the
	// opening. The ledger uses the store's connection: it must be closed before the store, and closing it leaves the
	// store open. Errors: ErrUnsupported if this layout has none, ErrInvalid if something must be created first (the
	// text says how), ErrDenied, ErrClosed, and that of the store.
	OpenLedger(ctx context.Context) (Ledger, error)

	// Close ends the store's connections and sessions, and waits for the goroutines that it started. A connection that
	// the user made and handed in stays open. Claims that are left are not released: they end like those of a dead
	// client. Calls in flight and later ones return ErrClosed. A second Close does nothing.
	Close() error
}

// MaxReason is the length of the reason of a break, in bytes.
const MaxReason = 200

// Plan is how a claim would be kept in a store.
type Plan struct {
	Keys []string      // what is read and written: keys, nodes, files
	TTL  time.Duration // as it would be granted
	// Notes name the clients of another make that exclude such a claim but are not excluded by it.
	Notes []string
}

// Kind says what a lock is used as. It is stored with the lock, so the values never change.
type Kind string

// The kinds. An election is a mutex whose holder is published.
const (
	KindMutex     Kind = "mutex"
	KindRW        Kind = "rw"
	KindSemaphore Kind = "semaphore"
)

// RWLimit is the limit of a read-write lock and the weight of a writer; a reader weighs 1.
const RWLimit = 1 << 20

// Claim is one request for a place on a lock.
type Claim struct {
	Name     string        // the lock: 1 to Info.MaxName bytes of UTF-8 without NUL
	ID       string        // unique forever; 16 random bytes as 26 lower-case base32 characters; see MarkNewestOnly
	Kind     Kind          // what the lock is used as
	Limit    int64         // how much weight the lock grants at once, 1 to MaxLimit
	Weight   int64         // 1 to Limit
	TTL      time.Duration // how long it lives without a renewal; whole milliseconds, Info.MinTTL to Info.MaxTTL
	Owner    string        // who claims, to be shown; never compared
	Meta     string        // the user's own note, to be shown; at most Info.MaxMeta bytes
	Fair     bool          // queue in order of arrival (only a mutex has the choice)
	Wait     bool          // wait until granted
	Detached bool          // not tied to this client's life: only its TTL ends it
	// ForOthers says that somebody outside of the client's process works under the claim. Once granted, a claim that
	// nobody renews or releases lasts for its TTL, also if the store can tell that the client has died, or its
	// machine was restarted.
	ForOthers bool
	Run       *RunTerms // for a Ledger: the claim begins a run; nil for a lock
	// Withdrawn is for the Release of a run that is to leave nothing: the run is taken out of the history, uses up no
	// attempt and starts no pause. So end runs whose caller was never told of them, and claims that keep the slots of
	// a job apart. It has no meaning for Acquire and Renew.
	Withdrawn bool
}

// Exclusive reports whether nobody else can be granted next to this claim, so that its token can fence.
func (c Claim) Exclusive() bool { return c.Weight == c.Limit }

// Grant is a granted claim.
type Grant struct {
	Claim
	Token int64   // fencing token: positive, below 2^53, larger than every token granted before on this lock
	Since Instant // start of the request that confirmed it, on Info.Clock
	// GrantedTTL is how long after Since the store keeps the claim: Claim.TTL or more, as a store may round up.
	// The client counts the lease by it. Claim.TTL, which is also Grant.TTL by embedding, is what the caller asked for.
	GrantedTTL time.Duration
	Ref        string // finds the claim again from another process, for Release and Break; opaque, printable
	Attempt    int64  // for a Ledger: the number of the run; 0 for a lock
	// Permits are the numbers of the permits that a claim on a semaphore has: as many as its weight, from 0 to
	// Limit-1, in rising order. No other granted claim has one of them. They are given in the step that grants the
	// claim, and are free when it ends. Permits is nil if the claim has no numbers: where [Abilities].Permits is
	// false, for a weight above MaxPermits, and if it was granted next to a claim of up to that weight without
	// numbers. Such a claim is of an earlier version, or a client of an earlier version has written the lock without
	// the numbers that it does not know.
	Permits []int64
}

// MaxPermits is the largest weight of a claim whose permits have numbers. Stores keep the numbers with the claim.
const MaxPermits = 64

// Renewal is the answer for one grant of a Renew.
type Renewal struct {
	// Err is nil: renewed; a [*LossError]: the grant has ended; anything else: unknown, and the client asks again.
	Err        error
	Since      Instant       // start of the request that renewed it
	GrantedTTL time.Duration // how long after Since the store keeps the claim; see Grant.GrantedTTL
	// ReleaseRequested: somebody asks the holder to release the lock (see BreakRequestRelease); the grant is renewed.
	ReleaseRequested bool
}

// Ending is what NextEnding reports about one grant.
type Ending struct {
	Name, ID         string
	Err              error // a *LossError, or nil if the holder is only asked to release the lock
	ReleaseRequested bool
}

// Break is what an operator does to one claim, and why.
type Break struct {
	Mode BreakMode
	// Reason is empty, or one line of printable text of up to MaxReason bytes, for people. The client of the claim gets
	// it as the Err of its [*LossError]. It may get none: a store that has no room for the reason, or where
	// [Abilities].Reasons is false, breaks the claim without it, and a store that does not answer at once must not
	// delay the news of the loss. A requested release has no reason.
	Reason string
}

// BreakMode says what is done to the claim: it is ended, at once or gracefully, or its holder is asked to release it.
type BreakMode int

const (
	// BreakGraceful marks the claim as broken: its next renewal fails with that cause. The lock passes on when the
	// holder has released it or the claim's TTL has passed, even if it is detached. A waiting claim is removed at once,
	// and its Acquire ends with a *LossError.
	BreakGraceful BreakMode = iota
	// BreakForce removes the claim at once. Its holder may still be running until its next renewal.
	BreakForce
	// BreakRequestRelease asks the holder to release the lock (Renewal.ReleaseRequested), and changes nothing else.
	BreakRequestRelease
)

// Lock is the state of a lock at one moment.
type Lock struct {
	Name     string
	Kind     Kind        // empty if there are no claims
	Limit    int64       // 0 if there are no claims
	Token    int64       // the largest token granted on it, 0 if not known
	Holders  []ClaimInfo // granted
	Waiters  []ClaimInfo // waiting, the next first
	Revision string      // differs whenever the claims differ; compared, never ordered
}

// ClaimInfo is a claim as others see it.
type ClaimInfo struct {
	Ref    string        // names it for Break and Release
	Owner  string        // as the claim said, or what is known of a foreign holder
	Meta   string        // as the claim said
	Weight int64         // how much of the limit it takes
	Token  int64         // 0 for a waiting claim, or a foreign one that has none
	TTL    time.Duration // 0 if not known
	// Since is when it was granted or began to wait, by a clock that is only good for showing; zero if not known.
	Since            time.Time
	Remaining        time.Duration // how long it lasts if it is not renewed; 0 if not known
	Detached         bool          // does not end with its client
	Foreign          bool          // made by another kind of client
	ReleaseRequested bool          // its holder was asked to release the lock
	Broken           bool          // was broken gracefully, and exists only until its holder has learned of it
}

// MaxToken is the largest fencing token: 2^53-1, the largest integer that JSON numbers of other languages keep exactly.
const MaxToken = 1<<53 - 1

// TokenFloor says how small the tokens to come can be.
type TokenFloor struct {
	// Token: no token that is granted from now on, on any lock of the store, is smaller.
	Token int64
	// ByClock: tokens are at least the store's clock, in microseconds since 1970. So the floor rises with time.
	ByClock bool
}

// UnreachableTimeout is how long an Acquire that waits, or a Release, retries while the store does not answer, counted
// from the first request without an answer: the claim's TTL, at most 10 s. After that the claim may have expired, so
// its place in the queue is uncertain.
func UnreachableTimeout(ttl time.Duration) time.Duration { return min(ttl, 10*time.Second) }
