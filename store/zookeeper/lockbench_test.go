package zookeeper_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	gozk "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	_ "github.com/holdfast-go/holdfast/store/zookeeper"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// BenchmarkLocks: the floor is a create, a listing and a delete, one after the other, by go-zookeeper. Between processes
// it also waits, until the node before its own has gone. The peer is the lock of that client. All are clients of one
// server of three, the leader.
func BenchmarkLocks(b *testing.B) {
	var ensemble *zktest.Ensemble
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			var err error
			if ensemble, err = zktest.Start(b.Context(), zktest.Options{Direct: true}); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(ensemble.Close)
			leader, err := ensemble.Leader(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			return "zookeeper://" + leader.Endpoint
		},
		Requests: func(ctx context.Context) (sum int64, err error) { // packets of clients
			for _, endpoint := range ensemble.Endpoints() {
				n, err := zktest.CountPackets(ctx, endpoint)
				if err != nil {
					return 0, err
				}
				sum += n
			}
			return sum, nil
		},
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(openBenchFloor),
			{Name: "go-zookeeper", Open: openGoZookeeper},
			benchtest.HandOverFloor(openWatchFloor),
			benchtest.Layout("plain", ""),
		}, benchtest.Holdfast("")...),
	}
	s.Run(b)
}

type noLogging struct{}

func (noLogging) Printf(string, ...any) {}

func benchClient(b testing.TB, address string) *gozk.Conn {
	servers := []string{strings.TrimPrefix(address, "zookeeper://")}
	c, _, err := gozk.Connect(servers, benchtest.TTL, gozk.WithLogger(noLogging{}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return c
}

func openBenchFloor(b testing.TB, address string) benchtest.Cycle {
	c := benchClient(b, address)
	enter := enterFolders(c)
	return func(_ context.Context, lock string) error {
		path, _, err := enter("/" + lock)
		if err == nil {
			err = c.Delete(path, -1)
		}
		return err
	}
}

// enterFolders returns a function that makes a node in a folder, and the folder when it is new, and lists the nodes.
func enterFolders(c *gozk.Conn) func(folder string) (path string, nodes []string, err error) {
	acl := gozk.WorldACL(gozk.PermAll)
	var folders sync.Map
	return func(folder string) (path string, nodes []string, err error) {
		if _, made := folders.LoadOrStore(folder, true); !made {
			if _, err := c.Create(folder, nil, 0, acl); err != nil && !errors.Is(err, gozk.ErrNodeExists) {
				return "", nil, err
			}
		}
		path, err = c.Create(folder+"/lock-", nil, gozk.FlagEphemeral|gozk.FlagSequence, acl)
		if err == nil {
			nodes, _, err = c.Children(folder)
		}
		return path, nodes, err
	}
}

// openWatchFloor waits until the node before its own has gone. Nobody gives up, so the lock is its own then. The number
// of its node is its token.
func openWatchFloor(b testing.TB, address string) benchtest.Lock {
	c := benchClient(b, address)
	enter := enterFolders(c)
	return func(_ context.Context, lock string, _ int) (benchtest.Lease, error) {
		path, nodes, err := enter("/" + lock)
		if err != nil {
			return benchtest.Lease{}, err
		}
		slices.Sort(nodes)
		lease := benchtest.Lease{Release: func() error { return c.Delete(path, -1) }}
		i := slices.Index(nodes, strings.TrimPrefix(path, "/"+lock+"/"))
		if i < 1 {
			return lease, nil
		}
		there, _, gone, err := c.ExistsW("/" + lock + "/" + nodes[i-1])
		if err == nil && there {
			err = (<-gone).Err
		}
		return lease, err
	}
}

func openGoZookeeper(b testing.TB, address string) benchtest.Lock {
	c := benchClient(b, address)
	return func(_ context.Context, name string, _ int) (benchtest.Lease, error) {
		l := gozk.NewLock(c, "/"+name, gozk.WorldACL(gozk.PermAll))
		return benchtest.Lease{Release: l.Unlock}, l.Lock()
	}
}
