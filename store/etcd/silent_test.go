package etcd

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	"google.golang.org/grpc"
)

// silentWatches are streams for watches on which nothing comes while it is set, as from a member that was stopped.
type silentWatches struct{ atomic.Bool }

func (w *silentWatches) option() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string,
		open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, d, cc, m, o...)
		if err == nil && strings.HasSuffix(m, "/Watch") {
			s = silentStream{s, w}
		}
		return s, err
	})
}

type silentStream struct {
	grpc.ClientStream
	silent *silentWatches
}

func (s silentStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	for err == nil && s.silent.Load() {
		err = s.ClientStream.RecvMsg(m)
	}
	return err
}

// TestSilentWatch: a member that serves the watches is stopped, and an operator breaks a claim. The next renewal finds
// that out, although other members confirm the keep-alives.
func TestSilentWatch(t *testing.T) {
	t.Parallel()
	var silent silentWatches
	var c requestCounter
	cli, err := etcdtest.Connect(rig.Shared(t).Endpoints(), append(c.options(), silent.option())...)
	fails(t, err)
	t.Cleanup(func() { cli.Close() })
	s, err := New(t.Context(), cli, nil)
	fails(t, err)
	t.Cleanup(func() { s.Close() })
	claim := mutexClaim(t.Name())
	claim.TTL = 30 * time.Second
	g, err := s.Acquire(t.Context(), claim)
	fails(t, err)
	sessiontest.AwaitWatched(t, s, g, func() int { return c.take()["Txn"] })
	silent.Store(true)
	fails(t, rig.Peer(t, rig.Shared(t)).Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}))
	if err := storetest.Renew(t, s, g).Err; storetest.LossOf(err) != driver.LossBroken {
		t.Errorf("the renewal returned %v", err)
	}
}
