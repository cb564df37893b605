package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// lossyLink is a connection that loses its next transaction, and runs another function instead.
type lossyLink struct{ instead chan func() }

func (l lossyLink) option() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, m string, req, rep any, cc *grpc.ClientConn,
		call grpc.UnaryInvoker, o ...grpc.CallOption) error {
		if m == "/etcdserverpb.KV/Txn" {
			select {
			case do := <-l.instead:
				do()
				return errors.New("no reply")
			default:
			}
		}
		return call(ctx, m, req, rep, cc, o...)
	})
}

// TestBrokenDuringRelease: the first request of a release is lost, while the lock is broken by force and granted to
// another claim. The release reports the break. The note of the break is kept outside of the lock, under a lease of its
// own, with which it expires.
func TestBrokenDuringRelease(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	link := lossyLink{make(chan func(), 1)}
	cli, err := etcdtest.Connect(c.Endpoints(), link.option())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	const ttl, reason = 30 * time.Second, "alice@ops: INC-123"
	s, err := New(t.Context(), cli, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := newClient(t, s, ttl)
	operator := rig.Peer(t, c)
	other := newClient(t, operator, ttl)
	l := lease(t, client, t.Name())
	state, err := operator.Inspect(t.Context(), t.Name())
	if err != nil || len(state.Holders) != 1 {
		t.Fatal(state, err)
	}
	link.instead <- func() {
		fails(t, operator.Break(t.Context(), t.Name(), state.Holders[0].Ref, driver.Break{Mode: driver.BreakForce, Reason: reason}))
		fails(t, lease(t, other, t.Name()).Release())
	}
	var loss *holdfast.LossError
	if err := l.Release(); !errors.As(err, &loss) || loss.Cause != holdfast.LossBroken || loss.Err == nil ||
		loss.Err.Error() != reason {
		t.Errorf("the release returns: %v", err)
	}
	if err := lease(t, client, t.Name()).Release(); err != nil {
		t.Errorf("the next release returns: %v", err)
	}
	kept, err := cli.Get(t.Context(), operator.nodes.breakNoteKey(""), clientv3.WithPrefix())
	fails(t, err)
	for _, kv := range kept.Kvs {
		var note breakNote
		fails(t, json.Unmarshal(kv.Value, &note))
		if note != (breakNote{t.Name(), reason}) {
			continue
		}
		r, err := cli.TimeToLive(t.Context(), clientv3.LeaseID(kv.Lease), clientv3.WithAttachedKeys())
		if want := int64(sequence.BreakNoteTime(ttl) / time.Second); err != nil || r.GrantedTTL != want ||
			len(r.Keys) != 1 {
			t.Errorf("the note has the lease %+v, and must be kept for %d s: %v", r, want, err)
		}
		return
	}
	t.Errorf("there is no note among %v", kept.Kvs)
}
