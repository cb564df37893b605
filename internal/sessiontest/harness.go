//go:build unix

// Package sessiontest contains the tests that the stores with sessions share: whether locks keep their promises while
// links are cut, and clients and servers are killed and stopped. Each store has a Harness, and tests that call the
// harness's methods of the same names. The comments of those tests say what is promised.
package sessiontest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// Cluster is a cluster of three servers.
type Cluster interface {
	Servers() []*servertest.Server
	Endpoints() []string
	Ready(context.Context) error // waits until it takes writes
	Leader(context.Context) (*servertest.Server, error)
	Isolate(*servertest.Server) // cuts one server off from the others
	Join()                      // undoes Isolate
	Close()
}

// Peer is a store behind a link of its own.
type Peer interface {
	driver.Store
	Cut() // stalls the link; Heal delivers what was held back
	Heal()
	Table() record.Table
}

// Harness connects the tests to one store.
type Harness[C Cluster, P Peer] struct {
	Scheme string // of the store's URLs
	Query  string // of these URLs, if any, with the question mark
	// Start runs a cluster. The members of a direct cluster are not connected by links, and cannot be isolated.
	Start func(ctx context.Context, direct bool) (C, error)
	// Open makes a client of a cluster, or of the given servers alone.
	Open func(c C, to ...*servertest.Server) (P, error)
	// Share, if set, returns the cluster of another harness, to share it.
	Share func(testing.TB) C
	// Slack is the longest time after its TTL until an expired holder's lock is granted to the next claim, on a quiet
	// machine.
	Slack time.Duration
	// KeepsTwice is set if the servers end a session after twice its TTL.
	KeepsTwice bool
	// WorkerTasks is what worker processes do in the store's own tests, by WorkerTask.Do.
	WorkerTasks map[string]func(WorkerTask) error

	mu     sync.Mutex
	shared *C
}

func (h *Harness[C, P]) clusterURL(endpoints ...string) string {
	return h.Scheme + "://" + strings.Join(endpoints, ",") + h.Query
}

// parallelTests is how many tests run at the same time. They wait more than they compute, so it is more than the
// number of processors.
const parallelTests = "4"

// Main is the TestMain of the store. It is also the main function of a worker process.
func (h *Harness[C, P]) Main(m *testing.M) {
	flag.Parse()
	if text := os.Getenv(taskVariable); text != "" {
		if err := h.runWorker(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set {
		_ = flag.Set("test.parallel", parallelTests)
	}
	stop := func() {}
	if flag.Lookup("test.bench").Value.String() == "" { // benchmarks measure what the process uses
		stop = machine.Watch()
	}
	code := m.Run()
	stop()
	if h.shared != nil {
		(*h.shared).Close()
	}
	os.Exit(code)
}

// Shared returns the cluster for the tests that do not damage it. Its members reach each other directly.
func (h *Harness[C, P]) Shared(t testing.TB) C {
	t.Helper()
	if h.Share != nil {
		return h.Share(t)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shared == nil {
		c, err := h.Start(context.Background(), true)
		if err != nil {
			t.Fatal(err)
		}
		h.shared = &c
	}
	return *h.shared
}

// Own starts a cluster for one test.
func (h *Harness[C, P]) Own(t *testing.T) C {
	t.Helper()
	c, err := h.Start(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Peer opens a client for one test.
func (h *Harness[C, P]) Peer(t testing.TB, c C, to ...*servertest.Server) P {
	t.Helper()
	p, err := h.Open(c, to...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// watchCluster measures how slow a cluster is by itself: how long a client that no fault affects takes for a lock
// that no other client wants.
func (h *Harness[C, P]) watchCluster(t *testing.T, c C) *pace.Pace {
	t.Helper()
	const every = 50 * time.Millisecond
	client := NewClient(t, h.Peer(t, c), time.Minute)
	mu := client.Mutex(t.Name()+"/pulse", nil)
	var p pace.Pace
	t.Cleanup(p.WatchTask(every, func(<-chan struct{}) {
		time.Sleep(every)
		if l, err := mu.Lock(t.Context()); err == nil {
			_ = l.Release()
		}
	}))
	return &p
}
