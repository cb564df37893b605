package zookeeper

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

func start(t *testing.T, o zktest.Options) *zktest.Ensemble {
	t.Helper()
	c, err := zktest.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// admin is a client of another make.
func admin(t testing.TB, c *zktest.Ensemble) *zk.Conn {
	t.Helper()
	cli, _, err := zk.Connect(c.Endpoints(), 20*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cli.Close)
	return cli
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func newClient(t *testing.T, s driver.Store, ttl time.Duration) *holdfast.Client {
	t.Helper()
	client, err := holdfast.New(s, &holdfast.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func lease(t *testing.T, client *holdfast.Client, name string) *holdfast.Lease {
	t.Helper()
	l, err := client.Mutex(name, nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func fails(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func mutexClaim(name string) driver.Claim {
	return driver.Claim{Name: name, ID: strings.ToLower(rand.Text()), Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: 30 * time.Second, Owner: "bench"}
}

// counting is a store whose requests are counted.
func counting(t testing.TB) (*Store, *counter) {
	t.Helper()
	c := &counter{sent: map[int32]int{}}
	s, err := New(Options{Servers: cluster(t).Endpoints(), Dial: c.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, c
}

// counter counts what is sent, by operation, and the events that come.
type counter struct {
	mu     sync.Mutex
	sent   map[int32]int
	events atomic.Int64
}

func (c *counter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &countedConn{Conn: nc, c: c}, err
}

// take gives what was sent since the last call.
func (c *counter) take() map[int32]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := c.sent
	c.sent = map[int32]int{}
	return sent
}

type countedConn struct {
	net.Conn
	c           *counter
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
		if n.back && int32(binary.BigEndian.Uint32(n.in[4:])) == xidEvent {
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
