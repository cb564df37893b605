package zookeeper

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// openTwoNodeStore opens a store in the layout of two nodes per claim, whose client goes on, with a session of its
// own.
func openTwoNodeStore(t *testing.T, c *zktest.Ensemble, ttl time.Duration, dial dialer) (*store, *holdfast.Client) {
	t.Helper()
	s, err := openAs[*store](c.Endpoints(), Options{Layout: LayoutBoth, Dial: dial})
	mustSucceed(t, err)
	client := newClient(t, s, ttl)
	other := mustLock(t, client, mutexClaim("").ID)
	t.Cleanup(func() { mustSucceed(t, other.Release()) })
	return s, client
}

// TestSecondNodeRemoved: of a claim that has lost one of its two nodes the other one goes with its release, and
// nothing that is left of it keeps others out.
func TestSecondNodeRemoved(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	for _, end := range []string{endLock, endKazoo} {
		_, client := openTwoNodeStore(t, c, 20*time.Second, nil)
		held := mustLock(t, client, t.Name())
		catchUp(t, cli)
		keys, _, err := cli.Children("/" + t.Name())
		if err != nil || len(keys) != 2 {
			t.Fatal(keys, err)
		}
		for _, key := range keys {
			if strings.Contains(key, end) {
				mustSucceed(t, cli.Delete("/"+t.Name()+"/"+key, -1))
			}
		}
		select {
		case <-held.Context().Done():
		case <-time.After(time.Minute):
			t.Fatalf("without the node that ends in %s the holder keeps its lease", end)
		}
		var loss *holdfast.LossError
		if err := held.Release(); !errors.As(err, &loss) || loss.Cause != holdfast.LossBroken {
			t.Errorf("the holder learns: %v", err)
		}
		mustBecomeFree(t, client)
	}
}

// mustBecomeFree fails if the lock does not become free: what a lost claim has left is removed in the background.
func mustBecomeFree(t *testing.T, client *holdfast.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := client.Mutex(t.Name(), nil).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	mustSucceed(t, l.Release())
}

// TestSecondNodeRemovedWhileWaiting: the same where the claim waits.
func TestSecondNodeRemovedWhileWaiting(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	s, client := openTwoNodeStore(t, c, time.Hour, nil)
	held := mustLock(t, client, t.Name())
	claim := newWaitingClaim(t.Name())
	returned := make(chan error, 1)
	go func() { _, err := s.Acquire(t.Context(), claim); returned <- err }()
	var key string
	for ; key == ""; time.Sleep(10 * time.Millisecond) {
		keys, _, err := cli.Children("/" + t.Name())
		mustSucceed(t, err)
		for _, k := range keys {
			if strings.Contains(k, claim.ID) && strings.Contains(k, endKazoo) {
				key = k
			}
		}
	}
	mustSucceed(t, cli.Delete("/"+t.Name()+"/"+key, -1))
	if err := <-returned; !errors.Is(err, driver.ErrLost) {
		t.Errorf("the waiter learns: %v", err)
	}
	if err := s.Release(t.Context(), claim, ""); !errors.Is(err, driver.ErrLost) {
		t.Errorf("its release: %v", err)
	}
	mustSucceed(t, held.Release())
	mustBecomeFree(t, client)
}

// TestBothNodesRemovedTogether: a release whose answer is lost leaves none of a claim's two nodes.
func TestBothNodesRemovedTogether(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	var lose atomic.Bool
	_, client := openTwoNodeStore(t, c, time.Hour, newReplyLosingDialer(zk.OpMulti, &lose, nil))
	held := mustLock(t, client, t.Name())
	lose.Store(true)
	mustSucceed(t, held.Release())
	catchUp(t, cli)
	if keys, _, err := cli.Children("/" + t.Name()); lose.Load() || err != nil || len(keys) > 0 {
		t.Errorf("there are %q, %v", keys, err)
	}
}

// TestLeftoverNodeRemoved: a removal of a claim of which one node has gone removes the other one, and says that
// the claim did not exist.
func TestLeftoverNodeRemoved(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	s, _ := openTwoNodeStore(t, c, time.Hour, nil)
	ses, err := s.nodeStore.OpenSession(t.Context(), time.Minute)
	mustSucceed(t, err)
	snapshot, err := s.nodeStore.Add(t.Context(), t.Name(), ses, 0, newPayload(ses.TTL), sequence.AddAlways)
	mustSucceed(t, err)
	n := snapshot.Nodes[0]
	path := s.nodeStore.pathOf(t.Name())
	mustSucceed(t, cli.Delete(path+"/"+n.Key, -1))
	if existed, _, err := s.nodeStore.Remove(t.Context(), t.Name(), n, sequence.Then{}); err != nil || existed {
		t.Errorf("removed: %v, %v", existed, err)
	}
	catchUp(t, cli)
	if keys, _, err := cli.Children(path); err != nil || len(keys) > 0 {
		t.Errorf("there are %q, %v", keys, err)
	}
	mustSucceed(t, s.nodeStore.EndSession(t.Context(), ses.ID))
}

func newWaitingClaim(name string) driver.Claim {
	c := mutexClaim(name)
	c.Wait = true
	return c
}
