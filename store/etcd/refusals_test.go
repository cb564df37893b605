package etcd

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// openFull opens a store on a cluster that behaves as one does when its quota is used up while requests are under way:
// once last is called, the next transaction that writes is carried out, and refused for lack of space, as are all that
// follow it, which are not carried out.
func openFull(t *testing.T) (s *store, last func()) {
	t.Helper()
	const space, lastOne, full = 0, 1, 2
	var state atomic.Int32
	cli, err := etcdtest.Connect(rig.Shared(t).Endpoints(), grpc.WithChainUnaryInterceptor(func(ctx context.Context,
		m string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
		txn, ok := req.(*pb.TxnRequest)
		if !ok || !puts(txn) || state.Load() == space {
			return call(ctx, m, req, reply, cc, o...)
		}
		if state.CompareAndSwap(lastOne, full) {
			if err := call(ctx, m, req, reply, cc, o...); err != nil {
				return err
			}
		}
		return rpctypes.ErrGRPCNoSpace
	}))
	fails(t, err)
	opened, err := New(t.Context(), cli, nil)
	fails(t, err)
	t.Cleanup(func() { opened.Close(); cli.Close() })
	return opened.(*store), func() { state.Store(lastOne) }
}

// puts reports whether a transaction writes anything but removals.
func puts(txn *pb.TxnRequest) bool {
	for _, op := range append(txn.Success, txn.Failure...) {
		if inner := op.GetRequestTxn(); op.GetRequestPut() != nil || inner != nil && puts(inner) {
			return true
		}
	}
	return false
}

// TestDoneWithoutSpace: a write that etcd carries out although it says that there is no space counts as done: a claim
// is held, a record is recognized, and a key under a lease is uncertain. A claim that was not added is refused at
// once.
func TestDoneWithoutSpace(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, last := openFull(t)
	client := newClient(t, s, 30*time.Second)
	fails(t, lease(t, client, t.Name()+"/session").Release())
	last()
	held := lease(t, client, t.Name())
	l, err := client.Inspect(ctx, t.Name())
	if err != nil || len(l.Holders) != 1 || l.Holders[0].Token != held.Token() {
		t.Errorf("the lock is %+v, %v", l, err)
	}
	if _, err := client.Mutex(t.Name()+"/other", nil).Lock(ctx); !errors.Is(err, holdfast.ErrDenied) {
		t.Errorf("a lock on a full cluster: %v", err)
	}
	if l, err := client.Inspect(ctx, t.Name()+"/other"); err != nil || len(l.Holders) > 0 {
		t.Errorf("the other lock is %+v, %v", l, err)
	}
	fails(t, held.Release())

	s, last = openFull(t)
	table := newTable(s.nodes, recordFolder)
	last()
	row := record.Row{Name: t.Name(), Data: []byte("{}")}
	if _, err := table.Swap(ctx, row); err == nil || driverutil.IsFinal(err) {
		t.Errorf("a swap that was done: %v", err)
	}
	if _, err := table.Swap(ctx, record.Row{Name: t.Name() + "/other", Data: []byte("{}")}); !errors.Is(err, driver.ErrDenied) {
		t.Errorf("a swap that was not done: %v", err)
	}

	s, last = openFull(t)
	own, err := NewLease(ctx, s.nodes.cli, time.Minute, nil)
	fails(t, err)
	last()
	if _, err := own.Put(ctx, t.Name()+"/key", "x"); !errors.Is(err, driver.ErrUncertain) || !errors.Is(err, driver.ErrDenied) {
		t.Errorf("a key that was put: %v", err)
	}
}

// TestBatchDoneWithoutSpace: a removal whose batch was carried out, although etcd says that there was no space, is not
// taken for one that found nothing.
func TestBatchDoneWithoutSpace(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, last := openFull(t)
	session, err := s.nodes.OpenSession(ctx, time.Hour)
	fails(t, err)
	key := s.nodes.lockDir(t.Name()) + claimKey(session.ID, 0)
	put := clientv3.OpPut(key, "{}", clientv3.WithLease(parseLease(session.ID)))
	r, err := s.nodes.kv.Do(ctx, put)
	fails(t, err)
	newRemoval := func() *write {
		return &write{lock: t.Name(), then: []clientv3.Op{clientv3.OpDelete(key)},
			conditions: []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", r.Put().Header.Revision)}}
	}
	newAdd := func() *write {
		other := key + "0"
		return &write{lock: t.Name(), addsClaim: true, then: []clientv3.Op{clientv3.OpPut(other, "{}")},
			conditions: []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(other), "=", 0)}}
	}
	last()
	removal := newRemoval()
	if err := sendTogether(s.nodes, removal, newAdd()); err != driverutil.ErrSendAlone {
		t.Fatalf("the batch: %v", err)
	}
	if err := s.nodes.sendAlone(ctx, removal); !errors.Is(err, errOpen) {
		t.Errorf("the removal, again: %v", err)
	}
	// Of a batch that was not carried out, a removal is.
	put = clientv3.OpPut(key, "{}", clientv3.WithLease(parseLease(session.ID)))
	s, _ = openFull(t)
	r, err = s.nodes.kv.Do(ctx, put)
	fails(t, err)
	removal = newRemoval()
	removal.mayBeDone = true
	if err := s.nodes.sendAlone(ctx, removal); err != nil || removal.reply.Responses[0].GetResponseDeleteRange().Deleted != 1 {
		t.Errorf("the removal: %v", err)
	}
}

// sendTogether sends writes as one batch.
func sendTogether(t *nodeStore, batch ...*write) error {
	done := make(chan error, 1)
	if err := t.sendBatch(batch, func(err error) { done <- err }); err != nil {
		return err
	}
	return <-done
}

// TestBatchWithEndedSession: a session that has ended takes no other one with it, although the claims of both were sent
// together: etcd refuses the transaction as a whole.
func TestBatchWithEndedSession(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, _, _ := benchStore(t)
	ended, err := s.nodes.OpenSession(ctx, time.Hour)
	fails(t, err)
	lives, err := s.nodes.OpenSession(ctx, time.Hour)
	fails(t, err)
	_, err = s.nodes.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(parseLease(ended.ID))})
	fails(t, err)
	newAdd := func(name string, session sequence.Session) *write {
		key := s.nodes.lockDir(t.Name()+name) + claimKey(session.ID, 0)
		return &write{lock: t.Name() + name, addsClaim: true, then: []clientv3.Op{
			clientv3.OpPut(key, "{}", clientv3.WithLease(parseLease(session.ID)))}}
	}
	dead, alive := newAdd("/dead", ended), newAdd("/alive", lives)
	if err := sendTogether(s.nodes, dead, alive); err != driverutil.ErrSendAlone {
		t.Fatalf("the batch: %v", err)
	}
	if err := s.nodes.sendAlone(ctx, alive); err != nil {
		t.Errorf("the claim of the session that lives: %v", err)
	}
	if err := s.nodes.explainError(s.nodes.sendAlone(ctx, dead)); !errors.Is(err, sequence.ErrSessionExpired) {
		t.Errorf("the claim of the session that has ended: %v", err)
	}
}

// TestRefusals: what etcd has certainly not done, and what it may have done, is told from the errors of its client,
// too.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, err := range []error{rpctypes.ErrLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound, rpctypes.ErrTooManyOps,
		rpctypes.ErrGRPCRequestTooLarge, rpctypes.ErrPermissionDenied, rpctypes.ErrInvalidAuthToken} {
		if !isRefusal(err) || mayBeDone(err) {
			t.Errorf("%v counts as done", err)
		}
	}
	for _, err := range []error{rpctypes.ErrNoSpace, rpctypes.ErrGRPCNoSpace} {
		if isRefusal(err) || !mayBeDone(err) {
			t.Errorf("%v counts as refused", err)
		}
	}
	for _, err := range []error{nil, errors.New("x"), context.DeadlineExceeded, rpctypes.ErrNoLeader, rpctypes.ErrTimeout,
		rpctypes.ErrLeaderChanged, rpctypes.ErrGRPCStopped} {
		if isRefusal(err) || mayBeDone(err) {
			t.Errorf("%v counts as an answer", err)
		}
	}
	for err, denied := range map[error]bool{rpctypes.ErrNoLeader: false, rpctypes.ErrGRPCTimeout: false,
		context.DeadlineExceeded: false, rpctypes.ErrAuthFailed: true, rpctypes.ErrGRPCAuthNotEnabled: true} {
		if got := (&Options{}).explainOpen(err); errors.Is(got, driver.ErrDenied) != denied {
			t.Errorf("a store that cannot be opened, %v: %v", err, got)
		}
	}
	if text := leaveOpen(rpctypes.ErrNoSpace).Error(); !strings.Contains(text, "database space exceeded") {
		t.Error(text)
	}
}
