package kubernetes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// prove runs the long counts, which take minutes.
var prove = flag.Bool("prove", false, "run the long counts")

// startShared is the cluster of all tests that do it no harm.
var (
	shared      atomic.Pointer[kubernetestest.Cluster]
	startShared = sync.OnceValues(func() (*kubernetestest.Cluster, error) {
		c, err := kubernetestest.Start()
		shared.Store(c)
		return c, err
	})
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if s := shared.Load(); s != nil {
		s.Close()
	}
	os.Exit(code)
}

func sharedCluster(t testing.TB) *kubernetestest.Cluster {
	t.Helper()
	c, err := startShared()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// server is what the tests of one kind run on: a cluster or a model.
type server interface {
	Address() string
	Client(token string, via *servertest.Net, wrap func(http.RoundTripper) http.RoundTripper) (*http.Client, func())
}

func startModel(t testing.TB) *kubernetestest.Model {
	t.Helper()
	m := kubernetestest.StartModel()
	t.Cleanup(m.Stop)
	return m
}

// newLink makes a client that reaches the API server through links which can be cut.
func newLink(t testing.TB, c server, wrap func(http.RoundTripper) http.RoundTripper,
) (*http.Client, *servertest.Net) {
	t.Helper()
	via := &servertest.Net{}
	t.Cleanup(via.Close)
	web, stop := c.Client(kubernetestest.AllowAll, via, wrap)
	t.Cleanup(stop)
	return web, via
}

// lossy lets fate decide about all requests but watches, which have no end that could be lost.
func lossy(fate func() drivertest.Fate) func(http.RoundTripper) http.RoundTripper {
	return func(base http.RoundTripper) http.RoundTripper {
		return lossyTransport{base, &drivertest.Transport{Base: base, Fate: fate}}
	}
}

type lossyTransport struct{ base, lossy http.RoundTripper }

func (l lossyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") != "" {
		return l.base.RoundTrip(r)
	}
	return l.lossy.RoundTrip(r)
}

type object = map[string]any

// mustSend sends a request about the lease with that name, as somebody else would.
func mustSend(t testing.TB, c server, method, name string, body object) (reply object) {
	t.Helper()
	web, stop := c.Client(kubernetestest.AllowAll, nil, nil)
	defer stop()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, c.Address()+"/apis/coordination.k8s.io/v1/namespaces/"+
		kubernetestest.Namespace+"/leases/"+name, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	got, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if err := json.NewDecoder(got.Body).Decode(&reply); err != nil || got.StatusCode >= 300 {
		t.Fatalf("%s %s: %s %v %v", method, name, got.Status, reply, err)
	}
	return reply
}

// mustOpen opens a store for a client with a token.
func mustOpen(t testing.TB, c server, token string, opts *kubernetes.Options) driver.Store {
	t.Helper()
	web, stop := c.Client(token, nil, nil)
	t.Cleanup(stop)
	store, err := kubernetes.New(t.Context(), web, c.Address(), kubernetestest.Namespace, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// newHarness makes a harness whose clients can be cut off. A namespace of its own keeps its listings short.
func newHarness(t testing.TB, c server, namespace string, opts *kubernetes.Options) drivertest.Harness {
	return newHarnessOver(t, c, namespace, func(ctx context.Context, web *http.Client, server, namespace string) (driver.Store, error) {
		return kubernetes.New(ctx, web, server, namespace, opts)
	})
}

// newHarnessOver is newHarness for stores that are opened in another way.
func newHarnessOver(t testing.TB, c server, namespace string,
	newStore func(ctx context.Context, web *http.Client, server, namespace string) (driver.Store, error),
) drivertest.Harness {
	open := func(ctx context.Context, wrap func(http.RoundTripper) http.RoundTripper) (driver.Store, *servertest.Net, error) {
		web, via := newLink(t, c, wrap)
		store, err := newStore(ctx, web, c.Address(), namespace)
		return store, via, err
	}
	h := storetest.Harness(func(ctx context.Context) (driver.Store, storetest.Connection, error) { return open(ctx, nil) })
	h.Slack = 6 * time.Second
	h.Lossy = func(ctx context.Context, fate func() drivertest.Fate) (driver.Store, error) {
		store, _, err := open(ctx, lossy(fate))
		return store, err
	}
	return h
}
