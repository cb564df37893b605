package sequence_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
)

// TestReadersShareOneRead: a hundred readers of one client wait for the same writer. When it releases the lock, they do
// not each read the queue.
func TestReadersShareOneRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		writer := sequence.New(&memtree.Link{Server: server})
		defer writer.Close()
		readers := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				time.Sleep(5 * time.Millisecond)
				defer time.Sleep(5 * time.Millisecond)
				return do(), nil
			}, DelayNotification: func() { time.Sleep(5 * time.Millisecond) }})
		defer readers.Close()
		rw := func(id string, weight int64) driver.Claim {
			c := waiting(mutex("m", 10*time.Hour))
			c.ID, c.Kind, c.Limit, c.Weight = id, driver.KindRW, driver.RWLimit, weight
			return c
		}
		w := rw("writer", driver.RWLimit)
		if _, err := writer.Acquire(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for n := range 100 {
			all.Go(func() {
				if _, err := readers.Acquire(t.Context(), rw(fmt.Sprint("reader", n), 1)); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Second)
		server.TakeRequestCounts()
		if err := writer.Release(t.Context(), w, ""); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		if n := server.TakeRequestCounts()["list"]; n > 10 {
			t.Errorf("the lock was listed %d times", n)
		}
	})
}
