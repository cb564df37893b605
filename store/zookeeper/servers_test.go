package zookeeper

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/sessiontest"
)

// TestOneName: one name with several addresses stands for a server at each: a server that hangs, or is not there, is passed
// by, and so is an outage of the service that looks names up.
func TestOneName(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(rig.Shared(t).Endpoints()[0])
	fails(t, err)
	hangs, err := net.Listen("tcp", "127.0.0.3:"+port)
	fails(t, err)
	defer hangs.Close()
	var lookups atomic.Int64
	s, err := New(Options{Servers: []string{"ensemble:" + port}, lookup: func(_ context.Context, host string) ([]string, error) {
		if lookups.Add(1) > 1 || host != "ensemble" {
			return nil, errors.New("no answer")
		}
		return []string{"127.0.0.2", "127.0.0.3", "127.0.0.1"}, nil
	}})
	fails(t, err)
	defer s.Close()
	client := sessiontest.NewClient(t, s, 30*time.Second)
	l := sessiontest.Lock(t, client, t.Name())
	time.Sleep(1100 * time.Millisecond) // a link that breaks sooner is taken for a try in vain
	s.tree.mu.Lock()
	sessions := slices.Collect(maps.Values(s.tree.sessions))
	s.tree.mu.Unlock()
	for _, c := range sessions {
		link, err := c.up(t.Context())
		fails(t, err)
		link.nc.Close()
	}
	fails(t, sessiontest.Lock(t, client, t.Name()+"/other").Release())
	fails(t, l.Release())
	if n := lookups.Load(); n < 2 { // when all were tried
		t.Errorf("looked up %d times", n)
	}
}

// TestServers: of a name that cannot be looked up any more the last addresses are left.
func TestServers(t *testing.T) {
	t.Parallel()
	known := true
	o := Options{Servers: []string{"one:1", "127.0.0.1:2", "[::1]:3"}, lookup: func(ctx context.Context, host string) ([]string, error) {
		if host != "one" {
			return net.DefaultResolver.LookupHost(ctx, host)
		}
		if _, bounded := ctx.Deadline(); !known || !bounded {
			return nil, errors.New("no answer")
		}
		return []string{"10.0.0.1", "fe80::1"}, nil
	}}
	rest := []server{{"127.0.0.1:2", "127.0.0.1:2"}, {"[::1]:3", "[::1]:3"}}
	both := append([]server{{"one:1", "10.0.0.1:1"}, {"one:1", "[fe80::1]:1"}}, rest...)
	tr := newTree(o)
	defer tr.Close()
	if got := tr.servers(t.Context()); !slices.Equal(got, both) {
		t.Errorf("%v, want %v", got, both)
	}
	known = false
	if got := tr.servers(t.Context()); !slices.Equal(got, both) {
		t.Errorf("without an answer: %v, want %v", got, both)
	}
	unknown := append([]server{{"one:1", "one:1"}}, rest...)
	never := newTree(o)
	defer never.Close()
	if got := never.servers(t.Context()); !slices.Equal(got, unknown) {
		t.Errorf("never known: %v, want %v", got, unknown)
	}
	known, o.Dial = true, (&net.Dialer{}).DialContext
	dials := newTree(o)
	defer dials.Close()
	if got := dials.servers(t.Context()); !slices.Equal(got, unknown) {
		t.Errorf("with a Dial of the user's: %v", got)
	}
}
