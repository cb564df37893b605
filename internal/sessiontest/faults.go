//go:build unix

package sessiontest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/pace"
)

var faultRuns = flag.Int("faults", 10, "how often each fault is tried")

// faultTTL is the TTL of the locks in these tests.
const faultTTL = 2 * time.Second

// batchSize is how many holders are affected by one fault.
const batchSize = 10

// countBatches returns the number of batches.
func countBatches() int { return (*faultRuns + batchSize - 1) / batchSize }

func lockNames(t *testing.T, round int) (names []string) {
	for i := range batchSize {
		names = append(names, fmt.Sprintf("%s/%d-%d-%d", t.Name(), time.Now().UnixNano(), round, i))
	}
	return names
}

// rivalResult is when a rival, which waited for a lock, was granted it.
type rivalResult struct {
	lock      string
	grantedAt time.Time
	err       error
	repeated  bool // it had to wait for an earlier try of its own, whose outcome is not known
}

// startRivals waits for all locks, from one client that no fault affects and whose own TTL is longer than any pause
// of the machine.
func (h *Harness[C, P]) startRivals(t *testing.T, c C, locks []string, to ...*servertest.Server) func() []rivalResult {
	t.Helper()
	client := NewClient(t, h.Peer(t, c, to...), time.Minute)
	out := make([]rivalResult, len(locks))
	var all sync.WaitGroup
	for i, name := range locks {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			l, err := lockWithRetries(ctx, client, name)
			out[i] = rivalResult{lock: name, grantedAt: time.Now(), err: err}
			if err == nil {
				_ = l.Release()
			}
		})
	}
	return func() []rivalResult {
		all.Wait()
		client.Close()
		return out
	}
}

// startHolders takes each lock by a client and a link of its own, and returns when all are held. The function
// believed waits until no holder believes in its lock any more, and returns until when each did, in nanoseconds since
// 1970.
func (h *Harness[C, P]) startHolders(t *testing.T, c C, locks []string, ttl time.Duration,
	to ...*servertest.Server) (peers []P, leases []*holdfast.Lease, believed func() map[string]int64) {
	t.Helper()
	var clients []*holdfast.Client
	for _, name := range locks {
		p := h.Peer(t, c, to...)
		client := NewClient(t, p, ttl)
		peers, clients, leases = append(peers, p), append(clients, client), append(leases, Lock(t, client, name))
	}
	var all sync.WaitGroup
	last := make([]lastValid, len(locks))
	for i, name := range locks {
		all.Go(func() {
			last[i] = watchLease(name, func() bool { return leases[i].Valid() || leases[i].Context().Err() == nil })
		})
	}
	return peers, leases, func() map[string]int64 {
		all.Wait()
		believed := map[string]int64{}
		for i, client := range clients {
			believed[last[i].Lock] = last[i].Last
			go client.Close()
		}
		return believed
	}
}

// Cut cuts the links of holders without any notice.
func (h *Harness[C, P]) Cut(t *testing.T) {
	c := h.Shared(t)
	pulse := h.watchCluster(t, c)
	var y takeoverCounts
	for round := range countBatches() {
		locks := lockNames(t, round)
		peers, _, believed := h.startHolders(t, c, locks, faultTTL)
		next := h.startRivals(t, c, locks)
		time.Sleep(300*time.Millisecond + rand.N(faultTTL/2))
		fault := time.Now()
		for _, p := range peers {
			p.Cut()
		}
		b := believed()
		y.addRun(t, fault, b, next(), pulse)
		for _, p := range peers {
			p.Heal()
		}
	}
	y.checkCounts(t, h.keepTime(faultTTL)+h.Slack)
}

// ShortCut cuts the links of holders for less than a third of the TTL. If they lost anything by that, the absence of
// overlaps after a long cut would prove nothing. A cut that a slow machine has extended beyond that third is not
// counted, nor is a loss while the machine or the servers were slow themselves.
func (h *Harness[C, P]) ShortCut(t *testing.T) {
	c := h.Shared(t)
	const ttl = 3 * faultTTL
	const short = ttl/3 - 100*time.Millisecond
	pulse := h.watchCluster(t, c)
	n, drawnOut := 0, 0
	for round := range countBatches() {
		locks := lockNames(t, round)
		taken := time.Now()
		peers, leases, _ := h.startHolders(t, c, locks, ttl)
		time.Sleep(rand.N(ttl / 3))
		cuts := make([]time.Duration, len(peers))
		var all sync.WaitGroup
		for i, p := range peers {
			all.Go(func() {
				began := time.Now()
				p.Cut()
				time.Sleep(time.Until(began.Add(short)))
				p.Heal()
				cuts[i] = time.Since(began)
			})
		}
		all.Wait()
		time.Sleep(ttl / 2)
		for i, l := range leases {
			err := context.Cause(l.Context())
			if l.Valid() && err == nil {
				err = l.Release()
			}
			switch {
			case cuts[i] > ttl/3, err != nil && pulse.Worst(taken) > ttl/20:
				drawnOut++
			case err != nil:
				t.Errorf("%s was lost to a cut of %v: %v", locks[i], cuts[i], err)
			default:
				n++
			}
		}
	}
	t.Logf("%d holders met a cut of %v under a TTL of %v, and lost nothing; %d do not count", n, short, ttl, drawnOut)
}

// Kill kills the processes of holders.
func (h *Harness[C, P]) Kill(t *testing.T) {
	c := h.Shared(t)
	pulse := h.watchCluster(t, c)
	var y takeoverCounts
	for round := range countBatches() {
		locks := lockNames(t, round)
		w := h.StartWorker(t, WorkerTask{Do: "hold", Endpoints: c.Endpoints(), Locks: locks, TTL: faultTTL})
		w.awaitLine(t, "held")
		next := h.startRivals(t, c, locks)
		time.Sleep(100*time.Millisecond + rand.N(faultTTL/2))
		fault := time.Now()
		if err := w.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		y.addRun(t, fault, nil, next(), pulse)
	}
	y.checkCounts(t, h.keepTime(faultTTL)+h.Slack)
}

// Stop stops the processes of holders until others were granted their locks.
func (h *Harness[C, P]) Stop(t *testing.T) {
	c := h.Shared(t)
	pulse := h.watchCluster(t, c)
	var y takeoverCounts
	for round := range countBatches() {
		locks := lockNames(t, round)
		w := h.StartWorker(t, WorkerTask{Do: "hold", Endpoints: c.Endpoints(), Locks: locks, TTL: faultTTL})
		w.awaitLine(t, "held")
		next := h.startRivals(t, c, locks)
		time.Sleep(100*time.Millisecond + rand.N(faultTTL/2))
		fault := time.Now()
		_ = w.Process.Signal(syscall.SIGSTOP)
		in := next()
		_ = w.Process.Signal(syscall.SIGCONT)
		believed := map[string]int64{}
		for w.lines.Scan() {
			var b lastValid
			if json.Unmarshal(w.lines.Bytes(), &b) == nil {
				believed[b.Lock] = b.Last
			}
		}
		if len(believed) != len(locks) {
			t.Errorf("%d of %d holders have said when they stopped believing", len(believed), len(locks))
		}
		y.addRun(t, fault, believed, in, pulse)
	}
	y.checkCounts(t, h.keepTime(faultTTL)+h.Slack)
}

// StopWaiting stops the process of a waiter until its session has expired.
func (h *Harness[C, P]) StopWaiting(t *testing.T) {
	c := h.Shared(t)
	p := h.Peer(t, c)
	l := Lock(t, NewClient(t, p, time.Minute), t.Name())
	w := h.StartWorker(t, WorkerTask{Do: "wait", Endpoints: c.Endpoints(), Lock: t.Name(), TTL: faultTTL})
	AwaitWaiter(t, p, t.Name())
	_ = w.Process.Signal(syscall.SIGSTOP)
	awaitState(t, p, t.Name(), func(l driver.Lock) bool { return len(l.Waiters) == 0 })
	_ = w.Process.Signal(syscall.SIGCONT)
	AwaitWaiter(t, p, t.Name())
	CheckError(t, l.Release())
	w.awaitLine(t, "in")
}

// Minority cuts the server of holders off from the others: first the leader, and then a follower.
func (h *Harness[C, P]) Minority(t *testing.T) {
	c := h.Own(t)
	all := c.Servers()
	var machine pace.Pace
	defer machine.Watch()()
	var y takeoverCounts
	for round := range max(2, countBatches()) {
		alone, err := c.Leader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if round%2 == 1 {
			alone = all[(slices.Index(all, alone)+1)%len(all)]
		}
		others := slices.DeleteFunc(slices.Clone(all), func(s *servertest.Server) bool { return s == alone })
		locks := lockNames(t, round)
		_, _, believed := h.startHolders(t, c, locks, faultTTL, alone)
		next := h.startRivals(t, c, locks, others...)
		time.Sleep(200*time.Millisecond + rand.N(faultTTL/2))
		fault := time.Now()
		c.Isolate(alone)
		b := believed()
		y.addRun(t, fault, b, next(), &machine)
		c.Join()
		if err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// A new leader restarts the time of every session, so this may take longer than a TTL, and longer still by the time
	// without a leader.
	y.checkCounts(t, 2*faultTTL+20*time.Second)
}
