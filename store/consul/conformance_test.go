package consul

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/consul/consultest"
)

var rig = sessiontest.Harness[*consultest.Cluster, *peer]{
	Scheme: "consul",
	Start: func(ctx context.Context, _ bool) (*consultest.Cluster, error) {
		return consultest.Start(ctx, consultest.Options{})
	},
	Open:       func(c *consultest.Cluster, _ ...*servertest.Server) (*peer, error) { return openPeer(c, nil) },
	Slack:      time.Second,
	KeepsTwice: true,
}

func TestMain(m *testing.M) { rig.Main(m) }

// peer is a store behind a link of its own.
type peer struct {
	*store
	*servertest.Net
}

func openPeer(c *consultest.Cluster, o *Options) (*peer, error) {
	way := &servertest.Net{}
	config := c.Config(c.Members[0])
	config.Transport = &http.Transport{DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
		return way.Dial(addr)
	}}
	s, err := New(context.Background(), config, o)
	if err != nil {
		way.Close()
		return nil, err
	}
	return &peer{s.(*store), way}, nil
}

// Table keeps records over the store's own connections, and ends with the store.
func (p *peer) Table() record.Table { return newTable(p.nodes, recordFolder) }

// Close ends the client, and then the link.
func (p *peer) Close() error {
	err := p.store.Close()
	p.Net.Close()
	return err
}

// start runs a cluster for one test.
func start(t testing.TB, o consultest.Options) *consultest.Cluster {
	t.Helper()
	c, err := consultest.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// open opens a store for one test.
func open(t testing.TB, config *api.Config, o *Options) *store {
	t.Helper()
	s, err := New(t.Context(), config, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.(*store)
}

// newAdmin makes a client that is not the store's.
func newAdmin(t testing.TB, c *consultest.Cluster) *api.Client {
	t.Helper()
	client, err := c.Client(c.Members[0])
	if err != nil {
		t.Fatal(err)
	}
	return client
}

var prefixNumber atomic.Int64

// freshPrefix returns options with a prefix that no other test uses.
func freshPrefix() *Options { return &Options{Prefix: fmt.Sprintf("test%d/", prefixNumber.Add(1))} }

// suiteSlack is more than the servers need to end a session, which is twice its TTL, and more than a waiter's poll,
// which takes up to five seconds where a client has more claims than watches.
const suiteSlack = 6 * time.Second

// suiteHarness is a harness for the suite on a server that may be restarted.
func suiteHarness(c *consultest.Cluster, open func() (driver.Store, storetest.Connection, error)) drivertest.Harness {
	h := storetest.Harness(func(context.Context) (driver.Store, storetest.Connection, error) { return open() })
	h.Slack = suiteSlack
	h.Restart = func(ctx context.Context) error {
		for _, m := range c.Members {
			m.Terminate()
			if err := m.Start(); err != nil {
				return err
			}
		}
		return c.Ready(ctx)
	}
	return h
}

// lossyConfig returns the settings of a client that loses requests and replies.
func lossyConfig(c *consultest.Cluster, fate func() drivertest.Fate) *api.Config {
	config := c.Config(c.Members[0])
	config.Transport.DisableKeepAlives = true // the store does not close idle connections of a client that it is given
	config.HttpClient = &http.Client{Transport: &drivertest.Transport{Base: config.Transport, Fate: fate}}
	return config
}

// caseLimit is the time limit of one case of the suite: many run at the same time, next to the server.
const caseLimit = 90 * time.Second

// TestConformance: the store keeps every promise of the contract, even when the server is restarted. The suites run
// before the other tests, because they keep the machine busy.
func TestConformance(t *testing.T) {
	c := start(t, consultest.Options{})
	storetest.Conform(t, suiteHarness(c, func() (driver.Store, storetest.Connection, error) {
		p, err := openPeer(c, nil)
		if err != nil {
			return nil, nil, err
		}
		return p.store, p.Net, nil
	}), drivertest.Options{Parallel: 6, Limit: caseLimit})
}

// TestConformanceLossy: all promises hold while two of a hundred requests lose their replies, and two are refused.
func TestConformanceLossy(t *testing.T) {
	c := rig.Shared(t)
	o := freshPrefix()
	h := drivertest.Harness{Slack: suiteSlack,
		Open: func(ctx context.Context) (driver.Store, error) { return New(ctx, c.Config(c.Members[0]), o) },
		Lossy: func(ctx context.Context, fate func() drivertest.Fate) (driver.Store, error) {
			return New(ctx, lossyConfig(c, fate), o)
		}}
	storetest.Conform(t, h, drivertest.Options{Parallel: 16, Limit: caseLimit, LostReplies: 2, Refusals: 2, Effort: 0.3})
}

// TestTableContract: the table keeps the contract of record.Table.
func TestTableContract(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	o := freshPrefix()
	storetest.ConformTable(t, tabletest.Harness{Open: func(ctx context.Context) (record.Table, error) {
		return NewTable(ctx, c.Config(c.Members[0]), o)
	}, Lossy: func(ctx context.Context, fate func() drivertest.Fate) (record.Table, error) {
		return NewTable(ctx, lossyConfig(c, fate), o)
	}, Rows: 200}) // Consul has no pages; the store reads 32 records at a time
}

// TestSameData: a record that is written as it was has a new version, and a write that expects the old one is refused.
func TestSameData(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	table, err := NewTable(t.Context(), c.Config(c.Members[0]), freshPrefix())
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	first, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("same")})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := table.Swap(t.Context(), first); err != nil || again.Version == first.Version {
		t.Errorf("written as it was: %+v %v", again, err)
	}
	if _, err := table.Swap(t.Context(), first); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a write that expects the old version: %v", err)
	}
}

// TestStoreClock: the agent tells the time.
func TestStoreClock(t *testing.T) {
	t.Parallel()
	sessiontest.CheckStoreClock(t, sessiontest.NewClient(t, rig.Peer(t, rig.Shared(t)).store, 30*time.Second))
}

// duringReply calls a function once, when the reply to a request has come and before its body is read. The requests
// that come while it runs wait until it has returned.
type duringReply struct {
	inner   http.RoundTripper
	do      func()
	state   atomic.Int32  // 0: at first; 1: do runs; 2: do has run
	arrived chan struct{} // has an element when a request waits
	done    chan struct{} // closed when do has run
}

func (d *duringReply) RoundTrip(r *http.Request) (*http.Response, error) {
	if d.state.Load() == 1 {
		d.arrived <- struct{}{}
		<-d.done
	}
	reply, err := d.inner.RoundTrip(r)
	if err == nil && d.state.CompareAndSwap(0, 1) {
		reply.Body = &hookedBody{reply.Body, sync.OnceFunc(func() {
			d.do()
			d.state.Store(2)
			close(d.done)
		})}
	}
	return reply, err
}

type hookedBody struct {
	io.ReadCloser
	beforeRead func()
}

func (h *hookedBody) Read(p []byte) (int, error) {
	h.beforeRead()
	return h.ReadCloser.Read(p)
}

// TestReadClockTwice: two callers ask for the time at once, and each gets it.
func TestReadClockTwice(t *testing.T) {
	t.Parallel()
	config := rig.Shared(t).Config(rig.Shared(t).Members[0])
	hook := &duringReply{inner: config.Transport, arrived: make(chan struct{}, 1), done: make(chan struct{})}
	config.HttpClient = &http.Client{Transport: hook}
	opened, err := NewTable(t.Context(), config, freshPrefix())
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	ask := func() {
		if _, _, err := opened.(*table).ReadClock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	var all sync.WaitGroup
	hook.do = func() {
		all.Go(ask)
		<-hook.arrived
	}
	ask()
	all.Wait()
}

// TestCut: a holder whose link silently drops everything stops trusting its lease before the next claim is granted.
func TestCut(t *testing.T) {
	t.Parallel()
	rig.Cut(t)
}

// TestKill: when a holder's process is killed, its lock is granted to the next claim within twice the TTL and a second.
func TestKill(t *testing.T) {
	t.Parallel()
	rig.Kill(t)
}

// TestRunKill: when a worker's process is killed, its run is abandoned, and a client that asks only once begins the
// next.
func TestRunKill(t *testing.T) {
	t.Parallel()
	rig.RunKill(t)
}

// TestRunNotRenewed: a run that is not renewed is abandoned, although its client goes on with others.
func TestRunNotRenewed(t *testing.T) {
	t.Parallel()
	rig.RunNotRenewed(t)
}
