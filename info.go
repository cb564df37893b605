package holdfast

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Info is what a store promises, and its bounds, as far as they are known by now: see [Client.Info]. What only the
// server knows, such as the session time that it grants, may change when the client first talks to it.
type Info struct {
	// Store is the scheme and the place, for people to read: it contains no secret. It identifies nothing: two stores
	// may show the same, and one store may show another place to each of its clients, or after a failover.
	Store  string
	Engine string       // how the locks are kept: "record", "sequence" or "script"
	Clock  driver.Clock // the clock by which the client judges its leases

	Tier        Tier        // how far the store can be trusted
	ExpiredBy   ExpiredBy   // who ends the claim of a holder that has stopped renewing
	ExpiryClock ExpiryClock // by which clock such a claim expires
	Order       Order       // the order in which claims are granted
	Kinds       []Kind      // the kinds of locks that the store's layout supports
	Detached    bool        // whether a claim can outlive its client: see Lease.Detach and LockOptions.MinHold
	Permits     bool        // whether the permits of a semaphore have numbers: see Lease.Permits
	Survives    Survives    // what the claims and tokens of the store survive

	// NativeQueue: plain mutex claims wait in the store, in order of arrival, since waiting costs nothing there. Those
	// that find MaxWaiters claims wait in their process, and one of them at a time asks the store every second or two.
	// Otherwise the client lets at most one plain claim per process and lock wait in the store at a time.
	NativeQueue bool
	// DeadHolderTimeout is the longest time, beyond one round trip, for which the claim of a killed process keeps a
	// waiter on the same store out; 0: up to the claim's TTL.
	DeadHolderTimeout time.Duration
	// WriteInterval is the shortest time between two writes to one lock that the store accepts; a new claim that can
	// wait keeps this distance from the last write. 0: there is no such limit.
	WriteInterval time.Duration
	// TokenGap is how old the last grant of a lock must be for the next token to be larger, where the record of the
	// lock was removed in between.
	TokenGap time.Duration
	// TokenRegression says when a token can be smaller than an earlier one; empty: never.
	TokenRegression string

	MinTTL, MaxTTL         time.Duration // a TTL outside of these is refused with ErrInvalid
	MaxName, MaxMeta       int           // length of a lock's name and of a claim's Meta, in bytes
	MaxRunResult           int           // of a Ledger: size of the largest result, in bytes; 0 for locks
	MaxHolders, MaxWaiters int           // claims per lock; MaxWaiters is 0 where no claim waits in the store
}

// Survives is which events the claims and the tokens of a store survive.
type Survives struct {
	Restart  bool // an orderly restart of the store
	PowerCut bool // a power cut of the store's machine
	Failover bool // a failover to another of the store's machines
}

// Tier is how far a store can be trusted with work that must never be done twice. Its values are codes, fit for logs
// and JSON.
type Tier string

const (
	TierFenceSafe Tier = "fence-safe"         // tokens never get smaller, and grants are never forgotten
	TierSettings  Tier = "safe-with-settings" // the same, if the store is set up for it: see Client.Examine
	TierAdvisory  Tier = "advisory"           // good for saving work: a failover of the store may grant a lock twice
)

// Description says what the code means, in a few words for people. The words may change.
func (t Tier) Description() string { return driver.Tier(t).Description() }

// ExpiredBy is who ends the claim of a holder that has stopped renewing. Its values are codes, fit for logs and JSON.
type ExpiredBy string

const (
	ExpiredByClaimant ExpiredBy = "next-claimant" // the next client that wants the lock
	ExpiredByStore    ExpiredBy = "store"         // the store itself, when its own timer has run out
)

// Description says what the code means, in a few words for people. The words may change.
func (e ExpiredBy) Description() string { return driver.ExpiredBy(e).Description() }

// ExpiryClock is the clock by which the claim of a holder that has stopped renewing expires. Its values are codes, fit
// for logs and JSON. The wall clocks of two clients are never compared with each other.
type ExpiryClock string

const (
	ExpiryClockStore ExpiryClock = "store-clock" // the store's
	// the waiting client's own, which has watched the claim unchanged for its TTL
	ExpiryClockObserver ExpiryClock = "observer-clock"
)

// Description says what the code means, in a few words for people. The words may change.
func (c ExpiryClock) Description() string { return driver.ExpiryClock(c).Description() }

// Order is the order in which a store grants the claims on one lock. Its values are codes, fit for logs and JSON.
type Order string

const (
	OrderAlways Order = "always" // all claims are granted in order of arrival
	// fair, read-write and semaphore claims are; plain mutex claims may pass each other
	OrderFairOnly Order = "fair-only"
	OrderNone     Order = "none" // no order is promised
)

// Description says what the code means, in a few words for people. The words may change.
func (o Order) Description() string { return driver.Order(o).Description() }

// Lock is the state of a lock at one moment: who holds it and who waits for it.
type Lock struct {
	Name     string
	Kind     Kind        // empty if there is no claim on the lock
	Limit    int64       // the total weight that is granted at one time; 0 if there is no claim on the lock
	Token    int64       // the largest fencing token granted on the lock, 0 if it is not known
	Holders  []ClaimInfo // the granted claims
	Waiters  []ClaimInfo // the waiting claims, the next one first
	Revision string      // differs whenever the claims differ; to be compared for equality only
}

// ClaimInfo is one claim on a lock, as other clients see it.
type ClaimInfo struct {
	Ref              string        // names the claim for Client.Break and Client.RequestRelease; printable
	Owner            string        // LockOptions.Owner or Options.Owner, or what is known of a foreign holder
	Meta             string        // LockOptions.Meta or Options.Meta of the client
	Weight           int64         // how much of the limit it takes
	Token            int64         // its fencing token; 0 for a waiting claim, and for a foreign one that has none
	TTL              time.Duration // how long a holder that stops renewing keeps the lock; 0 if it is not known
	Since            time.Time     // when it was granted, or began to wait; to be shown only, zero if it is not known
	Remaining        time.Duration // how long the claim lasts if it is not renewed again; 0 if it is not known
	Detached         bool          // it does not end with its client: see Lease.Detach
	Foreign          bool          // made by another kind of client
	ReleaseRequested bool          // its holder was asked to release it: see Client.RequestRelease
	// it was broken by an operator, and exists only until its holder has noticed or its TTL has expired
	Broken bool
}

// Kind is what a lock is used as. It is stored with the lock: all users of a name must use the same kind. Its values
// are codes, fit for logs and JSON. It is the same type as driver.Kind.
type Kind = driver.Kind

const (
	KindMutex     Kind = driver.KindMutex     // "mutex": one holder; also the kind of an [Election]
	KindRW        Kind = driver.KindRW        // "rw": one writer or many readers
	KindSemaphore Kind = driver.KindSemaphore // "semaphore": holders whose weights fit within a limit
)

// Finding is one thing in a store's settings that makes its locks less safe, or that could not be seen: see
// [Client.Examine]. It is the same type as driver.Finding.
type Finding = driver.Finding

// Severity is how bad a finding is. Its values are codes, fit for logs and JSON. It is the same type as
// driver.Severity.
type Severity = driver.Severity

const (
	// SeverityCritical: locks can be lost or granted twice, or calls are refused, although nothing has failed.
	SeverityCritical Severity = driver.SeverityCritical
	// SeverityWarning: the same can happen after a crash, a failover, a mistake or an attack, or waiting takes longer.
	SeverityWarning Severity = driver.SeverityWarning
	// SeverityUnknown: a setting could not be seen.
	SeverityUnknown Severity = driver.SeverityUnknown
)

// Plan is how a claim would be kept in the store, for people to read. See Mutex.Explain.
type Plan struct {
	Keys  []string      // what is read and written: keys, nodes, rows or files; empty on stores that cannot tell
	TTL   time.Duration // as the store would grant it
	Notes []string      // which clients of another make such a claim does not keep out, although they keep it out
}
