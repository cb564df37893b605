package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Lease is an etcd lease for the caller's own keys, which are deleted when it ends. It is for what is not a lock, such
// as announcing that a service exists. It reports its end as reliably as a lock's lease does: its time is counted from
// the start of a keep-alive, on a clock that goes on while the machine sleeps, minus a margin.
//
// It runs no goroutine of its own; see [Lease.Keep].
type Lease struct {
	nodes *nodeStore // the lease's own; it has nothing to close, because it neither watches nor writes claims
	id    string
	clock driver.Clock

	mu      sync.Mutex
	ttl     time.Duration  // as granted, or less if a later keep-alive said so
	since   driver.Instant // start of the last keep-alive that had its reply
	expired bool           // the cluster has said so, or the lease was revoked
}

// NewLease grants a lease of ttl, rounded up to whole seconds. The cluster may grant more; see TTL. Of the options only
// Clock counts. It returns ErrInvalid if the client is nil, or if ttl is outside of driver.MinTTL to driver.MaxTTL.
func NewLease(ctx context.Context, client *clientv3.Client, ttl time.Duration, opts *Options) (*Lease, error) {
	nodes, err := openNodeStore(client, opts)
	if err != nil {
		return nil, err
	}
	if ttl < driver.MinTTL || ttl > driver.MaxTTL {
		return nil, fmt.Errorf("%w: a TTL must be %v to %v, not %v", driver.ErrInvalid, driver.MinTTL, driver.MaxTTL, ttl)
	}
	clock := nodes.info.Clock
	if clock.Monotonic == nil {
		clock = driver.SystemClock
	}
	// Taken before the request: the cluster may have granted the lease at any time since.
	start := clock.Now()
	session, err := nodes.grantLease(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return &Lease{nodes: nodes, id: session.ID, ttl: session.TTL, clock: clock, since: start}, nil
}

// ID is the lease's ID, for use with an etcd client. IDs are not ordered, so it is not a fencing token.
func (l *Lease) ID() clientv3.LeaseID { return parseLease(l.id) }

// TTL is how long the lease lasts after a keep-alive, as granted.
func (l *Lease) TTL() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

// Put puts a key, exactly as it is named, under the lease, and replaces what was there. It returns the key's create
// revision, which is larger for each new key in the cluster. The error is ErrLost if the lease has expired, and then
// nothing was put; ErrUncertain if the outcome is not known: to put it again does no harm.
func (l *Lease) Put(ctx context.Context, key, value string) (created int64, err error) {
	put, get := clientv3.OpPut(key, value, clientv3.WithLease(l.ID())), clientv3.OpGet(key, clientv3.WithKeysOnly())
	r, err := l.nodes.kv.Txn(ctx).Then(put, get).Commit()
	if mayBeDone(err) {
		return 0, fmt.Errorf("%w: %w", driver.ErrUncertain, l.explainError(err))
	}
	if err != nil {
		return 0, l.explainError(err)
	}
	return r.Responses[1].GetResponseRange().Kvs[0].CreateRevision, nil
}

// KeepAlive renews the lease once. It returns ErrLost if the lease has expired. After any other error it is not known
// whether it was renewed.
func (l *Lease) KeepAlive(ctx context.Context) error {
	start := l.clock.Now()
	promise, err := l.nodes.KeepAlive(ctx, l.id)
	if err != nil {
		return l.explainError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Never more than was granted, even if a server counts more now: the members may have different smallest TTLs, and
	// the next leader counts by its own.
	l.ttl = min(l.ttl, promise)
	// Another call may have started later and finished earlier.
	if l.clock.Since(start) < l.clock.Since(l.since) {
		l.since = start
	}
	return nil
}

// Remaining is how long the lease certainly lasts if nothing renews it, minus a margin. It is 0 if the lease has
// expired, or may have.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expired {
		return 0
	}
	return max(0, l.ttl-driver.Margin(l.ttl)-l.clock.Since(l.since))
}

// Keep renews the lease whenever a third of its TTL has passed, until ctx ends. Then it returns nil, and the lease
// lasts until its TTL has passed. If the lease ends earlier, Keep returns a [*holdfast.LossError]. It does so before
// the cluster can have removed the lease's keys, except when the lease was revoked.
func (l *Lease) Keep(ctx context.Context) error {
	for pause := l.TTL() / 3; ; {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		// A try must end before the lease may have, and early enough for another server to be asked.
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
			return &holdfast.LossError{Cause: holdfast.LossUnreachable, Err: err}
		case err == nil:
			pause = ttl / 3
		default: // the less time remains, the sooner the next try
			pause = min(ttl/3, max(l.Remaining()/4, 10*time.Millisecond))
		}
	}
}

// Revoke ends the lease, and deletes its keys, at once. It returns ErrLost if the lease had expired before.
func (l *Lease) Revoke(ctx context.Context) error {
	if err := l.nodes.EndSession(ctx, l.id); err != nil {
		return l.explainError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expired = true
	return nil
}

// explainError turns an error of etcd into one of this package's callers, and records that the lease has expired.
func (l *Lease) explainError(err error) error {
	err = l.nodes.explainError(err)
	switch {
	case errors.Is(err, sequence.ErrSessionExpired):
		l.mu.Lock()
		defer l.mu.Unlock()
		l.expired = true
		return &holdfast.LossError{Cause: holdfast.LossSessionExpired}
	case errors.Is(err, driver.ErrDenied), errors.Is(err, driver.ErrInvalid), errors.Is(err, driver.ErrClosed):
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrUncertain, err)
}
