package zookeeper

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// A contender acquires and releases locks by some workers, for a while, and returns how often it did. The workers
// share one lock, or have one each.
type contender func(workers int, d time.Duration, one bool) (cycles int)

// runInGo makes a contender that repeats one cycle.
func runInGo(cycle func(lock string)) contender {
	return func(workers int, d time.Duration, one bool) int {
		var all sync.WaitGroup
		var cycles atomic.Int64
		end := time.Now().Add(d)
		for w := range workers {
			lock := strconv.Itoa(w)
			if one {
				lock = "one"
			}
			all.Go(func() {
				for time.Now().Before(end) {
					cycle(lock)
					cycles.Add(1)
				}
			})
		}
		all.Wait()
		return int(cycles.Load())
	}
}

// runInCurator makes a contender of Curator's mutex, in a process of its own.
func runInCurator(b *testing.B, server string) contender {
	run := javaProgram(b, "Bench")
	c := exec.CommandContext(b.Context(), run[0], append(run[1:], server, "/curator")...)
	in, err := c.StdinPipe()
	mustSucceed(b, err)
	out, err := c.StdoutPipe()
	mustSucceed(b, err)
	c.Stderr = os.Stderr
	mustSucceed(b, c.Start())
	b.Cleanup(func() { in.Close(); _ = c.Wait() })
	return func(workers int, d time.Duration, one bool) (cycles int) {
		fmt.Fprintln(in, workers, d.Milliseconds(), one)
		if _, err := fmt.Fscan(out, &cycles); err != nil {
			b.Fatal(err)
		}
		return cycles
	}
}

// BenchmarkCurator compares an acquire and a release with Curator's mutex, which runs in a process of its own: alone,
// on locks of their own, and on one lock. Both are clients of one server, and take turns, a quarter of a second each;
// what is reported is the median of their turns.
func BenchmarkCurator(b *testing.B) {
	leader, err := rig.Shared(b).Leader(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	s, err := openAs[*store]([]string{leader.Endpoint}, Options{})
	mustSucceed(b, err)
	defer s.Close()
	contenders := map[string]contender{
		"holdfast": runInGo(func(lock string) {
			c := mutexClaim("bench/" + lock)
			c.Wait = true
			_, err := s.Acquire(b.Context(), c)
			mustSucceed(b, err)
			mustSucceed(b, s.Release(b.Context(), c, ""))
		}),
		"curator": runInCurator(b, leader.Endpoint),
	}
	for _, k := range []struct {
		name    string
		workers int
		one     bool
	}{{"own/1", 1, false}, {"own/64", 64, false}, {"one/64", 64, true}} {
		b.Run(k.name, func(b *testing.B) {
			const turn, turns = 250 * time.Millisecond, 9
			rates := map[string][]float64{}
			for range b.N * turns {
				for name, c := range contenders {
					rates[name] = append(rates[name], float64(c(k.workers, turn, k.one))/turn.Seconds())
				}
			}
			b.ReportMetric(0, "ns/op")
			for name, r := range rates {
				slices.Sort(r)
				b.ReportMetric(r[len(r)/2], name+"/s")
			}
		})
	}
}

// TestRequestsPerOperation: a cycle on a free lock is three packets in two round trips; one that waits for another
// client's adds the read that watches that one, and the look after it has gone; a renewal of many locks is
// a keep-alive, and another one that confirms their watches.
func TestRequestsPerOperation(t *testing.T) {
	s, c := newCountedStore(t)
	ctx := t.Context()
	warm := mutexClaim("packets/free")
	_, err := s.Acquire(ctx, warm)
	mustSucceed(t, err)
	mustSucceed(t, s.Release(ctx, warm, ""))
	c.takeCounts()
	const n = 50
	for range n {
		cl := mutexClaim("packets/free")
		cl.Wait = true
		if _, err := s.Acquire(ctx, cl); err != nil {
			t.Fatal(err)
		}
		mustSucceed(t, s.Release(ctx, cl, ""))
	}
	got := c.takeCounts()
	t.Logf("%d cycles on a free lock: %v", n, got)
	// The transactions are keep-alives; and a cycle that takes longer than the engine's watchDelay is watched.
	if got[zk.OpCreate2] != n || got[zk.OpGetChildren] != n || got[zk.OpDelete] != n || got[zk.OpMulti] > 20 ||
		got[zk.OpGetData] > n {
		t.Errorf("%d cycles sent %v", n, got)
	}

	other, _ := newCountedStore(t)
	best := 99
	for range 20 {
		hold, wait := mutexClaim("packets/held"), mutexClaim("packets/held")
		wait.Wait = true
		if _, err := other.Acquire(ctx, hold); err != nil {
			t.Fatal(err)
		}
		c.takeCounts()
		done := make(chan error, 1)
		go func() { _, err := s.Acquire(ctx, wait); done <- err }()
		for waits := false; !waits; {
			select {
			case err := <-done:
				t.Fatalf("not held by the other one: %v", err)
			default:
			}
			l, err := other.Inspect(ctx, "packets/held")
			mustSucceed(t, err)
			waits = len(l.Waiters) == 1
		}
		time.Sleep(5 * time.Millisecond)
		mustSucceed(t, other.Release(ctx, hold, ""))
		mustSucceed(t, <-done)
		mustSucceed(t, s.Release(ctx, wait, ""))
		got := c.takeCounts()
		delete(got, zk.OpMulti) // keep-alives
		sum := 0
		for _, k := range got {
			sum += k
		}
		best = min(best, sum)
	}
	t.Logf("a cycle that waited: %d packets", best)
	if best != 5 {
		t.Errorf("a cycle that waited sent %d packets at best, want 5", best)
	}

	var gs []driver.Grant
	for i := range 250 {
		claim := mutexClaim(fmt.Sprint("packets/many/", i))
		claim.TTL = 10 * time.Minute
		g, err := s.Acquire(ctx, claim)
		mustSucceed(t, err)
		gs = append(gs, g)
	}
	for read := 1; read > 0; { // each when its watch begins
		time.Sleep(time.Second)
		read = c.takeCounts()[zk.OpGetData]
	}
	start := time.Now()
	s.Renew(ctx, gs, func(_ int, r driver.Renewal) { mustSucceed(t, r.Err) })
	got = c.takeCounts()
	t.Logf("a renewal of 250 locks: %v", got)
	// Nodes are read if the watches cannot be confirmed in two seconds.
	if slow := time.Since(start) > 2*time.Second; got[zk.OpGetData] > 0 && !slow {
		t.Errorf("a renewal of 250 locks sent %v", got)
	}
	for _, g := range gs {
		mustSucceed(t, s.Release(ctx, g.Claim, ""))
	}
}
