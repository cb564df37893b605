package etcd

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// OpenSession grants a lease that the engine renews.
func (t *nodeStore) OpenSession(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	s, err := t.grantLease(ctx, ttl)
	if err == nil {
		t.trackSession(s.ID)
	}
	return s, err
}

// grantLease grants a lease. etcd counts in whole seconds, and grants more than requested if its own smallest TTL is
// larger. Each member has a smallest TTL of its own, and the one that replies need not be the leader, which counts the
// time. So if more was granted, a keep-alive asks the leader.
func (t *nodeStore) grantLease(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	// A grant whose reply is lost leaves a lease without keys, which expires: a repeated request does no harm.
	//
	// Rounded up, so that no lease is shorter than requested.
	asked := int64((ttl + time.Second - 1) / time.Second)
	r, err := t.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: asked})
	if err != nil {
		return sequence.Session{}, t.explainError(err)
	}
	got := toSeconds(r.TTL)
	if r.TTL > asked {
		promise, err := t.KeepAlive(ctx, formatLease(clientv3.LeaseID(r.ID)))
		if err != nil {
			return sequence.Session{}, err
		}
		got = min(got, promise)
	}
	if got < ttl {
		return sequence.Session{}, fmt.Errorf("%w: a TTL of %v was asked for, and the cluster grants %v",
			driver.ErrInvalid, ttl, got)
	}
	return sequence.Session{ID: formatLease(clientv3.LeaseID(r.ID)), TTL: got}, nil
}

// KeepAlive is one keep-alive on a stream of its own. The leader answers it; a member without a leader refuses it at
// once.
//
// Why the reply can be trusted: a leader that was cut off from all other members goes on answering until it steps down,
// which is at most two election timeouts after the cut. No other leader is elected before one election timeout, less a
// heartbeat interval, has passed, and a new leader keeps every lease for its TTL and another election timeout. So a
// lease lasts for its TTL from each keep-alive that was answered, less a heartbeat interval. The margin of the TTL has
// to cover that; Examine says from which TTL on it certainly does. A leader whose disk hangs, and which does nothing
// else, checks that it still has a quorum before it answers, in the versions that Examine asks for.
func (t *nodeStore) KeepAlive(ctx context.Context, session string) (promise time.Duration, err error) {
	promise, err = t.sendKeepAlive(ctx, session)
	// A stream cannot renew a login, so an ordinary request does it, once.
	if isLoginExpired(err) {
		t.renewLogin(ctx)
		promise, err = t.sendKeepAlive(ctx, session)
	}
	return promise, t.explainError(err)
}

// sendKeepAlive sends one keep-alive and returns the TTL that the leader then counts.
//
// Each has a stream of its own, because the moment at which a keep-alive was sent is what a lease is trusted from. On a
// stream for all leases, as etcd's client has it, a keep-alive may wait behind others, and its reply does not say which
// request it answers.
func (t *nodeStore) sendKeepAlive(ctx context.Context, session string) (promise time.Duration, err error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	stream, err := t.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return 0, err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(parseLease(session))}); err != nil {
		_, err = stream.Recv() // returns the reason
		return 0, err
	}
	r, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	_ = stream.CloseSend()
	// This is how etcd says that the lease does not exist.
	if r.TTL <= 0 {
		t.untrackSession(session)
		return 0, sequence.ErrSessionExpired
	}
	return toSeconds(r.TTL), nil
}

func toSeconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// EndSession revokes a lease, which deletes its keys. What is remembered of the session goes first, whatever the reply:
// if the request is lost, the lease expires.
func (t *nodeStore) EndSession(ctx context.Context, session string) error {
	t.mu.Lock()
	delete(t.gateRevisions, session)
	delete(t.ownSessions, session)
	t.mu.Unlock()
	_, err := t.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(parseLease(session))})
	return t.explainError(err)
}

// gateRevision is the last known revision of a session's gate; 0 if it has none yet.
func (t *nodeStore) gateRevision(session string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gateRevisions[session]
}

func (t *nodeStore) setGateRevision(session string, revision int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.gateRevisions) >= 1024 { // most are of ended sessions; a live session whose entry is lost repeats one add
		clear(t.gateRevisions)
	}
	t.gateRevisions[session] = revision
}
