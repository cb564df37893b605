package cli

import (
	"strings"
	"testing"
)

// TestNoDefaultStore: a command that was built without the store of files says that it has no default store.
func TestNoDefaultStore(t *testing.T) {
	before := usedStore.Load()
	t.Cleanup(func() { usedStore.Store(before) })
	for source, want := range map[string]string{"": "no default store: give one by --store", "--store": "unknown store"} {
		usedStore.Store(&storeChoice{url: "absent:///dir", source: source})
		if _, err := openURL(t.Context(), "absent:///dir"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("source %q: %v", source, err)
		}
	}
}
