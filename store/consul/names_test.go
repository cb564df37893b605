package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestKeyNames: the key of a lock is its name as it is, as it is for Consul's own tools, and a name of which they would
// make another key is refused.
func TestKeyNames(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	admin, s := newAdmin(t, c), openKeys(t, c, &Options{Layout: LayoutKey})
	for i, last := range []string{".lock", "a b", "ä", "50%", "a?b#c", "%2F"} {
		name := t.Name() + "/" + last
		g := acquire(t, s, mutexClaim(name, time.Minute))
		if kv, _, err := admin.KV().Get(name, nil); err != nil || kv == nil || kv.Session == "" {
			t.Errorf("%d: we hold %q, and its key is %+v %v", i, name, kv, err)
		}
		var found []string
		for l, err := range s.nodes.Walk(t.Context(), name) {
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, l.Name)
		}
		if !slices.Equal(found, []string{name}) {
			t.Errorf("the walk from %q found %q", name, found)
		}
		release(t, s, g.Claim)
	}
	for _, name := range []string{"/a", "a/", "a//b", "a/./b", "..", "a\x01", ".holdfast", ".holdfast/tickets/a"} {
		if _, err := s.Acquire(t.Context(), mutexClaim(name, time.Minute)); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestMissingAtNewLeader: a renewal that is answered as if there were no session ends it only if a consistent read does
// not find it either.
func TestMissingAtNewLeader(t *testing.T) {
	t.Parallel()
	var exists atomic.Bool
	exists.Store(true)
	agent := httptest.NewServer(asAgent(func(w http.ResponseWriter, r *http.Request) {
		_, consistent := r.URL.Query()["consistent"]
		switch {
		case r.URL.Path == "/v1/session/renew/s":
			w.WriteHeader(http.StatusNotFound)
		case consistent && exists.Load():
			fmt.Fprint(w, `[{"ID":"s","TTL":"10s"}]`)
		default:
			fmt.Fprint(w, "[]")
		}
	}))
	defer agent.Close()
	n, err := newNodeStore(&api.Config{Address: agent.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.KeepAlive(t.Context(), "s"); err == nil || errors.Is(err, sequence.ErrSessionExpired) {
		t.Errorf("the session exists: %v", err)
	}
	exists.Store(false)
	if _, err := n.KeepAlive(t.Context(), "s"); !errors.Is(err, sequence.ErrSessionExpired) {
		t.Errorf("the session does not exist: %v", err)
	}
}

// asAgent answers as an agent does, in JSON.
func asAgent(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
	})
}

// fakeAgent is a store whose agent answers as it is told to.
func fakeAgent(t *testing.T, answer http.HandlerFunc) *store {
	t.Helper()
	agent := httptest.NewServer(asAgent(answer))
	t.Cleanup(agent.Close)
	return open(t, &api.Config{Address: agent.URL}, nil)
}

// TestFailedRenewal: the error of a renewal has what the agent says.
func TestFailedRenewal(t *testing.T) {
	t.Parallel()
	s := fakeAgent(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no cluster leader", 500) })
	if _, err := s.nodes.KeepAlive(t.Context(), "s"); err == nil || !strings.HasSuffix(err.Error(), ": no cluster leader") {
		t.Errorf("the error of the renewal is %v", err)
	}
}

// TestRefusedRemoval: a removal that is refused, although nobody has changed the claim, is not sent again and again.
func TestRefusedRemoval(t *testing.T) {
	t.Parallel()
	var removals atomic.Int64
	agent := httptest.NewServer(asAgent(func(w http.ResponseWriter, r *http.Request) {
		var ops api.TxnOps
		if err := json.NewDecoder(r.Body).Decode(&ops); err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		var reply api.TxnResponse
		for _, o := range ops {
			reply.Results = append(reply.Results,
				&api.TxnResult{KV: &api.KVPair{Key: o.KV.Key, CreateIndex: 5, ModifyIndex: 7, Session: "s"}})
		}
		if ops[0].KV.Verb != api.KVGetOrEmpty {
			if removals.Add(1) > 2 {
				http.Error(w, "one removal too many", 500)
				return
			}
			reply = api.TxnResponse{Errors: api.TxnErrors{{OpIndex: len(ops) - 1, What: "the lock is already held"}}}
			w.WriteHeader(http.StatusConflict)
		}
		_ = json.NewEncoder(w).Encode(reply)
	}))
	t.Cleanup(agent.Close)
	nodes, err := newNodeStore(&api.Config{Address: agent.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nodes.Close() })
	for _, s := range []sequence.NodeStore{nodes, keyNodes{nodes, ""}} {
		removals.Store(0)
		existed, _, err := s.Remove(t.Context(), "m", sequence.Node{Key: "5", Token: 5}, sequence.Then{})
		if existed || err == nil || !strings.Contains(err.Error(), "nobody has changed") {
			t.Errorf("%T: %v, %v", s, existed, err)
		}
	}
}

// TestWrongDatacenter: a datacenter that does not exist, or that the agent cannot serve, is refused at once. If a path
// that was there is broken, a claim waits for it.
func TestWrongDatacenter(t *testing.T) {
	t.Parallel()
	expect := func(what string, s driver.Store) {
		t.Helper()
		_, err := s.Acquire(t.Context(), mutexClaim("m", time.Minute))
		for err != nil && !driverutil.IsFinal(err) { // a busy machine may not answer in time
			_, err = s.Acquire(t.Context(), mutexClaim("m", time.Minute))
		}
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "datacenter") {
			t.Errorf("%s: %v", what, err)
		}
	}
	expect("no such datacenter", mustOpen(t, rig.Shared(t).URL()+"?dc=nowhere"))
	expect("the agent is no server", fakeAgent(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "cross datacenter lock must be created at server agent", 500)
	}))
	var broken atomic.Bool
	s := fakeAgent(t, func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			http.Error(w, "No path to datacenter", 500)
			return
		}
		fmt.Fprint(w, `{"ID":"s"}`)
	})
	for {
		_, err := s.nodes.OpenSession(t.Context(), time.Minute)
		if err == nil {
			break
		}
		if driverutil.IsFinal(err) {
			t.Fatal(err)
		}
	}
	broken.Store(true)
	if _, err := s.nodes.OpenSession(t.Context(), time.Minute); err == nil || driverutil.IsFinal(err) {
		t.Errorf("a path that is broken: %v", err)
	}
}

// TestExamineEnds: the examination of an agent that hangs ends with its context.
func TestExamineEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := fakeAgent(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/agent/self" {
			cancel()
			<-r.Context().Done() // the client has given up
			return
		}
		fmt.Fprint(w, "[]")
	})
	if _, err := s.Examine(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the examination returned %v", err)
	}
}

// TestOwnWatchPlaces: the watch of a claim of this client takes a place of holders, and another one of waiters.
func TestOwnWatchPlaces(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	s := open(t, c.Config(c.Members[0]), freshPrefix())
	g := acquire(t, s, mutexClaim(t.Name(), time.Minute))
	l, err := s.nodes.List(t.Context(), t.Name(), true)
	if err != nil || len(l.Nodes) != 1 {
		t.Fatal(l, err)
	}
	await := func(holders, waiters int) { // however slow the machine is
		for s.nodes.holderWatches.count(maxHolderWatches) != holders ||
			s.nodes.waiterWatches.count(maxWaiterWatches) != waiters {
			time.Sleep(5 * time.Millisecond)
		}
	}
	await(1, 0) // the engine's own
	defer s.nodes.Watch(t.Name(), sequence.WatchRemovals, l.Revision, func() {}).Stop()
	await(1, 1)
	release(t, s, g.Claim)
}

// firstWatchFails answers the first blocking query as a leader does that does not know the key yet.
type firstWatchFails struct {
	inner http.RoundTripper
	done  atomic.Bool
}

func (f *firstWatchFails) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := f.inner.RoundTrip(r)
	if err == nil && r.URL.Query().Has("wait") && f.done.CompareAndSwap(false, true) {
		reply.StatusCode, reply.Status = http.StatusNotFound, "404 Not Found"
		reply.Header.Set("X-Consul-Index", "1")
	}
	return reply, err
}

// TestWatchGoesOn: a watch of a key that a new leader does not know yet reports that, then that the key is there, and
// later that it has gone.
func TestWatchGoesOn(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	config := c.Config(c.Members[0])
	config.HttpClient = &http.Client{Transport: &firstWatchFails{inner: config.Transport}}
	o := freshPrefix()
	watcher, s := open(t, config, o), open(t, c.Config(c.Members[0]), o)
	g := acquire(t, s, mutexClaim("m", time.Hour))
	key, _, _ := strings.Cut(g.Ref, "@")
	var reported atomic.Int64
	defer watcher.nodes.Watch("m", key, g.Token, func() { reported.Add(1) }).Stop()
	storetest.Eventually(t, "the key is reported as gone, and as there", func() bool { return reported.Load() == 2 })
	release(t, s, g.Claim)
	storetest.Eventually(t, "its removal is reported", func() bool { return reported.Load() == 3 })
}

// TestTLSTransport: the connections of a store with TLS are those that Close closes.
func TestTLSTransport(t *testing.T) {
	t.Parallel()
	u, _ := url.Parse("consul://h?tls=true")
	config, _, err := readURL(u)
	if err != nil {
		t.Fatal(err)
	}
	client, transport, err := newHTTPClient(config)
	if err != nil || client.Transport != http.RoundTripper(transport) {
		t.Errorf("%v: requests use %v, and Close %p", err, client, transport)
	}
}
