// Package sequence keeps locks as ordered nodes that are bound to sessions. It is for stores that keep such nodes and
// remove those of a session that has expired: etcd, ZooKeeper and Consul. What is particular to such a store is a
// [NodeStore]; every decision about locks is made here.
//
// # Nodes and order
//
// A claim is one node of its lock. The store gives each new node a place behind all others of that lock, and a token
// larger than theirs: the fencing token. A node does not say whether it holds the lock or waits. That follows from
// the order: a claim is granted when the weight of all nodes ahead of it, plus its own weight, fits in the lock's
// limit. A mutex has the limit 1; a read-write lock has a large limit, of which a writer takes all and a reader takes
// 1. The file rule.go is this whole rule, without any I/O. A granted claim stays granted, because the nodes ahead of
// it only become fewer (for weights that grow see [Engine.SetWeight]).
//
// A free lock costs one request: Add, whose reply shows all nodes of the lock with the new one. A claim that does not
// wait is added only if it would be granted at once.
//
// # Waiting
//
// Of the claims of one client, only some join a lock at the same time (see the type entrance). A waiter is woken by the
// store and writes nothing. If all waiters watched the same node, each release would wake all of them. So each watches
// one node ahead, usually its predecessor; findBlocker says which. When that node changes or goes, the waiter lists the
// lock and decides again. Many readers can wait for one writer: one of them lists the lock, and the others use its
// snapshot. A waiter for a claim of the same session needs no watch, since this process knows when that claim goes. A
// watch is only a hint: every few seconds each waiter lists the lock without one.
//
// # Sessions
//
// Each node is bound to a session, and a client has one session per TTL, for all its claims with that TTL. The
// session is kept alive by one request at a time (see keepAliveLoop), and has two goroutines. Of sessions without
// claims a few are kept, for up to a TTL. When a client stops, the store ends its session and removes all its nodes,
// by the store's own clock. Other clients never judge whether a holder has expired.
//
// Keep-alives extend all nodes of a session, so they would keep claims that nobody wants any more. For that reason each
// claim must be renewed by its holder, too: the session's janitor removes a claim that was not renewed for its TTL. The
// janitor also watches the node of each claim that lasts, so that a break or a release request is noticed soon, and a
// renewal need not read it.
//
// A detached claim has a session of its own, to which nobody sends keep-alives except a process that renews that
// claim.
//
// # Confirmation
//
// A client believes in a grant only if two things are true: a snapshot showed the claim's own node, under its own
// session, at a place that is granted; and a keep-alive of that session was confirmed. Each is trusted from the start
// of its request, since the reply may have taken long. The grant counts from the earlier of the two. A renewal is the
// same again: a keep-alive, and a proof that the node is still there, because an operator may have removed or marked it
// while the session lives on. The proof is a read, or, for all watched nodes of a session together, a confirmation of
// their watches (ConfirmWatches), which counts from its start as well. It shows what no silent watch can: that the
// subscription exists, that the server which serves it is not behind, and that all it had to report has been reported.
// A node is read nevertheless while its watch is being set up or restored, and from each report on until a read that
// began after it: a read from before a change does not show the change.
//
// A store that has begun to end a session may answer keep-alives until it has. Where that is so (see
// [Session.KeepAliveWithin]), a session whose keep-alives had no reply for too long is not used again: the client ends
// it, and its claims join their locks again under another one, behind all others.
//
// # After a lost reply
//
// A request without a reply may have had its effect, or may still have it later.
//
//   - Add: it is sent again with the same number, and the store adds no second node for that number. If the claim is
//     given up instead, Withdraw removes its node and makes sure that no delayed Add of it takes effect.
//   - Remove: it is sent again. If the node is gone then, the first request has removed it, unless the store has a
//     note that someone broke the claim (see [Breaker]), or the session ended too early. Then the release reports a
//     loss, or an unknown outcome.
//   - A change of weight: it is repeated as a new change, so that the delayed one finds another version and fails.
//   - A keep-alive: trust stays where it was, and the next one is sent sooner.
//
// If the store gives no answer for too long (driver.UnreachableTimeout), the call ends with ErrUncertain.
//
// # Decisions
//
// Of the claims of one client, sixteen join a lock at a time (entrance), and if one finds the queue full, that is the
// answer for those that waited behind it when it was sent. Ten thousand that came to a lock on etcd at once kept its
// members busy for longer than a request may take; nearly all of their waits failed. So none fails, and a hand-over
// costs five requests, as with a thousand. An add takes about as long as a hand-over, so sixteen are enough for a lock
// that passes on as fast as it can. Each claim that is granted at once lets one more join: a hundred readers of a store
// that is far away have their lock after three round trips. Rejected: that one claim of a client comes to the store, as
// on record stores. The claims of all clients then no longer have one order. Rejected: a limit for all locks of a
// client. Ten thousand locks are taken in a second because their requests are made together.
//
// A claim that was refused because the queue was full reads the queue before it is added again (checkRoom), until there
// is room. To be added and removed costs two writes that the members agree on. With 1,000 clients at one lock, 744 of
// which ask for room every second or two, that was all that three members of etcd did. Rejected: a note of the store to
// those outside when there is room. All of them would come for one place.
//
// The permits of a semaphore have no numbers here. Who holds the lock follows from the list of nodes, which each client
// reads by itself, and a number that follows from the list would change when a node ahead of it goes. Rejected: that a
// holder writes a number into its node. Two holders could choose the same one at the same time, since a store compares
// the node that is written, or which nodes there are, but not what others write into theirs. What would be safe is a
// node per number, which is created if it does not exist, for a request more per grant.
//
// Claims of another kind, and foreign claims, weigh the whole lock, and only a newcomer is refused because of them
// (ErrMismatch). So a claim that is in the queue only until it is refused does not cause others to be refused.
//
// Keys. etcd and Consul make a claim's key of its session and a number. The servers keep every key that was deleted,
// etcd until they compact their history and Consul for 15 minutes, and go through all that lie in a range when they
// read it. So a number is used again as soon as nothing can come of its claim any more: all adds have had replies, and
// the node is known to be gone (Traits.ReusesNumbers). A key then no longer says whose node it is. So a step that
// removes a node, or that grants by what was read with one key, compares the token, or makes sure that the claim is not
// forgotten. Consul can compare only versions in the step that removes a key. The first version of a node is its token,
// and a client knows the versions that it has written; if another client has changed the node, it reads it, with its
// token, and then removes that version. Rejected: reading each node before its removal, which would cost every release
// a request.
//
// Holding. A renewal needs a keep-alive of the session, and a proof that no operator has removed or marked the node.
// The next holder may start at once after a forced break, but the present one must learn of it. Each node that lasts is
// watched, and one request confirms the watches of all nodes of a session, so 10,000 leases cost as much as one. A
// watch that says nothing proves nothing by itself: its connection may have broken without notice, and its server may
// be stopped or behind. The confirmation shows that there was nothing to report. On etcd it is a linearizable read, and
// a question to the stream of the watches, whose answer must have come as far as that read. On ZooKeeper it is a
// refused write over the claims' own session, as a keep-alive: the answers and events of one link have one order. After
// a reconnect the watches are set again before anything else is sent, from the last transaction on by which all of them
// were set, and the server reports what has changed since. A confirmation begins after the renewal was asked for, and
// the renewal counts from that at most. Nodes are read, many with one request, if there is no confirmation or no live
// watch, or if the watch has reported something since the last read began. So a fault of the watches costs requests,
// and no lease. Rejected: one watch for all locks of a prefix; it brings every claim of every other client. Rejected:
// etcd's LeaseTimeToLive with the keys: each answer lists 10,000 keys, and shows no marks. Rejected: watches without
// confirmation. A member that is stopped keeps its connections open, while another one confirms the keep-alives.
package sequence

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Engine is a driver.Store on a NodeStore. Make one with [New].
type Engine struct {
	driver.Unsupported

	store  NodeStore
	traits Traits
	info   driver.Info
	clock  driver.Clock

	retryPause func(ctx context.Context, failures int) error // pauseAfterFailure, made once
	life       *driverutil.Lifetime                          // ends with Close

	mu       sync.Mutex
	sessions map[time.Duration]*session // by requested TTL; without those of detached claims
	idle     []*session                 // those that have lost their last claim, in the order in which they did
	openings map[time.Duration]*sessionOpening
	claims   map[string]*claim                    // by ID: claims of this client whose node exists, or may
	waiting  map[string]map[*acquisition]struct{} // by lock: the Acquires that wait for their turn
	// entrances are by lock; there is one while claims of this client join the lock.
	entrances map[string]*entrance
	// fullSince is when this client has found the queue of a lock full, by its monotonic clock. See checkRoom.
	fullSince map[string]time.Duration
	// listings has a channel per lock that a waiter of this client is reading; it is closed after the read.
	listings     map[string]chan struct{}
	endings      []driver.Ending // for NextEnding
	endingQueued chan struct{}   // buffered; wakes NextEnding
}

const (
	// requestTimeout limits one request to the store, so that one server that hangs does not use up the time for the
	// others.
	requestTimeout = 2 * time.Second
	// maxWaiters is larger than in other engines, because waiting writes nothing.
	maxWaiters = 256
	// maxIdleSessions is how many sessions without claims are kept.
	maxIdleSessions = 8
	// maxEndings limits the endings that nobody fetches. Beyond it the oldest are dropped: renewals report the same.
	maxEndings = 1 << 16
)

// New makes an engine. Closing it closes the store. New does no I/O.
func New(store NodeStore) *Engine {
	e := &Engine{
		store: store, traits: store.Traits(), sessions: map[time.Duration]*session{}, openings: map[time.Duration]*sessionOpening{},
		claims: map[string]*claim{}, waiting: map[string]map[*acquisition]struct{}{}, entrances: map[string]*entrance{},
		fullSince: map[string]time.Duration{},
		listings:  map[string]chan struct{}{}, endingQueued: make(chan struct{}, 1), life: driverutil.NewLifetime(),
	}
	e.info = completeInfo(store.Info())
	a := &e.info.Abilities
	a.Detach, a.SetWeight, a.Tokens = e.traits.Moves, e.traits.ComparesNodes, e.traits.ReportsTokens
	a.NewestOnly, a.Endings, a.Reasons = true, true, true
	e.clock, e.retryPause = e.info.Clock, e.pauseAfterFailure
	return e
}

// completeInfo adds what this engine promises on every store.
func completeInfo(info driver.Info) driver.Info {
	info.Engine = "sequence"
	info.ExpiredBy = driver.ExpiredByStore
	info.ExpiryClock = driver.ExpiryClockStore
	info.Order = driver.OrderAlways
	info.NativeQueue = true
	if info.Kinds == nil {
		info.Kinds = []driver.Kind{driver.KindMutex, driver.KindRW, driver.KindSemaphore}
	}
	if info.Clock.Monotonic == nil {
		info.Clock = driver.SystemClock
	}
	info.MaxWaiters = cmp.Or(info.MaxWaiters, maxWaiters)
	return info.Bounded()
}

// Info does no I/O.
func (e *Engine) Info() driver.Info { return e.info }

// Close ends the calls under way and the engine's goroutines. It ends sessions without claims. The others expire in the
// store after their TTL: a holder that closes its client without a release may still be at work.
func (e *Engine) Close() error {
	e.mu.Lock()
	// With mu held, because bindSession looks at life with mu held: no claim is bound to a session after that.
	if !e.life.End() {
		e.mu.Unlock()
		e.life.Wait()
		return nil
	}
	var idle []*session
	for _, s := range e.sessions {
		if s.claimCount == 0 {
			idle = append(idle, s)
		}
	}
	e.mu.Unlock()
	// Only now, so that no goroutine of this engine uses a session that is being ended.
	e.life.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	for _, s := range idle {
		_ = e.store.EndSession(ctx, s.ID) // if it fails, the session expires
	}
	return e.store.Close()
}
