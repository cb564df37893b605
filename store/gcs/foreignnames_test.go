package gcs_test

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/gcs"
)

// TestForeignNames: a lock's object in a foreign layout is that of a foreign client for the same name. A name for which
// it would be another one is refused.
func TestForeignNames(t *testing.T) {
	t.Parallel()
	for _, layout := range []gcs.Layout{gcs.LayoutGCSLock, gcs.LayoutVault} {
		s := startServer(t)
		store, _ := mustOpen(t, s, quickLayoutOptions(layout))
		for _, name := range []string{"a=b", "a//b", "a/../b", "a\tb"} {
			acquire(t, store, mutexClaim(name, time.Minute))
			if len(s.Writes(string(layout)+"/"+name)) == 0 {
				t.Errorf("%s: the lock %q has another object", layout, name)
			}
		}
		for _, name := range []string{"a\x10b", "\x10", ".", "..", ".well-known/acme-challenge/a"} {
			if _, err := store.Acquire(t.Context(), mutexClaim(name, time.Minute)); !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%s: the lock %q: %v", layout, name, err)
			}
			if _, err := store.Inspect(t.Context(), name); !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%s: a look at %q: %v", layout, name, err)
			}
		}
	}
}
