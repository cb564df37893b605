package zookeeper

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// TestBreakWhileReconnecting: a claim is broken while its client has no link. The next link brings that to the watch,
// and the next renewal reports it.
func TestBreakWhileReconnecting(t *testing.T) {
	t.Parallel()
	for how, mode := range map[string]driver.BreakMode{"gracefully": driver.BreakGraceful, "by force": driver.BreakForce} {
		c := &requestCounter{sent: map[int32]int{}}
		var closed atomic.Bool
		s, err := openAs[*store](rig.Shared(t).Endpoints(), Options{
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				if closed.Load() {
					return nil, errors.New("the test has closed the way")
				}
				return c.dial(ctx, network, address)
			}})
		mustSucceed(t, err)
		t.Cleanup(func() { s.Close() })
		claim := sessiontest.Claim(t.Name() + how)
		claim.TTL = 12 * time.Second
		g, err := s.Acquire(t.Context(), claim)
		mustSucceed(t, err)
		sessiontest.AwaitWatched(t, s, g, func() int { return c.takeCounts()[zk.OpGetData] })
		closed.Store(true)
		linked := make(chan error, 1)
		go func() { linked <- s.tree.openConn().BreakLink(t.Context()) }()
		mustSucceed(t, rig.Peer(t, rig.Shared(t)).Break(t.Context(), g.Name, g.Ref, mode))
		closed.Store(false)
		mustSucceed(t, <-linked)
		if err := storetest.Renew(t, s, g).Err; storetest.LossOf(err) != driver.LossBroken {
			t.Errorf("after it was broken %s the renewal returned %v", how, err)
		}
	}
}
