package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// LayoutCuratorSemaphore has semaphores alone, in the layout of Curator's InterProcessSemaphoreV2: a permit is a node
// below NAME/leases. The holder of the mutex below NAME/locks creates it, and keeps the mutex until the permit is
// granted. A claim weighs 1: Curator takes several permits one by one, and two clients that do so can block each
// other.
const LayoutCuratorSemaphore Layout = "curator-semaphore"

// semaphoreStore is a driver.Store in that layout. The mutex and the permits are each a lock of the sequence engine,
// in engines of their own, because their nodes are named differently.
type semaphoreStore struct {
	driver.Unsupported

	locks, leases *sequence.Engine
	nodeStore     *nodeStore // the one that locks uses
}

func newSemaphoreStore(o settings) *semaphoreStore {
	locks, leases := o, o
	locks.Layout, leases.Layout = LayoutCurator, layoutLeases
	t := newNodeStore(locks)
	return &semaphoreStore{locks: sequence.New(t), leases: sequence.New(newNodeStore(leases)), nodeStore: t}
}

const (
	locksFolder  = "/locks"
	leasesFolder = "/leases"
)

// claimBelow returns the claim on the mutex or on the permits of a semaphore.
func claimBelow(c driver.Claim, folder string) driver.Claim {
	c.Name += folder
	if folder == locksFolder {
		c.Kind, c.Limit, c.Weight = driver.KindMutex, 1, 1
	}
	return c
}

// Info returns the engine's Info, with semaphores as the only kind.
func (s *semaphoreStore) Info() driver.Info {
	i := s.leases.Info()
	i.MaxName -= len(leasesFolder)
	i.Kinds = []driver.Kind{driver.KindSemaphore}
	i.Abilities = driver.Abilities{Endings: true, Reasons: true}
	return i
}

// Acquire acquires the mutex, then a permit, and releases the mutex.
func (s *semaphoreStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	switch {
	case c.Kind != driver.KindSemaphore:
		return driver.Grant{}, fmt.Errorf("%w: the layout %s has no %s",
			driver.ErrUnsupported, LayoutCuratorSemaphore, c.Kind)
	case c.Weight != 1 && c.Weight <= c.Limit:
		return driver.Grant{}, fmt.Errorf("%w: in the layout %s a claim weighs 1",
			driver.ErrUnsupported, LayoutCuratorSemaphore)
	}
	if err := c.Check(s.Info()); err != nil {
		return driver.Grant{}, err
	}
	mutex := claimBelow(c, locksFolder)
	var m driver.Grant
	var err error
	if c.Wait {
		m, err = s.locks.Acquire(ctx, mutex)
	} else {
		m, err = s.tryMutex(ctx, c, mutex)
	}
	if err != nil {
		return driver.Grant{}, err
	}
	// Curator's clients keep the mutex while they wait for a permit, so the queue of the mutex is the order in which
	// permits are given out. A claim that released it sooner would let others overtake it.
	//
	// The root package renews what a caller holds, which is the permit. The mutex is held only in here.
	renewing, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.keepRenewing(renewing, m) }()
	g, err := s.leases.Acquire(ctx, claimBelow(c, leasesFolder))
	stop() // also ends a renewal without an answer
	<-stopped
	g.Claim = c
	if err != nil && ctx.Err() != nil {
		return g, err // the caller releases the claim, and the mutex with it
	}
	mutexErr := s.locks.Release(context.WithoutCancel(ctx), mutex, m.Ref)
	if err == nil && !errors.Is(mutexErr, driver.ErrLost) {
		err = mutexErr
	}
	return g, err
}

// maxMutexHold is how long another client may hold the mutex although there are permits, before a claim that does
// not wait is refused.
const maxMutexHold = time.Second

// tryMutex acquires the mutex for a claim that does not wait, if there is a permit. The mutex alone says nothing about
// permits: each claim that succeeds holds it for a moment, so a claim that was refused for that would fail by chance.
func (s *semaphoreStore) tryMutex(ctx context.Context, c, mutex driver.Claim) (driver.Grant, error) {
	if err := s.checkPermit(ctx, c); err != nil {
		return driver.Grant{}, err
	}
	mutex.Wait = true
	bounded, cancel := context.WithTimeout(ctx, maxMutexHold)
	defer cancel()
	m, err := s.locks.Acquire(bounded, mutex)
	if err == nil || bounded.Err() == nil || ctx.Err() != nil {
		return m, err
	}
	// The claim has left the queue of the mutex, so why it did not get it must be found out again: the permits may have
	// been used up meanwhile, or the mutex is held by a client that waits for one.
	if releaseErr := s.locks.Release(ctx, mutex, ""); releaseErr != nil && !errors.Is(releaseErr, driver.ErrLost) {
		return m, releaseErr
	}
	if err := s.checkPermit(ctx, c); err != nil {
		return m, err
	}
	l, err := s.locks.Inspect(ctx, mutex.Name)
	if err != nil {
		return m, err
	}
	return m, &driver.HeldError{Holders: l.Holders, Waiting: len(l.Waiters)}
}

// checkPermit refuses a claim that does not wait if there is no permit.
func (s *semaphoreStore) checkPermit(ctx context.Context, c driver.Claim) error {
	l, err := s.leases.Inspect(ctx, c.Name+leasesFolder)
	if err == nil && int64(len(l.Holders)+len(l.Waiters)) >= c.Limit {
		return &driver.HeldError{Holders: l.Holders, Waiting: len(l.Waiters)}
	}
	return err
}

// keepRenewing renews the mutex, which may be needed for as long as a claim waits for a permit. It does so until
// ctx ends, which it does when the holder has a permit. What a renewal returns is not looked at: if the mutex is lost,
// another client may wait for a permit at the same time, and the nodes of the permits have an order of their own.
func (s *semaphoreStore) keepRenewing(ctx context.Context, m driver.Grant) {
	tick := time.NewTicker(m.GrantedTTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.locks.Renew(ctx, []driver.Grant{m}, func(int, driver.Renewal) {})
		case <-ctx.Done():
			return
		}
	}
}

// Renew renews permits.
func (s *semaphoreStore) Renew(ctx context.Context, gs []driver.Grant, done func(int, driver.Renewal)) {
	all := make([]driver.Grant, len(gs))
	for i, g := range gs {
		all[i] = g
		all[i].Claim = claimBelow(g.Claim, leasesFolder)
	}
	s.leases.Renew(ctx, all, done)
}

// Release releases the permit, and the mutex if the claim has it or waits for it. The permit comes first, so that the
// next holder of the mutex finds it free.
func (s *semaphoreStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	if ref != "" && folderOf(ref) == locksFolder {
		return s.locks.Release(ctx, claimBelow(c, locksFolder), ref)
	}
	err := s.leases.Release(ctx, claimBelow(c, leasesFolder), ref)
	if c.ID == "" {
		return err
	}
	// An Acquire that was given up may hold the mutex, or have a node in its queue, or have a permit already.
	mutexErr := s.locks.Release(ctx, claimBelow(c, locksFolder), "")
	switch {
	case mutexErr == nil && errors.Is(err, driver.ErrLost):
		return nil
	case errors.Is(mutexErr, driver.ErrLost):
		return err
	}
	return errors.Join(err, mutexErr)
}

// folderOf returns the folder of the node that a ref names.
func folderOf(ref string) string {
	if strings.Contains(ref, endLease) {
		return leasesFolder
	}
	return locksFolder
}

// Inspect shows as holders the claims that have a permit, and as waiters those that wait for one or for the mutex.
func (s *semaphoreStore) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	leases, err := s.leases.Inspect(ctx, name+leasesFolder)
	if err != nil {
		return leases, err
	}
	locks, err := s.locks.Inspect(ctx, name+locksFolder)
	if err != nil {
		return locks, err
	}
	return mergeLocks(name, leases, locks), nil
}

// mergeLocks shows the two locks of a semaphore as one. The holder of the mutex counts as a waiter, unless it
// waits for a permit already: then it has a node among the permits as well, and would be shown twice.
func mergeLocks(name string, leases, locks driver.Lock) driver.Lock {
	l := leases
	l.Name = name
	l.Revision += "+" + locks.Revision
	next := locks.Waiters
	if len(l.Waiters) == 0 {
		next = append(locks.Holders, next...)
	}
	for _, w := range next {
		w.Token, w.Weight = 0, 1
		l.Waiters = append(l.Waiters, w)
	}
	if len(l.Waiters) > 0 && l.Kind == "" {
		l.Kind = driver.KindSemaphore
	}
	return l
}

// List yields the semaphores on which a permit of ours is claimed.
func (s *semaphoreStore) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for l, err := range s.leases.List(ctx, prefix) {
			name, ok := strings.CutSuffix(l.Name, leasesFolder)
			if !ok && l.Name != "" || ok && !strings.HasPrefix(name, prefix) {
				continue
			}
			if err == nil {
				l, err = s.Inspect(ctx, name)
			}
			l.Name = name
			if !yield(l, err) {
				return
			}
		}
	}
}

// Break acts on the node that the ref names.
func (s *semaphoreStore) Break(ctx context.Context, name, ref string, b driver.Break) error {
	if folderOf(ref) == locksFolder {
		return s.locks.Break(ctx, name+locksFolder, ref, b)
	}
	return s.leases.Break(ctx, name+leasesFolder, ref, b)
}

// NextChange reads the lock about once per second.
func (s *semaphoreStore) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	return driver.PollChange(ctx, seen, s.Inspect)
}

// NextEnding returns the next ending of a permit.
func (s *semaphoreStore) NextEnding(ctx context.Context) (driver.Ending, error) {
	e, err := s.leases.NextEnding(ctx)
	e.Name = strings.TrimSuffix(e.Name, leasesFolder)
	return e, err
}

// Close closes both.
func (s *semaphoreStore) Close() error { return errors.Join(s.locks.Close(), s.leases.Close()) }
