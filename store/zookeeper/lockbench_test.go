package zookeeper_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	gozk "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	_ "github.com/holdfast-go/holdfast/store/zookeeper"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// BenchmarkLocks: the floor is a create, a listing and a delete, one after the other, by go-zookeeper. The peer is the
// lock of that client. All are clients of one server of three, the leader.
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
		Requests: func(b testing.TB) (n int64) {
			for _, endpoint := range ensemble.Endpoints() {
				packets, err := zktest.CountPackets(b.Context(), endpoint)
				if err != nil {
					b.Fatal(err)
				}
				n += packets
			}
			return n
		},
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(openBenchFloor),
			{Name: "go-zookeeper", Open: openGoZookeeper},
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
	c, acl := benchClient(b, address), gozk.WorldACL(gozk.PermAll)
	var folders sync.Map
	return func(_ context.Context, lock string) error {
		folder := "/" + lock
		if _, made := folders.LoadOrStore(folder, true); !made {
			if _, err := c.Create(folder, nil, 0, acl); err != nil && !errors.Is(err, gozk.ErrNodeExists) {
				return err
			}
		}
		path, err := c.Create(folder+"/lock-", nil, gozk.FlagEphemeral|gozk.FlagSequence, acl)
		if err == nil {
			_, _, err = c.Children(folder)
		}
		if err == nil {
			err = c.Delete(path, -1)
		}
		return err
	}
}

func openGoZookeeper(b testing.TB, address string) benchtest.Lock {
	c := benchClient(b, address)
	return func(_ context.Context, name string, _ int) (benchtest.Lease, error) {
		l := gozk.NewLock(c, "/"+name, gozk.WorldACL(gozk.PermAll))
		return benchtest.Lease{Release: l.Unlock}, l.Lock()
	}
}
