// Package driver is the contract between Holdfast's client and the stores that keep its locks.
//
// A user of locks never imports this package. It is for those who build a store, and it is written so that one can be
// built from these pages alone: every method says who calls it, when, what it must promise, and what each error means.
// The suite in drivertest checks the same promises against a running store.
//
// # The model
//
// A lock is a name on which claims are made. Claims stand in one order, the order of their arrival. A claim is granted
// when the weight of all claims ahead of it, plus its own, fits in the lock's limit; until then it is waiting. A mutex
// is limit 1 and weight 1; a semaphore of n is limit n; a read-write lock is limit [RWLimit], a reader weighs 1 and a
// writer weighs all of it. Kind and limit are fixed while any claim stands on the lock; an idle lock takes those of
// its next claim.
//
// # Who does what
//
// The client (package holdfast) owns the life of a lease: it makes claim ids, queues plain claims inside the process,
// counts how long a grant may be believed, calls Renew in time, and cleans up what an ended context left behind. The
// store owns the truth: it grants, ends, orders and counts tokens, each in one atomic step. A store never starts
// believing or stops believing for a caller; it reports instants and the client does the arithmetic.
//
// # Time
//
// Every confirmation of a grant carries Since, an [Instant] on the clock of [Info].Clock. The client believes in the
// grant until Since + TTL - margin on that clock, and the store must not let anybody else be granted before Since +
// TTL, however late the reply came. Where each claim has a TTL of its own, Since is the *start* of the request that
// wrote it: the write cannot come before that. Where claims live with a session, it is the earlier of the start of the
// request that saw the claim granted and the start of the session's last confirmed heartbeat, from which the store
// counts; so it may come before the call, by up to a sixth of the TTL.
//
// A claim ends when its client does not renew it, whatever else the client does. A store that renews by session removes
// on its own side a claim for which Renew has not been asked for its TTL.
//
// # Unknown outcomes
//
// A write is done, refused, or unknown: the request or its reply was lost, or a retry inside an SDK turned "done" into
// "refused". Every step is idempotent by claim id, so a driver settles an unknown outcome by looking for its own claim
// id, inside the same call, for as long as the call's context allows. What it cannot settle it returns wrapped in
// [ErrUncertain]. Unknown is never reported as done nor as refused.
//
// An error Is context.Canceled or context.DeadlineExceeded only if the context of the call has ended: a store's own
// timeouts are something else.
//
// # Wrappers
//
// A Store that wraps another hides the optional interfaces of that one unless it offers them itself.
//
// # Optional interfaces
//
//   - To report the end of a grant before its next renewal would, implement [EndWatcher].
//   - To report changes of a lock, implement [LockWatcher]; without it the client reads the lock once a second.
//   - To let a claim outlive its client (Lease.Detach, MinHold), implement [Detacher] and set [Info].Detached.
//   - To change a reader into a writer and back, implement [WeightChanger].
//   - To keep the claims of a killed process until the work under them has ended, implement [LivenessFiler].
//   - To show where a claim is kept, implement [Explainer].
//   - To warn of weak settings, implement [Warner].
package driver

import (
	"context"
	"iter"
	"os"
	"time"
)

// Store is one place where locks live. All methods may be called from many goroutines at once.
//
// When a context ends, a method returns promptly with the context's error (wrapped in [ErrUncertain] when a write may
// have taken effect); it does not clean up: the client does, by Release with the claim's id. No method blocks for
// longer than its context allows, and none starts a goroutine that outlives Close.
type Store interface {
	// Info tells what the store promises and its bounds, as far as they are known by now. It does no I/O and may be
	// called at any time, also after Close. What is learnt by talking to the store (a session time granted by the
	// server) may change between calls; the rest may not.
	Info() Info

	// Acquire makes a claim, with an id that no other claim ever had. For one id at most one call is under way.
	//
	// With c.Wait false it makes one attempt: the claim is granted at once or leaves no trace, and the error is a
	// [*HeldError]. It never passes a waiting claim. With c.Wait true it returns when the claim is granted or ctx
	// ends. A claim with c.Fair, and every claim of another kind than KindMutex, stands in the store's line while it
	// waits; a plain one waits outside of the line unless [Info].NativeQueue says that waiting costs nothing here.
	//
	// A grant is returned only if it was seen granted by a request of this very call: a waiter that was promoted by
	// somebody else holds nothing until a request of its own has confirmed it. If the claim stands granted from an
	// earlier call (the caller asks again because it does not know), it is renewed, and the same token comes back; from
	// another process, use Renew or Release with the Ref.
	//
	// Errors: ErrHeld (only with Wait false), ErrQueueFull (too many claims stand on the lock), ErrMismatch (the lock
	// stands under another kind or limit), ErrLost (a *LossError: somebody has ended the claim; one that waited and has
	// lost its place because the client was stopped or the store was silent comes again, and so it does on a store that
	// cannot tell the two apart), ErrUnsupported (a kind or an option this store or layout
	// does not carry), ErrDenied (credentials, permissions), ErrCorrupt (the stored lock cannot be understood),
	// ErrInvalid, ErrClosed, ErrUncertain, the context's own error. An unreachable store is retried inside, with
	// backoff, for no longer than [UnreachableTimeout] allows, and then its error is returned. ErrDenied and ErrCorrupt
	// are never retried.
	//
	// After any error but ErrHeld, ErrMismatch, ErrInvalid, ErrUnsupported and ErrDenied the claim may stand, and the
	// client calls Release; so it does after any error that Is ErrUncertain or a context's.
	//
	// When ctx ends a wait, the error should also be a *HeldError (found by errors.As) with the holders that were seen
	// last, if any were: the client tells its caller for whom it waited in vain.
	Acquire(ctx context.Context, c Claim) (Grant, error)

	// Renew pushes the end of each grant out by its TTL, and calls done(i, r) once for each g[i], as answers come in,
	// before it returns; done may be called by several goroutines at once and returns quickly. One grant that hangs
	// must not keep the others from their answers.
	//
	// The client calls Renew a third of the way through a TTL, with all the grants that are then due, and again after
	// an unknown answer. A renewal never creates: a claim that does not stand, or stands with another token, is lost. A
	// Grant put together from Name, ID, Token, Ref and TTL in another process is renewed like one of this client's own;
	// where a claim lives with a session that its own client alone can renew ([Info].Detached is false there), the
	// answer is ErrUnsupported, and never nil: whether that client is alive is not known.
	//
	// A store whose session is its renewal may answer for the session from a heartbeat that was started no more than a
	// sixth of the TTL before the call. That the claim stands, unbroken and under this token, is read in this call, or
	// known from notifications that are ordered before the heartbeat's answer. Since is the earlier of the two starts.
	Renew(ctx context.Context, g []Grant, done func(i int, r Renewal))

	// Release removes a claim, whether granted, waiting or unknown, found by its id, or by the ref when another process
	// made it (then c may have no ID; if both are given, both must match). It removes that claim and never another,
	// however late it arrives. Of the claims in line, those that this lets in are told, and one more.
	//
	// It returns nil only if this claim was given up by its own release. It returns an error that Is ErrLost when the
	// claim had ended before, and the cause is given as far as known. A caller that cleans up takes that for success.
	// Once an attempt of this call had an unknown outcome, a claim that does not stand proves nothing: so whoever ends
	// a granted claim of somebody else (a forced break, a takeover from an expired holder) leaves a note of its id with
	// the cause, in the same step and for longer than the claim's TTL, and a release that finds the claim gone looks
	// for it. Where that cannot be known the error Is ErrUncertain. Others: ErrDenied, ErrCorrupt, ErrClosed, the
	// context's.
	//
	// Once Release has returned nil or ErrLost, no request of an earlier Acquire of that claim may still take effect,
	// in whatever order they travel: on session stores it is barred outright, elsewhere unless the link itself delayed
	// it beyond what the store can see, and then the claim ends by its TTL. The id is not used again.
	Release(ctx context.Context, c Claim, ref string) error

	// Inspect tells how a lock stands: a read, never a change. A lock on which nothing stands is a Lock with no
	// claims, not an error. What stands there of foreign clients is shown as a holder with Foreign set.
	Inspect(ctx context.Context, name string) (Lock, error)

	// List yields the locks whose names start with prefix and on which a claim stands, in no certain order; those
	// that only foreign clients ever used may be missing. A lock that cannot be read is yielded with its name and an
	// error, and the listing goes on; an error with an empty name ends it.
	List(ctx context.Context, prefix string) iter.Seq2[Lock, error]

	// Break acts on one claim as an operator, found by the ref that Inspect gave: see [BreakMode]. It returns an error
	// that Is ErrLost if that claim does not stand any more, and never touches another; ErrInvalid if the ref is none;
	// ErrUnsupported for BreakGraceful and BreakRequestRelease of a foreign claim, whose holder cannot be notified;
	// ErrUncertain.
	Break(ctx context.Context, name, ref string, mode BreakMode) error

	// Close gives up the store's connections and sessions, and waits for what it started; a connection that the user
	// made and handed in stays open. Claims that it leaves behind are not revoked: they end as those of a dead client
	// do. Calls under way and later ones return ErrClosed. Calling Close again does nothing.
	Close() error
}

// EndWatcher is implemented by stores that learn of the end of a grant before the next renewal would. The client keeps
// one call under way while it holds anything.
type EndWatcher interface {
	// NextEnding blocks until something happened to a grant of this store's client, or ctx ends. Endings are kept
	// until they are fetched, and are hints: the client ends the lease when Err is set, and reports ReleaseRequested.
	NextEnding(ctx context.Context) (Ending, error)
}

// LockWatcher is implemented by stores that can tell when a lock changes. Without it the client polls Inspect.
type LockWatcher interface {
	// NextChange blocks until the lock stands otherwise than in seen, and returns how it stands then. It subscribes
	// first, looks second and blocks third, so that no change is missed.
	NextChange(ctx context.Context, seen Lock) (Lock, error)
}

// Detacher is implemented by stores on which a claim can outlive its client. Where [Info].Detached is false the method
// may be there all the same, and answers ErrUnsupported.
type Detacher interface {
	// Detach leaves a grant standing with nobody behind it: it ends by itself, not before keep has passed and soon
	// after, or when Release names it. This client does not renew it any more; another that was told its name, id,
	// token and ref may, and Renew then has it last for keep from then on. Errors as for Renew's answers.
	Detach(ctx context.Context, g Grant, keep time.Duration) error
}

// WeightChanger is implemented by stores that can change the weight of a granted claim in one step, so that a writer
// becomes a reader, or a reader a writer, with no moment in between at which somebody else could get in.
type WeightChanger interface {
	// SetWeight makes a grant weigh weight instead of g.Weight, 1 to its limit. The claim keeps its id, its token and
	// its place in the order: no exclusive claim can have been granted since, so the token goes on fencing.
	//
	// Down always succeeds, and those of the claims in line whom it lets in are told, and one more. Up succeeds if the
	// claims ahead, the new weight, and all that is granted behind it fit in the limit together; else the error is a
	// [*HeldError] at once, and nothing has changed; so it is where others come so fast that it cannot be made sure of.
	// Claims that wait behind it do not count: it stood before them.
	//
	// A claim that has the weight already is left so, which settles an unknown outcome: the client, or the store
	// itself, asks again; a request that comes late, behind a later one, changes nothing. It counts as no renewal.
	// Other errors are those of Renew's answers: a *LossError, or unknown; and ErrUnsupported where the claims of that
	// kind cannot change.
	SetWeight(ctx context.Context, g Grant, weight int64) error
}

// LivenessFiler is implemented by stores that know a dead client from a living one by a file that it has open. A
// supervisor that outlives the client can then keep the claims standing until the work under them is gone as well.
type LivenessFiler interface {
	// LivenessFile returns a file which, for as long as any process has it open, keeps the claims of this client
	// standing as those of a live one: they end by their TTL if nobody renews them, and not before. The caller closes
	// it, and hands it on to whom it likes; a Close of the store ends the client for all others, whoever has the file.
	// ErrUnsupported if there is none here: then the TTL alone ends the claims of a dead client.
	LivenessFile() (*os.File, error)
}

// Explainer is implemented by stores that can tell where a claim would stand.
type Explainer interface {
	// Explain tells how a claim would stand in the store, for people to read. It does no I/O.
	Explain(c Claim) Plan
}

// Warner is implemented by stores whose set-up is the user's own, and can be weak.
type Warner interface {
	// Warnings asks the store how it is set up. Each warning says in words what makes its locks less safe than they
	// could be, or shows that another store may have been meant, and what to set. The error is that of a store that
	// cannot be asked.
	Warnings(ctx context.Context) ([]string, error)
}

// Plan is how a claim would stand in a store.
type Plan struct {
	Keys []string      // what is read and written: keys, nodes, files
	TTL  time.Duration // as it would be granted
	// Notes say, of such a claim alone, which clients of another make it does not keep out, though they keep it out.
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
	ID       string        // unique for ever; 16 random bytes as 26 lower-case base32 characters
	Kind     Kind          // what the lock is used as
	Limit    int64         // how much weight the lock grants at once, 1 to MaxLimit
	Weight   int64         // 1 to Limit
	TTL      time.Duration // how long the holder may be silent; whole milliseconds, Info.MinTTL to Info.MaxTTL
	Owner    string        // who claims, to be shown; never compared
	Meta     string        // the user's own note, to be shown; at most Info.MaxMeta bytes
	Fair     bool          // stand in line in order of arrival (only a mutex has the choice)
	Wait     bool          // wait until granted
	Detached bool          // not tied to this client's life: only its TTL ends it
}

// Exclusive reports whether nobody else can be granted beside this claim, so that its token can fence.
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
}

// Renewal is the answer for one grant of a Renew.
type Renewal struct {
	// Err is nil: renewed; a [*LossError]: the grant has ended; anything else: unknown, and the client asks again.
	Err        error
	Since      Instant       // start of the request that renewed it
	GrantedTTL time.Duration // how long after Since the store keeps the claim; see Grant.GrantedTTL
	// ReleaseRequested: somebody asks the holder to release the lock (see BreakRequestRelease); the grant is renewed.
	ReleaseRequested bool
}

// Ending is what an EndWatcher reports about one grant.
type Ending struct {
	Name, ID         string
	Err              error // a *LossError, or nil if the holder is only asked to give up
	ReleaseRequested bool
}

// BreakMode says how hard Break acts.
type BreakMode int

const (
	// BreakGraceful marks the claim as broken: it is not renewed any more, its next renewal answers so, and the lock
	// passes on when its holder has released it or its TTL is over, also if it is detached. A waiting claim is removed
	// at once, and its Acquire ends with a *LossError.
	BreakGraceful BreakMode = iota
	// BreakForce removes the claim at once. Its holder may still be running until its next renewal.
	BreakForce
	// BreakRequestRelease changes nothing but that the holder is notified (Renewal.ReleaseRequested) that somebody
	// would like it to release the lock.
	BreakRequestRelease
)

// Lock is how a lock stands, at one moment.
type Lock struct {
	Name     string
	Kind     Kind        // empty if nothing stands
	Limit    int64       // 0 if nothing stands
	Token    int64       // the largest token granted on it, 0 if not known
	Holders  []ClaimInfo // granted
	Waiters  []ClaimInfo // waiting, the next first
	Revision string      // differs whenever the claims that stand differ; compared, never ordered
}

// ClaimInfo is a claim as others see it.
type ClaimInfo struct {
	Ref    string        // names it for Break and Release
	Owner  string        // as the claim said, or what is known of a foreign holder
	Meta   string        // as the claim said
	Weight int64         //
	Token  int64         // 0 for a waiting claim, or a foreign one that has none
	TTL    time.Duration // 0 if not known
	// when it was granted, or began to wait, by a clock good for showing only; zero if not known
	Since            time.Time
	Remaining        time.Duration // how long it stands if it stays silent; 0 if not known
	Detached         bool          //
	Foreign          bool          // made by another kind of client
	ReleaseRequested bool          // was asked to give up
	Broken           bool          // was broken by an operator and stands only until its holder has heard it
}

// UnreachableTimeout is how long an Acquire or a Release that waits goes on asking a store that does not answer,
// counted from the first request that got no answer: the claim's TTL, and no more than 10 s. After that its place in
// line is doubtful anyway.
func UnreachableTimeout(ttl time.Duration) time.Duration { return min(ttl, 10*time.Second) }
