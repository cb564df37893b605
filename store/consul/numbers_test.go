package consul

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestKeysUsedAgain: however often a lock is taken, also among refused claims and waits that are given up, it has had
// no more keys than claims at a time. The servers keep all that were deleted for 15 minutes.
func TestKeysUsedAgain(t *testing.T) {
	t.Parallel()
	s := rig.Peer(t, rig.Shared(t)).store
	name, keys := t.Name(), map[string]bool{}
	for range 10 {
		holder, other := mutexClaim(name, time.Minute), mutexClaim(name, time.Minute)
		acquire(t, s, holder)
		if _, err := s.Acquire(t.Context(), other); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		ctx, giveUp := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := s.Acquire(ctx, waiting(other)); done <- err }()
		storetest.Eventually(t, "the other claim waits", func() bool {
			l, err := s.nodes.List(t.Context(), name, true)
			for _, n := range l.Nodes {
				keys[n.Key] = true
			}
			return err == nil && len(l.Nodes) == 2
		})
		giveUp()
		<-done
		release(t, s, other)
		release(t, s, holder)
	}
	if len(keys) > 2 {
		t.Errorf("two claims at a time have had %d keys", len(keys))
	}
}

// TestKeyLayoutNumbers: the layouts of other clients, in which a claim has no key of its own, do not ask the engine to
// use numbers again.
func TestKeyLayoutNumbers(t *testing.T) {
	if (keyNodes{nodeStore: &nodeStore{}}).Traits().ReusesNumbers {
		t.Error("the layouts of other clients use numbers again")
	}
}

// nodeAdder opens a session, and returns a function that adds claims under one key of a lock.
func nodeAdder(t *testing.T, nodes *nodeStore, name string) (add func(id string) sequence.Node) {
	session, err := nodes.OpenSession(t.Context(), 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nodes.EndSession(context.Background(), session.ID) })
	return func(id string) sequence.Node {
		t.Helper()
		payload := sequence.Payload{ID: id, Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: session.TTL}
		l, err := nodes.Add(t.Context(), name, session, 1, payload, sequence.AddAlways)
		if err != nil || len(l.Nodes) != 1 || l.Nodes[0].ID != id {
			t.Fatal(l, err)
		}
		return l.Nodes[0]
	}
}

// TestLateRemoval: a removal or a forced break that comes when another claim has the key removes nothing. A claim that
// this or another client has changed is removed.
func TestLateRemoval(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	o := freshPrefix()
	own, other := open(t, c.Config(c.Members[0]), o).nodes, open(t, c.Config(c.Members[0]), o).nodes
	add := nodeAdder(t, own, "m")
	remove := func(n sequence.Node, want bool) {
		t.Helper()
		n.Version = 0
		if existed, _, err := own.Remove(t.Context(), "m", n, sequence.Then{}); err != nil || existed != want {
			t.Errorf("%v, %v", existed, err)
		}
	}
	change := func(by *nodeStore, n sequence.Node) sequence.Node {
		t.Helper()
		payload := n.Payload
		payload.Renewed++
		now, ok, err := by.Change(t.Context(), "m", n, payload, sequence.Among{})
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		return now
	}
	was := add("was")
	changed := change(own, was)
	remove(was, true)
	now := add("now")
	if now.Key != was.Key {
		t.Fatalf("the keys are %s and %s", was.Key, now.Key)
	}
	remove(was, false)
	for _, n := range []sequence.Node{was, changed} {
		if existed, err := own.BreakNode(t.Context(), "m", n, ""); err != nil || existed {
			t.Errorf("%v, %v", existed, err)
		}
	}
	if found, _, err := own.ReadBreakNote(t.Context(), "m", was); err != nil || found {
		t.Errorf("a note of a break: %v, %v", found, err)
	}
	seen := now // by an operator, before the next change
	change(other, change(own, now))
	if existed, _, err := own.Remove(t.Context(), "m", seen, sequence.Then{}); err != nil || existed {
		t.Errorf("at an earlier version: %v, %v", existed, err)
	}
	if l, err := own.List(t.Context(), "m", true); err != nil || len(l.Nodes) != 1 || l.Nodes[0].Token != now.Token {
		t.Errorf("%+v, %v", l, err)
	}
	if existed, err := other.BreakNode(t.Context(), "m", seen, ""); err != nil || !existed {
		t.Errorf("a forced break: %v, %v", existed, err)
	}
	last := add("last")
	change(other, last)
	remove(last, true)
}

// TestRemovalBesideNewClaim: a watch for removals reports that a claim has gone, even if another one has its key when
// the watch looks again. It does not report a claim that has come.
func TestRemovalBesideNewClaim(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	nodes := open(t, c.Config(c.Members[0]), freshPrefix()).nodes
	add := nodeAdder(t, nodes, "m")
	watch := nodes.lookAtLock(nodes.lockDir("m"), true)
	look := func(what string, want bool) {
		t.Helper()
		if isNew, _, err := watch(t.Context(), &api.QueryOptions{}); err != nil || isNew != want {
			t.Errorf("%s: %v, %v", what, isNew, err)
		}
	}
	look("the first look", true)
	was := add("was")
	look("a claim has come", false)
	if existed, _, err := nodes.Remove(t.Context(), "m", was, sequence.Then{}); err != nil || !existed {
		t.Fatal(existed, err)
	}
	add("now")
	look("another claim has its key", true)
	look("nothing", false)
}
