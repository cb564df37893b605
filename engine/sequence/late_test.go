package sequence_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
)

// TestALateRenewalCounts: the TTL of a renewal that has taken long, since the store did not answer, runs from the requests
// that it did answer, and not from when it was asked for.
func TestALateRenewalCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var silent atomic.Bool
		holder := sequence.New(&memtree.Link{Server: server, Carry: func(_ context.Context, _ string, do func() any) (any, error) {
			if silent.Load() {
				return nil, errors.New("connection refused")
			}
			return do(), nil
		}})
		defer holder.Close()
		waiter := sequence.New(&memtree.Link{Server: server})
		defer waiter.Close()
		const ttl = 10 * time.Second
		g, err := holder.Acquire(t.Context(), mutex("m", ttl))
		if err != nil {
			t.Fatal(err)
		}
		in := make(chan driver.Instant)
		go func() {
			if _, err := waiter.Acquire(t.Context(), waiting(mutex("m", ttl))); err != nil {
				t.Error(err)
			}
			in <- driver.SystemClock.Now()
		}()
		time.Sleep(ttl / 3)
		silent.Store(true)
		time.AfterFunc(ttl/2, func() { silent.Store(false) })
		since := g.Since
		holder.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
			if r.Err != nil {
				t.Error(r.Err)
			}
			since = r.Since
		})
		if after := (<-in).Since(since); after < ttl {
			t.Errorf("the next was let in %v after the start of a grant of %v", after, ttl)
		}
	})
}
