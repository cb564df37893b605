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
func (t *tree) OpenSession(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	s, err := t.grant(ctx, ttl)
	if err == nil {
		t.keep(s.ID)
	}
	return s, err
}

// grant grants a lease. etcd counts in whole seconds, and gives more than was asked where its own least TTL is larger. That
// least is each member's own, and the one that answers need not be the one that leads: so the leader is asked for more.
func (t *tree) grant(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	asked := int64((ttl + time.Second - 1) / time.Second)
	r, err := t.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: asked})
	if err != nil {
		return sequence.Session{}, t.fault(err)
	}
	got := seconds(r.TTL)
	if r.TTL > asked {
		promise, err := t.KeepAlive(ctx, hex(clientv3.LeaseID(r.ID)))
		if err != nil {
			return sequence.Session{}, err
		}
		got = min(got, promise)
	}
	if got < ttl {
		return sequence.Session{}, fmt.Errorf("%w: a TTL of %v was asked for, and the cluster grants %v", driver.ErrInvalid, ttl, got)
	}
	return sequence.Session{ID: hex(clientv3.LeaseID(r.ID)), TTL: got}, nil
}

// KeepAlive is one keep-alive on a stream of its own, which the leader answers; a member that has none refuses it at once.
//
// A leader that was cut off from all others goes on answering until it steps down, two election timeouts after the cut at
// the latest. Nobody else is elected before one has passed, less a heartbeat interval, and a new leader keeps every lease
// for its TTL and another election timeout. So a lease stands for its TTL from each beat that was answered, less a
// heartbeat interval, which the margin of the TTL has to cover: Warnings says from which TTL on it does for certain. A leader
// that does nothing else, since its disk hangs, looks for its quorum before it answers, from the versions on that Warnings
// asks for.
func (t *tree) KeepAlive(ctx context.Context, session string) (promise time.Duration, err error) {
	promise, err = t.beat(ctx, session)
	if expired(err) {
		t.login(ctx)
		promise, err = t.beat(ctx, session)
	}
	return promise, t.fault(err)
}

func (t *tree) beat(ctx context.Context, session string) (promise time.Duration, err error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	stream, err := t.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return 0, err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(unhex(session))}); err != nil {
		_, err = stream.Recv() // says why
		return 0, err
	}
	r, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	_ = stream.CloseSend()
	if r.TTL <= 0 {
		t.release(session)
		return 0, sequence.ErrSessionExpired
	}
	return seconds(r.TTL), nil
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// EndSession revokes a lease.
func (t *tree) EndSession(ctx context.Context, session string) error {
	t.mu.Lock()
	delete(t.gates, session)
	delete(t.kept, session)
	t.mu.Unlock()
	_, err := t.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(unhex(session))})
	return t.fault(err)
}

func (t *tree) gateOf(session string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gates[session]
}

func (t *tree) setGate(session string, revision int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.gates) >= 1024 { // of sessions long gone: forgetting one costs its session a repetition
		clear(t.gates)
	}
	t.gates[session] = revision
}
