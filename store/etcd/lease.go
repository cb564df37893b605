package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Lease is an etcd lease in the user's own hands: keys can be put under it, and go when it ends. It is for what is no
// lock, such as announcing that a service is there. It tells the truth about its end as a lock's lease does: trust is
// counted from the start of a keep-alive, on a clock that goes on while the machine sleeps, minus a margin.
//
// It runs no goroutine of its own; see [Lease.Keep].
type Lease struct {
	tree  *tree
	id    string
	clock driver.Clock

	mu    sync.Mutex
	ttl   time.Duration  // as granted, or as a keep-alive has said since, if that was less
	since driver.Instant // start of the last keep-alive that was confirmed
	over  bool           // the cluster has said so
}

// NewLease grants a lease of ttl, in whole seconds or a little more. The cluster may give more than was asked: see TTL.
func (s *Store) NewLease(ctx context.Context, ttl time.Duration) (*Lease, error) {
	info := s.Info()
	if ttl < info.MinTTL || ttl > info.MaxTTL {
		return nil, fmt.Errorf("%w: a TTL must be %v to %v, not %v", driver.ErrInvalid, info.MinTTL, info.MaxTTL, ttl)
	}
	start := info.Clock.Now()
	session, err := s.tree.grant(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return &Lease{tree: s.tree, id: session.ID, ttl: session.TTL, clock: info.Clock, since: start}, nil
}

// ID is the lease's id, for use with an etcd client. It is not ordered: no token.
func (l *Lease) ID() clientv3.LeaseID { return unhex(l.id) }

// TTL is how long the lease lasts from a keep-alive on, as granted.
func (l *Lease) TTL() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

// Put puts a key, exactly as it is named, under the lease; whatever stood there is replaced. It returns the key's create
// revision, which rises with every key that is made in the cluster. The error Is ErrLost if the lease is over, and then
// nothing was put; ErrUncertain if the outcome is not known: putting again does no harm.
func (l *Lease) Put(ctx context.Context, key, value string) (created int64, err error) {
	r, err := l.tree.kv.Txn(ctx).Then(clientv3.OpPut(key, value, clientv3.WithLease(l.ID())), clientv3.OpGet(key, clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return 0, l.fault(err)
	}
	return r.Responses[1].GetResponseRange().Kvs[0].CreateRevision, nil
}

// KeepAlive renews the lease once. The error Is ErrLost if it is over; anything else is an unknown outcome.
func (l *Lease) KeepAlive(ctx context.Context) error {
	start := l.clock.Now()
	promise, err := l.tree.KeepAlive(ctx, l.id)
	if err != nil {
		return l.fault(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ttl = min(l.ttl, promise)
	if l.clock.Since(start) < l.clock.Since(l.since) {
		l.since = start
	}
	return nil
}

// Remaining is how long the lease surely lasts if nothing renews it, less a margin; 0 if it is over, or may be.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return 0
	}
	return max(0, l.ttl-driver.Margin(l.ttl)-l.clock.Since(l.since))
}

// Keep renews the lease, a third of the way through its TTL each time, until ctx ends, and then returns nil: the lease
// goes on until its TTL has passed. If the lease ends before, it returns a *LossError, before the cluster can have removed
// the lease's keys, unless it was revoked.
func (l *Lease) Keep(ctx context.Context) error {
	for pause := l.TTL() / 3; ; {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-l.tree.life.Done():
			timer.Stop()
			return driver.ErrClosed
		}
		left, ttl := l.Remaining(), l.TTL()
		try, cancel := context.WithTimeout(ctx, min(left, max(ttl/6, 250*time.Millisecond)))
		err := l.KeepAlive(try)
		cancel()
		switch {
		case errors.Is(err, driver.ErrLost):
			return err
		case ctx.Err() != nil:
			return nil
		case l.Remaining() == 0:
			return &driver.LossError{Cause: driver.LossUnreachable, Err: err}
		case err == nil:
			pause = ttl / 3
		default: // asked again the sooner the less is left
			pause = min(ttl/3, max(l.Remaining()/4, 10*time.Millisecond))
		}
	}
}

// Revoke ends the lease, and its keys with it, at once. Of one that is over already it says ErrLost.
func (l *Lease) Revoke(ctx context.Context) error {
	if err := l.tree.EndSession(ctx, l.id); err != nil {
		return l.fault(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	return nil
}

func (l *Lease) fault(err error) error {
	err = l.tree.fault(err)
	switch {
	case errors.Is(err, sequence.ErrSessionExpired):
		l.mu.Lock()
		defer l.mu.Unlock()
		l.over = true
		return &driver.LossError{Cause: driver.LossSessionExpired}
	case errors.Is(err, driver.ErrDenied), errors.Is(err, driver.ErrInvalid), errors.Is(err, driver.ErrClosed):
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrUncertain, err)
}
