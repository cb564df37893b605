package consul_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	"github.com/holdfast-go/holdfast/internal/benchtest/requests"
	_ "github.com/holdfast-go/holdfast/store/consul"
	"github.com/holdfast-go/holdfast/store/consul/consultest"
)

// BenchmarkLocks: the floor is the two writes that any lock under a session has to do; the key's LockIndex is its
// token. The peer is the Lock of Consul's own client.
func BenchmarkLocks(b *testing.B) {
	var c *consultest.Cluster
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			var err error
			if c, err = consultest.Start(b.Context(), consultest.Options{HCL: []string{
				`telemetry { prometheus_retention_time = "1h" disable_hostname = true }`}}); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(c.Close)
			return c.URL()
		},
		Requests: func(ctx context.Context) (int64, error) { // requests that have ended
			return requests.SumMetric(ctx, http.DefaultClient,
				"http://"+c.Endpoints()[0]+"/v1/agent/metrics?format=prometheus", "consul_api_http_count")
		},
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(openBenchFloor),
			{Name: "client", Open: openClientLock},
			benchtest.Layout("key", ""),
		}, benchtest.Holdfast("")...),
	}
	s.Run(b)
}

func benchClient(b testing.TB, address string) *api.Client {
	config := api.DefaultNonPooledConfig()
	config.Address = strings.TrimPrefix(address, "consul://")
	config.Transport.MaxIdleConnsPerHost, config.Transport.DisableKeepAlives = 64, false
	c, err := api.NewClient(config)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// benchSession makes a session that is renewed until the benchmark ends.
func benchSession(b testing.TB, c *api.Client) string {
	id, _, err := c.Session().CreateNoChecks(&api.SessionEntry{TTL: benchtest.TTL.String(), Behavior: "delete"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	end := make(chan struct{})
	go c.Session().RenewPeriodic(benchtest.TTL.String(), id, nil, end)
	b.Cleanup(func() { close(end) })
	return id
}

func openBenchFloor(b testing.TB, address string) benchtest.Cycle {
	c := benchClient(b, address)
	session := benchSession(b, c)
	return func(_ context.Context, lock string) error {
		pair := &api.KVPair{Key: lock, Session: session}
		if ok, _, err := c.KV().Acquire(pair, nil); !ok || err != nil {
			return fmt.Errorf("not taken: %w", err)
		}
		if ok, _, err := c.KV().Release(pair, nil); !ok || err != nil {
			return fmt.Errorf("not released: %w", err)
		}
		return nil
	}
}

// openClientLock gives each caller a session of its own: two callers of one session would both have a lock.
func openClientLock(b testing.TB, address string) benchtest.Lock {
	c := benchClient(b, address)
	var sessions sync.Map // caller -> func() string
	return func(_ context.Context, name string, caller int) (benchtest.Lease, error) {
		session, _ := sessions.LoadOrStore(caller, sync.OnceValue(func() string { return benchSession(b, c) }))
		l, err := c.LockOpts(&api.LockOptions{Key: name, Session: session.(func() string)()})
		if err == nil {
			_, err = l.Lock(nil)
		}
		return benchtest.Lease{Release: func() error { return l.Unlock() }}, err
	}
}
