package record_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/engine/record"
)

// muteTable is a table that cannot notify at present.
type muteTable struct{ record.Table }

func (muteTable) Watcher() record.Watcher {
	return record.WatcherFunc(func(context.Context, string, string) error { return errors.New("too many watches") })
}

// TestWatcherFails: while a table cannot notify, a waiter is granted as promptly as on a table that never does.
func TestWatcherFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		holder, waiter := m.Open(), record.New(muteTable{m.Table()})
		defer holder.Close()
		defer waiter.Close()
		for range 20 {
			held := paceClaim(1, false)
			held.TTL = time.Hour
			if _, err := holder.Acquire(t.Context(), held); err != nil {
				t.Fatal(err)
			}
			returned := make(chan error, 1)
			go func() { _, err := waiter.Acquire(t.Context(), paceClaim(2, true)); returned <- err }()
			time.Sleep(47 * time.Second)
			if err := holder.Release(t.Context(), held, ""); err != nil {
				t.Fatal(err)
			}
			from := time.Now()
			if err := <-returned; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(from); took > 1100*time.Millisecond {
				t.Errorf("granted %v after the release", took)
			}
			if err := waiter.Release(t.Context(), paceClaim(2, true), ""); err != nil {
				t.Fatal(err)
			}
		}
	})
}
