package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// features are what the users of a world do. The plain locks are in every one.
type features struct {
	turns          []string
	changesWeights bool // leases of the read-write lock change into one another
}

func (w *simulation) chooseFeatures() {
	w.turns = []string{"plain", "fair", "rw", "semaphore"}
	for _, more := range []string{"leader", "all", "timed", "twice"} {
		if w.chance(0.35) {
			w.turns = append(w.turns, more)
		}
	}
	w.changesWeights = w.chance(0.4)
}

// takeTurn is one lock, taken and given up.
func (w *simulation) takeTurn(ctx context.Context, h *host) {
	switch name := w.turns[int(w.randomFloat()*float64(len(w.turns)))]; name {
	case "leader":
		w.runCandidate(ctx, h)
	case "all":
		w.takeAll(ctx, h)
	case "timed":
		w.takeTimed(ctx, h)
	case "twice":
		w.takeTwice(ctx, h)
	default:
		w.takeLock(ctx, h, name)
	}
}

// takeLock takes one of the usual locks.
func (w *simulation) takeLock(ctx context.Context, h *host, name string) {
	var lease *holdfast.Lease
	var err error
	t := &heldLease{host: h, weight: 1, limit: 1}
	try := w.chance(0.2)
	switch name {
	case "plain", "fair":
		mu := h.client.Mutex(name, &holdfast.LockOptions{Fair: name == "fair"})
		if try {
			lease, err = mu.TryLock(ctx)
		} else {
			lease, err = mu.Lock(ctx)
		}
	case "rw":
		rw := h.client.RWMutex(name, nil)
		t.limit = driver.RWLimit
		if w.chance(0.4) {
			t.weight = driver.RWLimit
			lease, err = rw.Lock(ctx)
		} else {
			lease, err = rw.RLock(ctx)
		}
	case "semaphore":
		t.limit, t.weight = 3, 1+int64(w.randomFloat()*3)
		lease, err = h.client.Semaphore(name, t.limit, nil).Acquire(ctx, t.weight)
	}
	if h.waitUntilRunning(context.Background()) != nil {
		return // it has crashed, and knows nothing of what it was given
	}
	if err != nil {
		w.checkError(name, err)
		return
	}
	w.holdLease(name, lease, t, func() error {
		err := lease.Release()
		if err == nil {
			w.checker.checkReleaseResult(name, lease.ID())
		}
		return err
	})
}

// checkError checks that an error is one that may come.
func (w *simulation) checkError(name string, err error) {
	for _, ok := range []error{context.DeadlineExceeded, context.Canceled, holdfast.ErrHeld} {
		if errors.Is(err, ok) {
			return
		}
	}
	if w.isExpectedError(err) {
		return
	}
	if !w.faultless && w.tree != nil && errors.Is(err, holdfast.ErrLost) { // its session ended while it waited
		return
	}
	if !w.faultless && (errors.Is(err, errTimeout) || errors.Is(err, holdfast.ErrUncertain) || errors.Is(err, errCrashed)) {
		return
	}
	w.checker.mu.Lock()
	defer w.checker.mu.Unlock()
	w.checker.addViolation("locking %s: %v", name, err)
}

// holdLease keeps a lease for a while, or for as long as it is kept by it, and gives it back.
func (w *simulation) holdLease(name string, lease *holdfast.Lease, t *heldLease, giveBack func() error) {
	w.checker.noteLeaseStart(name, lease, t)
	w.waitWhileHeld(t.ctx)
	if name == "rw" && w.changesWeights && w.chance(0.5) {
		w.changeWeight(lease)
		w.waitWhileHeld(t.ctx)
	}
	if t.host.waitUntilRunning(context.Background()) != nil {
		return
	}
	lost := lease.Err()
	w.checker.noteLeaseEnd(name, lease, lost != nil)
	if err := giveBack(); err != nil && w.faultless && lost == nil {
		w.reportViolation("giving %s back: %v", name, err)
	}
}

// waitWhileHeld waits for a while, or until ctx ends.
func (w *simulation) waitWhileHeld(ctx context.Context) {
	wait := w.upTo(w.timeScale)
	if w.chance(0.1) {
		wait *= 4
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// changeWeight makes a reader of a writer, or a writer of a reader.
func (w *simulation) changeWeight(lease *holdfast.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), w.ttl)
	defer cancel()
	var err error
	if lease.Exclusive() {
		err = lease.Downgrade(ctx)
	} else if err = lease.TryUpgrade(ctx); errors.Is(err, holdfast.ErrHeld) {
		return
	}
	if err != nil && !errors.Is(err, holdfast.ErrLost) {
		w.checkError("rw anew", err)
	}
}

// runCandidate is a candidate that campaigns once, or for a while.
func (w *simulation) runCandidate(ctx context.Context, h *host) {
	e := h.client.Election("leader", nil)
	if w.chance(0.5) {
		lease, err := e.Campaign(ctx)
		if h.waitUntilRunning(context.Background()) != nil {
			return
		}
		if err != nil {
			w.checkError("leader", err)
			return
		}
		w.holdLease("leader", lease, &heldLease{host: h, weight: 1, limit: 1, valid: e.IsLeader}, e.Resign)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 3*w.ttl)
	defer cancel()
	err := e.Run(ctx, func(ctx context.Context, lease *holdfast.Lease) error {
		if h.waitUntilRunning(ctx) == nil {
			w.holdLease("leader", lease, &heldLease{host: h, weight: 1, limit: 1, valid: e.IsLeader, ctx: ctx}, func() error { return nil })
		}
		return nil
	})
	if err != nil && !errors.Is(err, holdfast.ErrLost) {
		w.checkError("leader", err)
	}
}

// takeAll takes some of the usual locks at once, named in any order and one of them twice.
func (w *simulation) takeAll(ctx context.Context, h *host) {
	weights := map[string]int64{}
	var items []holdfast.Lockable
	for _, name := range []string{"plain", "fair", "rw", "semaphore"} {
		if w.chance(0.4) {
			continue
		}
		switch name {
		case "rw":
			rw := h.client.RWMutex(name, nil)
			items = append(items, rw.Reader())
			weights[name] = 1
			if w.chance(0.4) {
				items = append(items, rw)
				weights[name] = driver.RWLimit
			}
		case "semaphore":
			weights[name] = 1 + int64(w.randomFloat()*3)
			items = append(items, h.client.Semaphore(name, 3, nil).Permits(weights[name]))
		default:
			weights[name] = 1
			items = append(items, h.client.Mutex(name, &holdfast.LockOptions{Fair: name == "fair"}))
		}
	}
	if len(items) == 0 {
		return
	}
	rand.New(rand.NewPCG(uint64(w.upTo(time.Hour)), 1)).Shuffle(len(items), func(i, k int) { items[i], items[k] = items[k], items[i] })
	set, err := holdfast.LockAll(ctx, items...)
	if h.waitUntilRunning(context.Background()) != nil {
		return
	}
	if err != nil {
		if !w.faultless && errors.Is(err, holdfast.ErrLost) {
			return
		}
		w.checkError("all", err)
		return
	}
	w.holdGroup(h, set, weights)
}

func (w *simulation) holdGroup(h *host, set *holdfast.LeaseGroup, weights map[string]int64) {
	if len(set.All()) != len(weights) {
		w.reportViolation("%d locks were taken at once, and %d were asked for", len(set.All()), len(weights))
	}
	limits := map[string]int64{"plain": 1, "fair": 1, "rw": driver.RWLimit, "semaphore": 3}
	for _, l := range set.All() {
		if l.Exclusive() != (weights[l.Name()] == limits[l.Name()]) {
			w.reportViolation("%s was not taken as it was asked for", l.Name())
		}
		w.checker.noteLeaseStart(l.Name(), l, &heldLease{host: h, weight: weights[l.Name()], limit: limits[l.Name()], valid: set.Valid, ctx: set.Context()})
	}
	w.waitWhileHeld(set.Context())
	if h.waitUntilRunning(context.Background()) != nil {
		return
	}
	for _, l := range set.All() {
		w.checker.noteLeaseEnd(l.Name(), l, l.Err() != nil)
	}
	if err := set.Release(); err != nil && w.faultless {
		w.reportViolation("giving all back: %v", err)
	}
}

// takeTimed is a lock with a least and a longest time, given back or left to lapse; then others may renew and release it.
func (w *simulation) takeTimed(ctx context.Context, h *host) {
	o := &holdfast.LockOptions{}
	if w.chance(0.5) {
		o.MinHold = w.upTo(w.ttl)
	}
	if w.chance(0.5) {
		o.MaxHold = max(o.MinHold, time.Second) + w.upTo(2*w.ttl)
	}
	lease, err := h.client.Mutex("timed", o).Lock(ctx)
	if h.waitUntilRunning(context.Background()) != nil {
		return
	}
	if err != nil {
		w.checkError("timed", err)
		return
	}
	t := &heldLease{host: h, weight: 1, limit: 1, maxHold: o.MaxHold}
	w.holdLease("timed", lease, t, func() error {
		if w.chance(0.4) {
			return w.detachLease(lease)
		}
		err := lease.Release()
		if err == nil && o.MinHold > 0 {
			w.checker.noteDetached(lease.ID(), 0, o.MinHold)
		}
		return err
	})
}

func (w *simulation) detachLease(lease *holdfast.Lease) error {
	from := w.elapsed()
	handle, err := lease.Detach()
	if err != nil {
		return err
	}
	w.checker.noteDetached(handle.ID, from, handle.TTL)
	other := w.hosts["host0"]
	if !w.chance(0.5) || other.waitUntilRunning(context.Background()) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.ttl)
	defer cancel()
	from = w.elapsed()
	if other.client.Renew(ctx, handle) == nil {
		w.checker.noteDetached(handle.ID, from, handle.TTL)
	}
	if w.chance(0.5) {
		w.checker.noteDetachedRelease(handle.ID)
		if err := other.client.Release(ctx, handle); err != nil && w.faultless {
			return err
		}
	}
	return nil
}

// takeTwice is a lock that is entered again under its own context.
func (w *simulation) takeTwice(ctx context.Context, h *host) {
	mu := h.client.Mutex("twice", &holdfast.LockOptions{Reentrant: true})
	lease, err := mu.Lock(ctx)
	if h.waitUntilRunning(context.Background()) != nil {
		return
	}
	if err != nil {
		w.checkError("twice", err)
		return
	}
	if w.chance(0.3) {
		w.waitWhileHeld(lease.Context())
		if h.waitUntilRunning(context.Background()) != nil {
			return
		}
	}
	before := lease.Err()
	again, err := mu.Lock(lease.Context())
	if before != nil && err == nil {
		w.reportViolation("a lock that was lost was entered again")
	}
	if err != nil {
		if lease.Valid() || !errors.Is(err, holdfast.ErrLost) {
			w.reportViolation("a lock could not be entered again: %v (valid: %v)", err, lease.Valid())
		}
		lease.Release()
		return
	}
	if again.Token() != lease.Token() {
		w.reportViolation("entering again gave token %d in place of %d", again.Token(), lease.Token())
	}
	first, last := lease, again
	if w.chance(0.5) {
		first, last = again, lease
	}
	w.holdLease("twice", lease, &heldLease{host: h, weight: 1, limit: 1, valid: last.Valid, reentered: true}, func() error {
		err := first.Release()
		if errors.Is(last.Err(), holdfast.ErrReleased) {
			w.reportViolation("a lock that was entered twice was given back by the first Unlock")
		}
		return errors.Join(err, last.Release())
	})
}
