package etcd

import (
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
