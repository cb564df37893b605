package etcd

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var rig = sessiontest.Harness[*etcdtest.Cluster, *peer]{
	Scheme: "etcd",
	Start: func(ctx context.Context, direct bool) (*etcdtest.Cluster, error) {
		return etcdtest.Start(ctx, etcdtest.Options{Direct: direct})
	},
	Open:        openPeer,
	Slack:       time.Second,
	WorkerTasks: map[string]func(sessiontest.WorkerTask) error{"peer": foreignMutex},
}

// Short names for helpers that the tests use often.
var (
	fails      = sessiontest.CheckError
	lease      = sessiontest.Lock
	newClient  = sessiontest.NewClient
	mutexClaim = sessiontest.Claim
)

func TestMain(m *testing.M) { rig.Main(m) }

// peer is a store behind a link of its own.
type peer struct {
	*store
	*servertest.Net
	cli *clientv3.Client
}

func openPeer(c *etcdtest.Cluster, to ...*servertest.Server) (*peer, error) {
	way, ends, err := c.Link(to...)
	if err != nil {
		return nil, err
	}
	cli, err := etcdtest.Connect(ends)
	if err != nil {
		way.Close()
		return nil, err
	}
	s, err := New(context.Background(), cli, nil)
	if err != nil {
		way.Close()
		return nil, err
	}
	return &peer{s.(*store), way, cli}, nil
}

// Table keeps records over the store's own connection, and ends with the store.
func (p *peer) Table() record.Table { return newTable(p.nodes, recordFolder) }

// Close ends the client, and then the link.
func (p *peer) Close() error {
	err := p.store.Close()
	_ = p.cli.Close() // its error only says that its context has ended
	p.Net.Close()
	return err
}

// startCluster runs a cluster for one test.
func startCluster(t *testing.T, o etcdtest.Options) *etcdtest.Cluster {
	t.Helper()
	c, err := etcdtest.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// newAdmin makes a client that is not the store's.
func newAdmin(t *testing.T, c *etcdtest.Cluster) *clientv3.Client {
	t.Helper()
	cli, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return cli
}

// TestConformance: on three servers the store keeps every promise of the contract.
func TestConformance(t *testing.T) {
	t.Parallel()
	rig.Conformance(t)
}

// TestTable: the table gives the record engine what it needs, so that locks on it keep all promises too.
func TestTable(t *testing.T) {
	t.Parallel()
	rig.Table(t)
}

// TestStoreClock: the servers tell the time.
func TestStoreClock(t *testing.T) {
	t.Parallel()
	sessiontest.CheckStoreClock(t, sessiontest.NewClient(t, rig.Peer(t, rig.Shared(t)).store, 30*time.Second))
}

// TestTableSilence: a call that waits for a lock that is kept in records returns when the cluster has not answered for
// the unreachable timeout.
func TestTableSilence(t *testing.T) {
	t.Parallel()
	rig.TableSilence(t)
}

// TestCut: a holder whose link silently drops everything stops trusting its lease before the next claim is granted.
func TestCut(t *testing.T) {
	t.Parallel()
	rig.Cut(t)
}

// TestShortCut: a cut of less than a third of the TTL loses no lease.
func TestShortCut(t *testing.T) {
	t.Parallel()
	rig.ShortCut(t)
}

// TestKill: when a holder's process is killed, its lock is granted to the next claim within the TTL and a second.
func TestKill(t *testing.T) {
	t.Parallel()
	rig.Kill(t)
}

// TestRunKill: when a worker's process is killed, its run is abandoned, and a client that asks only once begins the
// next.
func TestRunKill(t *testing.T) {
	t.Parallel()
	rig.RunKill(t)
}

// TestRunCut: a worker whose link silently drops everything stops trusting its run before another client, which has
// watched nothing, begins the next.
func TestRunCut(t *testing.T) {
	t.Parallel()
	rig.RunCut(t)
}

// TestRunNotRenewed: a run that is not renewed is abandoned, although its client goes on with others.
func TestRunNotRenewed(t *testing.T) {
	t.Parallel()
	rig.RunNotRenewed(t)
}

// TestStop: a holder whose process is stopped for longer than its TTL knows that it has lost the lock the first time
// that it checks.
func TestStop(t *testing.T) {
	t.Parallel()
	rig.Stop(t)
}

// TestStopWaiting: a waiter whose process is stopped for longer than its TTL goes on waiting, and is granted the lock.
func TestStopWaiting(t *testing.T) {
	t.Parallel()
	rig.StopWaiting(t)
}

// TestMinority: the server of a holder, leader or not, is cut off from the others. The holder stops trusting its lease
// before the majority grants the lock to the next claim.
func TestMinority(t *testing.T) {
	t.Parallel()
	rig.Minority(t)
}

// TestLeaderKilled: while the leader is killed or stopped again and again, a holder keeps its lock, and others are
// granted theirs.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	rig.LeaderKilled(t)
}

// TestAllKilled: when all servers are killed and restart within the TTL, holders keep their locks, and tokens rise.
func TestAllKilled(t *testing.T) {
	t.Parallel()
	rig.AllKilled(t)
}

// TestHalfDead: a client whose first endpoints are dead works with the others.
func TestHalfDead(t *testing.T) {
	t.Parallel()
	rig.HalfDead(t)
}

// TestFairness: of 64 clients in eight processes none is overtaken, even while the cluster loses its leader.
func TestFairness(t *testing.T) {
	t.Parallel()
	rig.Fairness(t)
}

// TestCancels: acquires that are canceled at any time leave no key after a second.
func TestCancels(t *testing.T) {
	rig.Cancels(t)
}

// TestHeld: held locks cost memory, but no goroutine and no requests each.
func TestHeld(t *testing.T) {
	s, _, c := benchStore(t)
	sessiontest.Held(t, s, c.takeAll)
}
