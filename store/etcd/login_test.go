package etcd

import (
	"net/url"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
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
