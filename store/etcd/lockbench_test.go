package etcd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	_ "github.com/holdfast-go/holdfast/store/etcd"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
)

// BenchmarkLocks: the floor is one transaction and one delete. Next to it are the requests that a mutex of ours makes,
// sent by nothing but etcd's client: what they cost more than the floor is their content, and what our mutex costs more
// than they do is our code. The peer is etcd's own mutex.
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
		Requests: func(b testing.TB) (n int64) {
			for _, endpoint := range cluster.Endpoints() {
				n += countMessages(b, endpoint)
			}
			return n
		},
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(openBenchFloor),
			{Name: "floor-same-requests", In: []benchtest.Setup{benchtest.Alone, benchtest.OwnKeys}, Open: openSameRequests},
			{Name: "concurrency", Open: openConcurrency},
		}, benchtest.Holdfast("")...),
	}
	s.Run(b)
}

// countMessages returns how many messages a member has had from clients.
func countMessages(b testing.TB, endpoint string) (n int64) {
	r, err := http.Get("http://" + endpoint + "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer r.Body.Close()
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if strings.HasPrefix(name, "grpc_server_msg_received_total{") {
			var f float64
			_, _ = fmt.Sscan(value, &f)
			n += int64(f)
		}
	}
	return n
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
