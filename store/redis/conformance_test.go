package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/linktest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// prove runs the long counts, which take minutes.
var prove = flag.Bool("prove", false, "run the long counts")

// opener makes a store whose client dials as it is told.
type opener func(ctx context.Context, dial func(o *rueidis.ClientOption), opts *Options) (driver.Store, error)

// harness is one for stores that reach their servers through links which can be cut.
func harness(t *testing.T, opts Options, open opener) drivertest.Harness {
	return storetest.Harness(func(ctx context.Context) (driver.Store, storetest.Way, error) {
		via := &linktest.Net{}
		t.Cleanup(via.Close)
		s, err := open(ctx, dialVia(via), &opts)
		return s, via, err
	})
}

func dialVia(via *linktest.Net) func(o *rueidis.ClientOption) {
	return func(o *rueidis.ClientOption) {
		o.DialFn = func(addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) { return via.Dial(addr) }
	}
}

// read takes a URL apart.
func read(raw string) (*url.URL, *place, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, nil, err
	}
	p, err := readURL(u)
	return u, p, err
}

// viaURL makes stores of a URL.
func viaURL(raw string) func(context.Context, func(*rueidis.ClientOption), *Options) (driver.Store, error) {
	return func(ctx context.Context, dial func(*rueidis.ClientOption), opts *Options) (driver.Store, error) {
		_, p, err := read(raw)
		if err != nil {
			return nil, err
		}
		dial(&p.client)
		if opts.MaxWaiters > 0 {
			p.opts.MaxWaiters = opts.MaxWaiters
		}
		return openClient(ctx, p.client, &p.opts)
	}
}

// linkTime is what links of stores take that no test wants to see cut: processors that many tests share may leave one for seconds.
const linkTime = 30 * time.Second

// opened opens a store of a URL, with such links.
func opened(ctx context.Context, raw string, more ...func(*Options)) (driver.Store, error) {
	u, p, err := read(raw)
	if err != nil {
		return nil, err
	}
	p.client.Dialer.Timeout = linkTime
	p.client.Sentinel.Dialer = p.client.Dialer
	if !u.Query().Has("timeout") {
		p.client.ConnWriteTimeout = linkTime
	}
	for _, change := range more {
		change(&p.opts)
	}
	if u.Scheme == "redlock" {
		return openRedlock(ctx, p)
	}
	return openClient(ctx, p.client, &p.opts)
}

// open opens one for a test.
func open(t *testing.T, raw string, more ...func(*Options)) driver.Store {
	t.Helper()
	s, err := opened(t.Context(), raw, more...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// waits has a grant wait for so long for its replicas.
func waits(d time.Duration) func(*Options) { return func(o *Options) { o.ReplicaTimeout = d } }

func startServer(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	s, err := redistest.Start(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func must(t *testing.T) func(g *redistest.Group, err error) *redistest.Group {
	return func(g *redistest.Group, err error) *redistest.Group {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.Stop)
		return g
	}
}

// TestConformance: the store keeps every promise of the contract on one server.
func TestConformance(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	h := harness(t, Options{MaxWaiters: 64}, viaURL("redis://"+server.Addr))
	h.Restart = func(context.Context) error {
		server.Kill()
		return server.Again()
	}
	conform(t, h, drivertest.Options{})
}

// TestConformanceSentinel: the same behind Sentinels.
func TestConformanceSentinel(t *testing.T) {
	t.Parallel()
	g := must(t)(redistest.Replicated(t.Context()))
	a := g.SentinelAddrs()
	open := viaURL("redis+sentinel://" + a[0] + "/" + redistest.MasterName + "?prefix=app:&addrs=" + a[1] + "," + a[2])
	conform(t, harness(t, Options{MaxWaiters: 64}, open), drivertest.Options{})
}

// TestConformanceCluster: the same on a Cluster.
func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	g := must(t)(redistest.Cluster(t.Context()))
	open := viaURL("redis+cluster://" + g.Servers[0].Addr)
	conform(t, harness(t, Options{MaxWaiters: 64}, open), drivertest.Options{})
}

// TestConformanceUsersClient: the same with a client as a user makes it: several connections, which do not keep the order
// of requests, and retries of its own.
func TestConformanceUsersClient(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	open := func(_ context.Context, dial func(*rueidis.ClientOption), opts *Options) (driver.Store, error) {
		o := rueidis.ClientOption{InitAddress: []string{server.Addr}, ConnWriteTimeout: 2 * time.Second}
		dial(&o)
		client, err := rueidis.NewClient(o)
		if err != nil {
			return nil, err
		}
		s, err := New(client, opts)
		if s != nil {
			s.owned = true
		}
		return s, err
	}
	conform(t, harness(t, Options{}, open), drivertest.Options{})
}

// TestConformanceRedlock: what a Redlock carries it carries as promised, and the rest it refuses.
func TestConformanceRedlock(t *testing.T) {
	g := must(t)(redistest.Independent(5))
	a := g.Addrs()
	open := func(ctx context.Context, dial func(*rueidis.ClientOption), _ *Options) (driver.Store, error) {
		_, p, err := read("redlock://" + a[0] + "?addrs=" + strings.Join(a[1:], ","))
		if err != nil {
			return nil, err
		}
		dial(&p.client)
		return openRedlock(ctx, p)
	}
	// A server has 200 ms to answer where TTLs are short: so many cases at a time that a slow machine keeps that.
	conform(t, harness(t, Options{}, open), drivertest.Options{Parallel: 8})
}

// TestConformanceRedisson: Redisson's layout carries the plain mutex as promised, and refuses the rest.
func TestConformanceRedisson(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	conform(t, harness(t, Options{}, viaURL("redis://"+server.Addr+"?layout=redisson")), drivertest.Options{})
}

// TestConformanceTable: the records on Redis carry a whole store of their own.
func TestConformanceTable(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	open := func(ctx context.Context, dial func(*rueidis.ClientOption), opts *Options) (driver.Store, error) {
		s, err := viaURL("redis://"+server.Addr)(ctx, dial, opts)
		if err != nil {
			return nil, err
		}
		tab, err := s.(*Store).Table(ctx)
		if err != nil {
			return nil, err
		}
		return record.New(&owningTable{Table: tab, s: s}), nil
	}
	conform(t, harness(t, Options{}, open), drivertest.Options{})
}

// owningTable closes its store, too.
type owningTable struct {
	record.Table
	s driver.Store
}

func (t *owningTable) Close() error { return errors.Join(t.Table.Close(), t.s.Close()) }

func (t *owningTable) Wait(ctx context.Context, name, version string) error {
	return t.Table.(record.Notifier).Wait(ctx, name, version)
}
