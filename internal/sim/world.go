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
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
	"github.com/holdfast-go/holdfast/store/memory"
)

// World is one store and the hosts around it.
type World struct {
	ttl      time.Duration
	calm     bool // nothing goes wrong in it
	notifies bool // the store tells of changes
	presence bool // the store tells who is gone
	features      // what its users do beside the usual
	hosts    map[string]*host
	judge    *judge
	memory   *memory.Memory
	tree     *memtree.Server // in its place, in the worlds of the sequence engine
	flying   sync.WaitGroup  // requests under way
	over     chan struct{}   // closed when the world ends
	quiet    atomic.Bool     // the faults have stopped
	started  time.Time
	store    sync.Mutex

	mu     sync.Mutex
	random *rand.Rand
}

const (
	hosts        = 4
	usersPerHost = 2
	lifetime     = 60 * time.Second
)

// Run lives through one world of the record engine. It must be called in a bubble of testing/synctest.
func Run(seed uint64) Report { return run(seed, nil) }

// RunTree is Run for the sequence engine.
func RunTree(seed uint64) Report { return run(seed, memtree.New()) }

func run(seed uint64, tree *memtree.Server) Report {
	w := &World{random: rand.New(rand.NewPCG(seed, 1)), hosts: map[string]*host{}, over: make(chan struct{}), started: time.Now(), tree: tree}
	w.ttl = time.Second + w.upTo(4*time.Second).Truncate(time.Millisecond)
	w.calm = seed%8 == 0
	w.notifies, w.presence = w.chance(0.7), w.chance(0.4)
	w.draw()
	w.judge = newJudge(w)
	w.memory = memory.New(&memory.Options{Clock: newHost(w, "store").clock(), Unclocked: w.chance(0.5)})
	for i := range hosts {
		w.settle(newHost(w, fmt.Sprint("host", i)))
	}
	var users, trouble, fates sync.WaitGroup
	for _, h := range w.hosts {
		for range usersPerHost {
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
	close(w.over)
	fates.Wait()
	w.flying.Wait()
	return w.judge.report(seed)
}

// settle puts a client on a host.
func (w *World) settle(h *host) {
	w.hosts[h.name] = h
	store := &watched{Store: record.New(&wire{Table: w.memory.Table(), host: h}), host: h}
	if w.tree != nil {
		store.Store = sequence.New(w.link(h))
	}
	client, err := holdfast.New(store, &holdfast.Options{TTL: w.ttl, Owner: h.name})
	if err != nil {
		panic(err)
	}
	h.client = client
}

// link is a host's way to the tree. In worlds without notifications its watches are deaf; in the others they are late, and
// some get lost.
func (w *World) link(h *host) *memtree.Link {
	return &memtree.Link{
		Server: w.tree, Clock: h.clock(),
		Carry: func(ctx context.Context, what string, do func() any) (any, error) {
			return h.carry(ctx, what != "add", do) // sessions come with connections that double nothing
		},
		Deaf: func() bool { return !w.notifies || !h.reachable() || w.faults() && w.chance(0.1) },
		Lag:  func() { time.Sleep(w.hop()); _ = h.pass(context.Background()) },
	}
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
		h := w.hosts[names[int(w.float()*hosts)]]
		switch p := w.float(); {
		case !w.faults():
		case p < 0.3:
			h.stop(w.upTo(3*w.ttl), false)
		case p < 0.5:
			h.stop(w.upTo(3*w.ttl), true)
		case p < 0.75:
			h.setCut(true)
			time.Sleep(w.upTo(2 * w.ttl))
			h.setCut(false)
		case p < 0.9:
			h.setClock(w.upTo(2*time.Minute) - time.Minute)
		case h.name != "host0": // one stays, to be served at the end
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
		time.Sleep(w.upTo(w.ttl / 2))
		if h.pass(context.Background()) != nil {
			return
		}
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if w.chance(0.3) {
			ctx, cancel = context.WithTimeout(ctx, w.upTo(2*w.ttl))
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
	if err := lease.Unlock(); err != nil {
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
	if err := lease.Unlock(); err != nil {
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
	return w.tree.Left()
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
