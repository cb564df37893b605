// Package foreign puts the lock clients of other projects under the same faults as our own, and judges them by the same
// rules. Each is set up as its documentation recommends, and is asked for nothing that it does not promise.
package foreign

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/proxy"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/torture"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

var (
	runTime = flag.Duration("for", 5*time.Second, "how long TestForeignClients puts each client under faults")
	ttl     = flag.Duration("ttl", 2*time.Second, "the TTL of the locks in TestForeignClients")
	faults  = flag.String("faults", "links", "which faults: links, which can also stop a server, or processes")
)

// client is a lock client of another project.
type client struct {
	name    string // with its version
	start   func(*testing.T) server
	open    func(context.Context, torture.ForeignOptions) (torture.ForeignClient, error)
	noToken bool
}

// server is what a client keeps its locks in.
type server struct {
	address string
	text    string // for the report
	pids    []int  // of the servers that are stopped now and then
	list    func(ctx context.Context, prefix string) ([]string, error)
}

var clients = map[string]client{
	"redsync": {"redsync 4.13.0", func(t *testing.T) server { return startRedis(t, "") }, openRedsync, true},
	"rueidislock": {"rueidislock 1.0.79", func(t *testing.T) server { return startRedis(t, "rueidislock:0:") },
		openRueidislock, true},
	"concurrency": {"etcd's concurrency.Mutex 3.7.3", func(t *testing.T) server { return startEtcd(t, 3) }, openConcurrency, false},
	"zk":          {"go-zookeeper's Lock 1.0.4", startZooKeeper, openZooKeeper, true},
	"dynamolock":  {"dynamolock 2.0.3", startDynamoDB, openDynamolock, true},
}

// workerVariable names the client that a worker process opens.
const workerVariable = "HOLDFAST_FOREIGN_CLIENT"

// TestMain is also the main function of a worker process.
func TestMain(m *testing.M) {
	if name := os.Getenv(workerVariable); name != "" {
		if err := torture.WorkForeign(os.Stdin, os.Stdout, clients[name].open); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestForeignClients: torture of other clients ends with a report of what their holders believed. In a long run with
// broken links, holders by rueidislock believe for half a validity after others were granted the lock, and holders by
// concurrency.Mutex for up to a second.
func TestForeignClients(t *testing.T) {
	t.Parallel()
	for name, c := range clients {
		if name == "dynamolock" && *runTime < time.Minute {
			continue // the emulator of DynamoDB has ended once in a short run, for a reason that is not known
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := c.start(t)
			r, err := torture.Run(t.Context(), torture.Subject{Store: s.text + ", by " + c.name, Tier: "another client",
				NoTokens: c.noToken, List: s.list}, newConfig(t, name, s))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("\n%s", r.Text())
			if r.Ended != "" || r.Grants == 0 {
				t.Errorf("%d grants, ended early: %s", r.Grants, r.Ended)
			}
			late := map[string]float64{"rueidislock": r.TTL / 4, "concurrency": 1}[name]
			if *faults == "links" && *runTime >= time.Minute && r.OverlapMillis < late {
				t.Errorf("the overlap is %v ms, not %v ms or more", r.OverlapMillis, late)
			}
		})
	}
}

func newConfig(t *testing.T, name string, s server) torture.Config {
	t.Helper()
	c := torture.Config{Store: s.address, For: *runTime, Workers: 8, Seed: 1, TTL: *ttl,
		FaultEvery: 200 * time.Millisecond, Kinds: []torture.Kind{torture.Mutex}, Rate: 100, LongHolds: 2,
		CalmTimeout: time.Minute, LeftoverTimeout: time.Minute, BesideOthers: true,
		Progress: func(string) {}, ProgressEvery: time.Minute,
		Worker: func() *exec.Cmd {
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), workerVariable+"="+name)
			return c
		}}
	switch *faults {
	case "links":
		c.Faults = []torture.Fault{torture.Cut, torture.Delay, torture.Reset}
		if len(s.pids) > 0 {
			stopped := filepath.Join(t.TempDir(), "stopped")
			c.ServerFault = fmt.Sprintf("shuf -n1 -e %s >%s && kill -STOP $(cat %[2]s)", strings.Trim(fmt.Sprint(s.pids), "[]"), stopped)
			c.ServerHeal = fmt.Sprintf("kill -CONT $(cat %s)", stopped)
			c.ServerEvery, c.ServerFor, c.HookTimeout = 2*time.Second, 500*time.Millisecond, time.Minute
		}
	case "processes":
		c.Faults = []torture.Fault{torture.Pause, torture.Kill}
	default:
		t.Fatalf("-faults %q is unknown", *faults)
	}
	return c
}

// TestBelievesTooLong: when the link of a holder is cut, a holder by rueidislock still believes for half a validity
// after another client was granted the lock, and a holder by concurrency.Mutex for part of a second. The latter
// depends on when the client and the server look at their clocks, and is seen within five rounds of four.
func TestBelievesTooLong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		start func(*testing.T) server
		delay time.Duration // of the link of the holder
		least time.Duration // for which both believe
	}{
		// Half a validity, less what the other client takes to notice.
		"rueidislock": {clients["rueidislock"].start, 0, validity / 4},
		// The client counts from the reply to a keep-alive, and looks once a second; the server looks twice a second.
		// With a reply that is not there at once, the client mostly looks too early, and then a second later. A
		// single server has no elections, which would prolong the lease.
		"concurrency": {func(t *testing.T) server { return startEtcd(t, 1) }, 200 * time.Millisecond, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := c.start(t)
			var longest time.Duration
			for round := 0; round < 5 && longest < c.least; round++ {
				var mu sync.Mutex
				var all sync.WaitGroup
				for i := range 4 {
					all.Go(func() {
						time.Sleep(time.Duration(i) * 130 * time.Millisecond) // so that the server looks at different times
						d := measureOverlap(t, name, s, c.delay, fmt.Sprintf("late-%d-%d", round, i))
						t.Logf("both believed for %v", d)
						mu.Lock()
						defer mu.Unlock()
						longest = max(longest, d)
					})
				}
				all.Wait()
			}
			if longest < c.least {
				t.Errorf("both believed for %v, not for %v or more", longest, c.least)
			}
		})
	}
}

// validity is the TTL in TestBelievesTooLong.
const validity = 4 * time.Second

// measureOverlap cuts the link of a holder, and returns for how long it believes after another client was granted the
// lock.
func measureOverlap(t *testing.T, name string, s server, delay time.Duration, lock string) time.Duration {
	holder, link := openLinked(t, name, s)
	other, _ := openLinked(t, name, s)
	link.SetFaults(func() (time.Duration, bool) { return delay, false })
	held, err := holder.Lock(t.Context(), lock)
	if err != nil {
		t.Error(err)
		return 0
	}
	granted := make(chan time.Time, 1)
	go func() {
		if _, err := other.Lock(t.Context(), lock); err != nil {
			t.Error(err)
		}
		granted <- time.Now()
	}()
	link.Cut()
	for held.Valid() {
		time.Sleep(2 * time.Millisecond)
	}
	believed := time.Now()
	link.SetFaults(nil)
	link.Heal()
	return believed.Sub(<-granted)
}

// openLinked opens a client behind a link of its own.
func openLinked(t *testing.T, name string, s server) (torture.ForeignClient, *servertest.Link) {
	t.Helper()
	link, err := servertest.NewSocks()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	dial, err := proxy.SOCKS5("tcp", link.Addr, nil, proxy.Direct)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clients[name].open(t.Context(), torture.ForeignOptions{Store: s.address, TTL: validity, Owner: name,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dial.(proxy.ContextDialer).DialContext(ctx, network, address)
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, link
}
