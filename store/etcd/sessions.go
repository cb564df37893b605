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

// Open grants a lease that the engine renews.
func (t *tree) Open(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	s, err := t.grant(ctx, ttl)
	if err == nil {
		t.keep(s.ID)
	}
	return s, err
}

// grant grants a lease. etcd counts in whole seconds, and gives more than was asked where its own least TTL is larger.
func (t *tree) grant(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	r, err := t.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: int64((ttl + time.Second - 1) / time.Second)})
	if err != nil {
		return sequence.Session{}, t.fault(err)
	}
	got := time.Duration(r.TTL) * time.Second
	if got < ttl {
		return sequence.Session{}, fmt.Errorf("%w: a TTL of %v was asked for, and the cluster grants %v", driver.ErrInvalid, ttl, got)
	}
	return sequence.Session{ID: hex(clientv3.LeaseID(r.ID)), TTL: got}, nil
}

// Beat is one keep-alive on a stream of its own. A member that has no leader refuses it at once, and a leader answers
// only when it has made sure that it still is.
func (t *tree) Beat(ctx context.Context, session string) error {
	err := t.beat(ctx, session)
	if expired(err) {
		t.login(ctx)
		err = t.beat(ctx, session)
	}
	return t.fault(err)
}

func (t *tree) beat(ctx context.Context, session string) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	stream, err := t.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(unhex(session))}); err != nil {
		_, err = stream.Recv() // says why
		return err
	}
	r, err := stream.Recv()
	if err != nil {
		return err
	}
	_ = stream.CloseSend()
	if r.TTL <= 0 {
		t.release(session)
		return sequence.ErrSessionOver
	}
	return nil
}

// End revokes a lease.
func (t *tree) End(ctx context.Context, session string) error {
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
