package record_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/engine/record"
)

// muteNotifier is a table whose notifications fail at present.
type muteNotifier struct{ record.Table }

func (muteNotifier) Wait(context.Context, string, string) error {
	return errors.New("too many watches")
}

// TestNotifierFails: while a table's notifications fail, a waiter is granted as promptly as on a table without
// notifications.
func TestNotifierFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		holder, waiter := m.Open(), record.New(muteNotifier{m.Table()})
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
