package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// TestKeysUsedAgain: however often a lock is taken, also among refused claims and waits that are given up, it has had
// no more keys than claims at a time. The servers keep all that it has had until they compact their history.
func TestKeysUsedAgain(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	p := rig.Peer(t, c)
	name := t.Name()
	from, err := newAdmin(t, c).Get(t.Context(), "none")
	fails(t, err)
	claim := func(id string) driver.Claim {
		c := mutexClaim(name)
		c.ID = id
		return c
	}
	const cycles = 20
	for i := range cycles {
		holder, other := claim(fmt.Sprint("holder", i)), claim(fmt.Sprint("other", i))
		_, err := p.Acquire(t.Context(), holder)
		fails(t, err)
		if _, err := p.Acquire(t.Context(), other); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		other.Wait = true
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := p.Acquire(ctx, other); done <- err }()
		for { // until it waits
			l, err := p.Inspect(t.Context(), name)
			fails(t, err)
			if len(l.Waiters) == 1 {
				break
			}
		}
		cancel()
		<-done
		fails(t, p.Release(t.Context(), other, ""))
		fails(t, p.Release(t.Context(), holder, ""))
	}
	first, to := p.nodes.lockRange(name)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := newAdmin(t, c).Watch(ctx, first, clientv3.WithRange(to), clientv3.WithRev(from.Header.Revision+1))
	keys, removed := map[string]bool{}, 0
	for r := range events {
		fails(t, r.Err())
		for _, e := range r.Events {
			keys[string(e.Kv.Key)] = true
			if e.Type == clientv3.EventTypeDelete {
				removed++
			}
		}
		if removed == 2*cycles {
			break
		}
	}
	if len(keys) > 2 {
		t.Errorf("two claims at a time have had %d keys", len(keys))
	}
}

// TestLateRemoval: a removal that arrives when the key is that of another claim removes nothing.
func TestLateRemoval(t *testing.T) {
	t.Parallel()
	p := rig.Peer(t, rig.Shared(t))
	nodes, name, ctx := p.nodes, t.Name(), t.Context()
	s, err := nodes.OpenSession(ctx, 20*time.Second)
	fails(t, err)
	add := func(id string) sequence.Node {
		l, err := nodes.Add(ctx, name, s, 0, sequence.Payload{ID: id, Kind: driver.KindMutex, Limit: 1, Weight: 1},
			sequence.AddAlways)
		fails(t, err)
		if len(l.Nodes) != 1 || l.Nodes[0].ID != id {
			t.Fatalf("on the lock are %+v", l.Nodes)
		}
		return l.Nodes[0]
	}
	first := add("first")
	existed, _, err := nodes.Remove(ctx, name, first, false)
	if err != nil || !existed {
		t.Fatal(existed, err)
	}
	second := add("second")
	if second.Key != first.Key {
		t.Fatalf("the keys are %q and %q", first.Key, second.Key)
	}
	late := sequence.Node{Key: first.Key, Token: first.Token}
	if existed, _, err := nodes.Remove(ctx, name, late, true); err != nil || existed {
		t.Error("a late removal: ", existed, err)
	}
	if existed, _, err := nodes.RemoveAndReadNext(ctx, name, late, "0"); err != nil || existed {
		t.Error("a late removal that reads the next claim: ", existed, err)
	}
	if l, err := nodes.List(ctx, name, true); err != nil || len(l.Nodes) != 1 {
		t.Errorf("on the lock are %+v, %v", l.Nodes, err)
	}
	fails(t, nodes.EndSession(ctx, s.ID))
}
