package zookeeper

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
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
		go func() { linked <- s.nodeStore.openConn().BreakLink(t.Context()) }()
		mustSucceed(t, rig.Peer(t, rig.Shared(t)).Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: mode}))
		closed.Store(false)
		mustSucceed(t, <-linked)
		if err := storetest.Renew(t, s, g).Err; storetest.LossOf(err) != driver.LossBroken {
			t.Errorf("after it was broken %s the renewal returned %v", how, err)
		}
	}
}

// refusingConn is a connection on which a server refuses to set watches again, as often as refusals says.
type refusingConn struct {
	net.Conn
	refusals *atomic.Int64
	frame    bytes.Reader // what is left of the last one
}

func (c *refusingConn) Read(p []byte) (int, error) {
	if c.frame.Len() == 0 {
		head := make([]byte, 4)
		if _, err := io.ReadFull(c.Conn, head); err != nil {
			return 0, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(c.Conn, body); err != nil {
			return 0, err
		}
		const setWatches, throttled = -8, -127 // the id of the request, and the code of a server that is too busy
		if int32(binary.BigEndian.Uint32(body)) == setWatches && c.refusals.Add(-1) >= 0 {
			code := int32(throttled)
			binary.BigEndian.PutUint32(body[12:], uint32(code)) // after the id and the transaction
		}
		c.frame.Reset(append(head, body...))
	}
	return c.frame.Read(p)
}

// TestWatchesRefused: a server refuses to set watches again on a new link. The client does not rely on them: it gives
// up that link, and sets them on the next.
func TestWatchesRefused(t *testing.T) {
	t.Parallel()
	c := &requestCounter{sent: map[int32]int{}}
	var refusals atomic.Int64
	s, err := openAs[*store](rig.Shared(t).Endpoints(), Options{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			nc, err := c.dial(ctx, network, address)
			return &refusingConn{Conn: nc, refusals: &refusals}, err
		}})
	mustSucceed(t, err)
	t.Cleanup(func() { s.Close() })
	claim := sessiontest.Claim(t.Name())
	claim.TTL = 12 * time.Second
	g, err := s.Acquire(t.Context(), claim)
	mustSucceed(t, err)
	sessiontest.AwaitWatched(t, s, g, func() int { return c.takeCounts()[zk.OpGetData] })
	refusals.Store(1)
	mustSucceed(t, s.nodeStore.openConn().BreakLink(t.Context()))
	for limit := time.Now().Add(time.Minute); refusals.Load() >= 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the watches were refused, and are not set again")
		}
	}
	mustSucceed(t, rig.Peer(t, rig.Shared(t)).Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}))
	if err := storetest.Renew(t, s, g).Err; storetest.LossOf(err) != driver.LossBroken {
		t.Errorf("the renewal returned %v", err)
	}
}
