package etcd

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// requestCounter counts the requests of a client, by method.
type requestCounter struct {
	mu sync.Mutex
	m  map[string]int
}

func (c *requestCounter) add(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = map[string]int{}
	}
	c.m[method[strings.LastIndexByte(method, '/')+1:]]++
}

// take returns the counts since the last call.
func (c *requestCounter) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.m
	c.m = map[string]int{}
	return m
}

// takeAll returns the number of requests since the last call, and what they were.
func (c *requestCounter) takeAll() (n int, all string) {
	counts := c.take()
	for _, k := range counts {
		n += k
	}
	return n, fmt.Sprint(counts)
}

type countedStream struct {
	grpc.ClientStream
	c      *requestCounter
	method string
}

func (s countedStream) SendMsg(m any) error { s.c.add(s.method); return s.ClientStream.SendMsg(m) }

func (c *requestCounter) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, m string, req, rep any, cc *grpc.ClientConn,
			call grpc.UnaryInvoker, o ...grpc.CallOption) error {
			c.add(m)
			err := call(ctx, m, req, rep, cc, o...)
			if err != nil {
				c.add("/failed")
			}
			return err
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string,
			open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, d, cc, m, o...)
			return countedStream{s, c, m}, err
		}),
	}
}

func benchStore(b testing.TB) (*store, *clientv3.Client, *requestCounter) {
	c := &requestCounter{}
	cli, err := etcdtest.Connect(rig.Shared(b).Endpoints(), c.options()...)
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(b.Context(), cli, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close(); cli.Close() })
	return s.(*store), cli, c
}

// startWatches waits until a store watches that many keys.
func startWatches(t *testing.T, s *store, keys int) {
	t.Helper()
	h := s.nodes.hub
	for limit := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		h.mu.Lock()
		n := len(h.watches)
		h.mu.Unlock()
		if n >= keys {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d of %d keys are watched", n, keys)
		}
	}
}

// quiet waits until a store has sent nothing for half a second.
func (c *requestCounter) quiet() {
	for c.take(); ; {
		time.Sleep(500 * time.Millisecond)
		if len(c.take()) == 0 {
			return
		}
	}
}

// TestRequests: an uncontended cycle takes two transactions. A cycle that waited adds two watches, and the reads of the
// waiter. A renewal of any number of locks takes one keep-alive, one read, and a question on the stream of the watches.
func TestRequests(t *testing.T) {
	s, _, c := benchStore(t)
	ctx := t.Context()
	claim := func(lock string) driver.Claim { // its session needs no keep-alive during the test
		cl := mutexClaim(lock)
		cl.TTL = 12 * time.Hour
		return cl
	}
	warm := claim("requests/warm")
	_, err := s.Acquire(ctx, warm)
	fails(t, err)
	fails(t, s.Release(ctx, warm, ""))
	c.take()
	for range 50 {
		cl := claim("requests/free")
		cl.Wait = true
		if _, err := s.Acquire(ctx, cl); err != nil {
			t.Fatal(err)
		}
		fails(t, s.Release(ctx, cl, ""))
	}
	got := c.take()
	t.Logf("50 uncontended cycles: %v", got)
	// On a slow machine a cycle may take longer than the engine's watchDelay. It is watched then, and read once for
	// that. A request that failed is sent again.
	if got["Txn"] < 100 || got["Txn"] > 100+got["Watch"]+got["failed"] || got["Range"] != 0 {
		t.Errorf("50 uncontended cycles sent %v, want 100 transactions", got)
	}

	other, _, oc := benchStore(t)
	hold := claim("requests/held")
	_, err = other.Acquire(ctx, hold)
	fails(t, err)
	wait := claim("requests/held")
	wait.Wait = true
	done := make(chan error, 1)
	go func() { _, err := s.Acquire(ctx, wait); done <- err }()
	sessiontest.AwaitWaiter(t, other, "requests/held")
	time.Sleep(100 * time.Millisecond)
	oc.take()
	start := time.Now()
	fails(t, other.Release(ctx, hold, ""))
	fails(t, <-done)
	took := time.Since(start)
	fails(t, s.Release(ctx, wait, ""))
	time.Sleep(20 * time.Millisecond)
	t.Logf("a cycle that waited: %v, granted %v after the release began", c.take(), took)

	var gs []driver.Grant
	for i := range 250 {
		g, err := s.Acquire(ctx, claim(fmt.Sprint("requests/many/", i)))
		fails(t, err)
		gs = append(gs, g)
	}
	startWatches(t, s, len(gs))
	c.quiet() // each key is read once when its watch begins
	start = time.Now()
	s.Renew(ctx, gs, func(_ int, r driver.Renewal) { fails(t, r.Err) })
	got = c.take()
	t.Logf("a renewal of 250 locks: %v", got)
	// Nodes are read if the watches cannot be confirmed in two seconds. The question may be repeated before that.
	if slow := time.Since(start) > 2*time.Second; got["Txn"] != 0 && !slow || got["Range"] > 1+got["failed"] ||
		got["LeaseKeepAlive"] > 1 {
		t.Errorf("a renewal of 250 locks sent %v", got)
	}
	for _, g := range gs {
		fails(t, s.Release(ctx, g.Claim, ""))
	}
}
