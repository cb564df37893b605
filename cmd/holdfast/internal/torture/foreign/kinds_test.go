package foreign

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	etcd "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/acquire"
	"github.com/holdfast-go/holdfast/driver"
	_ "github.com/holdfast-go/holdfast/store/consul"
	"github.com/holdfast-go/holdfast/store/consul/consultest"
	_ "github.com/holdfast-go/holdfast/store/etcd"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	_ "github.com/holdfast-go/holdfast/store/redis"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
	_ "github.com/holdfast-go/holdfast/store/zookeeper"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// plant makes what a foreign client has in a store while it holds the lock of this name.
type plant func(t *testing.T, name string)

// kindsCase is a store in one layout, and what foreign clients may hold there.
type kindsCase struct {
	url    string
	plants map[string]plant
}

// TestForeignKinds: whatever a foreign client holds, in whatever layout of a store, the command's claims on it end: a
// try soon, and a wait with its context or with a final error. None of them hammers the store, and none is granted,
// except a reader next to a foreign reader.
func TestForeignKinds(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) map[string]kindsCase{
		"zookeeper": startZooKeeperKinds, "consul": startConsulKinds, "redis": startRedisKinds, "etcd": startEtcdKinds,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for layout, c := range start(t) {
				for what, plant := range c.plants {
					t.Run(layout+" "+what, func(t *testing.T) {
						t.Parallel()
						lock := strings.NewReplacer(" ", "-", "_", "-", "/", "-").Replace(t.Name())
						plant(t, lock)
						checkForeignKind(t, c.url, lock, strings.Contains(what, "reader"))
					})
				}
			}
		})
	}
}

// countingStore counts the claims that are made.
type countingStore struct {
	driver.Store
	claims atomic.Int64
}

func (s *countingStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	s.claims.Add(1)
	return s.Store.Acquire(ctx, c)
}

// checkForeignKind makes the claims of run and run --shared, with and without a wait, on a lock that a foreign client
// holds.
func checkForeignKind(t *testing.T, url, lock string, byReader bool) {
	const waitTime, maxClaims = 1500 * time.Millisecond, 12
	opened, err := driver.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	s := &countingStore{Store: opened}
	client, err := holdfast.New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, shared := range []bool{false, true} {
		for _, wait := range []bool{false, true} {
			r := acquire.Request{Name: lock, Kind: holdfast.KindMutex, Shared: shared, Wait: wait, AnyKind: true}
			if shared {
				r.Kind = holdfast.KindRW
			}
			// A busy loop runs into this limit, or makes too many claims.
			limit := time.Minute
			if wait {
				limit = waitTime
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			s.claims.Store(0)
			lease, err := r.Acquire(ctx, client)
			cancel()
			n := s.claims.Load()
			describe := fmt.Sprintf("shared %v, wait %v: %v, after %d claims", shared, wait, err, n)
			t.Log(describe)
			isFinal := errors.Is(err, holdfast.ErrHeld) || errors.Is(err, holdfast.ErrMismatch) ||
				errors.Is(err, holdfast.ErrUnsupported) || errors.Is(err, holdfast.ErrInvalid)
			switch {
			case lease != nil:
				if !shared || !byReader {
					t.Errorf("it was granted next to a foreign client: %s", describe)
				}
				_ = lease.Release()
			case n > maxClaims, !isFinal && !(wait && errors.Is(err, context.DeadlineExceeded)):
				t.Error(describe)
			}
		}
	}
}

func startZooKeeperKinds(t *testing.T) map[string]kindsCase {
	e, err := zktest.Start(t.Context(), zktest.Options{Members: 1, Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	c, _, err := zk.Connect(e.Endpoints(), time.Minute, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	create := func(t *testing.T, path string, flags int32) {
		if _, err := c.Create(path, nil, flags, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	node := func(key string) plant {
		return func(t *testing.T, name string) {
			create(t, "/"+name, 0)
			create(t, "/"+name+"/"+key, zk.FlagEphemeral|zk.FlagSequence)
		}
	}
	const curator = "_c_6f1d8e2a-5b1c-4a51-9d53-5d0c7a0a3a11-"
	sequences := map[string]plant{"Curator's mutex": node(curator + "lock-"), "Curator's writer": node(curator + "__WRIT__"),
		"Curator's reader": node(curator + "__READ__"), "kazoo's lock": node("6f1d8e2a5b1c4a519d535d0c7a0a3a11__lock__"),
		"kazoo's reader": node("6f1d8e2a5b1c4a519d535d0c7a0a3a11__rlock__"), "Curator's permit": node(curator + "lease-")}
	cases := map[string]kindsCase{}
	url := "zookeeper://" + strings.Join(e.Endpoints(), ",")
	for _, layout := range []string{"curator", "curator-readwrite", "kazoo", "both"} {
		plants := map[string]plant{}
		create(t, "/"+layout, 0)
		for what, p := range sequences {
			plants[what] = func(t *testing.T, name string) { p(t, layout+"/"+name) }
		}
		cases[layout] = kindsCase{url + "?namespace=" + layout + "&layout=" + layout, plants}
	}
	cases["plain"] = kindsCase{url + "?layout=plain", map[string]plant{
		"a node": func(t *testing.T, name string) { create(t, "/"+name, zk.FlagEphemeral) },
	}}
	cases["curator-semaphore"] = kindsCase{url + "?layout=curator-semaphore", map[string]plant{
		"Curator's permit": func(t *testing.T, name string) {
			create(t, "/"+name, 0)
			create(t, "/"+name+"/leases", 0)
			create(t, "/"+name+"/leases/"+curator+"lease-", zk.FlagEphemeral|zk.FlagSequence)
		},
	}}
	return cases
}

// startConsulKinds: the flags are those by which Consul's clients know the keys of locks and of semaphores.
func startConsulKinds(t *testing.T) map[string]kindsCase {
	c, err := consultest.Start(t.Context(), consultest.Options{Members: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	put := func(path, value string) (string, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+c.Members[0].Endpoint+"/v1/"+path,
			strings.NewReader(value))
		if err != nil {
			return "", err
		}
		reply, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", err
		}
		defer reply.Body.Close()
		body := make([]byte, 4096)
		n, _ := reply.Body.Read(body)
		if reply.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", reply.Status, body[:n])
		}
		return string(body[:n]), err
	}
	cases := map[string]kindsCase{}
	for layout, suffix := range map[string]string{"lock": "/.lock", "key": ""} {
		cases[layout] = kindsCase{c.URL() + "?layout=" + layout, map[string]plant{
			"a semaphore": func(t *testing.T, name string) {
				if _, err := put("kv/"+name+suffix+"?flags=16210313421097356768", `{"Limit":2,"Holders":{}}`); err != nil {
					t.Fatal(err)
				}
			},
			"a lock": func(t *testing.T, name string) {
				session, err := put("session/create", `{"TTL":"60s","Node":"`+c.Members[0].Name+`"}`)
				_, id, _ := strings.Cut(session, `"ID":"`)
				id, _, _ = strings.Cut(id, `"`)
				if err == nil {
					_, err = put("kv/"+name+suffix+"?flags=3304740253564472344&acquire="+id, "theirs")
				}
				if err != nil {
					t.Fatal(err)
				}
			},
		}}
	}
	return cases
}

func startRedisKinds(t *testing.T) map[string]kindsCase {
	server, err := redistest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	send := func(words ...string) plant {
		return func(t *testing.T, name string) {
			all := append([]string(nil), words...)
			all[1] = name
			if _, err := server.Do(all...); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Redisson's RLock and RReadWriteLock are hashes, its RPermitExpirableSemaphore is a number and a sorted set.
	plants := map[string]plant{
		"a text": send("SET", "", "theirs", "PX", "60000"), "a number": send("SET", "", "2"),
		"a hash": send("HSET", "", "theirs:1", "1"), "a read lock": send("HSET", "", "mode", "read", "theirs:1", "1"),
		"a write lock": send("HSET", "", "mode", "write", "theirs:1:write", "1"),
		"a sorted set": send("ZADD", "", "1", "theirs"), "a list": send("RPUSH", "", "theirs"),
		"a set": send("SADD", "", "theirs"),
	}
	url := "redis://" + server.Addr
	return map[string]kindsCase{"string": {url, plants}, "redisson": {url + "?layout=redisson", plants}}
}

func startEtcdKinds(t *testing.T) map[string]kindsCase {
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{Members: 1, Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	client, err := etcd.New(etcd.Config{Endpoints: c.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return map[string]kindsCase{"mutex": {"etcd://" + strings.Join(c.Endpoints(), ","), map[string]plant{
		"a key of concurrency.Mutex": func(t *testing.T, name string) {
			lease, err := client.Grant(t.Context(), 60)
			if err == nil {
				_, err = client.Put(t.Context(), fmt.Sprintf("%s/%x", name, lease.ID), "", etcd.WithLease(lease.ID))
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	}}}
}
