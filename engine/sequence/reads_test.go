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
		return make([]Node, len(refs)), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestReadsAreBounded: however many leases are renewed at a time, few reads are under way at a time. The others have
// their turns one after the other, and all of them are answered, although the store is slow.
func TestReadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowReader{}
		e := New(store)
		defer e.Close()
		s := &session{e: e, Session: Session{TTL: time.Minute}}
		var all sync.WaitGroup
		for range 4 * maxReads {
			all.Go(func() {
				from := time.Now()
				if _, _, err := s.retryReadNodes(t.Context(), []NodeRef{{"m", "k"}}); err != nil {
					t.Error(err)
				}
				if took := time.Since(from); took > 4*requestTimeout {
					t.Errorf("a read took %v", took)
				}
			})
		}
		all.Wait()
		if store.most != maxReads {
			t.Errorf("%d reads were under way at a time", store.most)
		}
		for range maxReads {
			all.Go(func() { _, _, _ = s.retryReadNodes(t.Context(), nil) })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, _, err := s.retryReadNodes(ctx, nil); err == nil {
			t.Error("a read without a turn has an answer")
		}
		all.Wait()
	})
}
