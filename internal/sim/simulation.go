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

// simulation is one store and the hosts around it.
type simulation struct {
	kind          kind // what is particular about its store; empty: nothing
	ttl           time.Duration
	timeScale     time.Duration // what users and troubles take their time by: the TTL, but where that is long
	usersPerHost  int           // a host
	faultless     bool          // nothing goes wrong in it
	notifies      bool          // the store tells of changes
	knowsDead     bool          // the store tells who is gone
	features                    // what its users do beside the usual
	hosts         map[string]*host
	checker       *checker
	memory        *memory.Memory
	tree          *memtree.Server  // in its place, in the worlds of the sequence engine
	revertible    *revertibleTable // in its place, where what is written may not last
	operator      driver.Store     // how somebody whom nothing goes wrong for sees the store
	requests      sync.WaitGroup   // requests under way
	ended         chan struct{}    // closed when the world ends
	faultsStopped atomic.Bool      // the faults have stopped
	clockOffsets  []int            // where the store's clock has been set to
	clockSetAt    time.Duration    // and when that was done last
	gentle        atomic.Bool      // they do for a while
	started       time.Time

	storeMu     sync.Mutex    // guards what follows, and is held while the store does something that the judge sees
	storeOffset time.Duration // of the store's clock
	storeSilent bool          // the store answers nothing
	storeDenies bool          // the store denies all
	maxWaiters  int           // 0: as many as the store says
	oldRows     map[string][]oldRow

	mu     sync.Mutex
	random *rand.Rand
}

const (
	hostCount           = 4
	defaultUsersPerHost = 2
	lifetime            = 60 * time.Second
)

// Run lives through one world of the record engine. It must be called in a bubble of testing/synctest.
func Run(seed uint64) Report { return runSimulation(seed, "", nil) }

// RunTree is Run for the sequence engine.
func RunTree(seed uint64) Report { return runSimulation(seed, "", memtree.New()) }

// RunKind is Run for a store of a certain kind. Which one it is goes with the seed, unless only one is wanted.
func RunKind(seed uint64, only string) Report {
	return runSimulation(seed, chooseKind(kinds, seed, only), nil)
}

// RunTreeKind is RunKind for the sequence engine.
func RunTreeKind(seed uint64, only string) Report {
	return runSimulation(seed, chooseKind(treeKinds, seed, only), memtree.New())
}

func chooseKind(from []kind, seed uint64, only string) kind {
	if only != "" {
		return kind(only)
	}
	return from[seed%uint64(len(from))]
}

func runSimulation(seed uint64, kind kind, tree *memtree.Server) Report {
	w := &simulation{kind: kind, random: rand.New(rand.NewPCG(seed, 1)), hosts: map[string]*host{}, ended: make(chan struct{}), started: time.Now(),
		tree: tree, oldRows: map[string][]oldRow{}}
	w.ttl = time.Second + w.upTo(4*time.Second).Truncate(time.Millisecond)
	w.faultless = seed%8 == 0
	w.notifies, w.knowsDead = w.chance(0.7), w.chance(0.4)
	w.chooseFeatures()
	w.checker = newChecker(w)
	w.memory = memory.New(&memory.Options{Clock: newHost(w, "store").newClock(), Unclocked: w.chance(0.5)})
	w.prepareKind()
	for i := range hostCount {
		w.addHost(newHost(w, fmt.Sprint("host", i)))
	}
	office := &host{sim: w, name: "operator", running: make(chan struct{}), rate: 1, reliable: true}
	close(office.running)
	w.operator = w.newClient(office)
	var users, trouble, fates sync.WaitGroup
	for _, h := range w.hosts {
		for range w.usersPerHost {
			users.Go(func() { w.runUser(h) })
		}
	}
	fates.Go(w.checkPeriodically)
	if !w.faultless {
		trouble.Go(w.causeFaults)
	}
	time.Sleep(lifetime)
	w.faultsStopped.Store(true)
	trouble.Wait() // the last host that it stopped runs again
	w.healNetwork()
	w.waitForGroup("users", &users, 20*w.ttl+30*time.Second)
	w.checkEnd()
	_ = w.operator.Close()
	close(w.ended)
	fates.Wait()
	w.requests.Wait()
	return w.checker.makeReport(seed)
}

// addHost puts a client on a host.
func (w *simulation) addHost(h *host) {
	w.hosts[h.name] = h
	store := &checkedStore{Store: w.newClient(h), host: h}
	var seen driver.Store = store
	if _, ok := store.Store.(driver.EndWatcher); ok {
		seen = endingStore{store}
	}
	client, err := holdfast.New(seen, &holdfast.Options{TTL: w.ttl, Owner: h.name})
	if err != nil {
		panic(err)
	}
	h.client = client
}

// newClient is a host's own client of the store.
func (w *simulation) newClient(h *host) driver.Store {
	if w.tree != nil {
		return sequence.New(w.newLink(h))
	}
	wire := &faultyTable{Table: w.memory.Table(), host: h}
	if w.revertible != nil {
		wire.Table = w.revertible
	}
	if w.kind == stepped || w.kind == astray {
		wire.clock = &record.ServerClock{Clock: h.newClock()}
		wire.addClockReply(wire.readStoreClock(), h.newClock().Now())
		return record.New(clockedTable{wire})
	}
	return record.New(wire)
}

// newLink is a host's way to the tree. In worlds without notifications its watches are deaf; in the others they are late, and
// some get lost.
func (w *simulation) newLink(h *host) *limitedTree {
	return &limitedTree{maxWaiters: w.maxWaiters, Link: &memtree.Link{
		Server: w.tree, Clock: h.newClock(),
		Transport: func(ctx context.Context, what string, do func() any) (any, error) {
			// Sessions come with connections that double nothing.
			return h.sendRequest(ctx, what != "add", func() any { return w.runAtTree(h, what, do) })
		},
		DropNotification:  func() bool { return !w.notifies || !h.isReachable() || w.faultsActive() && w.chance(0.1) },
		DelayNotification: func() { time.Sleep(w.messageDelay()); _ = h.waitUntilRunning(context.Background()) },
	}}
}

// limitedTree takes no more waiting claims than so many; 0: as many as a tree does.
type limitedTree struct {
	*memtree.Link
	maxWaiters int
}

// Info says so.
func (t *limitedTree) Info() driver.Info {
	info := t.Link.Info()
	info.MaxWaiters = t.maxWaiters
	return info
}

func (w *simulation) elapsed() time.Duration { return time.Since(w.started) }

func (w *simulation) randomFloat() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.Float64()
}

func (w *simulation) chance(p float64) bool { return w.randomFloat() < p }

func (w *simulation) upTo(d time.Duration) time.Duration {
	return time.Duration(w.randomFloat() * float64(d))
}

func (w *simulation) faultsActive() bool { return !w.faultless && !w.faultsStopped.Load() }

// checkPeriodically has the judge look all the time, since an overlap need not begin with a grant.
func (w *simulation) checkPeriodically() {
	for !isClosed(w.ended) {
		time.Sleep(100 * time.Millisecond)
		w.checker.checkAllLocks()
	}
}

// causeFaults pauses, suspends, cuts off and kills hosts, and sets their clocks, with quiet spells between.
func (w *simulation) causeFaults() {
	names := []string{"host0", "host1", "host2", "host3"}
	for w.faultsActive() {
		time.Sleep(w.upTo(3 * time.Second))
		if w.kind != "" && w.faultsActive() && w.chance(0.4) {
			w.causeKindFault()
			continue
		}
		h := w.hosts[names[int(w.randomFloat()*hostCount)]]
		switch p := w.randomFloat(); {
		case !w.faultsActive():
		case p < 0.3:
			h.stopFor(w.upTo(3*w.timeScale), false)
		case p < 0.5:
			h.stopFor(w.upTo(3*w.timeScale), true)
		case p < 0.75:
			h.setDisconnected(true)
			time.Sleep(w.upTo(2 * w.timeScale))
			h.setDisconnected(false)
		case p < 0.9 && w.kind != stepped:
			h.setClock(w.upTo(2*time.Minute) - time.Minute)
		case h.name != "host0" && w.kind != silent: // one stays, to be served at the end
			if w.chance(0.3) {
				h.crash()
			}
		}
	}
}

func (w *simulation) healNetwork() {
	for _, h := range w.hosts {
		h.setDisconnected(false)
	}
}

// waitForGroup waits for a group, and says so if it takes too long.
func (w *simulation) waitForGroup(who string, group *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
		w.checker.mu.Lock()
		w.checker.addViolation("%s still wait %v after the faults have stopped", who, limit)
		w.checker.mu.Unlock()
		for _, h := range w.hosts {
			h.crash()
			h.client.Close()
		}
		<-done
	}
}

// runUser is a user: it locks, holds and gives up, until the faults stop.
func (w *simulation) runUser(h *host) {
	for !w.faultsStopped.Load() {
		time.Sleep(w.upTo(w.timeScale / 2))
		if h.waitUntilRunning(context.Background()) != nil {
			return
		}
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if w.chance(0.3) {
			ctx, cancel = context.WithTimeout(ctx, w.upTo(2*w.timeScale))
		}
		w.takeTurn(ctx, h)
		cancel()
	}
}

// checkEnd checks what is left when all is over: whoever wants a lock gets it, and those who gave up have left nothing.
func (w *simulation) checkEnd() {
	h := w.hosts["host0"]
	for _, name := range []string{"plain", "fair", "rw", "semaphore", "leader", "timed", "twice"} {
		w.takeWholeLock(h, name)
	}
	w.checkCancelledWaiters(h)
	for _, h := range w.hosts {
		if h.hasCrashed() {
			h.client.Close()
		}
	}
	for _, h := range w.hosts {
		if err := h.client.Close(); err != nil && !h.hasCrashed() {
			w.reportViolation("closing: %v", err)
		}
	}
	if w.faultless && w.tree == nil {
		w.checkNoClaimsLeft()
	} else if left := w.leftoverNodes(); len(left) > 0 {
		w.reportViolation("something is left on %q", left)
	}
}

func (w *simulation) reportViolation(format string, args ...any) {
	w.checker.mu.Lock()
	defer w.checker.mu.Unlock()
	w.checker.addViolation(format, args...)
}

// takeWholeLock takes the whole of a lock, which must be possible once all that may be left on it is over.
func (w *simulation) takeWholeLock(h *host, name string) {
	limit := 10*w.ttl + 30*time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var lease *holdfast.Lease
	var err error
	switch name {
	case "rw":
		lease, err = h.client.RWMutex(name, nil).Lock(ctx)
	case "semaphore":
		lease, err = h.client.Semaphore(name, 3, nil).Acquire(ctx, 3)
	default:
		lease, err = h.client.Mutex(name, nil).Lock(ctx)
	}
	if w.tree != nil && errors.Is(err, holdfast.ErrLost) && w.elapsed() < lifetime+4*w.ttl {
		w.takeWholeLock(h, name) // the last of the faults, which may stop a host for three TTLs, has cost it its session
		return
	}
	if err != nil {
		w.reportViolation("%s could not be had in %v after all: %v", name, limit, err)
		return
	}
	if err := lease.Release(); err != nil {
		w.reportViolation("%s could not be given back: %v", name, err)
	}
}

// checkCancelledWaiters has claims wait behind a holder, cancels them, and looks what they have left behind. It does so on a lock that
// nobody has used before: a request that was under way for long may have left a claim on the others, for one TTL.
func (w *simulation) checkCancelledWaiters(h *host) {
	ctx := context.Background()
	lease, err := h.client.Mutex("fresh", &holdfast.LockOptions{Fair: true}).Lock(ctx)
	if err != nil {
		w.reportViolation("locking fresh at the end: %v", err)
		return
	}
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, w.upTo(100*time.Millisecond))
			defer cancel()
			if _, err := h.client.Mutex("fresh", &holdfast.LockOptions{Fair: true}).Lock(ctx); err == nil {
				w.reportViolation("two hold fresh")
			}
		})
	}
	waiting.Wait()
	time.Sleep(time.Second)
	lock, err := h.client.Inspect(ctx, "fresh")
	if err != nil || len(lock.Waiters) > 0 || len(lock.Holders) != 1 {
		w.reportViolation("a second after all who waited had gone there stand %d holders and %d waiters (%v)", len(lock.Holders), len(lock.Waiters), err)
	}
	if err := lease.Release(); err != nil {
		w.reportViolation("unlocking fresh at the end: %v", err)
	}
}

// leftoverNodes is what stands on a tree when all sessions that were left to themselves must be over.
func (w *simulation) leftoverNodes() []string {
	if w.tree == nil {
		return nil
	}
	if !w.faultless {
		time.Sleep(2 * w.ttl)
	}
	return w.tree.LockNames()
}

// checkNoClaimsLeft looks at the bare records of a world in which nothing went wrong.
func (w *simulation) checkNoClaimsLeft() {
	for row, err := range w.memory.Table().List(context.Background(), "") {
		rec, derr := record.Decode(row.Name, row.Data)
		if err != nil || derr != nil || len(rec.Claims) > 0 {
			w.reportViolation("%s is left with %s (%v, %v)", row.Name, row.Data, err, derr)
		}
	}
}
