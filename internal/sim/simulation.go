package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
	"github.com/holdfast-go/holdfast/store/memory"
)

// simulation is one store, or two, and the hosts around it.
type simulation struct {
	seed          uint64
	kind          kind // what is particular about its store; empty: nothing
	ttl           time.Duration
	timeScale     time.Duration // how long users and faults take: the TTL, or less if that is very long
	usersPerHost  int
	faultless     bool // nothing goes wrong in it
	notifies      bool // the store notifies of changes
	notifiesOne   bool // it can also notify one client, if it notifies
	carriesRows   bool // its notices carry the rows
	knowsDead     bool // the store can tell that a client is dead
	features           // what its users do
	hosts         map[string]*host
	checker       *checker
	memory        *memory.Memory
	second        *memory.Memory   // the second store of a paired simulation
	tree          *memtree.Server  // used in place of memory for the sequence engine
	revertible    *revertibleTable // used in place of memory if writes may be lost
	operator      driver.Store     // a client that no fault affects
	unclocked     bool             // the store has no clock that expires claims
	requests      sync.WaitGroup   // requests in flight
	ended         chan struct{}    // closed at the end
	faultsStopped atomic.Bool
	clockOffsets  []int         // the offsets that the store's clock has had
	clockSetAt    time.Duration // when it was set last
	gentle        atomic.Bool   // no messages are lost or late for a while
	started       time.Time

	// These are only for simulations with ledgers.
	runs            *runChecker // nil: the users lock
	operatorClient  *holdfast.Client
	operatorLedger  driver.Ledger
	checksRetention bool
	storeShift      time.Duration // by how much the store's clock is ahead of those of all hosts
	maxRecord       int           // bytes of the store's largest record; 0: as large as usual

	// storeMu guards the fields below. It is held while the store does something that the checker must see in order.
	storeMu     sync.Mutex
	storeOffset time.Duration // of the store's clock
	storeSilent bool          // the store does not answer
	storeDenies bool          // the store denies every request
	maxWaiters  int           // 0: the default of the store
	oldRows     map[string][]oldRow
	bells       map[listening][]chan record.Row // each gets notices

	mu     sync.Mutex
	random *rand.Rand
}

const (
	hostCount           = 4
	defaultUsersPerHost = 2
	lifetime            = 60 * time.Second
)

// Run runs one simulation of the record engine. It must be called in a bubble of testing/synctest.
func Run(seed uint64) Report { return newSimulation(seed, "", nil).run() }

// RunTree is Run for the sequence engine.
func RunTree(seed uint64) Report { return newSimulation(seed, "", memtree.New()).run() }

// RunKind is Run for a store of the kind only, or, if that is empty, of a kind that depends on the seed.
func RunKind(seed uint64, only string) Report {
	return newSimulation(seed, chooseKind(kinds, seed, only), nil).run()
}

// RunTreeKind is RunKind for the sequence engine.
func RunTreeKind(seed uint64, only string) Report {
	return newSimulation(seed, chooseKind(treeKinds, seed, only), memtree.New()).run()
}

func chooseKind(from []kind, seed uint64, only string) kind {
	if only != "" {
		return kind(only)
	}
	return from[seed%uint64(len(from))]
}

// newSimulation draws everything about a world from its seed: the TTL, which features are used, what the store can
// do, which faults there are.
func newSimulation(seed uint64, kind kind, tree *memtree.Server) *simulation {
	sim := &simulation{
		seed: seed, kind: kind, random: rand.New(rand.NewPCG(seed, 1)), hosts: map[string]*host{}, tree: tree,
		ended: make(chan struct{}), started: time.Now(), oldRows: map[string][]oldRow{},
		bells: map[listening][]chan record.Row{},
	}
	sim.ttl = time.Second + sim.upTo(4*time.Second).Truncate(time.Millisecond)
	sim.faultless = seed%8 == 0
	sim.notifies, sim.knowsDead = sim.chance(0.7), sim.chance(0.4)
	sim.notifiesOne = sim.notifies && sim.chance(0.5)
	sim.carriesRows = sim.notifies && sim.chance(0.5)
	sim.chooseFeatures()
	sim.checker = newChecker(sim)
	storeClock := newHost(sim, "store").newClock()
	sim.unclocked = sim.chance(0.5)
	sim.memory = memory.New(&memory.Options{Clock: storeClock, Unclocked: sim.unclocked})
	sim.prepareKind()
	return sim
}

// run runs the simulation.
func (sim *simulation) run() Report {
	for i := range hostCount {
		sim.addHost(newHost(sim, fmt.Sprint("host", i)))
	}
	operatorHost := &host{sim: sim, name: "operator", reliable: true, machine: &machine{running: make(chan struct{}), rate: 1}}
	close(operatorHost.running)
	sim.operator = sim.newClient(operatorHost)
	if sim.runs != nil {
		sim.checksRetention = sim.seed%4 == 0
		sim.prepareLedgers()
	}
	var users, faults, checks sync.WaitGroup
	for _, h := range sim.hosts {
		for range sim.usersPerHost {
			users.Go(func() { sim.runUser(h) })
		}
	}
	checks.Go(sim.checkPeriodically)
	if sim.runs != nil {
		users.Go(sim.operateLedgers)
	}
	if !sim.faultless {
		faults.Go(sim.causeFaults)
	}
	time.Sleep(lifetime)
	sim.faultsStopped.Store(true)
	faults.Wait() // a host that was stopped runs again
	sim.healNetwork()
	sim.waitForGroup("users", &users, 20*sim.ttl+30*time.Second)
	sim.checkEnd()
	_ = sim.operator.Close()
	close(sim.ended)
	checks.Wait()
	sim.requests.Wait()
	return sim.checker.makeReport(sim.seed)
}

// addHost adds a host, and in a paired simulation one more on the same machine.
func (sim *simulation) addHost(h *host) {
	sim.hosts[h.name] = h
	if sim.second != nil {
		h.pair()
		sim.addClient(h.second)
	}
	sim.addClient(h)
}

// addClient gives a host its client. The checker sees the client's calls to the store.
func (sim *simulation) addClient(h *host) {
	store := &checkedStore{Store: sim.newClient(h), host: h}
	client, err := holdfast.New(store, &holdfast.Options{TTL: sim.ttl, Owner: h.name})
	if err != nil {
		panic(err)
	}
	h.client = client
}

// newClient opens a client of the store for a host.
func (sim *simulation) newClient(h *host) driver.Store {
	if sim.tree != nil {
		return sequence.New(sim.newLink(h))
	}
	table := sim.memory.Table()
	switch {
	case sim.revertible != nil:
		table = sim.revertible
	case h.inSecond:
		table = sim.second.Table()
	}
	return record.New(sim.newTable(h, table, false))
}

// newTable returns a table of the store as a host reaches it.
func (sim *simulation) newTable(h *host, table record.Table, keepsRuns bool) record.Table {
	wire := &faultyTable{Table: table, host: h, keepsRuns: keepsRuns}
	if sim.kind == stepped || sim.kind == astray {
		wire.clock = &record.ServerClock{Clock: h.newClock()}
		wire.addClockReply(wire.readStoreClock(), h.newClock().Now())
	}
	return wire
}

// newLink connects a host to the tree. In simulations without notifications all of them are dropped. In the others
// they are late, and some are lost.
func (sim *simulation) newLink(h *host) *limitedTree {
	return &limitedTree{maxWaiters: sim.maxWaiters, Link: &memtree.Link{
		Server: sim.tree, Clock: h.newClock(),
		Transport: func(ctx context.Context, what string, do func() any) (any, error) {
			// A session has a connection of its own, which duplicates no request.
			return h.sendRequest(ctx, what != "add", func() any { return sim.runAtTree(h, what, do) })
		},
		DropNotification: func() bool {
			return !sim.notifies || !h.isReachable() || sim.faultsActive() &&
				sim.chance(0.1)
		},
		DelayNotification: func() { time.Sleep(sim.messageDelay()); _ = h.waitUntilRunning(context.Background()) },
	}}
}

// limitedTree accepts at most maxWaiters waiters; 0: the default of a tree.
type limitedTree struct {
	*memtree.Link
	maxWaiters int
}

// Info reports the limit.
func (t *limitedTree) Info() driver.Info {
	info := t.Link.Info()
	info.MaxWaiters = t.maxWaiters
	return info
}

func (sim *simulation) elapsed() time.Duration { return time.Since(sim.started) }

func (sim *simulation) randomFloat() float64 {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	return sim.random.Float64()
}

// chance returns true with probability p.
func (sim *simulation) chance(p float64) bool { return sim.randomFloat() < p }

func (sim *simulation) upTo(d time.Duration) time.Duration {
	return time.Duration(sim.randomFloat() * float64(d))
}

// checkPeriodically checks all locks repeatedly, because an overlap does not always begin with a grant.
func (sim *simulation) checkPeriodically() {
	interval := 100 * time.Millisecond
	for !isClosed(sim.ended) {
		time.Sleep(interval)
		if sim.runs == nil {
			sim.checker.checkAllLocks()
			continue
		}
		sim.runs.checkAllRuns()
		if sim.faultsStopped.Load() { // then hours may pass
			interval = 10 * time.Second
		}
	}
}

// waitForGroup waits for a group. If that takes too long it reports a violation, and crashes the hosts to end the wait.
func (sim *simulation) waitForGroup(who string, group *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
		sim.checker.mu.Lock()
		sim.checker.addViolation("%s still wait %v after the faults have stopped", who, limit)
		sim.checker.mu.Unlock()
		for _, h := range sim.hosts {
			h.crash()
			for _, c := range h.clients() {
				c.Close()
			}
		}
		<-done
	}
}

// runUser is one user: it locks, holds and releases, until the faults stop.
func (sim *simulation) runUser(h *host) {
	for !sim.faultsStopped.Load() {
		time.Sleep(sim.upTo(sim.timeScale / 2))
		if h.waitUntilRunning(context.Background()) != nil {
			return
		}
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if sim.chance(0.3) {
			ctx, cancel = context.WithTimeout(ctx, sim.upTo(2*sim.timeScale))
		}
		if sim.runs != nil {
			sim.useLedger(ctx, h)
		} else {
			sim.takeTurn(ctx, h)
		}
		cancel()
	}
}

// checkEnd checks what remains at the end: every lock can be acquired, and claims that were given up left nothing
// behind.
func (sim *simulation) checkEnd() {
	if sim.runs != nil {
		sim.checkLedgersAtEnd()
	} else {
		sim.checkLocksAtEnd(sim.hosts["host0"])
	}
	for _, h := range sim.hosts {
		if h.hasCrashed() {
			for _, c := range h.clients() {
				c.Close()
			}
		}
	}
	for _, h := range sim.hosts {
		for _, c := range h.clients() {
			if err := c.Close(); err != nil && !h.hasCrashed() {
				sim.reportViolation("closing: %v", err)
			}
		}
	}
	if sim.faultless && sim.runs != nil {
		sim.checkNoRunsLeft()
	} else if sim.faultless && sim.tree == nil {
		sim.checkNoClaimsLeft(sim.memory)
		if sim.second != nil {
			sim.checkNoClaimsLeft(sim.second)
		}
	} else if left := sim.leftoverNodes(); len(left) > 0 {
		sim.reportViolation("something is left on %q", left)
	}
}

func (sim *simulation) checkLocksAtEnd(h *host) {
	for _, name := range []string{"plain", "fair", "rw", "semaphore", "leader", "timed", "twice"} {
		sim.takeWholeLock(h, name)
	}
	sim.checkCancelledWaiters(h)
}

func (sim *simulation) reportViolation(format string, args ...any) {
	sim.checker.mu.Lock()
	defer sim.checker.mu.Unlock()
	sim.checker.addViolation(format, args...)
}

// takeWholeLock acquires the whole limit of a lock, which must be possible once all abandoned claims have expired.
func (sim *simulation) takeWholeLock(h *host, name string) {
	limit := 10*sim.ttl + 30*time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var lease *holdfast.Lease
	var err error
	switch name {
	case "rw":
		lease, err = h.clientOf(name).RWMutex(name, nil).Lock(ctx)
	case "semaphore":
		lease, err = h.clientOf(name).Semaphore(name, 3, nil).Acquire(ctx, 3)
	default:
		lease, err = h.client.Mutex(name, nil).Lock(ctx)
	}
	if sim.tree != nil && errors.Is(err, holdfast.ErrLost) && sim.elapsed() < lifetime+4*sim.ttl {
		sim.takeWholeLock(h, name) // a fault that stopped the host for up to three TTLs has ended its session
		return
	}
	if err != nil {
		sim.reportViolation("%s could not be acquired in %v after the faults had stopped: %v", name, limit, err)
		return
	}
	if err := lease.Release(); err != nil {
		sim.reportViolation("%s could not be released: %v", name, err)
	}
}

// checkCancelledWaiters lets claims wait behind a holder, cancels them, and checks what they have left behind. It
// uses a new lock: on the others, a request that was in flight for long may have left a claim for one TTL.
func (sim *simulation) checkCancelledWaiters(h *host) {
	ctx := context.Background()
	lease, err := h.client.Mutex("fresh", &holdfast.LockOptions{Fair: true}).Lock(ctx)
	if err != nil {
		sim.reportViolation("locking fresh at the end: %v", err)
		return
	}
	waiters := 1 // with others, its swap may be shared
	if sim.chance(0.5) {
		waiters = 3
	}
	var waiting sync.WaitGroup
	for range waiters {
		waiting.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, sim.upTo(100*time.Millisecond))
			defer cancel()
			if _, err := h.client.Mutex("fresh", &holdfast.LockOptions{Fair: true}).Lock(ctx); err == nil {
				sim.reportViolation("two claims hold fresh")
			}
		})
	}
	waiting.Wait()
	time.Sleep(time.Second)
	lock, err := h.client.Inspect(ctx, "fresh")
	if err != nil || len(lock.Waiters) > 0 || len(lock.Holders) != 1 {
		sim.reportViolation("a second after all waiters had left there are %d holders and %d waiters (%v)",
			len(lock.Holders), len(lock.Waiters), err)
	}
	if err := lease.Release(); err != nil {
		sim.reportViolation("releasing fresh at the end: %v", err)
	}
}

// leftoverNodes returns the locks that have nodes when all abandoned sessions must have expired.
func (sim *simulation) leftoverNodes() []string {
	if sim.tree == nil {
		return nil
	}
	if !sim.faultless {
		time.Sleep(2 * sim.ttl)
	}
	return sim.tree.LockNames()
}

// checkNoClaimsLeft checks the records of a simulation in which nothing went wrong: nothing may be left to expire.
func (sim *simulation) checkNoClaimsLeft(store *memory.Memory) {
	for row, err := range store.Table().List(context.Background(), "", "") {
		rec, derr := record.Decode(row.Name, row.Data)
		if err != nil || derr != nil || len(rec.Claims) > 0 {
			sim.reportViolation("%s is left with %s (%v, %v)", row.Name, row.Data, err, derr)
		}
	}
}
