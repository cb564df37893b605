//go:build unix

package sessiontest

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pace"
)

var (
	leaderFaults   = flag.Int("leaders", 2, "how many leaders are killed or stopped")
	leaderInterval = flag.Duration("leader-every", 6*time.Second,
		"the time from one to the next; for half of it the server is away")
)

// LeaderKilled kills and stops leaders while one client holds a lock and, with many requests at a time, takes others
// again and again. No lock is held twice at the same time, and no claim is left at the end. The next leader is killed
// or stopped when the last one has come back, because there would be no majority otherwise. The whole test takes
// longer than the TTL, so that the lock is not kept without renewals.
func (h *Harness[C, P]) LeaderKilled(t *testing.T) {
	c := h.Own(t)
	run := &leaderRun{client: NewClient(t, h.Peer(t, c), leaderTTL), name: t.Name() + "/other-", began: time.Now()}
	defer run.machine.Watch()()
	t.Cleanup(run.leaderless.WatchTask(100*time.Millisecond, func(<-chan struct{}) {
		time.Sleep(100 * time.Millisecond)
		_, _ = c.Leader(t.Context())
	}))
	kept := Lock(t, run.client, t.Name()+"/kept")
	stop := run.startCycles(t)
	for i := range *leaderFaults {
		before := run.cycles.Load()
		failLeader(t, c, i%2 == 0)
		CheckError(t, c.Ready(t.Context()))
		run.awaitCycle(t, before)
	}
	time.Sleep(time.Until(run.began.Add(leaderTTL)))
	stop()
	run.checkKept(t, kept)
	run.checkNoClaims(t)
	t.Logf("%d other cycles while %d leaders were killed or stopped, one every %v", run.cycles.Load(), *leaderFaults,
		*leaderInterval)
}

// leaderTTL is the TTL in LeaderKilled.
const leaderTTL = 30 * time.Second

// leaderRun is one run of LeaderKilled: a client that takes a few locks again and again.
type leaderRun struct {
	client     *holdfast.Client
	name       string // of the locks, without their number
	began      time.Time
	cycles     atomic.Int64
	inside     [4]atomic.Int64 // how many hold each lock
	leaderless pace.Pace       // for how long the cluster had no leader
	machine    pace.Pace
}

func (run *leaderRun) lockName(i int) string { return fmt.Sprint(run.name, i) }

// startCycles takes the locks again and again, with many requests at a time, until the returned function is called.
func (run *leaderRun) startCycles(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for w := range 16 {
		workers.Go(func() {
			for i := w % len(run.inside); ctx.Err() == nil; {
				l, err := run.client.Mutex(run.lockName(i), nil).Lock(ctx)
				if err != nil {
					continue
				}
				if run.inside[i].Add(1) > 1 && l.Valid() {
					t.Error("two hold a lock at the same time")
				}
				run.inside[i].Add(-1)
				_ = l.Release()
				run.cycles.Add(1)
			}
		})
	}
	return func() { cancel(); workers.Wait() }
}

// failLeader kills or stops the leader for half of leaderInterval, and returns after leaderInterval.
func failLeader(t *testing.T, c Cluster, kill bool) {
	t.Helper()
	leader, err := c.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if kill {
		leader.Kill()
		time.Sleep(*leaderInterval / 2)
		CheckError(t, leader.Start())
	} else {
		leader.Stop()
		time.Sleep(*leaderInterval / 2)
		leader.Continue()
	}
	time.Sleep(*leaderInterval / 2)
}

// awaitCycle waits until a lock was taken and released again.
func (run *leaderRun) awaitCycle(t *testing.T, before int64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); run.cycles.Load() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no other lock was granted for a minute after a leader had come back")
		}
	}
}

// checkKept releases the lock that was held all the time. A holder cannot keep its lock without a majority: if there
// was none for too long on a slow machine, a loss proves nothing.
func (run *leaderRun) checkKept(t *testing.T, kept *holdfast.Lease) {
	t.Helper()
	leaderless := run.leaderless.Worst(run.began)
	t.Logf("without a leader for up to %v", leaderless.Round(10*time.Millisecond))
	if err := kept.Release(); err != nil && max(leaderless, 10*run.machine.Worst(run.began)) < leaderTTL/3 {
		t.Errorf("the lock was lost: %v", err)
	}
}

// checkNoClaims checks that nothing is left on the other locks. A request that was canceled may still be on its way,
// so it waits; but not for as long as a claim exists that was left by mistake.
func (run *leaderRun) checkNoClaims(t *testing.T) {
	t.Helper()
	for i := range run.inside {
		CheckError(t, Lock(t, run.client, run.lockName(i)).Release()) // granted when all claims before it have gone
		for released := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			l, err := run.client.Inspect(t.Context(), run.lockName(i))
			if err == nil && len(l.Holders)+len(l.Waiters) == 0 {
				break
			}
			limit := min(leaderTTL/2+10*run.machine.Worst(run.began), leaderTTL-2*time.Second)
			if err != nil || time.Since(released) > limit {
				t.Errorf("left: %+v, %v", l, err)
				break
			}
		}
	}
}

// AllKilled kills all servers, and starts them again within the TTL.
func (h *Harness[C, P]) AllKilled(t *testing.T) {
	c := h.Own(t)
	client := NewClient(t, h.Peer(t, c), 45*time.Second)
	l := Lock(t, client, t.Name())
	for _, m := range c.Servers() {
		m.Kill()
	}
	for _, m := range c.Servers() {
		CheckError(t, m.Start())
	}
	CheckError(t, c.Ready(t.Context()))
	AwaitRenewal(t, l)
	token := l.Token()
	CheckError(t, l.Release())
	next := Lock(t, client, t.Name())
	if next.Token() <= token {
		t.Errorf("token %d came after %d", next.Token(), token)
	}
	CheckError(t, next.Release())
}

// HalfDead gives a client addresses of which the first answer nothing.
func (h *Harness[C, P]) HalfDead(t *testing.T) {
	url := h.clusterURL("127.0.0.1:1", "127.0.0.1:2", h.Shared(t).Endpoints()[0])
	client, err := holdfast.Open(t.Context(), url, &holdfast.Options{TTL: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	began := time.Now()
	CheckError(t, Lock(t, client, t.Name()).Release())
	t.Logf("locked and unlocked in %v", time.Since(began).Round(time.Millisecond))
}
