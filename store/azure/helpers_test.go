package azure_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/azure"
	"github.com/holdfast-go/holdfast/store/azure/azuretest"
)

// emulator is one for all tests, each of which has a container of its own.
var emulator *azuretest.Server

// TestMain does not run the tests on an emulator that accepts what it must refuse.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		for _, name := range []string{"AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY",
			"AZURE_STORAGE_SAS_TOKEN"} {
			os.Unsetenv(name)
		}
		ctx := context.Background()
		s, err := azuretest.Start(ctx, "probe")
		if err == nil {
			emulator = s
			defer s.Stop()
			err = azuretest.Probe(ctx, azuretest.Client(s.Direct), "probe", "probed")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// slack is that of a store whose clock is known to a second, of hosts that may be a second apart.
const slack = 5 * time.Second

var containers atomic.Int64

// service is a container of a test, behind a proxy.
type service struct {
	*azuretest.Proxy
	container string
}

func (s *service) address() string { return s.URL + "/" + s.container }

func newProxy(t testing.TB) *azuretest.Proxy {
	t.Helper()
	p, err := emulator.NewProxy()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func startService(t testing.TB) *service {
	t.Helper()
	name := fmt.Sprint("test", containers.Add(1))
	if err := emulator.CreateContainer(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return &service{newProxy(t), name}
}

// second returns another way to the same container.
func (s *service) second(t testing.TB) *service { return &service{newProxy(t), s.container} }

// newWeb returns an HTTP client with connections of its own.
func newWeb(t testing.TB) *http.Client {
	link := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Second}
	t.Cleanup(link.CloseIdleConnections)
	return &http.Client{Transport: link}
}

// sharedKey are the credentials for the emulator.
func sharedKey() azure.Credentials {
	c, err := azure.SharedKey(azuretest.Account, azuretest.Key)
	if err != nil {
		panic(err) // they are constants
	}
	return c
}

// with returns the options with the credentials for the emulator.
func with(o azure.Options) *azure.Options {
	o.Credentials = sharedKey()
	return &o
}

func mustOpen(t testing.TB, s *service, o azure.Options) driver.Store {
	t.Helper()
	store, err := azure.New(t.Context(), newWeb(t), s.address(), with(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// Helpers that the tests of all stores share.
var (
	shiftedClock = storetest.ShiftedClock
	mutexClaim   = storetest.Mutex
	acquire      = storetest.Acquire
	renew        = storetest.Renew
	release      = storetest.Release
)

// newHarness makes a harness whose clients each have a proxy, and so can be cut off.
func newHarness(t *testing.T, s *service, o azure.Options) drivertest.Harness {
	var ways sync.Map
	of := func(st driver.Store) *service {
		w, _ := ways.Load(st)
		return w.(*service)
	}
	open := func(ctx context.Context, web *http.Client) (driver.Store, error) {
		way := s.second(t)
		store, err := azure.New(ctx, web, way.address(), with(o))
		if err == nil {
			ways.Store(store, way)
		}
		return store, err
	}
	return drivertest.Harness{
		Slack: slack,
		Open:  func(ctx context.Context) (driver.Store, error) { return open(ctx, newWeb(t)) },
		Lossy: func(ctx context.Context, fate func() drivertest.Fate) (driver.Store, error) {
			return open(ctx, &http.Client{Transport: &drivertest.Transport{Base: newWeb(t).Transport, Fate: fate}})
		},
		Kill: func(st driver.Store) error { of(st).Cut(); return nil },
		Cut:  func(st driver.Store) error { of(st).Cut(); return nil },
		Heal: func(st driver.Store) error { of(st).Heal(); return nil },
	}
}

// expectHidden fails if an error shows a secret.
func expectHidden(t testing.TB, what string, err error, secrets ...string) {
	t.Helper()
	for _, secret := range secrets {
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s shows a secret: %v", what, err)
		}
	}
}
