package etcd

import (
	"net/url"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
)

// withUsers runs a cluster that asks for a password, root's being root.
func withUsers(t *testing.T, args ...string) *etcdtest.Cluster {
	t.Helper()
	c := start(t, etcdtest.Options{Members: 1, Args: args})
	cli := admin(t, c)
	_, err := cli.UserAdd(t.Context(), "root", "root")
	fails(t, err)
	_, err = cli.UserGrantRole(t.Context(), "root", "root")
	fails(t, err)
	_, err = cli.AuthEnable(t.Context())
	fails(t, err)
	return c
}

// TestBeatsNeedNoLogin: a keep-alive of a store that was opened with a password costs the cluster no login.
func TestBeatsNeedNoLogin(t *testing.T) {
	t.Parallel()
	c := withUsers(t, "--auth-token-ttl", "1")
	u, err := url.Parse("etcd://root:root@" + c.Members[0].Endpoint)
	fails(t, err)
	s, err := openURL(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tree := s.(*Store).tree
	session, err := tree.Open(t.Context(), 10*time.Second)
	fails(t, err)
	written := func() uint64 {
		r, err := tree.cli.Status(t.Context(), c.Members[0].Endpoint)
		fails(t, err)
		return r.RaftIndex
	}
	before := written()
	for range 20 {
		fails(t, tree.Beat(t.Context(), session.ID))
	}
	if n := written() - before; n > 2 {
		t.Errorf("20 keep-alives cost %d writes", n)
	}
	time.Sleep(3 * time.Second)
	fails(t, tree.Beat(t.Context(), session.ID)) // the login has expired
}

// TestLoginExpires: when the login has expired under which the watches began, who waits is still woken by the release, and not
// by looking every few seconds.
func TestLoginExpires(t *testing.T) {
	t.Parallel()
	c := withUsers(t, "--auth-token-ttl", "1")
	ctx := t.Context()
	open := func() *holdfast.Client {
		client, err := holdfast.Open(ctx, "etcd://root:root@"+c.Members[0].Endpoint, &holdfast.Options{TTL: 5 * time.Second})
		fails(t, err)
		t.Cleanup(func() { client.Close() })
		return client
	}
	holder, waiter := open(), open()
	handOver := func() time.Duration {
		held := lease(t, holder, t.Name())
		in := make(chan time.Time, 1)
		go func() {
			l, err := waiter.Mutex(t.Name(), nil).Lock(ctx)
			if err == nil {
				in <- time.Now()
				err = l.Unlock()
			}
			if err != nil {
				t.Error(err)
				in <- time.Now()
			}
		}()
		time.Sleep(500 * time.Millisecond) // it stands in line
		began := time.Now()
		fails(t, held.Unlock())
		return (<-in).Sub(began)
	}
	t.Logf("with a new login: %v", handOver())
	time.Sleep(4 * time.Second)
	for range 2 {
		if took := handOver(); took > time.Second {
			t.Errorf("with a login that has expired: %v", took)
		}
	}
}
