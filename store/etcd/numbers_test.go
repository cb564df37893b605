package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
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
