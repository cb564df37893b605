package zookeeper

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
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// shared is the ensemble of the tests that leave it whole.
var shared = sync.OnceValues(func() (*zktest.Ensemble, error) {
	return zktest.Start(context.Background(), zktest.Options{Direct: true})
})

var started atomic.Bool

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // they wait more than they work
	flag.Parse()
	if order := os.Getenv("ZOOKEEPER_STORE_WORKER"); order != "" {
		if err := work(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if dir, err := classes(); err == nil {
		os.RemoveAll(dir)
	}
	if started.Load() {
		if c, err := shared(); err == nil {
			c.Close()
		}
	}
	os.Exit(code)
}

func cluster(t testing.TB) *zktest.Ensemble {
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
	link *zktest.Link
}

func open(c *zktest.Ensemble, to ...*zktest.Member) (*peer, error) {
	link, err := c.Link(to...)
	if err != nil {
		return nil, err
	}
	s, err := New(Options{Servers: link.Endpoints()})
	if err != nil {
		link.Close()
		return nil, err
	}
	return &peer{Store: s, link: link}, nil
}

// Close ends the client, and then the link.
func (p *peer) Close() error {
	err := p.Store.Close()
	p.link.Close()
	return err
}

func mustOpen(t testing.TB, c *zktest.Ensemble, to ...*zktest.Member) *peer {
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
	c, err := zktest.Start(t.Context(), zktest.Options{})
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
			return c.Ready(ctx)
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
