package file

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

func openTest(t testing.TB, dir string) *table {
	t.Helper()
	tab, err := openTable(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tab.Close() })
	return tab
}

func openTable(ctx context.Context, dir string, opts *Options) (*table, error) {
	t := newTable(dir, opts.withDefaults())
	if err := t.openStore(ctx, true); err != nil {
		return nil, err
	}
	return t, nil
}

func claimOf(name string) driver.Claim {
	return driver.Claim{Name: name, ID: strings.ToLower(rand.Text()), Kind: driver.KindMutex, Limit: 1, Weight: 1,
		TTL: 30 * time.Second}
}

func BenchmarkTableSwap(b *testing.B) {
	tab := openTest(b, b.TempDir()+"/store")
	row := record.Row{Name: "bench", Data: make([]byte, 300)}
	for b.Loop() {
		next, err := tab.Swap(b.Context(), row)
		if err != nil {
			b.Fatal(err)
		}
		row = next
	}
}

func BenchmarkTableLoad(b *testing.B) {
	tab := openTest(b, b.TempDir()+"/store")
	if _, err := tab.Swap(b.Context(), record.Row{Name: "bench", Data: make([]byte, 300)}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := tab.Load(b.Context(), "bench"); err != nil {
			b.Fatal(err)
		}
	}
}
