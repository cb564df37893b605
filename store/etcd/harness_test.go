package etcd

import (
	"context"
	"fmt"
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

// Short names for what the tests say often.
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

// Table keeps records by the store's own connection, and ends with the store.
func (p *peer) Table() record.Table { return newTable(p.nodes) }

// Close ends the client, and then the link.
func (p *peer) Close() error {
	err := p.store.Close()
	_ = p.cli.Close() // says no more than that its context has ended
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

// newAdmin is a client that is not ours.
func newAdmin(t *testing.T, c *etcdtest.Cluster) *clientv3.Client {
	t.Helper()
	cli, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return cli
}

// TestConformance: the store keeps every promise of the contract, on three servers.
func TestConformance(t *testing.T) {
	t.Parallel()
	rig.Conformance(t)
}

// TestTable: the table keeps what the record engine needs, so that locks kept in it keep all promises, too.
func TestTable(t *testing.T) {
	t.Parallel()
	rig.Table(t)
}

// TestTableSilence: who waits for a lock that is kept in records is told when his patience with a silent cluster is
// over.
func TestTableSilence(t *testing.T) {
	t.Parallel()
	rig.TableSilence(t)
}

// TestCut: a holder that is cut off in silence stops believing before the next is let in.
func TestCut(t *testing.T) {
	t.Parallel()
	rig.Cut(t)
}

// TestShortCut: a cut of less than a third of the TTL loses nothing.
func TestShortCut(t *testing.T) {
	t.Parallel()
	rig.ShortCut(t)
}

// TestKill: when a holder's process is killed its lock passes on within the TTL and a second.
func TestKill(t *testing.T) {
	t.Parallel()
	rig.Kill(t)
}

// TestStop: a holder whose process is stopped for longer than its TTL knows at its first look, when it goes on, that it
// has lost the lock.
func TestStop(t *testing.T) {
	t.Parallel()
	rig.Stop(t)
}

// TestStopWaiting: a waiter whose process is stopped for longer than its TTL goes on waiting, and is let in.
func TestStopWaiting(t *testing.T) {
	t.Parallel()
	rig.StopWaiting(t)
}

// TestMinority: a holder whose server is cut off from the others, leader or not, stops believing before the next is let
// in by the majority.
func TestMinority(t *testing.T) {
	t.Parallel()
	rig.Minority(t)
}

// TestLeaderKilled: with the leader killed or stopped again and again a holder keeps its lock, and others get theirs.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	rig.LeaderKilled(t)
}

// TestAllKilled: when all servers are killed and come back within the TTL, holders keep their locks and tokens rise.
func TestAllKilled(t *testing.T) {
	t.Parallel()
	rig.AllKilled(t)
}

// TestHalfDead: a client whose first endpoints are dead works with the others.
func TestHalfDead(t *testing.T) {
	t.Parallel()
	rig.HalfDead(t)
}

// TestFairness: of 64 clients in eight processes nobody is overtaken, also while the cluster loses its leader.
func TestFairness(t *testing.T) {
	t.Parallel()
	rig.Fairness(t)
}

// TestCancels: acquires that are given up at any moment leave no key after a second.
func TestCancels(t *testing.T) {
	rig.Cancels(t)
}

// TestHeld: held locks cost memory, and no goroutine each; their renewals are one beat and one read for every hundred.
func TestHeld(t *testing.T) {
	s, _, c := benchStore(t)
	sent := func() (int, string) { all := c.take(); return all["Txn"], fmt.Sprint(all) }
	sessiontest.Held(t, s, 12*time.Second, sent, func(n int) int { return 4*(n/100+1) + 8 })
}
