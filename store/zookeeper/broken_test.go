package zookeeper

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// breakableTree is a node store that leaves notes.
type breakableTree interface {
	sequence.NodeStore
	BreakNode(ctx context.Context, name string, n sequence.Node, reason string) (bool, error)
	ReadBreakNote(ctx context.Context, name string, n sequence.Node) (bool, string, error)
}

// TestBreakNote: of a claim that is removed by force there is a note, made in one step with that, for as long as
// its TTL; of one that was released there is none; and no lock is seen in it.
func TestBreakNote(t *testing.T) {
	t.Parallel()
	c := startEnsemble(t, zktest.Options{Members: 1})
	cli := newAdmin(t, c)
	const claimTTL = 2 * time.Second
	for _, layout := range []Layout{LayoutCurator, LayoutBoth, LayoutPlain} {
		holder, breaker := newBreakableTree(t, c, layout), newBreakableTree(t, c, layout)
		name := string(layout) + "/lock"
		add := func(number int64) sequence.Node {
			ses, err := holder.OpenSession(t.Context(), 20*time.Second) // nobody keeps it alive
			mustSucceed(t, err)
			snapshot, err := holder.Add(t.Context(), name, ses, number, newPayload(claimTTL), sequence.AddAlways)
			if err != nil || len(snapshot.Nodes) != 1 {
				t.Fatal(layout, snapshot, err)
			}
			return snapshot.Nodes[0]
		}
		noted := func(n sequence.Node) bool {
			is, reason, err := holder.ReadBreakNote(t.Context(), name, n)
			mustSucceed(t, err)
			if is && reason != "alice: INC-123" {
				t.Errorf("%s: the note has the reason %q", layout, reason)
			}
			return is
		}
		n := add(0)
		if existed, _, err := holder.Remove(t.Context(), name, n, sequence.Then{}); err != nil || !existed || noted(n) {
			t.Errorf("%s: released: %v, %v; broken: %v", layout, existed, err, noted(n))
		}
		if existed, err := breaker.BreakNode(t.Context(), name, n, "alice: INC-123"); err != nil || existed || noted(n) {
			t.Errorf("%s: broken after its release: %v, %v; %v", layout, existed, err, noted(n))
		}
		n = add(1)
		began := time.Now()
		if existed, err := breaker.BreakNode(t.Context(), name, n, "alice: INC-123"); err != nil || !existed || !noted(n) {
			t.Errorf("%s: broken: %v, %v; %v", layout, existed, err, noted(n))
		}
		if snapshot, err := holder.List(t.Context(), name, true); err != nil || len(snapshot.Nodes) > 0 {
			t.Errorf("%s: there is %+v, %v", layout, snapshot.Nodes, err)
		}
		if layout == LayoutCurator { // the note is in no other client's way
			other := gozk.NewLock(cli, "/"+t.Name()+"/"+name, gozk.WorldACL(gozk.PermAll))
			mustSucceed(t, other.Lock())
			mustSucceed(t, other.Unlock())
		}
		next := add(2)
		if existed, _, err := holder.Remove(t.Context(), name, next, sequence.Then{}); err != nil || !existed {
			t.Errorf("%s: the next: %v, %v", layout, existed, err)
		}
		for snapshot, err := range breaker.Walk(t.Context(), "") {
			if err != nil || len(snapshot.Nodes) > 0 && strings.Contains(snapshot.Name, notePrefix) {
				t.Errorf("%s: listed: %+v, %v", layout, snapshot, err)
			}
		}
		mustSucceed(t, breaker.Close())
		for noted(n) {
			time.Sleep(10 * time.Millisecond)
		}
		if lasted := time.Since(began); lasted < sequence.BreakNoteTime(claimTTL) {
			t.Errorf("%s: the note existed for %v", layout, lasted)
		}
	}
}

// TestBreakNoteIsNoPermit: Curator counts all nodes among a semaphore's permits, so no note is there.
func TestBreakNoteIsNoPermit(t *testing.T) {
	t.Parallel()
	o, err := newSettings([]string{"127.0.0.1"}, nil)
	mustSucceed(t, err)
	o.Layout = layoutLeases
	leases := newNodeStore(o)
	defer leases.Close()
	key := joinEnding(formatStem(sessionName(1), newPayload(0)), endLease) + "0000000000"
	if note := leases.notePathOf("lock"+leasesFolder, key); strings.Contains(note, leasesFolder) ||
		!strings.HasPrefix(note, leases.pathOf("lock")+"/") {
		t.Errorf("the note is %s", note)
	}
}

// TestBrokenDuringRelease: an unlock whose first request is lost, while the lock is broken by force and given to
// another, says that it was broken.
func TestBrokenDuringRelease(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	for layout, release := range map[Layout]uint32{LayoutCurator: zk.OpDelete, LayoutBoth: zk.OpMulti,
		LayoutPlain: zk.OpMulti} {
		name := string(layout) + "-lock"
		var instead atomic.Pointer[func()]
		dial := newInterceptingDialer(release, name, func(nc net.Conn) {
			if do := instead.Swap(nil); do != nil {
				(*do)()
				nc.Close()
			}
		}, nil)
		client := newClient(t, newStore(t, c, layout, dial), 30*time.Second)
		operator := newStore(t, c, layout, nil)
		other := newClient(t, operator, 30*time.Second)
		held := mustLock(t, client, name)
		do := func() {
			now, err := operator.Inspect(t.Context(), name)
			if err != nil || len(now.Holders) != 1 {
				t.Error(now, err)
				return
			}
			mustSucceed(t, operator.Break(t.Context(), name, now.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}))
			mustSucceed(t, mustLock(t, other, name).Release())
		}
		instead.Store(&do)
		var loss *holdfast.LossError
		if err := held.Release(); instead.Load() != nil || !errors.As(err, &loss) || loss.Cause != holdfast.LossBroken {
			t.Errorf("%s: the unlock says: %v", layout, err)
		}
		if err := mustLock(t, client, name).Release(); err != nil {
			t.Errorf("%s: the next one says: %v", layout, err)
		}
	}
}

func newStore(t *testing.T, c *zktest.Ensemble, layout Layout, dial dialer) driver.Store {
	t.Helper()
	s, err := New(t.Context(), c.Endpoints(), &Options{Layout: layout, Namespace: t.Name(), Dial: dial})
	mustSucceed(t, err)
	return s
}

func newBreakableTree(t *testing.T, c *zktest.Ensemble, layout Layout) breakableTree {
	t.Helper()
	s := newStore(t, c, layout, nil)
	t.Cleanup(func() { mustSucceed(t, s.Close()) })
	if p, ok := s.(*plainStore); ok {
		return p.nodeStore
	}
	return s.(*store).nodeStore
}
