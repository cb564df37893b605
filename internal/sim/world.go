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

// World is one store and the hosts around it.
type World struct {
	kind     kind // what is particular about its store; empty: nothing
	ttl      time.Duration
	span     time.Duration // what users and troubles take their time by: the TTL, but where that is long
	users    int           // a host
	calm     bool          // nothing goes wrong in it
	notifies bool          // the store tells of changes
	presence bool          // the store tells who is gone
	features               // what its users do beside the usual
	hosts    map[string]*host
	judge    *judge
	memory   *memory.Memory
	tree     *memtree.Server // in its place, in the worlds of the sequence engine
	base     *base           // in its place, where what is written may not last
	operator driver.Store    // how somebody whom nothing goes wrong for sees the store
	flying   sync.WaitGroup  // requests under way
	over     chan struct{}   // closed when the world ends
	quiet    atomic.Bool     // the faults have stopped
	settings []int           // where the store's clock has been set to
	set      time.Duration   // and when that was done last
	gentle   atomic.Bool     // they do for a while
	started  time.Time

	store       sync.Mutex    // guards what follows, and is held while the store does something that the judge sees
	offset      time.Duration // of the store's clock
	mute        bool          // the store answers nothing
	denies      bool          // the store denies all
	mostWaiting int           // 0: as many as the store says
	past        map[string][]sight

	mu     sync.Mutex
	random *rand.Rand
}

const (
	hosts        = 4
	usersPerHost = 2
	lifetime     = 60 * time.Second
)

// Run lives through one world of the record engine. It must be called in a bubble of testing/synctest.
func Run(seed uint64) Report { return run(seed, "", nil) }

// RunTree is Run for the sequence engine.
func RunTree(seed uint64) Report { return run(seed, "", memtree.New()) }

// RunKind is Run for a store of a certain kind. Which one it is goes with the seed, unless only one is wanted.
func RunKind(seed uint64, only string) Report { return run(seed, choose(kinds, seed, only), nil) }

// RunTreeKind is RunKind for the sequence engine.
func RunTreeKind(seed uint64, only string) Report {
	return run(seed, choose(treeKinds, seed, only), memtree.New())
}

func choose(from []kind, seed uint64, only string) kind {
	if only != "" {
		return kind(only)
	}
	return from[seed%uint64(len(from))]
}

func run(seed uint64, kind kind, tree *memtree.Server) Report {
	w := &World{kind: kind, random: rand.New(rand.NewPCG(seed, 1)), hosts: map[string]*host{}, over: make(chan struct{}), started: time.Now(),
		tree: tree, past: map[string][]sight{}}
	w.ttl = time.Second + w.upTo(4*time.Second).Truncate(time.Millisecond)
	w.calm = seed%8 == 0
	w.notifies, w.presence = w.chance(0.7), w.chance(0.4)
	w.draw()
	w.judge = newJudge(w)
	w.memory = memory.New(&memory.Options{Clock: newHost(w, "store").clock(), Unclocked: w.chance(0.5)})
	w.prepare()
	for i := range hosts {
		w.settle(newHost(w, fmt.Sprint("host", i)))
	}
	office := &host{world: w, name: "operator", open: make(chan struct{}), rate: 1, reliable: true}
	close(office.open)
	w.operator = w.client(office)
	var users, trouble, fates sync.WaitGroup
	for _, h := range w.hosts {
		for range w.users {
			users.Go(func() { w.live(h) })
		}
	}
	fates.Go(w.watch)
	if !w.calm {
		trouble.Go(w.trouble)
	}
	time.Sleep(lifetime)
	w.quiet.Store(true)
	trouble.Wait() // the last host that it stopped runs again
	w.heal()
	w.await("users", &users, 20*w.ttl+30*time.Second)
	w.afterwards()
	_ = w.operator.Close()
	close(w.over)
	fates.Wait()
	w.flying.Wait()
	return w.judge.report(seed)
}

// settle puts a client on a host.
func (w *World) settle(h *host) {
	w.hosts[h.name] = h
	store := &watched{Store: w.client(h), host: h}
	var seen driver.Store = store
	if _, ok := store.Store.(driver.EndWatcher); ok {
		seen = ending{store}
	}
	client, err := holdfast.New(seen, &holdfast.Options{TTL: w.ttl, Owner: h.name})
	if err != nil {
		panic(err)
	}
	h.client = client
}

// client is a host's own client of the store.
func (w *World) client(h *host) driver.Store {
	if w.tree != nil {
		return sequence.New(w.link(h))
	}
	wire := &wire{Table: w.memory.Table(), host: h}
	if w.base != nil {
		wire.Table = w.base
	}
	if w.kind == stepped || w.kind == astray {
		wire.clock = &record.ServerClock{Clock: h.clock()}
		wire.hear(wire.micro(), h.clock().Now())
		return record.New(timed{wire})
	}
	return record.New(wire)
}

// link is a host's way to the tree. In worlds without notifications its watches are deaf; in the others they are late, and
// some get lost.
func (w *World) link(h *host) *crowdedTree {
	return &crowdedTree{most: w.mostWaiting, Link: &memtree.Link{
		Server: w.tree, Clock: h.clock(),
		Transport: func(ctx context.Context, what string, do func() any) (any, error) {
			// Sessions come with connections that double nothing.
			return h.carry(ctx, what != "add", func() any { return w.atTree(h, what, do) })
		},
		DropNotification:  func() bool { return !w.notifies || !h.reachable() || w.faults() && w.chance(0.1) },
		DelayNotification: func() { time.Sleep(w.hop()); _ = h.pass(context.Background()) },
	}}
}

// crowdedTree takes no more waiting claims than so many; 0: as many as a tree does.
type crowdedTree struct {
	*memtree.Link
	most int
}

// Info says so.
func (t *crowdedTree) Info() driver.Info {
	info := t.Link.Info()
	info.MaxWaiters = t.most
	return info
}

func (w *World) elapsed() time.Duration { return time.Since(w.started) }

func (w *World) float() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.Float64()
}

func (w *World) chance(p float64) bool { return w.float() < p }

func (w *World) upTo(d time.Duration) time.Duration { return time.Duration(w.float() * float64(d)) }

func (w *World) faults() bool { return !w.calm && !w.quiet.Load() }

// watch has the judge look all the time, since an overlap need not begin with a grant.
func (w *World) watch() {
	for !closed(w.over) {
		time.Sleep(100 * time.Millisecond)
		w.judge.look()
	}
}

// trouble pauses, suspends, cuts off and kills hosts, and sets their clocks, with quiet spells between.
func (w *World) trouble() {
	names := []string{"host0", "host1", "host2", "host3"}
	for w.faults() {
		time.Sleep(w.upTo(3 * time.Second))
		if w.kind != "" && w.faults() && w.chance(0.4) {
			w.special()
			continue
		}
		h := w.hosts[names[int(w.float()*hosts)]]
		switch p := w.float(); {
		case !w.faults():
		case p < 0.3:
			h.stop(w.upTo(3*w.span), false)
		case p < 0.5:
			h.stop(w.upTo(3*w.span), true)
		case p < 0.75:
			h.setCut(true)
			time.Sleep(w.upTo(2 * w.span))
			h.setCut(false)
		case p < 0.9 && w.kind != stepped:
			h.setClock(w.upTo(2*time.Minute) - time.Minute)
		case h.name != "host0" && w.kind != silent: // one stays, to be served at the end
			if w.chance(0.3) {
				h.crash()
			}
		}
	}
}

func (w *World) heal() {
	for _, h := range w.hosts {
		h.setCut(false)
	}
}

// await waits for a group, and says so if it takes too long.
func (w *World) await(who string, group *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
		w.judge.mu.Lock()
		w.judge.violation("%s still wait %v after the faults have stopped", who, limit)
		w.judge.mu.Unlock()
		for _, h := range w.hosts {
			h.crash()
			h.client.Close()
		}
		<-done
	}
}

// live is a user: it locks, holds and gives up, until the faults stop.
func (w *World) live(h *host) {
	for !w.quiet.Load() {
		time.Sleep(w.upTo(w.span / 2))
		if h.pass(context.Background()) != nil {
			return
		}
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if w.chance(0.3) {
			ctx, cancel = context.WithTimeout(ctx, w.upTo(2*w.span))
		}
		w.turn(ctx, h)
		cancel()
	}
}

// afterwards checks what is left when all is over: whoever wants a lock gets it, and those who gave up have left nothing.
func (w *World) afterwards() {
	h := w.hosts["host0"]
	for _, name := range []string{"plain", "fair", "rw", "semaphore", "leader", "timed", "twice"} {
		w.serve(h, name)
	}
	w.cancelled(h)
	for _, h := range w.hosts {
		if h.dead() {
			h.client.Close()
		}
	}
	for _, h := range w.hosts {
		if err := h.client.Close(); err != nil && !h.dead() {
			w.complain("closing: %v", err)
		}
	}
	if w.calm && w.tree == nil {
		w.nothingLeft()
	} else if left := w.left(); len(left) > 0 {
		w.complain("something is left on %q", left)
	}
}

func (w *World) complain(format string, args ...any) {
	w.judge.mu.Lock()
	defer w.judge.mu.Unlock()
	w.judge.violation(format, args...)
}

// serve takes the whole of a lock, which must be possible once all that may be left on it is over.
func (w *World) serve(h *host, name string) {
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
		w.serve(h, name) // the last of the faults, which may stop a host for three TTLs, has cost it its session
		return
	}
	if err != nil {
		w.complain("%s could not be had in %v after all: %v", name, limit, err)
		return
	}
	if err := lease.Release(); err != nil {
		w.complain("%s could not be given back: %v", name, err)
	}
}

// cancelled has claims wait behind a holder, cancels them, and looks what they have left behind. It does so on a lock that
// nobody has used before: a request that was under way for long may have left a claim on the others, for one TTL.
func (w *World) cancelled(h *host) {
	ctx := context.Background()
	lease, err := h.client.Mutex("fresh", &holdfast.LockOptions{Fair: true}).Lock(ctx)
	if err != nil {
		w.complain("locking fresh at the end: %v", err)
		return
	}
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, w.upTo(100*time.Millisecond))
			defer cancel()
			if _, err := h.client.Mutex("fresh", &holdfast.LockOptions{Fair: true}).Lock(ctx); err == nil {
				w.complain("two hold fresh")
			}
		})
	}
	waiting.Wait()
	time.Sleep(time.Second)
	lock, err := h.client.Inspect(ctx, "fresh")
	if err != nil || len(lock.Waiters) > 0 || len(lock.Holders) != 1 {
		w.complain("a second after all who waited had gone there stand %d holders and %d waiters (%v)", len(lock.Holders), len(lock.Waiters), err)
	}
	if err := lease.Release(); err != nil {
		w.complain("unlocking fresh at the end: %v", err)
	}
}

// left is what stands on a tree when all sessions that were left to themselves must be over.
func (w *World) left() []string {
	if w.tree == nil {
		return nil
	}
	if !w.calm {
		time.Sleep(2 * w.ttl)
	}
	return w.tree.LockNames()
}

// nothingLeft looks at the bare records of a world in which nothing went wrong.
func (w *World) nothingLeft() {
	for row, err := range w.memory.Table().List(context.Background(), "") {
		rec, derr := record.Decode(row.Name, row.Data)
		if err != nil || derr != nil || len(rec.Claims) > 0 {
			w.complain("%s is left with %s (%v, %v)", row.Name, row.Data, err, derr)
		}
	}
}
