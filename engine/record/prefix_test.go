package record_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestPrefixedTableContract: a table with a prefix keeps the contract of a table.
func TestPrefixedTableContract(t *testing.T) {
	m := memory.New(nil)
	storetest.ConformTable(t, tabletest.Harness{Open: func(context.Context) (record.Table, error) {
		return record.WithPrefix(m.Table(), "team/"), nil
	}})
}

// TestPrefixConformance: a store with a prefix keeps all promises.
func TestPrefixConformance(t *testing.T) {
	m := memory.New(nil)
	storetest.Conform(t, drivertest.Harness{Open: func(context.Context) (driver.Store, error) {
		return record.New(record.WithPrefix(m.Table(), "team/")), nil
	}}, drivertest.Options{Effort: 0.1})
}

// TestPrefixesAreApart: two stores with prefixes share a table, and do not see each other's locks and runs. The one is
// notified of what happens to its locks.
func TestPrefixesAreApart(t *testing.T) {
	m := memory.New(nil)
	open := func(prefix string) driver.Store {
		s := record.New(record.WithPrefix(m.Table(), prefix))
		t.Cleanup(func() { s.Close() })
		return s
	}
	storetest.CheckPrefixes(t, open("a/"), open("b/"), m.Open())
}

// TestPrefixNotices: a client with a prefix is notified of changes of its records.
func TestPrefixNotices(t *testing.T) {
	m := memory.New(nil)
	a, b := record.WithPrefix(m.Table(), "a/"), record.WithPrefix(m.Table(), "b/")
	row, err := a.Swap(t.Context(), record.Row{Name: "m", Data: []byte("{}")})
	if err != nil || row.Name != "m" {
		t.Fatalf("%q, %v", row.Name, err)
	}
	if _, err := b.Swap(t.Context(), record.Row{Name: "m", Data: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := storetest.WaitForChange(ctx, a, "m", ""); err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := storetest.WaitForChange(ended, a, "m", row.Version); !errors.Is(err, context.Canceled) {
		t.Errorf("nothing has changed: %v", err)
	}
	if w := record.WithPrefix(unclockedTable{m.Table()}, "a/").Watcher(); w != nil {
		t.Errorf("a watcher of a table that has none: %v", w)
	}
}

// TestPrefixListsInOrder: a listing goes on after a name, and ends with the prefix.
func TestPrefixListsInOrder(t *testing.T) {
	m := memory.New(nil)
	table := record.WithPrefix(m.Table(), "m/")
	for _, name := range []string{"a", "b/1", "b/2", "c"} {
		for _, prefix := range []string{"a/", "m/", "z/"} {
			if _, err := record.WithPrefix(m.Table(), prefix).Swap(t.Context(), record.Row{Name: name, Data: []byte("{}")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct{ prefix, after, want string }{
		{"", "", "a b/1 b/2 c"}, {"b", "", "b/1 b/2"}, {"", "b/1", "b/2 c"}, {"b", "b/1", "b/2"},
	} {
		var got []string
		for row, err := range table.List(t.Context(), c.prefix, c.after) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, row.Name)
		}
		if slices.Sort(got); strings.Join(got, " ") != c.want {
			t.Errorf("%q after %q: %q, want %s", c.prefix, c.after, got, c.want)
		}
	}
}

// TestPrefixedNames: a prefix takes its room from the names.
func TestPrefixedNames(t *testing.T) {
	prefix := strings.Repeat("p", 100)
	s := record.New(record.WithPrefix(memory.New(nil).Table(), prefix))
	defer s.Close()
	if got, want := s.Info().MaxName, driver.MaxName-len(prefix); got != want {
		t.Fatalf("names of %d bytes, want %d", got, want)
	}
	c := storetest.Mutex(strings.Repeat("n", s.Info().MaxName+1), time.Minute)
	if _, err := s.Acquire(t.Context(), c); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a longer name: %v", err)
	}
}
