package driver

import (
	"cmp"
	"time"
)

// Info is what a store promises, as data. GUARANTEES.md is the table of all stores' Infos, and the command prints it.
type Info struct {
	// Store is the scheme and the place, for people to read: no secret is in it. It identifies nothing: two stores may
	// show the same, and one store may show another place to each of its clients, or after a failover.
	Store  string
	Engine string // "record", "sequence" or "script"
	Clock  Clock  // the clock of all its Instants; the client judges leases by the same

	Tier        Tier
	ExpiredBy   ExpiredBy   // who ends the claim of a holder that stopped renewing
	ExpiryClock ExpiryClock // by which clock
	Order       Order       // whether claims are granted in the order of their arrival
	Kinds       []Kind      // what its layout carries
	Abilities   Abilities   // which of the methods that not every store has
	Survives    Survives    // what claims and tokens survive

	// NativeQueue says that plain mutex claims wait in the store too, because waiting costs nothing there. If the store
	// refuses one with ErrQueueFull, the client tries again, with one claim per process and lock at a time. Otherwise
	// the client lets at most one plain claim per process and lock wait in the store at a time.
	NativeQueue bool
	// DeadHolderTimeout is the longest time, beyond one round trip, that the claim of a killed process blocks a waiter
	// on the same store; 0: up to its TTL.
	DeadHolderTimeout time.Duration
	// WriteInterval is how long a new claim that can wait leaves a lock alone after the last write that its client
	// knows of, on a store that limits the writes to one lock; 0: not at all.
	WriteInterval time.Duration
	// TokenGap is how old the last grant must be for tokens to rise if the record of the previous token is gone.
	TokenGap time.Duration
	// TokenRegression says when a token can be smaller than an earlier one; empty: never.
	TokenRegression string

	// A TTL outside these bounds is refused with ErrInvalid. A server that would grant less than requested counts as
	// refusing. Its bounds may become known only when it is first used.
	MinTTL, MaxTTL   time.Duration
	MaxName, MaxMeta int // bytes
	// MaxRunResult is the size of the largest result of a run in a ledger, in bytes: MaxRunResult, or less where the
	// store's records are small. 0 for locks.
	MaxRunResult int
	// Claims per lock. MaxWaiters 0: the store has no queue.
	MaxHolders, MaxWaiters int
}

// Abilities say beforehand which methods of a [Store] do not answer ErrUnsupported, and what else only some stores do.
type Abilities struct {
	Detach       bool // Detach: a claim can outlive its client
	SetWeight    bool // SetWeight
	NewestOnly   bool // a claim whose id is marked (MarkNewestOnly) gives up for a newer one
	Endings      bool // NextEnding
	Reasons      bool // the reason of a Break reaches the client of the claim
	Forget       bool // Forget
	Tokens       bool // ReadTokenFloor; RaiseToken can tell, too, whether the tokens are large enough
	Ledger       bool // OpenLedger
	LivenessFile bool // LivenessFile; a store may find later that its machine has none
	Permits      bool // Grant.Permits: the permits of a semaphore have numbers
}

// The limits that hold wherever a store does not set narrower ones.
const (
	MinTTL     = time.Second
	MaxTTL     = 24 * time.Hour
	MaxName    = 512  // bytes
	MaxMeta    = 1024 // bytes
	MaxLimit   = 1e12 // of a lock; so the weights of all its claims can be added up exactly on every store
	MaxHolders = 256
	MaxWaiters = 64
)

// Bounded returns i with these limits wherever it has none of its own. It is for engines, whose claims queue in the
// store: a MaxWaiters of 0 is replaced too.
func (i Info) Bounded() Info {
	i.MinTTL, i.MaxTTL = cmp.Or(i.MinTTL, MinTTL), cmp.Or(i.MaxTTL, MaxTTL)
	i.MaxName, i.MaxMeta = cmp.Or(i.MaxName, MaxName), cmp.Or(i.MaxMeta, MaxMeta)
	i.MaxHolders, i.MaxWaiters = cmp.Or(i.MaxHolders, MaxHolders), cmp.Or(i.MaxWaiters, MaxWaiters)
	return i
}

// Tier is how far a store can be trusted with work that must never be done twice: a code, fit for logs and JSON.
type Tier string

const (
	TierFenceSafe Tier = "fence-safe"         // tokens never get smaller, and grants are never forgotten
	TierSettings  Tier = "safe-with-settings" // the same, if the store is set up for it; see Store.Examine
	// good for saving work; the store may grant a lock twice when it forgets grants: see Info.Survives
	TierAdvisory Tier = "advisory"
)

var tierDescriptions = map[Tier]string{
	TierFenceSafe: "fence-safe: tokens never get smaller, and no grant is forgotten",
	TierSettings:  "safe with settings: fence-safe if the store is set up for it",
	TierAdvisory:  "advisory: the store may forget grants, and then grant a lock twice",
}

// Description says what the code means, in a few words for people. The words may change.
func (t Tier) Description() string { return describe(tierDescriptions, t) }

// ExpiredBy is who ends the claim of a holder that has stopped renewing: a code, fit for logs and JSON.
type ExpiredBy string

const (
	ExpiredByClaimant ExpiredBy = "next-claimant" // the next client that wants the lock
	ExpiredByStore    ExpiredBy = "store"         // the store itself, when its own timer has run out
)

var expiredByDescriptions = map[ExpiredBy]string{
	ExpiredByClaimant: "the next claimant",
	ExpiredByStore:    "the store",
}

// Description says what the code means, in a few words for people. The words may change.
func (e ExpiredBy) Description() string { return describe(expiredByDescriptions, e) }

// ExpiryClock is the clock by which the claim of a holder that has stopped renewing expires: a code, fit for logs and
// JSON. The wall clocks of two clients are never compared with each other.
type ExpiryClock string

const (
	ExpiryClockStore ExpiryClock = "store-clock" // the store's
	// the waiting client's own, which has watched the claim unchanged for its TTL
	ExpiryClockObserver ExpiryClock = "observer-clock"
)

var expiryClockDescriptions = map[ExpiryClock]string{
	ExpiryClockStore:    "the store's clock",
	ExpiryClockObserver: "the observer's own clock, having watched the claim unchanged for its TTL",
}

// Description says what the code means, in a few words for people. The words may change.
func (c ExpiryClock) Description() string { return describe(expiryClockDescriptions, c) }

// Order is the order in which a store grants the claims on one lock: a code, fit for logs and JSON.
type Order string

const (
	OrderAlways Order = "always" // all claims are granted in order of arrival
	// fair, read-write and semaphore claims are; plain mutex claims may pass each other
	OrderFairOnly Order = "fair-only"
	OrderNone     Order = "none" // no order is promised
)

var orderDescriptions = map[Order]string{
	OrderAlways:   "first come, first served",
	OrderFairOnly: "first come, first served for fair, read-write and semaphore claims",
	OrderNone:     "none",
}

// Description says what the code means, in a few words for people. The words may change.
func (o Order) Description() string { return describe(orderDescriptions, o) }

// Survives is what a store still knows afterwards.
type Survives struct {
	Restart  bool // of the store, ordered
	PowerCut bool // of the store's machine
	Failover bool // to another of the store's machines
}

// Margin is how long before the end of its TTL a holder stops relying on its lease: a tenth of the TTL, and at most one
// second plus a hundredth of the TTL. The hundredth allows two clocks to run 1 % apart (an undisciplined quartz
// is a hundred times better); the rest covers the time between a timer and the code that it wakes.
func Margin(ttl time.Duration) time.Duration { return min(ttl/10, time.Second+ttl/100) }
