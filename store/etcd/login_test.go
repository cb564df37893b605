package etcd

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// startWithUsers runs a cluster that requires a password. That of root is root.
func startWithUsers(t *testing.T, args ...string) *etcdtest.Cluster {
	t.Helper()
	c := startCluster(t, etcdtest.Options{Members: 1, Args: args})
	cli := newAdmin(t, c)
	_, err := cli.UserAdd(t.Context(), "root", "root")
	fails(t, err)
	_, err = cli.UserGrantRole(t.Context(), "root", "root")
	fails(t, err)
	_, err = cli.AuthEnable(t.Context())
	fails(t, err)
	return c
}

// TestKeepAlivesNeedNoLogin: the keep-alives of a store that was opened with a password cost the cluster no login.
func TestKeepAlivesNeedNoLogin(t *testing.T) {
	t.Parallel()
	c := startWithUsers(t, "--auth-token-ttl", "1")
	u, err := url.Parse("etcd://root:root@" + c.Members[0].Endpoint)
	fails(t, err)
	s, err := openURL(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tree := s.(*store).nodes
	session, err := tree.OpenSession(t.Context(), 10*time.Minute)
	fails(t, err)
	written := func() uint64 {
		r, err := tree.cli.Status(t.Context(), c.Members[0].Endpoint)
		fails(t, err)
		return r.RaftIndex
	}
	before := written()
	const beats = 40
	for range beats {
		_, err := tree.KeepAlive(t.Context(), session.ID)
		fails(t, err)
	}
	// The cluster writes for its own purposes now and then, and to read its number of writes may take a login on a slow
	// machine.
	if n := written() - before; n > beats/2 {
		t.Errorf("%d keep-alives cost %d writes", beats, n)
	}
	time.Sleep(3 * time.Second)
	_, err = tree.KeepAlive(t.Context(), session.ID) // the login has expired
	fails(t, err)
}

// TestLoginExpires: after the login under which its watches began has expired, a waiter is still woken by the release,
// and not only by its poll every few seconds.
func TestLoginExpires(t *testing.T) {
	t.Parallel()
	c := startWithUsers(t, "--auth-token-ttl", "1")
	ctx := t.Context()
	open := func() *holdfast.Client {
		client, err := holdfast.Open(ctx, "etcd://root:root@"+c.Members[0].Endpoint,
			&holdfast.Options{TTL: 30 * time.Second})
		fails(t, err)
		t.Cleanup(func() { client.Close() })
		return client
	}
	holder, waiter := open(), open()
	handOver := func() (all, took time.Duration) {
		held := lease(t, holder, t.Name())
		in := make(chan time.Time, 1)
		comes := time.Now()
		go func() {
			l, err := waiter.Mutex(t.Name(), nil).Lock(ctx)
			if err == nil {
				in <- time.Now()
				err = l.Release()
			}
			if err != nil {
				t.Error(err)
				in <- time.Now()
			}
		}()
		for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			l, err := holder.Inspect(ctx, t.Name())
			if fails(t, err); len(l.Waiters) > 0 {
				break
			}
			if time.Now().After(limit) {
				t.Fatalf("no claim waits: %+v", l)
			}
		}
		began := time.Now()
		fails(t, held.Release())
		came := <-in
		return came.Sub(comes), came.Sub(began)
	}
	_, took := handOver()
	t.Logf("with a new login: %v", took)
	// A waiter polls 2 s after it came at the earliest, so one that is granted the lock sooner was woken. On a busy
	// machine the logins alone may take that long.
	for tries := 1; ; tries++ {
		time.Sleep(4 * time.Second)
		all, took := handOver()
		t.Logf("with a login that has expired: %v after the release, %v in all", took, all)
		if all < 2*time.Second {
			return
		}
		if tries == 10 {
			t.Fatal("no waiter was woken by a release")
		}
	}
}

// oldServer does as much of etcd before 3.4.28 as a login and a read take: it looks at the token of both.
type oldServer struct {
	pb.UnimplementedAuthServer
	pb.UnimplementedKVServer
	logins atomic.Int64 // the last one has the token of this number
	asked  atomic.Int64
	forgot atomic.Bool // the last login is not known any more
}

// checkToken returns the refusal of a token that the server does not know, and ErrGRPCUserEmpty if there is none.
func (s *oldServer) checkToken(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	switch token := md.Get(rpctypes.TokenFieldNameGRPC); {
	case len(token) == 0:
		return rpctypes.ErrGRPCUserEmpty
	case s.forgot.Load() || token[0] != strconv.FormatInt(s.logins.Load(), 10):
		return rpctypes.ErrGRPCInvalidAuthToken
	}
	return nil
}

func (s *oldServer) Authenticate(ctx context.Context, _ *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	s.asked.Add(1)
	if err := s.checkToken(ctx); err != nil && err != rpctypes.ErrGRPCUserEmpty {
		return nil, err
	}
	s.forgot.Store(false)
	return &pb.AuthenticateResponse{Header: &pb.ResponseHeader{}, Token: strconv.FormatInt(s.logins.Add(1), 10)}, nil
}

func (s *oldServer) Range(ctx context.Context, _ *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: 1}}, s.checkToken(ctx)
}

// TestForgottenLogin: a client whose login is not known any more logs in again, also on servers that refuse a login for
// the token that the client still has, and asks them no more often than it takes.
func TestForgottenLogin(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fails(t, err)
	old := &oldServer{}
	server := grpc.NewServer()
	pb.RegisterAuthServer(server, old)
	pb.RegisterKVServer(server, old)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	u, err := url.Parse("etcd://root:root@" + listener.Addr().String())
	fails(t, err)
	s, err := openURL(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for round := range 3 {
		if _, err := s.(*store).nodes.List(ctx, t.Name(), true); err != nil {
			t.Fatalf("after %d restarts: %v", round, err)
		}
		old.forgot.Store(true)
	}
	// The first one, and two for each login that was forgotten.
	if n := old.asked.Load(); n != 5 {
		t.Errorf("it was asked for a login %d times", n)
	}
}
