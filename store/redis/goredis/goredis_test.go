package goredis

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	redisstore "github.com/holdfast-go/holdfast/store/redis"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

func startServer(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	server, err := redistest.Start(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server
}

// openStore makes a store with the settings of a client, and closes both when the test ends.
func openStore(t *testing.T, client redis.UniversalClient) driver.Store {
	t.Helper()
	t.Cleanup(func() { client.Close() })
	s, err := New(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func sendCommand(t *testing.T, server *redistest.Server, words ...string) string {
	t.Helper()
	reply, err := server.Do(words...)
	if err != nil {
		t.Fatalf("%v: %v", words, err)
	}
	return reply
}

// expectKey checks that a client sees the key of a lock that was acquired.
func expectKey(t *testing.T, client redis.UniversalClient, key string) {
	t.Helper()
	if n, err := client.Exists(t.Context(), key).Result(); err != nil || n != 1 {
		t.Errorf("the client sees %d keys %q, error %v", n, key, err)
	}
}

// TestConformance: a store with the settings of a go-redis client keeps every promise of the contract. The client is
// closed before the store is used, and speaks RESP2, which the store does not.
func TestConformance(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	h := storetest.Harness(func(ctx context.Context) (driver.Store, storetest.Connection, error) {
		via := &servertest.Net{}
		t.Cleanup(via.Close)
		client := redis.NewClient(&redis.Options{Addr: server.Addr, Protocol: 2,
			Dialer: func(_ context.Context, _, addr string) (net.Conn, error) { return via.Dial(addr) }})
		defer client.Close()
		s, err := New(ctx, client, &redisstore.Options{MaxWaiters: 64})
		return s, via, err
	})
	storetest.Conform(t, h, drivertest.Options{})
}

// TestRefused: what cannot be taken over is an error that names it.
func TestRefused(t *testing.T) {
	t.Parallel()
	onConnect := func(context.Context, *redis.Conn) error { return nil }
	failover := &redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}}
	for _, c := range []struct {
		client redis.UniversalClient
		want   error
		says   string
	}{
		{nil, driver.ErrInvalid, "nil"},
		{(*redis.Client)(nil), driver.ErrInvalid, "nil"},
		{(*redis.ClusterClient)(nil), driver.ErrInvalid, "nil"},
		{redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}}), driver.ErrUnsupported, "redis.Ring"},
		{redis.NewFailoverClient(failover), driver.ErrUnsupported, "goredis.NewFailover"},
		{redis.NewFailoverClusterClient(failover), driver.ErrUnsupported, "goredis.NewFailover"},
		{redis.NewClient(&redis.Options{OnConnect: onConnect}), driver.ErrUnsupported, "OnConnect"},
		{redis.NewClient(&redis.Options{Limiter: noLimit{}}), driver.ErrUnsupported, "Limiter"},
		{redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"a:1"}, OnConnect: onConnect}),
			driver.ErrUnsupported, "OnConnect"},
		{redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"a:1"},
			NewClient: func(o *redis.Options) *redis.Client { return redis.NewClient(o) }}),
			driver.ErrUnsupported, "NewClient"},
		{redis.NewClusterClient(&redis.ClusterOptions{}), driver.ErrInvalid, "addresses"},
	} {
		s, err := New(t.Context(), c.client, nil)
		if s != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%T: %v, want %v and %q", c.client, err, c.want, c.says)
		}
	}
	for says, o := range map[string]*redis.FailoverOptions{
		"nil":           nil,
		"MasterName":    {SentinelAddrs: []string{"a:1"}},
		"SentinelAddrs": {MasterName: "m"},
		"ReplicaOnly":   {MasterName: "m", SentinelAddrs: []string{"a:1"}, ReplicaOnly: true},
		"OnConnect":     {MasterName: "m", SentinelAddrs: []string{"a:1"}, OnConnect: onConnect},
	} {
		s, err := NewFailover(t.Context(), o, nil)
		if s != nil || !(errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrUnsupported)) ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", o, err, says)
		}
	}
	s, err := New(t.Context(), redis.NewClient(&redis.Options{}), &redisstore.Options{MaxWaiters: -1})
	if s != nil || !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("options that cannot work: %v", err)
	}
}

// noLimit is a Limiter that allows everything.
type noLimit struct{}

func (noLimit) Allow() error       { return nil }
func (noLimit) ReportResult(error) {}

// TestStoreAndClientAreIndependent: the store has connections of its own, in the database, under the name and with the
// library's name of the client. It closes them, and no others.
func TestStoreAndClientAreIndependent(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, DB: 3, ClientName: "mine", DisableIdentity: true})
	defer client.Close()
	s, err := New(t.Context(), client, &redisstore.Options{Key: "locks:*"})
	if err != nil {
		t.Fatal(err)
	}
	if place := "redis://" + server.Addr + "/3"; s.Info().Store != place {
		t.Errorf("the place is %s, want %s", s.Info().Store, place)
	}
	storetest.Acquire(t, s, storetest.Mutex("m", 30*time.Second))
	if list := sendCommand(t, server, "CLIENT", "LIST"); !strings.Contains(list, "name=mine") ||
		strings.Contains(list, "rueidis") {
		t.Errorf("the connections have other settings: %s", list)
	}
	expectKey(t, client, "locks:m")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	expectKey(t, client, "locks:m")
	client.Close()
	if err := redistest.Until(t.Context(), func() bool {
		return !strings.Contains(sendCommand(t, server, "CLIENT", "LIST"), "name=mine")
	}); err != nil {
		t.Error("connections are left")
	}
}

// TestUnixSocket: the store dials as the client does.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	startServer(t, "--unixsocket", path)
	client := redis.NewClient(&redis.Options{Addr: path})
	storetest.Acquire(t, openStore(t, client), storetest.Mutex("m", 30*time.Second))
	expectKey(t, client, "m")
}

// TestTLS: the store trusts the authorities that the client trusts, and no others, also where it dials by itself, as
// for a Cluster. One server that is opened as a Cluster serves as one.
func TestTLS(t *testing.T) {
	t.Parallel()
	cert := newCertificate(t)
	port, err := servertest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	startServer(t, "--tls-port", port, "--tls-cert-file", cert.certFile, "--tls-key-file", cert.keyFile,
		"--tls-ca-cert-file", cert.certFile, "--tls-auth-clients", "no")
	addr := "127.0.0.1:" + port
	for name, client := range map[string]redis.UniversalClient{
		"one": redis.NewClient(&redis.Options{Addr: addr, TLSConfig: cert.trusting()}),
		"many": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr},
			TLSConfig: cert.trusting()}),
	} {
		storetest.Acquire(t, openStore(t, client), storetest.Mutex(name, 30*time.Second))
	}
	for _, client := range []redis.UniversalClient{
		redis.NewClient(&redis.Options{Addr: addr, TLSConfig: distrusting()}),
		redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, TLSConfig: distrusting()}),
	} {
		if _, err := New(t.Context(), client, nil); !errors.Is(err, driver.ErrDenied) {
			t.Errorf("%T with another authority: %v", client, err)
		}
		client.Close()
	}
}

// TestCredentials: the store authenticates in each way that go-redis knows, and with new credentials when it connects
// again after they have changed.
func TestCredentials(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(o *redis.Options, password func() string){
		"fixed": func(o *redis.Options, password func() string) { o.Username, o.Password = "locker", password() },
		"provider": func(o *redis.Options, password func() string) {
			o.Username, o.Password = "nobody", "wrong"
			o.CredentialsProvider = func() (string, string) { return "locker", password() }
		},
		"provider with a context": func(o *redis.Options, password func() string) {
			o.CredentialsProvider = func() (string, string) { return "nobody", "wrong" }
			o.CredentialsProviderContext = func(ctx context.Context) (string, string, error) {
				if _, limited := ctx.Deadline(); !limited {
					return "", "", errors.New("the context has no deadline")
				}
				return "locker", password(), nil
			}
		},
		"stream": func(o *redis.Options, password func() string) {
			o.StreamingCredentialsProvider = passwordStream{password}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startServer(t)
			sendCommand(t, server, "ACL", "SETUSER", "locker", "on", ">first", "~*", "&*", "+@all")
			password := make(chan string, 1)
			password <- "first"
			o := redis.Options{Addr: server.Addr}
			set(&o, func() string { p := <-password; password <- p; return p })
			s := openStore(t, redis.NewClient(&o))
			storetest.Acquire(t, s, storetest.Mutex("before", 30*time.Second))
			if list := sendCommand(t, server, "CLIENT", "LIST"); !strings.Contains(list, "user=locker") {
				t.Errorf("the store is another user: %s", list)
			}
			sendCommand(t, server, "ACL", "SETUSER", "locker", "resetpass", ">second")
			if name != "fixed" {
				<-password
				password <- "second"
				sendCommand(t, server, "CLIENT", "KILL", "USER", "locker")
				storetest.Acquire(t, s, storetest.Mutex("after", 30*time.Second))
				return
			}
			if _, err := New(t.Context(), redis.NewClient(&o), nil); !errors.Is(err, driver.ErrDenied) ||
				strings.Contains(err.Error(), "first") {
				t.Errorf("a wrong password: %v", err)
			}
		})
	}
}

// passwordStream is a provider of credentials that may change.
type passwordStream struct{ password func() string }

func (p passwordStream) Subscribe(l auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return auth.NewBasicCredentials("locker", p.password()), func() error { return nil }, nil
}

// TestCluster: the store finds the node of each lock.
func TestCluster(t *testing.T) {
	t.Parallel()
	g, err := redistest.Cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Stop)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: g.Addrs()[:1]})
	s := openStore(t, client)
	if place := "redis+cluster://" + g.Addrs()[0]; s.Info().Store != place {
		t.Errorf("the place is %s, want %s", s.Info().Store, place)
	}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		storetest.Acquire(t, s, storetest.Mutex(name, 30*time.Second))
		expectKey(t, client, name)
	}
}

// TestFailover: the store follows the Sentinels to a new primary. Servers and Sentinels have users of their own, and
// each refuses those of the others.
func TestFailover(t *testing.T) {
	t.Parallel()
	g, err := redistest.Replicated(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Stop)
	for _, server := range g.Servers {
		sendCommand(t, server, "ACL", "SETUSER", "locker", "on", ">data", "~*", "&*", "+@all")
	}
	for _, sentinel := range g.Sentinels {
		sendCommand(t, sentinel, "ACL", "SETUSER", "watcher", "on", ">sentinel", "&*", "+@all")
	}
	o := &redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: g.SentinelAddrs(), DB: 2,
		SentinelUsername: "watcher", SentinelPassword: "sentinel",
		CredentialsProvider: func() (string, string) { return "locker", "data" }}
	s, err := NewFailover(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	storetest.Acquire(t, s, storetest.Mutex("before", 30*time.Second))
	for server, user := range map[*redistest.Server]string{g.Servers[0]: "user=locker", g.Sentinels[0]: "user=watcher"} {
		if list := sendCommand(t, server, "CLIENT", "LIST"); !strings.Contains(list, user) {
			t.Errorf("no connection has %s: %s", user, list)
		}
	}
	sendCommand(t, g.Sentinels[0], "SENTINEL", "FAILOVER", redistest.MasterName)
	if err := redistest.Until(t.Context(), func() bool {
		role, err := g.Servers[0].Do("INFO", "replication") // a server that becomes a replica ends its connections
		return err == nil && strings.Contains(role, "role:slave")
	}); err != nil {
		t.Fatal("no other server was made the primary")
	}
	storetest.Acquire(t, s, storetest.Mutex("after", 30*time.Second))
	client := redis.NewFailoverClient(o)
	defer client.Close()
	expectKey(t, client, "after")

	o.CredentialsProvider, o.Username, o.Password = nil, "locker", "wrong"
	if _, err := NewFailover(t.Context(), o, nil); !errors.Is(err, driver.ErrDenied) {
		t.Errorf("a wrong password: %v", err)
	}
}
