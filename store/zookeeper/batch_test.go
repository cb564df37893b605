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

// openCountedSession is a store whose requests are counted from here on, and a session of it.
func openCountedSession(t *testing.T) (*Store, *requestCounter, sequence.Session) {
	t.Helper()
	s, sent := newCountedStore(t)
	ses, err := s.tree.OpenSession(t.Context(), 30*time.Second)
	mustSucceed(t, err)
	t.Cleanup(func() { mustSucceed(t, s.tree.EndSession(context.Background(), ses.ID)) })
	sent.takeCounts()
	return s, sent, ses
}

// TestWritesGoTogether: writes that come at one time go in fewer requests; the token that each claim gets is its node's
// czxid, and no lock gets two claims of one token by that; what is refused together, since a lock's node is not
// there, is done alone.
func TestWritesGoTogether(t *testing.T) {
	s, sent, ses := openCountedSession(t)
	ctx := t.Context()
	c, err := s.tree.sessionConn(ses.ID)
	mustSucceed(t, err)
	const workers, rounds = 32, 20
	var mu sync.Mutex
	tokens := map[string]bool{}
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for r := range rounds {
				name := fmt.Sprint("together/", mathrand.N(4+r)) // now and then a new one
				note, guard := newPayload(ses.TTL), sequence.AddAlways
				if w%2 == 0 {
					guard = sequence.AddBatched
				}
				look, err := s.tree.Add(ctx, name, ses, int64(w*rounds+r), note, guard)
				if err != nil || len(look.Nodes) == 0 {
					t.Errorf("%+v, %v", look, err)
					return
				}
				n := look.Nodes[len(look.Nodes)-1]
				for _, o := range look.Nodes {
					if o.ID == note.ID {
						n = o
					}
				}
				stat := zk.Exists(s.tree.pathOf(name) + "/" + n.Key)
				err = c.Do(ctx, stat)
				if got, statErr := stat.Stat(); err != nil || statErr != nil || got.Czxid != n.Token {
					t.Errorf("%s has token %d, which is not its node's czxid: %v, %v", n.Key, n.Token, err, statErr)
				}
				id := fmt.Sprint(name, n.Token)
				mu.Lock()
				if n.ID != note.ID || tokens[id] {
					t.Errorf("%s has token %d, as another has, or %s does", note.ID, n.Token, n.ID)
				}
				tokens[id] = true
				mu.Unlock()
				stood, left, err := s.tree.RemoveAndReadNext(ctx, name, n, n.Key)
				if err != nil || !stood || len(left.Nodes) > 0 {
					t.Errorf("removed: %v, left: %v, %v", stood, left.Nodes, err)
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

// TestSingleBatchedWrite: a patient write with which no other goes is sent as it is, and needs no second request for its
// answer.
func TestSingleBatchedWrite(t *testing.T) {
	s, sent, ses := openCountedSession(t)
	ctx := t.Context()
	_, err := s.tree.Add(ctx, "no-company", ses, 0, newPayload(ses.TTL), sequence.AddAlways)
	mustSucceed(t, err)
	sent.takeCounts()
	look, err := s.tree.Add(ctx, "no-company", ses, 1, newPayload(ses.TTL), sequence.AddBatched)
	if err != nil || len(look.Nodes) != 2 || look.Nodes[1].Token <= look.Nodes[0].Token {
		t.Errorf("%+v, %v", look, err)
	}
	got := sent.takeCounts()
	delete(got, zk.OpPing)
	if len(got) != 2 || got[zk.OpCreate2] != 1 || got[zk.OpGetChildren] != 1 {
		t.Errorf("sent %v", got)
	}
}

// TestBatchedWritesFailAlone: of writes that go together each gets its own answer, whatever is wrong with another: a node that is
// gone already, a lock that is not there yet, one that is not permitted.
func TestBatchedWritesFailAlone(t *testing.T) {
	s, _, ses := openCountedSession(t)
	ctx := t.Context()
	c, err := s.tree.sessionConn(ses.ID)
	mustSucceed(t, err)
	mustSucceed(t, c.Do(ctx, zk.CreatePersistent(s.tree.pathOf("apart-closed"), nil, []zk.ACL{{Perms: 1, Scheme: "world", ID: "anyone"}})))
	look, err := s.tree.Add(ctx, "apart", ses, 0, newPayload(ses.TTL), sequence.AddAlways)
	mustSucceed(t, err)
	n := look.Nodes[0]
	var all sync.WaitGroup
	all.Go(func() {
		if stood, _, err := s.tree.Remove(ctx, "apart", n, true); !stood || err != nil {
			t.Errorf("a node that stands: removed %v, %v", stood, err)
		}
	})
	gone := n
	gone.Key = strings.Replace(gone.Key, n.ID, strings.ToLower(rand.Text()), 1)
	for i := range 16 {
		all.Go(func() {
			if stood, _, err := s.tree.Remove(ctx, "apart", gone, i%2 == 0); stood || err != nil {
				t.Errorf("a node that is gone: removed %v, %v", stood, err)
			}
		})
		all.Go(func() {
			note := newPayload(ses.TTL)
			if look, err := s.tree.Add(ctx, fmt.Sprint("apart/", i), ses, int64(i+1), note, sequence.AddAlways); err != nil || len(look.Nodes) != 1 || look.Nodes[0].ID != note.ID {
				t.Errorf("a new lock: %+v, %v", look, err)
			}
		})
		all.Go(func() {
			if _, err := s.tree.Add(ctx, "apart-closed", ses, int64(i+100), newPayload(ses.TTL), sequence.AddAlways); !errors.Is(err, driver.ErrDenied) {
				t.Errorf("a lock where nobody may create: %v", err)
			}
		})
	}
	all.Wait()
	if _, err := s.tree.Add(ctx, "apart-closed/lock", ses, 200, newPayload(ses.TTL), sequence.AddAlways); !errors.Is(err, driver.ErrDenied) {
		t.Errorf("a lock below one where nobody may create: %v", err)
	}
	if n := len(s.tree.pendingAdds); n > 0 {
		t.Errorf("of claims that were all answered, %d are in doubt", n)
	}
}

// TestLateReadIsNotCached: what a read tells late of a claim of this client that was removed meanwhile is not remembered:
// nothing would remove it again.
func TestLateReadIsNotCached(t *testing.T) {
	s, _, ses := openCountedSession(t)
	ctx := t.Context()
	look, err := s.tree.Add(ctx, "forgotten", ses, 0, newPayload(ses.TTL), sequence.AddAlways)
	mustSucceed(t, err)
	n := look.Nodes[0]
	n.Admitted = true
	s.tree.cacheNode(s.tree.pathOf("forgotten")+"/"+n.Key, n)
	look, err = s.tree.List(ctx, "forgotten", false)
	if err != nil || len(look.Nodes) != 1 || !look.Nodes[0].Admitted {
		t.Errorf("what was read of one that stands: %+v, %v", look.Nodes, err)
	}
	_, _, err = s.tree.Remove(ctx, "forgotten", n, false)
	mustSucceed(t, err)
	s.tree.cacheNode(s.tree.pathOf("forgotten")+"/"+n.Key, n)
	if len(s.tree.cache) > 0 {
		t.Errorf("nothing stands, and %+v is known", s.tree.cache)
	}
}

// TestWithdrawBatchedAdd: an add that is given up anywhere between the lane and its answer, and withdrawn, never
// comes to stand.
func TestWithdrawBatchedAdd(t *testing.T) {
	s, _, ses := openCountedSession(t)
	ctx := t.Context()
	const name = "withdrawn"
	var all sync.WaitGroup
	for w := range 64 {
		all.Go(func() {
			for r := range 20 {
				note := newPayload(ses.TTL)
				given, cancel := context.WithTimeout(ctx, mathrand.N(3*time.Millisecond))
				guard := sequence.AddAlways
				if r%2 == 0 {
					guard = sequence.AddBatched
				}
				_, err := s.tree.Add(given, fmt.Sprint(name, "/", w%40), ses, int64(w*20+r), note, guard)
				cancel()
				if _, werr := s.tree.Withdraw(ctx, fmt.Sprint(name, "/", w%40), ses, int64(w*20+r), note.ID); werr != nil {
					t.Errorf("%v, withdrawn: %v", err, werr)
				}
			}
		})
	}
	all.Wait()
	for w := range 40 {
		look, err := s.tree.List(ctx, fmt.Sprint(name, "/", w), true)
		mustSucceed(t, err)
		if len(look.Nodes) > 0 {
			t.Errorf("%d claims were withdrawn, and stand", len(look.Nodes))
		}
	}
}
