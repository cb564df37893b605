package gcs_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"google.golang.org/api/option"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/gcs"
	"github.com/holdfast-go/holdfast/store/gcs/gcstest"
)

const bucket = "bucket"

// prove runs the long counts, which take minutes.
var prove = flag.Bool("prove", false, "run the long counts")

// maxLateness is how long a write may take effect after its start on the services of these tests.
const maxLateness = 500 * time.Millisecond

// TestMain does not run the tests on a service that accepts what it must refuse.
func TestMain(m *testing.M) {
	flag.Parse()
	gcs.SetMaxLateness(maxLateness)
	s := gcstest.Start(bucket)
	if err := probe(s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s.Stop()
	os.Exit(m.Run())
}

func probe(s *gcstest.Server) error {
	ctx := context.Background()
	client, err := storage.NewClient(ctx, option.WithEndpoint(s.URL+"/storage/v1/"), option.WithoutAuthentication())
	if err != nil {
		return err
	}
	defer client.Close()
	return gcstest.Probe(ctx, client, bucket, "set-up/")
}

// TestProbe: Probe detects a service that ignores preconditions.
func TestProbe(t *testing.T) {
	t.Parallel()
	for _, kind := range []gcstest.Kind{gcstest.Insert, gcstest.Delete} {
		s := startServer(t)
		s.IgnorePreconditions = map[gcstest.Kind]bool{kind: true}
		err := probe(s)
		if err == nil || !strings.Contains(err.Error(), "not fit for locks") {
			t.Errorf("a service that lies about %ss: %v", kind, err)
		}
		t.Log(err)
	}
}

func startServer(t testing.TB) *gcstest.Server {
	t.Helper()
	s := gcstest.Start(bucket)
	t.Cleanup(s.Stop)
	return s
}

// newLink makes an HTTP client that reaches the service through a link.
func newLink(t testing.TB) (*http.Client, *gcstest.Link) {
	t.Helper()
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost, base.IdleConnTimeout = 64, 500*time.Millisecond
	link := &gcstest.Link{Base: base}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: link}, link
}

// newClient makes a client of Google's library, for what other programs do.
func newClient(t testing.TB, s *gcstest.Server) *storage.Client {
	t.Helper()
	client, err := storage.NewClient(t.Context(), option.WithEndpoint(s.URL+"/storage/v1/"),
		option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// at returns the options for a store on this service.
func at(s *gcstest.Server, o *gcs.Options) *gcs.Options {
	var c gcs.Options
	if o != nil {
		c = *o
	}
	c.Endpoint = s.URL
	return &c
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
var layouts = []gcs.Layout{gcs.LayoutRecord, gcs.LayoutGCSLock, gcs.LayoutVault}

// quickLayoutOptions is quickOptions for a layout.
func quickLayoutOptions(l gcs.Layout) *gcs.Options {
	o := quickOptions()
	o.Prefix, o.Layout = string(l)+"/", l
	return o
}

// quickOptions are the options for an emulator, which needs no interval between writes.
func quickOptions() *gcs.Options {
	return &gcs.Options{Prefix: "locks/", WriteInterval: 5 * time.Millisecond}
}

func mustOpen(t testing.TB, s *gcstest.Server, opts *gcs.Options) (driver.Store, *gcstest.Link) {
	t.Helper()
	client, link := newLink(t)
	store, err := gcs.New(t.Context(), client, bucket, at(s, opts))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store, link
}

// newHarness makes a harness whose clients can be cut off.
func newHarness(t *testing.T, s *gcstest.Server, opts *gcs.Options) drivertest.Harness {
	var links sync.Map
	of := func(st driver.Store) *gcstest.Link {
		l, _ := links.Load(st)
		return l.(*gcstest.Link)
	}
	return drivertest.Harness{
		Slack: storetest.PollSlack,
		Open: func(ctx context.Context) (driver.Store, error) {
			client, link := newLink(t)
			store, err := gcs.New(ctx, client, bucket, at(s, opts))
			if err != nil {
				return nil, err
			}
			links.Store(store, link)
			return store, nil
		},
		Kill: func(st driver.Store) error { of(st).Cut(); return nil },
		Cut:  func(st driver.Store) error { of(st).Cut(); return nil },
		Heal: func(st driver.Store) error { of(st).Heal(); return nil },
	}
}
