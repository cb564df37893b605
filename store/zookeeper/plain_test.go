package zookeeper

import (
	"context"
	"errors"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// plain runs the common tests on the plain layout, on the servers of the other one.
var plain = sessiontest.Harness[*zktest.Ensemble, *plainPeer]{
	Scheme: rig.Scheme, Query: "?layout=plain", Start: rig.Start, Open: openPlain, Share: rig.Shared, Slack: rig.Slack,
}

// plainPeer is a store of the plain layout behind a link of its own.
type plainPeer struct {
	*plainStore
	*servertest.Net
}

func openPlain(c *zktest.Ensemble, to ...*servertest.Server) (*plainPeer, error) {
	way, ends, err := c.Link(to...)
	if err != nil {
		return nil, err
	}
	s, err := openAs[*plainStore](ends, Options{Layout: LayoutPlain})
	if err != nil {
		way.Close()
		return nil, err
	}
	return &plainPeer{s, way}, nil
}

func (p *plainPeer) Table() record.Table { return newTable(p.nodeStore.nodeStore, records) }

func (p *plainPeer) Close() error {
	err := p.plainStore.Close()
	p.Net.Close()
	return err
}

// TestPlainConformance: with one ephemeral node per lock, too, the store keeps every promise that it makes.
func TestPlainConformance(t *testing.T) {
	t.Parallel()
	plain.Conformance(t)
}

// TestPlainCut: as TestCut.
func TestPlainCut(t *testing.T) {
	t.Parallel()
	plain.Cut(t)
}

// TestPlainKill: as TestKill.
func TestPlainKill(t *testing.T) {
	t.Parallel()
	plain.Kill(t)
}

// TestPlainStop: as TestStop.
func TestPlainStop(t *testing.T) {
	t.Parallel()
	plain.Stop(t)
}

// TestPlainInterop: a hand-written lock, made with another client's library, excludes us, and is excluded by us.
func TestPlainInterop(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	s, err := openAs[*plainStore](c.Endpoints(), Options{Layout: LayoutPlain, Namespace: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	cli := newAdmin(t, c)
	_, err = cli.Create("/"+t.Name(), nil, 0, gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	sessiontest.Interop(t, s, driver.KindMutex, func(lock, file string) func() (int, error) {
		path := s.nodeStore.pathOf(lock)
		// We hold it, and the other one waits for that.
		catchUp(t, cli)
		there, _, free, err := cli.ExistsW(path)
		if err != nil || !there {
			t.Errorf("held, and there: %v, %v", there, err)
		}
		return func() (int, error) {
			<-free
			for added := range *sessiontest.Rounds {
				for {
					_, err := cli.Create(path, nil, gozk.FlagEphemeral, gozk.WorldACL(gozk.PermAll))
					if err == nil {
						break
					}
					there, _, gone, err := cli.ExistsW(path)
					if err != nil {
						return added, err
					}
					if there {
						<-gone
					}
				}
				if err := errors.Join(sessiontest.AddOne(file), cli.Delete(path, -1)); err != nil {
					return added, err
				}
			}
			return *sessiontest.Rounds, nil
		}
	})
}

// TestPlainForeign: any node on a lock's path holds it, until it is gone; and we hold it for clients that
// make that node by hand.
func TestPlainForeign(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	_, err := cli.Create("/"+t.Name(), nil, 0, gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	s, err := openAs[*plainStore](c.Endpoints(), Options{Layout: LayoutPlain, Namespace: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const name = "controller"
	node := "/" + t.Name() + "/" + name
	for what, flags := range map[string]int32{"ephemeral": gozk.FlagEphemeral, "persistent": 0} {
		_, err := cli.Create(node, []byte(`{"version":1,"brokerid":7,"timestamp":"1700000000000"}`), flags,
			gozk.WorldACL(gozk.PermAll))
		mustSucceed(t, err)
		var held *driver.HeldError
		if _, err := s.Acquire(t.Context(), mutexClaim(name)); !errors.As(err, &held) ||
			len(held.Holders) != 1 || !held.Holders[0].Foreign {
			t.Fatalf("a try next to a node that is %s: %v", what, err)
		}
		wait := mutexClaim(name)
		wait.Wait = true
		got := make(chan driver.Grant, 1)
		go func() {
			g, err := s.Acquire(t.Context(), wait)
			mustSucceed(t, err)
			got <- g
		}()
		select {
		case <-got:
			t.Errorf("granted next to a node that is %s", what)
		case <-time.After(100 * time.Millisecond):
		}
		mustSucceed(t, cli.Delete(node, -1))
		g := <-got
		if g.Token <= held.Holders[0].Token {
			t.Errorf("token %d came after %d", g.Token, held.Holders[0].Token)
		}
		if _, err := cli.Create(node, nil, gozk.FlagEphemeral, gozk.WorldACL(gozk.PermAll)); err != gozk.ErrNodeExists {
			t.Errorf("held by us, and made by another: %v", err)
		}
		mustSucceed(t, s.Release(t.Context(), wait, g.Ref))
	}
}

// TestPlainLate: a release, a break and a request that come late change no other holder's node, although it has
// the same path and the same version.
func TestPlainLate(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	s, err := openAs[*plainStore](c.Endpoints(), Options{Layout: LayoutPlain})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	a, err := s.Acquire(ctx, mutexClaim(t.Name()))
	mustSucceed(t, err)
	stale, err := s.nodeStore.List(ctx, t.Name(), true)
	if err != nil || len(stale.Nodes) != 1 {
		t.Fatal(stale, err)
	}
	mustSucceed(t, s.Release(ctx, a.Claim, ""))
	b, err := s.Acquire(ctx, mutexClaim(t.Name()))
	mustSucceed(t, err)

	// The requests of a's that were still on their way: each was made when a's node had just been seen.
	n := stale.Nodes[0]
	path := s.nodeStore.pathOf(t.Name())
	if _, why, err := s.nodeStore.writeSteps(ctx, path, s.nodeStore.sendMulti,
		zk.Delete(s.nodeStore.ticketPath(n.Key), -1),
		zk.Delete(path, int32(n.Version-1))); err != nil || why != codeNoTicket {
		t.Errorf("a late removal: %v, %v", why, err)
	}
	if _, ok, err := s.nodeStore.Change(ctx, t.Name(), n, n.Payload, sequence.Among{}); err != nil || ok {
		t.Errorf("a late change: %v, %v", ok, err)
	}
	if existed, _, err := s.nodeStore.Remove(ctx, t.Name(), n, sequence.Then{}); err != nil || existed {
		t.Errorf("a removal of what is gone: %v, %v", existed, err)
	}

	now, err := s.nodeStore.List(ctx, t.Name(), true)
	if err != nil || len(now.Nodes) != 1 || now.Nodes[0].ID != b.ID {
		t.Fatal(now, err)
	}
	// A foreign client removes b's node, and so not its ticket, and makes its own.
	mustSucceed(t, cli.Delete(path, -1))
	_, err = cli.Create(path, nil, gozk.FlagEphemeral, gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	if existed, _, err := s.nodeStore.Remove(ctx, t.Name(), now.Nodes[0], sequence.Then{}); err != nil || existed {
		t.Errorf("a removal after a foreign client's: %v, %v", existed, err)
	}
	if err := s.Release(ctx, b.Claim, b.Ref); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a release after a foreign client's removal: %v", err)
	}
	if !nodeExists(t, cli, path) {
		t.Error("the foreign client's node is gone")
	}
	if nodeExists(t, cli, s.nodeStore.ticketPath(now.Nodes[0].Key)) {
		t.Error("a ticket is left")
	}
}

// nodeExists reports whether a node exists, by a server that knows all that has happened.
func nodeExists(t *testing.T, cli *gozk.Conn, path string) bool {
	t.Helper()
	catchUp(t, cli)
	there, _, err := cli.Exists(path)
	mustSucceed(t, err)
	return there
}

// TestPlainOverwritten: a holder whose node's data are overwritten still recognizes its node, and releases it.
func TestPlainOverwritten(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	s, err := openAs[*plainStore](c.Endpoints(), Options{Layout: LayoutPlain})
	if err != nil {
		t.Fatal(err)
	}
	client := newClient(t, s, 20*time.Second)
	l := mustLock(t, client, t.Name())
	waitUntilWatching(t, s.nodeStore.nodeStore)
	cli := newAdmin(t, c)
	_, err = cli.Set("/"+t.Name(), []byte("mine"), -1)
	mustSucceed(t, err)
	time.Sleep(150 * time.Millisecond)
	if !l.Valid() {
		t.Errorf("lost: %v", context.Cause(l.Context()))
	}
	mustSucceed(t, l.Release())
	if nodeExists(t, cli, "/"+t.Name()) {
		t.Error("it still exists")
	}
}

// TestPlainLossNotified: a holder whose node is removed is notified at once.
func TestPlainLossNotified(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	// so that a renewal would notice after a minute
	client, err := holdfast.Open(t.Context(), "zookeeper://"+c.Members[0].Endpoint+"?layout=plain",
		&holdfast.Options{TTL: 3 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	l := mustLock(t, client, t.Name())
	mustSucceed(t, newAdmin(t, c).Delete("/"+t.Name(), -1))
	select {
	case <-l.Context().Done():
	case <-time.After(30 * time.Second):
		t.Error("the holder is not notified")
	}
	next := mustLock(t, client, t.Name())
	if next.Token() <= l.Token() {
		t.Errorf("token %d came after %d", next.Token(), l.Token())
	}
	mustSucceed(t, next.Release())
}
