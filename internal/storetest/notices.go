package storetest

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/engine/record"
)

// WaitForChange waits for a change of a record.
func WaitForChange(ctx context.Context, table record.Table, name, version string) error {
	return waitAt(ctx, table, name, version, record.Anywhere)
}

func waitAt(ctx context.Context, table record.Table, name, version string, place record.Place) error {
	watch := table.Watcher().Watch(name)
	defer watch.Stop()
	return watch.Wait(ctx, version, place)
}

// CheckNotices checks that a client in the queue of a record gets the notices of the swaps that name its session, and
// no others. one and two are tables of two clients, in a store whose watches show each change once.
func CheckNotices(t *testing.T, one, two record.Table) {
	t.Helper()
	session := two.Watcher().Session()
	var row record.Row
	swap := func(sessions ...string) (before string) {
		t.Helper()
		before = row.Version
		now, err := one.Swap(t.Context(), record.Row{Name: "m", Version: before, Data: []byte("{}"), Notify: sessions})
		if err != nil {
			t.Fatal(err)
		}
		row = now
		row.Name = "m"
		return before
	}
	swap()
	if err := WaitForChange(t.Context(), two, "m", swap()); err != nil { // from here on there is a watch
		t.Fatal(err)
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = record.NewSession()
	}
	for _, c := range []struct {
		what     string
		sessions []string
		want     bool
	}{
		{"a change that concerns nobody", nil, false},
		{"a change that concerns another client", []string{record.NewSession()}, false},
		{"a change for a name that is no session", []string{session + "\x00"}, false},
		{"a change that concerns it, too", []string{record.NewSession(), session}, true},
		{"a change that concerns too many to be named", many, true},
	} {
		before := swap(c.sessions...)
		if err := WaitForChange(t.Context(), two, "m", before); err != nil { // from here on the watch has shown it
			t.Fatal(err)
		}
		if got := hasNotice(t, two, before); got != c.want {
			t.Errorf("%s: notified %v, want %v", c.what, got, c.want)
		}
		if hasNotice(t, two, row.Version) {
			t.Errorf("%s: it is notified again", c.what)
		}
	}
	if err := one.Delete(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if err := waitAt(t.Context(), two, "m", row.Version, record.InQueue); err != nil {
		t.Errorf("the removal: %v", err)
	}
}

// hasNotice reports whether a claim in the queue that knows a version of m need not wait for a notice.
func hasNotice(t *testing.T, table record.Table, version string) bool {
	ended, end := context.WithCancel(t.Context())
	end()
	return waitAt(ended, table, "m", version, record.InQueue) == nil
}

// IsClosed reports whether a channel is closed from which nothing else can be received.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
