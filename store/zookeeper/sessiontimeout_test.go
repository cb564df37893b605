package zookeeper

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// TestLoweredMaxSessionTimeout: a server that is started again with a lower maxSessionTimeout is never shown a
// session that is relied on for longer: its holders learn at once that they have lost their locks, and new claims
// why they are refused.
func TestLoweredMaxSessionTimeout(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	c := startEnsemble(t, zktest.Options{Members: 1, MaxTTL: ttl})
	var again, shown atomic.Bool
	s, err := openAs[*store](c.Endpoints(), Options{Dial: newLoweringDialer(&again, func(_ string, id int64) bool {
		if id != 0 {
			shown.Store(true)
		}
		return false
	})})
	mustSucceed(t, err)
	client := newClient(t, s, ttl)
	held := mustLock(t, client, t.Name())
	m := c.Members[0]
	m.Terminate()
	file := filepath.Join(m.Dir, "zoo.cfg")
	text, err := os.ReadFile(file)
	mustSucceed(t, err)
	mustSucceed(t, os.WriteFile(file,
		bytes.Replace(text, []byte("maxSessionTimeout=30000"), []byte("maxSessionTimeout=4000"), 1), 0o600))
	again.Store(true)
	mustSucceed(t, m.Start())
	mustSucceed(t, c.Ready(t.Context()))
	<-held.Context().Done() // it would be renewed forever
	var loss *holdfast.LossError
	if err := held.Err(); !errors.As(err, &loss) || loss.Cause != holdfast.LossSessionExpired {
		t.Errorf("the holder learns: %v", err)
	}
	if _, err := client.Mutex(t.Name(), nil).TryLock(t.Context()); !errors.Is(err, holdfast.ErrInvalid) ||
		!strings.Contains(err.Error(), "4s") {
		t.Errorf("the next claim learns: %v", err)
	}
	if shown.Load() {
		t.Error("the session was shown to the server, which counts by its own time then, whether its answer arrives or not")
	}
}

// TestLoweredOnOneServer: one server of several that grants less is passed by, and no session is left there.
func TestLoweredOnOneServer(t *testing.T) {
	t.Parallel()
	c := startEnsemble(t, zktest.Options{Members: 1})
	way, ends, err := c.Link()
	mustSucceed(t, err)
	defer way.Close()
	ends = append(ends, c.Endpoints()...)
	var lower atomic.Bool
	lower.Store(true)
	s, err := openAs[*store](ends, Options{
		Dial: newLoweringDialer(&lower, func(to string, _ int64) bool { return to == ends[0] })})
	mustSucceed(t, err)
	client := newClient(t, s, 20*time.Second)
	held := mustLock(t, client, t.Name())
	for range 6 {
		mustSucceed(t, s.nodeStore.openConn().BreakLink(t.Context()))
	}
	if err := held.Release(); err != nil {
		t.Error(err)
	}
	for limit := time.Now().Add(sessionsGone); ; time.Sleep(10 * time.Millisecond) {
		n := countSessions(t, c.Members[0].Endpoint)
		if n == 1 { // that of the client
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("%d sessions exist", n)
		}
	}
}

// sessionsGone is less than the time of the sessions in TestLoweredOnOneServer.
const sessionsGone = 10 * time.Second

// TestLoweredAtReconnect: if a session is given less time nevertheless, it is ended, and its holders are notified.
func TestLoweredAtReconnect(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	way, ends, err := c.Link()
	mustSucceed(t, err)
	defer way.Close()
	var lower atomic.Bool
	s, err := openAs[*store](ends, Options{
		Dial: newLoweringDialer(&lower, func(_ string, id int64) bool { return id != 0 })})
	mustSucceed(t, err)
	client := newClient(t, s, time.Hour) // the next keep-alive is four minutes away
	held := mustLock(t, client, t.Name())
	lower.Store(true)
	_ = s.nodeStore.openConn().BreakLink(t.Context()) // an error says that the session has ended, as it should
	way.Cut()                                         // a client that still relies on its lock gets no news
	other := newClient(t, rig.Peer(t, c), 20*time.Second)
	next := mustLock(t, other, t.Name()) // the session is closed, or lasts four seconds
	select {
	case <-held.Context().Done():
	case <-time.After(time.Minute): // another goroutine notifies it
		t.Error("two clients rely on the lock")
	}
	way.Heal()
	mustSucceed(t, next.Release())
}

// newLoweringDialer makes connections on which sessions are asked for with 4 s, while lower is set, at servers and
// for sessions that are chosen: as if the server granted no more.
func newLoweringDialer(lower *atomic.Bool, which func(to string, id int64) bool) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &loweringConn{Conn: nc, lower: func(id int64) bool { return lower.Load() && which(address, id) }}, err
	}
}

type loweringConn struct {
	net.Conn
	lower   func(id int64) bool
	greeted bool
}

func (c *loweringConn) Write(b []byte) (int, error) {
	if !c.greeted && c.lower(int64(binary.BigEndian.Uint64(b[20:]))) {
		b = bytes.Clone(b)
		binary.BigEndian.PutUint32(b[16:], 4000)
	}
	c.greeted = true
	return c.Conn.Write(b)
}

// countSessions counts the sessions that exist, by what the leader says.
func countSessions(t *testing.T, server string) int {
	t.Helper()
	nc, err := net.Dial("tcp", server)
	mustSucceed(t, err)
	defer nc.Close()
	_, err = nc.Write([]byte("dump"))
	mustSucceed(t, err)
	text, err := io.ReadAll(nc)
	mustSucceed(t, err)
	all, _, _ := strings.Cut(string(text), "ephemeral nodes dump:")
	return strings.Count(all, "\t0x")
}
