package zookeeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

func newPayload(ttl time.Duration) sequence.Payload {
	return sequence.Payload{ID: strings.ToLower(rand.Text()), Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ttl}
}

// openCountedSession opens a store whose requests are counted from here on, and a session of it.
func openCountedSession(t *testing.T) (*store, *requestCounter, sequence.Session) {
	t.Helper()
	s, sent := newCountedStore(t)
	ses, err := s.nodeStore.OpenSession(t.Context(), 30*time.Second)
	mustSucceed(t, err)
	t.Cleanup(func() { mustSucceed(t, s.nodeStore.EndSession(context.Background(), ses.ID)) })
	sent.takeCounts()
	return s, sent, ses
}

// TestWritesGoTogether: writes that come at one time go in fewer requests; the token that each claim gets is its
// node's czxid, and no lock gets two claims of one token by that; what is refused together, since a lock's node is
// not there, is done alone.
func TestWritesGoTogether(t *testing.T) {
	s, sent, ses := openCountedSession(t)
	ctx := t.Context()
	c, err := s.nodeStore.sessionConn(ses.ID)
	mustSucceed(t, err)
	const workers, rounds = 32, 20
	var mu sync.Mutex
	tokens := map[string]bool{}
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for r := range rounds {
				name := fmt.Sprint("together/", mathrand.N(4+r)) // now and then a new one
				payload, guard := newPayload(ses.TTL), sequence.AddAlways
				if w%2 == 0 {
					guard = sequence.AddBatched
				}
				snapshot, err := s.nodeStore.Add(ctx, name, ses, int64(w*rounds+r), payload, guard)
				if err != nil || len(snapshot.Nodes) == 0 {
					t.Errorf("%+v, %v", snapshot, err)
					return
				}
				n := snapshot.Nodes[len(snapshot.Nodes)-1]
				for _, o := range snapshot.Nodes {
					if o.ID == payload.ID {
						n = o
					}
				}
				stat := zk.Exists(s.nodeStore.pathOf(name) + "/" + n.Key)
				err = c.Do(ctx, stat)
				if got, statErr := stat.Stat(); err != nil || statErr != nil || got.Czxid != n.Token {
					t.Errorf("%s has token %d, which is not its node's czxid: %v, %v", n.Key, n.Token, err, statErr)
				}
				id := fmt.Sprint(name, n.Token)
				mu.Lock()
				if n.ID != payload.ID || tokens[id] {
					t.Errorf("%s has token %d, as another has, or %s does", payload.ID, n.Token, n.ID)
				}
				tokens[id] = true
				mu.Unlock()
				existed, left, err := s.nodeStore.Remove(ctx, name, n, sequence.Then{Next: n.Key})
				if err != nil || !existed || len(left.Nodes) > 0 {
					t.Errorf("removed: %v, left: %v, %v", existed, left.Nodes, err)
				}
			}
		})
	}
	all.Wait()
	got := sent.takeCounts()
	writes := got[zk.OpMulti] + got[zk.OpCreate2] + got[zk.OpDelete]
	t.Logf("%d claims came and went in %d requests: %v", workers*rounds, writes, got)
	if writes > workers*rounds*3/2 { // apart they would be twice the claims
		t.Errorf("%d claims came and went in %d requests", workers*rounds, writes)
	}
}

// TestSingleBatchedWrite: a batched write with which no other goes is sent as it is, and needs no second request
// for its answer.
func TestSingleBatchedWrite(t *testing.T) {
	s, sent, ses := openCountedSession(t)
	ctx := t.Context()
	_, err := s.nodeStore.Add(ctx, "no-company", ses, 0, newPayload(ses.TTL), sequence.AddAlways)
	mustSucceed(t, err)
	sent.takeCounts()
	snapshot, err := s.nodeStore.Add(ctx, "no-company", ses, 1, newPayload(ses.TTL), sequence.AddBatched)
	if err != nil || len(snapshot.Nodes) != 2 || snapshot.Nodes[1].Token <= snapshot.Nodes[0].Token {
		t.Errorf("%+v, %v", snapshot, err)
	}
	got := sent.takeCounts()
	delete(got, zk.OpPing)
	if len(got) != 2 || got[zk.OpCreate2] != 1 || got[zk.OpGetChildren] != 1 {
		t.Errorf("sent %v", got)
	}
}

// TestBatchedWritesFailAlone: of writes that go together each gets its own answer, whatever is wrong with another:
// a node that is gone already, a lock that is not there yet, one that is not permitted.
func TestBatchedWritesFailAlone(t *testing.T) {
	s, _, ses := openCountedSession(t)
	ctx := t.Context()
	c, err := s.nodeStore.sessionConn(ses.ID)
	mustSucceed(t, err)
	mustSucceed(t, c.Do(ctx, zk.CreatePersistent(s.nodeStore.pathOf("apart-closed"), nil,
		[]zk.ACL{{Perms: 1, Scheme: "world", ID: "anyone"}})))
	snapshot, err := s.nodeStore.Add(ctx, "apart", ses, 0, newPayload(ses.TTL), sequence.AddAlways)
	mustSucceed(t, err)
	n := snapshot.Nodes[0]
	var all sync.WaitGroup
	all.Go(func() {
		if existed, _, err := s.nodeStore.Remove(ctx, "apart", n, sequence.Then{List: true}); !existed || err != nil {
			t.Errorf("a node that exists: removed %v, %v", existed, err)
		}
	})
	gone := n
	gone.Key = strings.Replace(gone.Key, n.ID, strings.ToLower(rand.Text()), 1)
	for i := range 16 {
		all.Go(func() {
			if existed, _, err := s.nodeStore.Remove(ctx, "apart", gone, sequence.Then{List: i%2 == 0}); existed || err != nil {
				t.Errorf("a node that is gone: removed %v, %v", existed, err)
			}
		})
		all.Go(func() {
			payload := newPayload(ses.TTL)
			if snapshot, err := s.nodeStore.Add(ctx, fmt.Sprint("apart/", i), ses, int64(i+1), payload,
				sequence.AddAlways); err != nil || len(snapshot.Nodes) != 1 || snapshot.Nodes[0].ID != payload.ID {
				t.Errorf("a new lock: %+v, %v", snapshot, err)
			}
		})
		all.Go(func() {
			if _, err := s.nodeStore.Add(ctx, "apart-closed", ses, int64(i+100), newPayload(ses.TTL),
				sequence.AddAlways); !errors.Is(err, driver.ErrDenied) {
				t.Errorf("a lock where nobody may create: %v", err)
			}
		})
	}
	all.Wait()
	if _, err := s.nodeStore.Add(ctx, "apart-closed/lock", ses, 200, newPayload(ses.TTL),
		sequence.AddAlways); !errors.Is(err, driver.ErrDenied) {
		t.Errorf("a lock below one where nobody may create: %v", err)
	}
	if n := len(s.nodeStore.pendingAdds); n > 0 {
		t.Errorf("of adds that were all answered, %d are pending", n)
	}
}

// TestLateReadIsNotCached: a late read of a claim of this client that was removed meanwhile is not cached:
// nothing would remove it again.
func TestLateReadIsNotCached(t *testing.T) {
	s, _, ses := openCountedSession(t)
	ctx := t.Context()
	snapshot, err := s.nodeStore.Add(ctx, "forgotten", ses, 0, newPayload(ses.TTL), sequence.AddAlways)
	mustSucceed(t, err)
	n := snapshot.Nodes[0]
	n.Admitted = true
	s.nodeStore.cacheNode(s.nodeStore.pathOf("forgotten")+"/"+n.Key, n)
	snapshot, err = s.nodeStore.List(ctx, "forgotten", false)
	if err != nil || len(snapshot.Nodes) != 1 || !snapshot.Nodes[0].Admitted {
		t.Errorf("what was read of one that exists: %+v, %v", snapshot.Nodes, err)
	}
	_, _, err = s.nodeStore.Remove(ctx, "forgotten", n, sequence.Then{})
	mustSucceed(t, err)
	s.nodeStore.cacheNode(s.nodeStore.pathOf("forgotten")+"/"+n.Key, n)
	if len(s.nodeStore.cache.byPath) > 0 {
		t.Errorf("nothing exists, and %+v is cached", s.nodeStore.cache.byPath)
	}
}

// TestWithdrawBatchedAdd: an add that is canceled anywhere between the batch and its answer, and withdrawn, never
// comes to exist.
func TestWithdrawBatchedAdd(t *testing.T) {
	s, _, ses := openCountedSession(t)
	ctx := t.Context()
	const name = "withdrawn"
	var all sync.WaitGroup
	for w := range 64 {
		all.Go(func() {
			for r := range 20 {
				payload := newPayload(ses.TTL)
				given, cancel := context.WithTimeout(ctx, mathrand.N(3*time.Millisecond))
				guard := sequence.AddAlways
				if r%2 == 0 {
					guard = sequence.AddBatched
				}
				_, err := s.nodeStore.Add(given, fmt.Sprint(name, "/", w%40), ses, int64(w*20+r), payload, guard)
				cancel()
				withdraw := func() error {
					given, cancel := context.WithTimeout(ctx, 5*time.Second)
					defer cancel()
					_, err := s.nodeStore.Withdraw(given, fmt.Sprint(name, "/", w%40), ses, int64(w*20+r), payload.ID)
					return err
				}
				werr := withdraw()
				for tries := 0; werr != nil && tries < 3; tries++ { // the server is slow, or the link broke
					werr = withdraw()
				}
				if werr != nil {
					t.Errorf("%v, withdrawn: %v", err, werr)
				}
			}
		})
	}
	all.Wait()
	for w := range 40 {
		snapshot, err := s.nodeStore.List(ctx, fmt.Sprint(name, "/", w), true)
		mustSucceed(t, err)
		if len(snapshot.Nodes) > 0 {
			t.Errorf("%d claims were withdrawn, and exist", len(snapshot.Nodes))
		}
	}
}
