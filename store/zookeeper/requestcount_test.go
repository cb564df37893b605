package zookeeper

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// newCountedStore opens a store whose requests are counted.
func newCountedStore(t testing.TB) (*store, *requestCounter) {
	t.Helper()
	c := &requestCounter{sent: map[int32]int{}}
	s, err := openAs[*store](rig.Shared(t).Endpoints(), Options{Dial: c.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, c
}

// requestCounter counts the requests sent, by operation, and the events received.
type requestCounter struct {
	mu     sync.Mutex
	sent   map[int32]int
	events atomic.Int64
}

func (c *requestCounter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &countedConn{Conn: nc, c: c}, err
}

// takeCounts returns what was sent since the last call.
func (c *requestCounter) takeCounts() map[int32]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := c.sent
	c.sent = map[int32]int{}
	return sent
}

// takeAll returns the number of requests since the last call, and what they were.
func (c *requestCounter) takeAll() (n int, all string) {
	sent := c.takeCounts()
	for _, k := range sent {
		n += k
	}
	return n, fmt.Sprint(sent)
}

type countedConn struct {
	net.Conn
	c           *requestCounter
	rest, in    []byte
	hello, back bool // has been said, has come
}

func (n *countedConn) Read(b []byte) (int, error) {
	k, err := n.Conn.Read(b)
	n.in = append(n.in, b[:k]...)
	for len(n.in) >= 4 {
		size := 4 + int(binary.BigEndian.Uint32(n.in))
		if len(n.in) < size {
			break
		}
		if n.back && int32(binary.BigEndian.Uint32(n.in[4:])) == zk.XidEvent {
			n.c.events.Add(1)
		}
		n.back = true
		n.in = n.in[size:]
	}
	return k, err
}

func (n *countedConn) Write(b []byte) (int, error) {
	n.rest = append(n.rest, b...)
	for len(n.rest) >= 4 {
		size := 4 + int(binary.BigEndian.Uint32(n.rest))
		if len(n.rest) < size {
			break
		}
		if n.hello {
			n.c.mu.Lock()
			n.c.sent[int32(binary.BigEndian.Uint32(n.rest[8:]))]++
			n.c.mu.Unlock()
		}
		n.hello = true
		n.rest = n.rest[size:]
	}
	return n.Conn.Write(b)
}
