package holdfasttest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
)

// runImport is the code under test: it imports one row per second while it holds the lock.
func runImport(ctx context.Context, client *holdfast.Client) error {
	return client.Do(ctx, "import", func(ctx context.Context, lease *holdfast.Lease) error {
		for {
			select {
			case <-time.After(time.Second):
				// a row, written under lease.Token()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
}

func Example() {
	_ = func(t *testing.T) { // func TestImport(t *testing.T)
		synctest.Test(t, func(t *testing.T) {
			store := holdfasttest.New(t)
			client := store.Client(t, nil)
			result := make(chan error, 1)
			go func() { result <- runImport(t.Context(), client.Client) }()

			store.Advance(t, time.Hour) // the client renews its lease meanwhile
			store.AssertHeld(t, "import")

			client.Partition()
			store.Advance(t, holdfast.DefaultTTL+time.Second)
			select {
			case err := <-result:
				if !errors.Is(err, holdfast.ErrLost) {
					t.Errorf("the import ended with %v", err)
				}
			default:
				t.Error("the import continues without its lock")
			}
			store.AssertFree(t, "import")
		})
	}
}
