package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// watchedConn is a connection that counts what is written, and may stall it.
type watchedConn struct {
	net.Conn
	writes  atomic.Int64
	onWrite atomic.Pointer[func()]
}

func (c *watchedConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	if f := c.onWrite.Load(); f != nil {
		(*f)()
	}
	return c.Conn.Write(b)
}

// NetConn lets the store find the socket.
func (c *watchedConn) NetConn() net.Conn { return c.Conn }

// openDirect opens a store, and returns when it has its direct connection.
func openDirect(t *testing.T, addr string) (*store, *watchedConn) {
	t.Helper()
	o := DefaultClientOption()
	o.InitAddress, o.ForceSingleClient = []string{addr}, true
	o.ConnWriteTimeout = time.Minute // a request that hangs ends by its context, or the test fails
	o.DialFn = func(addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
		conn, err := net.Dial("tcp", addr)
		return &watchedConn{Conn: conn}, err
	}
	s, err := Connect(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	st := s.(*store)
	st.direct.after = 1
	if err := redistest.Until(t.Context(), func() bool {
		acquireAndRelease(t, s, mutex("first", time.Minute))
		return st.direct.conn.Load() != nil
	}); err != nil {
		t.Fatal("no direct connection was made:", err)
	}
	return st, st.direct.conn.Load().conn.(*watchedConn)
}

// TestDirectConnection: a caller that is alone writes its requests to a connection of its own. While it waits for a
// reply, other callers use the shared connection.
func TestDirectConnection(t *testing.T) {
	t.Parallel()
	s, direct := openDirect(t, startServer(t).Addr)
	before := direct.writes.Load()
	for range 10 {
		acquireAndRelease(t, s, mutex("alone", time.Minute))
	}
	if n := direct.writes.Load() - before; n != 20 {
		t.Errorf("%d of 20 requests on the direct connection", n)
	}
	begun, goOn := make(chan struct{}), make(chan struct{})
	stall := sync.OnceFunc(func() { close(begun); <-goOn })
	direct.onWrite.Store(&stall)
	var first sync.WaitGroup
	first.Go(func() {
		if _, err := s.Acquire(t.Context(), mutex("stalled", time.Minute)); err != nil {
			t.Error(err)
		}
	})
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := s.Acquire(ctx, mutex("beside", time.Minute)); err != nil {
		t.Error("next to a request that hangs:", err)
	}
	close(goOn)
	first.Wait()
}

// TestDirectCancel: a request on the direct connection returns when its context ends. Its connection is not used again,
// and the claim can be released.
func TestDirectCancel(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	via, err := servertest.NewLink(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	s, direct := openDirect(t, via.Addr)
	ctx, cancel := context.WithCancel(t.Context())
	end := func() { cancel() }
	direct.onWrite.Store(&end)
	via.CutReplies()
	start := time.Now()
	c := mutex("canceled", time.Hour)
	if _, err := s.Acquire(ctx, c); !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrUncertain) {
		t.Errorf("the context has ended: %v", err)
	}
	expectInTime(t, "a canceled request", start, 20*time.Second)
	if s.direct.conn.Load() != nil {
		t.Error("the connection has a reply that nobody has read, and would be used again")
	}
	via.Heal()
	if err := s.Release(t.Context(), c, ""); err != nil && !errors.Is(err, driver.ErrLost) {
		t.Error(err)
	}
	acquire(t, s, mutex("canceled", time.Minute))
}

// TestDirectServerRestart: a direct connection that the server has closed gets no request, so that a release after a
// restart knows that the claim is gone.
func TestDirectServerRestart(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s, _ := openDirect(t, server.Addr)
	g := acquire(t, s, mutex("forgotten", time.Minute))
	server.Kill()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := redistest.Until(t.Context(), func() bool { // until the shared connection is there again
		return s.client.Do(t.Context(), s.client.B().Ping().Build()).Error() == nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), g.Claim, g.Ref); !errors.Is(err, driver.ErrLost) {
		t.Errorf("the release of a claim that the server has forgotten: %v", err)
	}
}

// TestDirectNotMade: a store whose client belongs to the user makes no further connection, nor does one that is rarely
// used.
func TestDirectNotMade(t *testing.T) {
	t.Parallel()
	addr := startServer(t).Addr
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	given, err := New(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { given.Close() })
	rare := openForTest(t, "redis://"+addr)
	for range 2 * minDirectStreak {
		acquireAndRelease(t, given, mutex("given", time.Minute))
	}
	acquireAndRelease(t, rare, mutex("rare", time.Minute))
	for _, s := range []driver.Store{given, rare} {
		if d := &s.(*store).direct; d.connecting.Load() || d.conn.Load() != nil {
			t.Errorf("%s has a direct connection", s.Info().Store)
		}
	}
}
