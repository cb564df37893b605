// Package sessiontest has the tests that the stores with sessions have in common: what a lock is worth when links are cut, and
// clients and servers killed and stopped. Each store has a Rig for them, and tests that call the rig's methods of the same
// names; those say what is promised.
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
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Cluster is three servers.
type Cluster interface {
	Servers() []*servertest.Server
	Endpoints() []string
	Ready(context.Context) error // waits until it takes writes
	Leader(context.Context) (*servertest.Server, error)
	Isolate(*servertest.Server) // cuts one off from the others
	Join()                      // undoes Isolate
	Close()
}

// Peer is a store behind a link of its own.
type Peer interface {
	driver.Store
	Cut() // has the link stand still
	Heal()
	Table() record.Table
}

// Harness is what the tests of one store run on.
type Harness[C Cluster, P Peer] struct {
	Scheme string // of the store's URLs
	Query  string // of these URLs, if any, with its question mark
	// Start runs a cluster; the members of a direct one can't be isolated.
	Start func(ctx context.Context, direct bool) (C, error)
	// Open makes a client of a cluster; with servers given, of those alone.
	Open func(c C, to ...*servertest.Server) (P, error)
	// Share, if set, gives the cluster of another rig to share.
	Share func(testing.TB) C
	// Slack is how long after its TTL, at most, a silent holder's lock has passed on, on a quiet machine.
	Slack time.Duration
	// WorkerTasks is what the store's own tests have worker processes do, by Order.Do.
	WorkerTasks map[string]func(WorkerTask) error

	mu     sync.Mutex
	shared *C
}

func (r *Harness[C, P]) clusterURL(endpoints ...string) string {
	return r.Scheme + "://" + strings.Join(endpoints, ",") + r.Query
}

// parallelTests is how many tests run at a time: they wait more than they compute, so more than there are processors.
const parallelTests = "4"

// Main is the TestMain of the store. It is a worker's as well.
func (r *Harness[C, P]) Main(m *testing.M) {
	flag.Parse()
	if text := os.Getenv(taskVariable); text != "" {
		if err := r.runWorker(text); err != nil {
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
	code := m.Run()
	if r.shared != nil {
		(*r.shared).Close()
	}
	os.Exit(code)
}

// Shared is the cluster of the tests that leave it whole. Its members reach each other directly.
func (r *Harness[C, P]) Shared(t testing.TB) C {
	t.Helper()
	if r.Share != nil {
		return r.Share(t)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shared == nil {
		c, err := r.Start(context.Background(), true)
		if err != nil {
			t.Fatal(err)
		}
		r.shared = &c
	}
	return *r.shared
}

// Own is a cluster for one test.
func (r *Harness[C, P]) Own(t *testing.T) C {
	t.Helper()
	c, err := r.Start(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Peer opens a client for one test.
func (r *Harness[C, P]) Peer(t testing.TB, c C, to ...*servertest.Server) P {
	t.Helper()
	p, err := r.Open(c, to...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// watchCluster watches how late a cluster is by itself: how long a client that no fault touches takes for a lock that nobody else wants.
func (r *Harness[C, P]) watchCluster(t *testing.T, c C) *pace.Pace {
	t.Helper()
	const every = 50 * time.Millisecond
	client := NewClient(t, r.Peer(t, c), time.Minute)
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
