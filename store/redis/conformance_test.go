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
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// prove runs the long versions of the tests, which take minutes.
var prove = flag.Bool("prove", false, "run the long counts")

// openFunc opens a store whose client dials as the test says.
type openFunc func(ctx context.Context, dial func(o *rueidis.ClientOption), opts *Options) (driver.Store, error)

// newHarness makes a harness for stores that reach their servers through links which a test can cut.
func newHarness(t *testing.T, opts Options, open openFunc) drivertest.Harness {
	return storetest.Harness(func(ctx context.Context) (driver.Store, storetest.Connection, error) {
		via := &servertest.Net{}
		t.Cleanup(via.Close)
		s, err := open(ctx, dialVia(via), &opts)
		return s, via, err
	})
}

func dialVia(via *servertest.Net) func(o *rueidis.ClientOption) {
	return func(o *rueidis.ClientOption) {
		o.DialFn = func(addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) { return via.Dial(addr) }
	}
}

// parseRawURL parses a URL, as text and as options.
func parseRawURL(raw string) (*url.URL, *storeURL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, nil, err
	}
	p, err := readURL(u)
	return u, p, err
}

// openViaURL returns a function that opens stores by a URL.
func openViaURL(raw string) func(context.Context, func(*rueidis.ClientOption), *Options) (driver.Store, error) {
	return func(ctx context.Context, dial func(*rueidis.ClientOption), opts *Options) (driver.Store, error) {
		_, p, err := parseRawURL(raw)
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

// linkTimeout is the timeout of the links of stores in tests that do not cut them. It is long because a link may be
// slow for seconds on a machine that runs many tests.
const linkTimeout = 30 * time.Second

// openStore opens a store by its URL, with such links.
func openStore(ctx context.Context, raw string, more ...func(*Options)) (driver.Store, error) {
	u, p, err := parseRawURL(raw)
	if err != nil {
		return nil, err
	}
	p.client.Dialer.Timeout = linkTimeout
	p.client.Sentinel.Dialer = p.client.Dialer
	if !u.Query().Has("timeout") {
		p.client.ConnWriteTimeout = linkTimeout
	}
	for _, change := range more {
		change(&p.opts)
	}
	if u.Scheme == "redlock" {
		return openRedlock(ctx, p)
	}
	return openClient(ctx, p.client, &p.opts)
}

// openForTest opens a store and closes it when the test ends.
func openForTest(t *testing.T, raw string, more ...func(*Options)) driver.Store {
	t.Helper()
	s, err := openStore(t.Context(), raw, more...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// withReplicaTimeout sets how long a grant waits for its replicas.
func withReplicaTimeout(d time.Duration) func(*Options) {
	return func(o *Options) { o.ReplicaTimeout = d }
}

func startServer(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	s, err := redistest.Start(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func mustStart(t *testing.T) func(g *redistest.Group, err error) *redistest.Group {
	return func(g *redistest.Group, err error) *redistest.Group {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.Stop)
		return g
	}
}

// TestConformance: on one server the store keeps every promise of the contract.
func TestConformance(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	h := newHarness(t, Options{MaxWaiters: 64}, openViaURL("redis://"+server.Addr))
	h.Restart = func(context.Context) error {
		server.Kill()
		return server.Restart()
	}
	conform(t, h, drivertest.Options{})
}

// TestConformanceSentinel: so it does behind Sentinels.
func TestConformanceSentinel(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Replicated(t.Context()))
	a := g.SentinelAddrs()
	open := openViaURL("redis+sentinel://" + a[0] + "/" + redistest.MasterName + "?prefix=app:&addrs=" + a[1] + "," +
		a[2])
	conform(t, newHarness(t, Options{MaxWaiters: 64}, open), drivertest.Options{})
}

// TestConformanceCluster: so it does on a Cluster.
func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Cluster(t.Context()))
	open := openViaURL("redis+cluster://" + g.Servers[0].Addr)
	conform(t, newHarness(t, Options{MaxWaiters: 64}, open), drivertest.Options{})
}

// TestConformanceUsersClient: so it does with a client as users make it, which retries by itself, and has several
// connections, on which requests may arrive in another order.
func TestConformanceUsersClient(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	open := func(ctx context.Context, dial func(*rueidis.ClientOption), opts *Options) (driver.Store, error) {
		o := rueidis.ClientOption{InitAddress: []string{server.Addr}, ConnWriteTimeout: 2 * time.Second}
		dial(&o)
		client, err := rueidis.NewClient(o)
		if err != nil {
			return nil, err
		}
		s, err := New(ctx, client, opts)
		if err == nil {
			s.(*store).owned = true
		}
		return s, err
	}
	conform(t, newHarness(t, Options{}, open), drivertest.Options{})
}

// TestConformanceRedlock: a Redlock keeps the promises for the plain mutex, and refuses the other kinds.
func TestConformanceRedlock(t *testing.T) {
	g := mustStart(t)(redistest.Independent(5))
	a := g.Addrs()
	open := func(ctx context.Context, dial func(*rueidis.ClientOption), _ *Options) (driver.Store, error) {
		_, p, err := parseRawURL("redlock://" + a[0] + "?addrs=" + strings.Join(a[1:], ","))
		if err != nil {
			return nil, err
		}
		dial(&p.client)
		return openRedlock(ctx, p)
	}
	// A server has 200 ms to reply if TTLs are short. So not more cases run at a time than let a slow machine keep
	// that.
	conform(t, newHarness(t, Options{}, open), drivertest.Options{Parallel: 8})
}

// TestConformanceRedisson: Redisson's layout keeps the promises for the plain mutex, and refuses the other kinds.
func TestConformanceRedisson(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	conform(t, newHarness(t, Options{}, openViaURL("redis://"+server.Addr+"?layout=redisson")), drivertest.Options{})
}

// TestConformanceTable: the table of records is good enough for a whole store on it.
func TestConformanceTable(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	open := func(ctx context.Context, dial func(*rueidis.ClientOption), opts *Options) (driver.Store, error) {
		s, err := openViaURL("redis://"+server.Addr)(ctx, dial, opts)
		if err != nil {
			return nil, err
		}
		tab, err := s.(*store).openTable(ctx, rowPrefix)
		if err != nil {
			return nil, err
		}
		return record.New(&owningTable{Table: tab, s: s}), nil
	}
	conform(t, newHarness(t, Options{}, open), drivertest.Options{})
}

// owningTable closes its store, too.
type owningTable struct {
	record.Table
	s driver.Store
}

func (t *owningTable) Close() error { return errors.Join(t.Table.Close(), t.s.Close()) }
