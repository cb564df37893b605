package etcd

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
)

// shared is the cluster of the tests that leave it whole.
var shared = sync.OnceValues(func() (*etcdtest.Cluster, error) {
	return etcdtest.Start(context.Background(), etcdtest.Options{Direct: true})
})

// started says that it is to be closed.
var started atomic.Bool

// together is how many tests run at a time: they wait more than they compute, so more than there are processors.
const together = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	if order := os.Getenv("ETCD_STORE_WORKER"); order != "" {
		if err := work(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set {
		_ = flag.Set("test.parallel", together)
	}
	code := m.Run()
	if started.Load() {
		if c, err := shared(); err == nil {
			c.Close()
		}
	}
	os.Exit(code)
}

func cluster(t testing.TB) *etcdtest.Cluster {
	t.Helper()
	started.Store(true)
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// peer is a store behind a link of its own.
type peer struct {
	*Store
	link *etcdtest.Link
}

func open(c *etcdtest.Cluster, to ...*etcdtest.Member) (*peer, error) {
	link, err := c.Link(to...)
	if err != nil {
		return nil, err
	}
	cli, err := etcdtest.Connect(link.Endpoints())
	if err != nil {
		link.Close()
		return nil, err
	}
	p := &peer{Store: New(cli, nil), link: link}
	p.tree.closer = func() error {
		_ = cli.Close() // says no more than that its context has ended
		go link.Close()
		return nil
	}
	return p, nil
}

func mustOpen(t testing.TB, c *etcdtest.Cluster, to ...*etcdtest.Member) *peer {
	t.Helper()
	p, err := open(c, to...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// kill leaves nothing of a client but what stands in the store.
func (p *peer) kill() {
	p.link.Cut()
	go p.Close()
}

// TestConformance: the store keeps every promise of the contract, on three servers.
func TestConformance(t *testing.T) {
	t.Parallel()
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	results := drivertest.Run(t.Context(), drivertest.Harness{
		Open: func(context.Context) (driver.Store, error) { return open(c) },
		Cut:  func(s driver.Store) error { s.(*peer).link.Cut(); return nil },
		Heal: func(s driver.Store) error { s.(*peer).link.Heal(); return nil },
		Kill: func(s driver.Store) error { s.(*peer).kill(); return nil },
		Restart: func(ctx context.Context) error {
			for _, m := range c.Members {
				m.Terminate()
			}
			for _, m := range c.Members {
				if err := m.Start(); err != nil {
					return err
				}
			}
			cli, err := c.Client()
			if err != nil {
				return err
			}
			defer cli.Close()
			return etcdtest.Ready(ctx, cli)
		},
	}, &drivertest.Options{Parallel: 16, Log: func(line string) { t.Log(line) }})
	passed := 0
	for _, r := range results {
		switch {
		case r.Err != nil:
			t.Errorf("%s: %v\npromised: %s", r.Case.Name, r.Err, r.Case.Promise)
		case r.Skipped != "":
			t.Logf("%s: skipped, %s", r.Case.Name, r.Skipped)
		default:
			passed++
		}
	}
	t.Logf("%d of %d cases passed", passed, len(results))
}
