package s3_test

import (
	"context"
	"flag"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/s3"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

const bucket = "bucket"

// prove runs the long counts, which take minutes.
var prove = flag.Bool("prove", false, "run the long counts")

// countFor is how often a step is repeated.
func countFor(few, all int) int {
	if *prove {
		return all
	}
	return few
}

// startShared is the MinIO of all tests that do it no harm.
var startShared = sync.OnceValues(func() (*s3test.MinIO, error) { return s3test.StartMinIO(bucket) })

// sharedStarted is whether a test has used it.
var sharedStarted atomic.Bool

// maxLateness is how long a write may take effect after its start on the services of these tests.
const maxLateness = 500 * time.Millisecond

func TestMain(m *testing.M) {
	flag.Parse()
	s3.SetMaxLateness(maxLateness)
	code := m.Run()
	if sharedStarted.Load() {
		if s, err := startShared(); err == nil {
			s.Close()
		}
	}
	os.Exit(code)
}

// sharedMinIO returns the endpoint of a MinIO that other tests use as well.
func sharedMinIO(t testing.TB) string {
	t.Helper()
	sharedStarted.Store(true)
	s, err := startShared()
	if err != nil {
		t.Fatal(err)
	}
	return s.URL()
}

func startServer(t testing.TB) *s3test.Server {
	t.Helper()
	s := s3test.Start(bucket)
	t.Cleanup(s.Stop)
	return s
}

// newLink makes an HTTP client that reaches a service through links which can be cut.
func newLink(t testing.TB) (*http.Client, *servertest.Net) {
	t.Helper()
	via := &servertest.Net{}
	t.Cleanup(via.Close)
	transport := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 500 * time.Millisecond,
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) { return via.Dial(addr) }}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, via
}

// newClient makes a client over no link.
func newClient(t testing.TB, endpoint string) *sdk.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return s3test.NewClient(endpoint, &http.Client{Transport: transport})
}

// mustOpen opens a store on a service of this process.
func mustOpen(t testing.TB, s *s3test.Server, opts *s3.Options) driver.Store {
	t.Helper()
	store, err := s3.New(t.Context(), newClient(t, s.URL), bucket, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// newHarness makes a harness whose clients can be cut off.
func newHarness(t testing.TB, endpoint string, opts *s3.Options) drivertest.Harness {
	h := storetest.Harness(func(ctx context.Context) (driver.Store, storetest.Connection, error) {
		over, via := newLink(t)
		store, err := s3.New(ctx, s3test.NewClient(endpoint, over), bucket, opts)
		return store, via, err
	})
	h.Slack = 3 * time.Second
	h.Lossy = func(ctx context.Context, fate func() drivertest.Fate) (driver.Store, error) {
		over, _ := newLink(t)
		over.Transport = &drivertest.Transport{Base: over.Transport, Fate: fate}
		return s3.New(ctx, s3test.NewClient(endpoint, over), bucket, opts)
	}
	return h
}

// Helpers that the tests of all stores share.
var (
	shiftedClock = storetest.ShiftedClock
	mutexClaim   = storetest.Mutex
	acquire      = storetest.Acquire
	renew        = storetest.Renew
	release      = storetest.Release
)

// layouts are all layouts.
var layouts = []s3.Layout{s3.LayoutRecord, s3.LayoutTerraform}

// layoutOptions are the options for a layout, with a prefix of its own.
func layoutOptions(l s3.Layout) *s3.Options {
	return &s3.Options{Prefix: string(l) + "/", Layout: l}
}
