package sequence

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// slowReader is a store that takes nearly the timeout of a request for each read.
type slowReader struct {
	NodeStore
	underWay atomic.Int64
	most     int64 // the largest number of reads under way; guarded by mu
	mu       sync.Mutex
}

func (*slowReader) Traits() Traits { return Traits{} }

func (r *slowReader) Info() driver.Info { return driver.Info{Store: "slow:"} }
func (r *slowReader) Close() error      { return nil }

func (r *slowReader) Read(ctx context.Context, refs []NodeRef) ([]Node, error) {
	n := r.underWay.Add(1)
	defer r.underWay.Add(-1)
	r.mu.Lock()
	r.most = max(r.most, n)
	r.mu.Unlock()
	select {
	case <-time.After(requestTimeout * 3 / 4):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	nodes := make([]Node, len(refs))
	for i := range nodes {
		nodes[i] = Node{Key: refs[i].Key, Token: 1}
	}
	return nodes, nil
}

// TestReadsAreBounded: however many leases are renewed at a time, few reads are under way at a time. The others are
// sent one after the other, and all of them are answered, although the store is slow.
func TestReadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowReader{}
		e := New(store)
		defer e.Close()
		s := &session{e: e, Session: Session{TTL: time.Hour}, keepAlives: []driver.Instant{e.clock.Now()}}
		due := make([]dueGrant, 4*maxReads*MaxRead)
		for i := range due {
			due[i] = dueGrant{i, &claim{session: s, node: ownNode{key: "k", token: 1}}}
		}
		from := time.Now()
		var renewed atomic.Int64
		s.renewByReading(t.Context(), due, func(_ int, r driver.Renewal) {
			if r.Err != nil {
				t.Error(r.Err)
			}
			renewed.Add(1)
		})
		if took := time.Since(from); took > 4*requestTimeout || renewed.Load() != int64(len(due)) {
			t.Errorf("%d of %d leases were renewed within %v", renewed.Load(), len(due), took)
		}
		if store.most != maxReads {
			t.Errorf("%d reads were under way at a time", store.most)
		}
	})
}
