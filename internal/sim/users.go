package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// features are what the users of a simulation do. The usual locks are in every one.
type features struct {
	turns          []string
	changesWeights bool // leases of the read-write lock are upgraded and downgraded
}

// chooseFeatures draws which kinds of locks and calls the users of this world make.
func (sim *simulation) chooseFeatures() {
	sim.turns = []string{"plain", "fair", "rw", "semaphore"}
	for _, more := range []string{"leader", "all", "timed", "twice", "newest"} {
		if sim.chance(0.35) {
			sim.turns = append(sim.turns, more)
		}
	}
	sim.changesWeights = sim.chance(0.4)
}

// takeTurn takes and releases one lock.
func (sim *simulation) takeTurn(ctx context.Context, h *host) {
	switch name := sim.turns[int(sim.randomFloat()*float64(len(sim.turns)))]; name {
	case "leader":
		sim.runCandidate(ctx, h)
	case "all":
		sim.takeAll(ctx, h)
	case "timed":
		sim.takeTimed(ctx, h)
	case "twice":
		sim.takeTwice(ctx, h)
	default:
		sim.takeLock(ctx, h, name)
	}
}

// takeLock takes one of the usual locks.
func (sim *simulation) takeLock(ctx context.Context, h *host, name string) {
	var lease *holdfast.Lease
	var err error
	t := &heldLease{host: h, weight: 1, limit: 1}
	try := sim.chance(0.2)
	switch name {
	case "plain", "fair", "newest":
		mu := h.client.Mutex(name, &holdfast.LockOptions{Fair: name == "fair", NewestOnly: name == "newest"})
		if try {
			lease, err = mu.TryLock(ctx)
		} else {
			lease, err = mu.Lock(ctx)
		}
	case "rw":
		rw := h.clientOf(name).RWMutex(name, nil)
		t.limit = driver.RWLimit
		if sim.chance(0.4) {
			t.weight = driver.RWLimit
			lease, err = rw.Lock(ctx)
		} else {
			lease, err = rw.RLock(ctx)
		}
	case "semaphore":
		t.limit, t.weight, t.numbered = 3, 1+int64(sim.randomFloat()*3), sim.tree == nil
		lease, err = h.clientOf(name).Semaphore(name, t.limit, nil).Acquire(ctx, t.weight)
	}
	if h.waitUntilRunning(context.Background()) != nil {
		return // the host has crashed: its user never learns of a grant
	}
	if err != nil {
		sim.checkError(name, err)
		return
	}
	sim.holdLease(name, lease, t, func() error {
		err := lease.Release()
		if err == nil {
			sim.checker.checkReleaseResult(name, lease.ID())
		}
		return err
	})
}

// checkError reports a violation unless the error may occur.
func (sim *simulation) checkError(name string, err error) {
	for _, ok := range []error{context.DeadlineExceeded, context.Canceled, holdfast.ErrHeld} {
		if errors.Is(err, ok) {
			return
		}
	}
	if sim.isExpectedError(err) || name == "newest" && errors.Is(err, holdfast.ErrSuperseded) { // see checker.checkNewest
		return
	}
	if !sim.faultless && sim.tree != nil && errors.Is(err, holdfast.ErrLost) { // its session ended while it waited
		return
	}
	var late interface{ Timeout() bool } // no session in time: nothing was sent
	if !sim.faultless && (errors.As(err, &late) || errors.Is(err, errTimeout) || errors.Is(err, holdfast.ErrUncertain) ||
		errors.Is(err, errCrashed)) {
		return
	}
	sim.checker.mu.Lock()
	defer sim.checker.mu.Unlock()
	sim.checker.addViolation("locking %s: %v", name, err)
}

// holdLease holds a lease for a while, or until it is lost, and releases it.
func (sim *simulation) holdLease(name string, lease *holdfast.Lease, t *heldLease, release func() error) {
	sim.checker.noteLeaseStart(name, lease, t)
	sim.waitWhileHeld(t.ctx)
	for range t.steps {
		if t.host.waitUntilRunning(context.Background()) != nil {
			return
		}
		sim.checker.noteProgress(lease, t)
		sim.waitWhileHeld(t.ctx)
	}
	if name == "rw" && sim.changesWeights && sim.chance(0.5) {
		sim.changeWeight(lease)
		sim.waitWhileHeld(t.ctx)
	}
	if t.host.waitUntilRunning(context.Background()) != nil {
		return
	}
	lost := lease.Err()
	sim.checker.noteLeaseEnd(name, lease, lost != nil)
	if err := release(); err != nil && sim.faultless && lost == nil {
		sim.reportViolation("releasing %s: %v", name, err)
	}
}

// waitWhileHeld waits for a while, or until ctx ends.
func (sim *simulation) waitWhileHeld(ctx context.Context) {
	wait := sim.upTo(sim.timeScale)
	if sim.chance(0.1) {
		wait *= 4
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// changeWeight turns a writer into a reader, or a reader into a writer.
func (sim *simulation) changeWeight(lease *holdfast.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), sim.ttl)
	defer cancel()
	var err error
	if lease.Exclusive() {
		err = lease.Downgrade(ctx)
	} else if err = lease.TryUpgrade(ctx); errors.Is(err, holdfast.ErrHeld) {
		return
	}
	if err != nil && !errors.Is(err, holdfast.ErrLost) {
		sim.checkError("rw again", err)
	}
}

// runCandidate campaigns once, or for a while.
func (sim *simulation) runCandidate(ctx context.Context, h *host) {
	e := h.client.Election("leader", nil)
	if sim.chance(0.5) {
		lease, err := e.Campaign(ctx)
		if h.waitUntilRunning(context.Background()) != nil {
			return
		}
		if err != nil {
			sim.checkError("leader", err)
			return
		}
		sim.holdLease("leader", lease, &heldLease{host: h, weight: 1, limit: 1, valid: e.IsLeader}, e.Resign)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 3*sim.ttl)
	defer cancel()
	err := e.Run(ctx, func(ctx context.Context, lease *holdfast.Lease) error {
		if h.waitUntilRunning(ctx) == nil {
			held := &heldLease{host: h, weight: 1, limit: 1, valid: e.IsLeader, ctx: ctx}
			sim.holdLease("leader", lease, held, func() error { return nil })
		}
		return nil
	})
	if err != nil && !errors.Is(err, holdfast.ErrLost) {
		sim.checkError("leader", err)
	}
}

// takeAll takes some of the usual locks with LockAll, in a random order, and sometimes one of them twice.
func (sim *simulation) takeAll(ctx context.Context, h *host) {
	wanted := map[string]*heldLease{}
	var items []holdfast.Lockable
	call := &lockAllCall{}
	for _, name := range []string{"plain", "fair", "rw", "semaphore"} {
		if sim.chance(0.4) {
			continue
		}
		client, o := h.clientOf(name), &holdfast.LockOptions{Fair: name == "fair"}
		if sim.kind == paired && sim.chance(0.5) {
			o.MinHold = sim.upTo(sim.ttl)
		}
		want := &heldLease{host: h, weight: 1, limit: 1, minHold: o.MinHold}
		switch name {
		case "rw":
			want.limit = driver.RWLimit
			rw := client.RWMutex(name, o)
			items = append(items, rw.Reader())
			if sim.chance(0.4) {
				items = append(items, rw)
				want.weight = driver.RWLimit
			}
		case "semaphore":
			want.limit, want.weight, want.numbered = 3, 1+int64(sim.randomFloat()*3), sim.tree == nil
			items = append(items, client.Semaphore(name, 3, o).Permits(want.weight))
		default:
			items = append(items, client.Mutex(name, o))
		}
		for before := range wanted {
			call.severalClients = call.severalClients || h.clientOf(before) != client
		}
		wanted[name] = want
	}
	if len(items) == 0 {
		return
	}
	order := rand.New(rand.NewPCG(uint64(sim.upTo(time.Hour)), 1))
	order.Shuffle(len(items), func(i, k int) { items[i], items[k] = items[k], items[i] })
	set, err := holdfast.LockAll(context.WithValue(ctx, lockAllKey{}, call), items...)
	if h.waitUntilRunning(context.Background()) != nil {
		return
	}
	if err != nil {
		if !sim.faultless && errors.Is(err, holdfast.ErrLost) {
			return
		}
		sim.checkError("all", err)
		if sim.faultless {
			time.Sleep(time.Second)
			sim.checker.checkLockAllFailed(call, err)
		}
		return
	}
	sim.holdGroup(h, set, wanted)
}

// holdGroup works under all locks of a group for a while, and releases them. It checks that they are what was
// requested.
func (sim *simulation) holdGroup(h *host, set *holdfast.LeaseGroup, wanted map[string]*heldLease) {
	if len(set.Leases()) != len(wanted) {
		sim.reportViolation("%d locks were taken at once, and %d were requested", len(set.Leases()), len(wanted))
	}
	for _, l := range set.Leases() {
		t := wanted[l.Name()]
		if l.Exclusive() != (t.weight == t.limit) {
			sim.reportViolation("%s was not taken as requested", l.Name())
		}
		t.valid, t.ctx = set.Valid, set.Context()
		sim.checker.noteLeaseStart(l.Name(), l, t)
	}
	sim.waitWhileHeld(set.Context())
	if h.waitUntilRunning(context.Background()) != nil {
		return
	}
	for _, l := range set.Leases() {
		sim.checker.noteLeaseEnd(l.Name(), l, l.Err() != nil)
	}
	err := set.Release()
	if err != nil && sim.faultless {
		sim.reportViolation("releasing all: %v", err)
	}
	for _, l := range set.Leases() {
		if t := wanted[l.Name()]; err == nil && t.minHold > 0 {
			sim.checker.noteDetached(l.ID(), 0, t.minHold)
		}
	}
}

// takeTimed takes a lock with MinHold, MaxHold and Progress, and releases or detaches it. Others may renew and
// release it then.
func (sim *simulation) takeTimed(ctx context.Context, h *host) {
	o := &holdfast.LockOptions{}
	if sim.chance(0.5) {
		o.MinHold = sim.upTo(sim.ttl)
	}
	if sim.chance(0.5) {
		o.MaxHold = max(o.MinHold, time.Second) + sim.upTo(2*sim.ttl)
	}
	steps := 0
	if sim.chance(0.3) {
		o.Progress = time.Second + sim.upTo(sim.ttl)
		for sim.chance(0.7) {
			steps++
		}
	}
	lease, err := h.client.Mutex("timed", o).Lock(ctx)
	if h.waitUntilRunning(context.Background()) != nil {
		return
	}
	if err != nil {
		sim.checkError("timed", err)
		return
	}
	t := &heldLease{host: h, weight: 1, limit: 1, maxHold: o.MaxHold, progress: o.Progress, steps: steps}
	sim.holdLease("timed", lease, t, func() error {
		if sim.chance(0.4) {
			return sim.detachLease(lease)
		}
		err := lease.Release()
		if err == nil && o.MinHold > 0 {
			sim.checker.noteDetached(lease.ID(), 0, o.MinHold)
		}
		return err
	})
}

// detachLease detaches a lease. Another host may renew its handle, and release it.
func (sim *simulation) detachLease(lease *holdfast.Lease) error {
	from := sim.elapsed()
	handle, err := lease.Detach()
	if err != nil {
		return err
	}
	sim.checker.noteDetached(handle.ID, from, handle.TTL)
	other := sim.hosts["host0"]
	if !sim.chance(0.5) || other.waitUntilRunning(context.Background()) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), sim.ttl)
	defer cancel()
	from = sim.elapsed()
	if ttl, err := other.client.Renew(ctx, handle); err == nil {
		sim.checker.noteDetached(handle.ID, from, ttl)
	}
	if sim.chance(0.5) {
		sim.checker.noteDetachedRelease(handle.ID)
		if err := other.client.Release(ctx, handle); err != nil && sim.faultless {
			return err
		}
	}
	return nil
}

// takeTwice takes a lock and enters it again under its own context.
func (sim *simulation) takeTwice(ctx context.Context, h *host) {
	mu := h.client.Mutex("twice", &holdfast.LockOptions{Reentrant: true})
	lease, err := mu.Lock(ctx)
	if h.waitUntilRunning(context.Background()) != nil {
		return
	}
	if err != nil {
		sim.checkError("twice", err)
		return
	}
	if sim.chance(0.3) {
		sim.waitWhileHeld(lease.Context())
		if h.waitUntilRunning(context.Background()) != nil {
			return
		}
	}
	before := lease.Err()
	again, err := mu.Lock(lease.Context())
	if before != nil && err == nil {
		sim.reportViolation("a lock that was lost was entered again")
	}
	if err != nil {
		if lease.Valid() || !errors.Is(err, holdfast.ErrLost) {
			sim.reportViolation("a lock could not be entered again: %v (valid: %v)", err, lease.Valid())
		}
		lease.Release()
		return
	}
	if again.Token() != lease.Token() {
		sim.reportViolation("entering again gave token %d in place of %d", again.Token(), lease.Token())
	}
	first, last := lease, again
	if sim.chance(0.5) {
		first, last = again, lease
	}
	sim.holdLease("twice", lease, &heldLease{host: h, weight: 1, limit: 1, valid: last.Valid, reentered: true},
		func() error {
			err := first.Release()
			if errors.Is(last.Err(), holdfast.ErrReleased) {
				sim.reportViolation("a lock that was entered twice was released by the first Release")
			}
			return errors.Join(err, last.Release())
		})
}
