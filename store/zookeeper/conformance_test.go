package zookeeper

import (
	"context"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

var rig = sessiontest.Harness[*zktest.Ensemble, *peer]{
	Scheme: "zookeeper",
	Start: func(ctx context.Context, direct bool) (*zktest.Ensemble, error) {
		return zktest.Start(ctx, zktest.Options{Direct: direct})
	},
	Open:  openPeer,
	Slack: 1750 * time.Millisecond, // one and a half of the servers' ticks, and a second for a busy machine
}

// Short names for what the tests use often.
var (
	mustSucceed = sessiontest.CheckError
	mustLock    = sessiontest.Lock
	newClient   = sessiontest.NewClient
	mutexClaim  = sessiontest.Claim
)

func TestMain(m *testing.M) { rig.Main(m) }

// peer is a store behind a link of its own.
type peer struct {
	*store
	*servertest.Net
}

func openPeer(c *zktest.Ensemble, to ...*servertest.Server) (*peer, error) {
	way, ends, err := c.Link(to...)
	if err != nil {
		return nil, err
	}
	s, err := openAs[*store](ends, Options{})
	if err != nil {
		way.Close()
		return nil, err
	}
	return &peer{s, way}, nil
}

// openAs opens a store, and returns it as the type that the layout has inside this package.
func openAs[S driver.Store](servers []string, o Options) (s S, err error) {
	opened, err := New(context.Background(), servers, &o)
	if err != nil {
		return s, err
	}
	return opened.(S), nil
}

// Table keeps records by the store's own connections, and ends with the store.
func (p *peer) Table() record.Table { return newTable(p.nodeStore, records) }

// Close ends the client, and then the link.
func (p *peer) Close() error {
	err := p.store.Close()
	p.Net.Close()
	return err
}

// startEnsemble runs an ensemble for one test.
func startEnsemble(t *testing.T, o zktest.Options) *zktest.Ensemble {
	t.Helper()
	c, err := zktest.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// newAdmin opens a client of another library.
func newAdmin(t testing.TB, c *zktest.Ensemble) *gozk.Conn {
	t.Helper()
	return newAdminAt(t, c.Endpoints())
}

func newAdminAt(t testing.TB, servers []string) *gozk.Conn {
	t.Helper()
	cli, _, err := gozk.Connect(servers, time.Minute, gozk.WithLogger(noLogger{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cli.Close)
	return cli
}

// catchUp makes the following reads of a session of go-zookeeper see all that was committed before. Its Sync does not,
// see [zk.Barrier].
func catchUp(t testing.TB, cli *gozk.Conn) {
	t.Helper()
	if err := cli.Delete("/no-such-node", -1); err != gozk.ErrNoNode {
		t.Fatal(err)
	}
}

// waitUntilWatching waits until a store's client watches something.
func waitUntilWatching(t *testing.T, s *nodeStore) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !s.isWatching(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("nothing is watched")
		}
	}
}

type noLogger struct{}

func (noLogger) Printf(string, ...any) {}

// TestConformance: the store keeps every promise of the contract, on three servers.
func TestConformance(t *testing.T) {
	rig.Conformance(t)
}

// TestTable: the table keeps what the record engine needs, so that locks kept in it keep all promises, too.
func TestTable(t *testing.T) {
	t.Parallel()
	rig.Table(t)
}

// TestStoreClock: the servers tell the time.
func TestStoreClock(t *testing.T) {
	t.Parallel()
	sessiontest.CheckStoreClock(t, sessiontest.NewClient(t, rig.Peer(t, rig.Shared(t)).store, 30*time.Second))
}

// TestTableSilence: a waiter for a lock that is kept in records gets an error when an ensemble does not answer for
// too long.
func TestTableSilence(t *testing.T) {
	t.Parallel()
	rig.TableSilence(t)
}

// TestCut: a holder whose packets are dropped stops relying on its lock before the next is let in.
func TestCut(t *testing.T) {
	t.Parallel()
	rig.Cut(t)
}

// TestShortCut: a cut of less than a third of the TTL loses nothing.
func TestShortCut(t *testing.T) {
	t.Parallel()
	rig.ShortCut(t)
}

// TestKill: when a holder's process is killed its lock passes on within the TTL and one and a half of the
// servers' ticks.
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

// TestStop: a holder whose process is stopped for longer than its TTL knows at once, when it goes on,
// that it has lost the lock.
func TestStop(t *testing.T) {
	t.Parallel()
	rig.Stop(t)
}

// TestStopWaiting: a waiter whose process is stopped for longer than its TTL goes on waiting, and is let in.
func TestStopWaiting(t *testing.T) {
	t.Parallel()
	rig.StopWaiting(t)
}

// TestMinority: a holder whose server is cut off from the others, leader or not, stops relying on its lock before
// the next is let in by the majority.
func TestMinority(t *testing.T) {
	t.Parallel()
	rig.Minority(t)
}

// TestLeaderKilled: when the leader is killed or stopped repeatedly, a holder keeps its lock, and others get theirs.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	rig.LeaderKilled(t)
}

// TestAllKilled: when all servers are killed and come back within the TTL, holders keep their locks and tokens rise.
func TestAllKilled(t *testing.T) {
	t.Parallel()
	rig.AllKilled(t)
}

// TestHalfDead: a client whose first servers are dead works with the others.
func TestHalfDead(t *testing.T) {
	t.Parallel()
	rig.HalfDead(t)
}

// TestFairness: of 64 clients in eight processes nobody is overtaken, also while the ensemble loses its leader.
func TestFairness(t *testing.T) {
	t.Parallel()
	rig.Fairness(t)
}

// TestCancels: acquires that are canceled at any moment leave no node after a second.
func TestCancels(t *testing.T) {
	t.Parallel()
	rig.Cancels(t)
}

// TestHeld: held locks cost memory, but no goroutine and no requests each.
func TestHeld(t *testing.T) {
	s, c := newCountedStore(t)
	sessiontest.Held(t, s, c.takeAll)
}

// TestTLS: with the right authority the store works, and with the wrong one it says so.
func TestTLS(t *testing.T) {
	t.Parallel()
	rig.TLS(t, func(cert, key string) *zktest.Ensemble {
		return startEnsemble(t, zktest.Options{Members: 1,
			Lines: []string{"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
				"client.portUnification=true", "ssl.clientAuth=none", "ssl.keyStore.location=" +
					key, "ssl.trustStore.location=" + cert}})
	})
}
