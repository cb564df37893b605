package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	"github.com/holdfast-go/holdfast/internal/benchtest/requests"
	_ "github.com/holdfast-go/holdfast/store/etcd"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
)

// BenchmarkLocks: the floor is one transaction and one delete. Next to it are the requests that a mutex of ours makes,
// sent by nothing but etcd's client: what they cost more than the floor is their content, and what our mutex costs more
// than they do is our code. The peer is etcd's own mutex. Between processes the floor also waits: by one watch.
func BenchmarkLocks(b *testing.B) {
	var cluster *etcdtest.Cluster
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			var err error
			if cluster, err = etcdtest.Start(b.Context(), etcdtest.Options{Direct: true}); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(cluster.Close)
			return "etcd://" + strings.Join(cluster.Endpoints(), ",")
		},
		Requests: func(ctx context.Context) (sum int64, err error) { // messages of clients
			for _, at := range cluster.Endpoints() {
				n, err := requests.SumMetric(ctx, http.DefaultClient, "http://"+at+"/metrics", "grpc_server_msg_received_total")
				if err != nil {
					return 0, err
				}
				sum += n
			}
			return sum, nil
		},
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(openBenchFloor),
			{Name: "floor-same-requests", In: []benchtest.Setup{benchtest.Alone, benchtest.OwnKeys}, Open: openSameRequests},
			{Name: "concurrency", Open: openConcurrency},
			benchtest.HandOverFloor(openWatchFloor),
		}, benchtest.Holdfast("")...),
	}
	s.Run(b)
}

func benchClient(b testing.TB, address string) *clientv3.Client {
	c, err := etcdtest.Connect(strings.Split(strings.TrimPrefix(address, "etcd://"), ","))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

func benchSession(b testing.TB, c *clientv3.Client) *concurrency.Session {
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(benchtest.TTL/time.Second)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

func openBenchFloor(b testing.TB, address string) benchtest.Cycle {
	c := benchClient(b, address)
	lease := benchSession(b, c).Lease()
	return func(ctx context.Context, lock string) error {
		key := fmt.Sprintf("%s/%x", lock, lease)
		_, err := c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, "", clientv3.WithLease(lease)),
				clientv3.OpGet(lock+"/", clientv3.WithFirstCreate()...)).Commit()
		if err == nil {
			_, err = c.Delete(ctx, key)
		}
		return err
	}
}

// openWatchFloor waits until the key that was made before its own has gone. Nobody gives up, so the lock is its own
// then. The revision at which its key was made is its token.
func openWatchFloor(b testing.TB, address string) benchtest.Lock {
	c := benchClient(b, address)
	lease := benchSession(b, c).Lease()
	var made atomic.Int64
	return func(ctx context.Context, lock string, _ int) (benchtest.Lease, error) {
		key := fmt.Sprintf("%s/%x.%d", lock, lease, made.Add(1))
		release := func() error { _, err := c.Delete(ctx, key); return err }
		r, err := c.Txn(ctx).Then(clientv3.OpGet(lock+"/", append(clientv3.WithLastCreate(), clientv3.WithKeysOnly())...),
			clientv3.OpPut(key, "", clientv3.WithLease(lease))).Commit()
		if err != nil || len(r.Responses[0].GetResponseRange().Kvs) == 0 {
			return benchtest.Lease{Release: release}, err
		}
		before := string(r.Responses[0].GetResponseRange().Kvs[0].Key)
		watching, stop := context.WithCancel(ctx)
		defer stop()
		for w := range c.Watch(watching, before, clientv3.WithRev(r.Header.Revision), clientv3.WithFilterPut()) {
			if err := w.Err(); err != nil {
				return benchtest.Lease{}, err
			}
			if len(w.Events) > 0 {
				return benchtest.Lease{Release: release}, nil
			}
		}
		return benchtest.Lease{}, errors.New("the watch has ended")
	}
}

// openSameRequests sends the transactions that an acquire and a release of ours send. Instead of the gate of a
// session, the first compares a key that does not exist.
func openSameRequests(b testing.TB, address string) benchtest.Lock {
	c := benchClient(b, address)
	lease := benchSession(b, c).Lease()
	value := strings.Repeat("v", 200)
	return func(ctx context.Context, lock string, caller int) (benchtest.Lease, error) {
		dir := "same-requests/" + lock + "/"
		key := fmt.Sprintf("%s%x.%d", dir, lease, caller)
		readLock := clientv3.OpGet(dir+"0", clientv3.WithRange(dir+"g"))
		r, err := c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
			clientv3.Compare(clientv3.ModRevision("same-requests/gate"), "=", 0)).
			Then(readLock, clientv3.OpPut(key, value, clientv3.WithLease(lease))).Commit()
		if err == nil && !r.Succeeded {
			err = errors.New("the lock is held")
		}
		return benchtest.Lease{Release: func() error {
			_, err := c.Txn(ctx).Then(clientv3.OpDelete(key)).Commit()
			return err
		}}, err
	}
}

// openConcurrency gives each caller a session of its own: two callers of one session would both have a lock.
func openConcurrency(b testing.TB, address string) benchtest.Lock {
	c := benchClient(b, address)
	var sessions sync.Map // caller -> func() *concurrency.Session
	return func(ctx context.Context, name string, caller int) (benchtest.Lease, error) {
		open, _ := sessions.LoadOrStore(caller, sync.OnceValue(func() *concurrency.Session {
			return benchSession(b, c)
		}))
		m := concurrency.NewMutex(open.(func() *concurrency.Session)(), name)
		return benchtest.Lease{Release: func() error { return m.Unlock(ctx) }}, m.Lock(ctx)
	}
}
