package etcd

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
)

// TestRestoredUnderHolders: a cluster is restored from a snapshot while clients hold locks. A claim that a client has
// released since the snapshot exists again then, under a lease that the client goes on keeping alive. No claim waits
// for it, and holders learn that they lost their locks.
func TestRestoredUnderHolders(t *testing.T) {
	t.Parallel()
	c := startCluster(t, etcdtest.Options{Members: 1})
	client := newClient(t, rig.Peer(t, c), 30*time.Second)
	held, given := lease(t, client, t.Name()+"/held"), lease(t, client, t.Name()+"/given")
	m := c.Members[0]
	m.Terminate()
	snapshot := t.TempDir()
	fails(t, os.CopyFS(snapshot, os.DirFS(m.Dir)))
	fails(t, m.Start())
	fails(t, c.Ready(t.Context()))
	fails(t, given.Release())
	for range 20 {
		fails(t, lease(t, client, t.Name()+"/other").Release())
	}
	m.Terminate()
	fails(t, os.RemoveAll(m.Dir))
	fails(t, os.CopyFS(m.Dir, os.DirFS(snapshot)))
	fails(t, m.Start())
	fails(t, c.Ready(t.Context()))

	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	began := time.Now()
	l, err := newClient(t, rig.Peer(t, c), 30*time.Second).Mutex(t.Name()+"/given", nil).Lock(ctx)
	if err != nil {
		t.Fatalf("a released claim holds the lock again: %v", err)
	}
	t.Logf("granted after %v", time.Since(began).Round(time.Millisecond))
	fails(t, l.Release())
	select {
	case <-held.Context().Done():
	case <-ctx.Done():
	}
	if err := held.Err(); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("the holder learns: %v", err)
	}
	again := lease(t, client, t.Name()+"/held")
	sessiontest.AwaitRenewal(t, again)
	fails(t, again.Release())
}
