package zookeeper

import (
	"context"
	"errors"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"
	"github.com/holdfast-go/holdfast/driver"
)

// TestTicketRemoved: a claim of the plain layout whose ticket somebody has removed is released, marked and broken
// as any other; its node does not remain under a session that goes on.
func TestTicketRemoved(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	s, err := openAs[*plainStore](c.Endpoints(), Options{Layout: LayoutPlain, Namespace: t.Name()})
	mustSucceed(t, err)
	client := newClient(t, s, time.Minute)
	other := mustLock(t, client, "goes-on")
	defer func() { mustSucceed(t, other.Release()) }()
	for _, k := range []struct {
		what string
		end  func(ctx context.Context, ref string) error
	}{
		{"mark", func(ctx context.Context,
			ref string) error {
			return s.Break(ctx, "lock", ref, driver.Break{Mode: driver.BreakGraceful})
		}},
		{"force", func(ctx context.Context, ref string) error {
			return s.Break(ctx, "lock", ref, driver.Break{Mode: driver.BreakForce})
		}},
		{"release", func(context.Context, string) error { return nil }},
	} {
		what := k.what
		held, err := s.Acquire(t.Context(), mutexClaim("lock"))
		if err != nil {
			t.Fatal(what, err)
		}
		snapshot, err := s.nodeStore.List(t.Context(), "lock", true)
		if err != nil || len(snapshot.Nodes) != 1 {
			t.Fatal(what, snapshot, err)
		}
		mustSucceed(t, cli.Delete(s.nodeStore.ticketPath(snapshot.Nodes[0].Key), -1))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // the session lasts for longer
		if err := k.end(ctx, held.Ref); err != nil {
			t.Fatal(what, err)
		}
		cancel()
		if err := s.Release(t.Context(), held.Claim, held.Ref); err != nil && (what == "release" ||
			!errors.Is(err, driver.ErrLost)) {
			t.Error(what, err)
		}
		if snapshot, err := s.nodeStore.List(t.Context(), "lock", true); err != nil || len(snapshot.Nodes) > 0 {
			t.Errorf("%s: there is %+v, %v", what, snapshot.Nodes, err)
		}
		if nodeExists(t, cli, s.nodeStore.ticketPath(snapshot.Nodes[0].Key)) {
			t.Errorf("%s: the ticket exists", what)
		}
	}
}

// TestTicketsOfTwoUsers: two users who may both create nodes in a namespace can both lock in it, though what each
// makes is for himself.
func TestTicketsOfTwoUsers(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	_, err := newAdmin(t, c).Create("/"+t.Name(), nil, 0, gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	for _, user := range []string{"one", "two"} {
		s, err := openAs[*plainStore](c.Endpoints(), Options{Layout: LayoutPlain, Namespace: t.Name(),
			Auth: []Auth{{"digest", user + ":secret"}}})
		mustSucceed(t, err)
		client := newClient(t, s, 20*time.Second)
		held := mustLock(t, client, user)
		defer func() { mustSucceed(t, held.Release()) }()
	}
}
