package record_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/engine/record"
)

// mute is a table that would tell of changes, and cannot at present.
type mute struct{ record.Table }

func (mute) Wait(context.Context, string, string) error { return errors.New("too many watches") }

// TestCannotTell promises that who waits is let in as soon where a table cannot tell of changes at present as where
// it never can.
func TestCannotTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		holder, waiter := m.Open(), record.New(mute{m.Table()})
		defer holder.Close()
		defer waiter.Close()
		for range 20 {
			held := paceClaim(1, false)
			held.TTL = time.Hour
			if _, err := holder.Acquire(t.Context(), held); err != nil {
				t.Fatal(err)
			}
			told := make(chan error, 1)
			go func() { _, err := waiter.Acquire(t.Context(), paceClaim(2, true)); told <- err }()
			time.Sleep(47 * time.Second)
			if err := holder.Release(t.Context(), held, ""); err != nil {
				t.Fatal(err)
			}
			from := time.Now()
			if err := <-told; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(from); took > 1100*time.Millisecond {
				t.Errorf("let in %v after the release", took)
			}
			if err := waiter.Release(t.Context(), paceClaim(2, true), ""); err != nil {
				t.Fatal(err)
			}
		}
	})
}
