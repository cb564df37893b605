package storetest

import (
	"bytes"
	"context"
	"fmt"
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
	_, err := watch.Wait(ctx, version, place)
	return err
}

// CheckNotices checks that a client in the queue of a record gets the notices of the swaps that name its session, and
// no others. one and two are tables of two clients, in a store whose watches show each change once. awaitShown waits until
// the watch of two for claims in the queue of m has shown a version; nil: it is the one for all other claims as well.
func CheckNotices(t *testing.T, one, two record.Table, awaitShown func(version string)) {
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
	if awaitShown == nil {
		awaitShown = func(string) {}
	}
	swap()
	if err := WaitForChange(t.Context(), two, "m", swap()); err != nil { // from here on there is a watch
		t.Fatal(err)
	}
	hasNotice(t, two, row.Version) // and one for claims in the queue
	awaitShown(row.Version)
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
		awaitShown(row.Version)
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

// CheckNoticedRow checks that a notice for a claim at that place brings the row with that data as it was written, or with
// brought=false that it brings none. one and two are tables of two clients.
func CheckNoticedRow(t *testing.T, one, two record.Table, place record.Place, data []byte, brought bool) {
	t.Helper()
	written := record.Row{Name: fmt.Sprint("a/row ", place, len(data), brought)}
	swap := func(data []byte) {
		t.Helper()
		written.Data, written.Notify = data, []string{two.Watcher().Session()}
		now, err := one.Swap(t.Context(), written)
		if err != nil {
			t.Fatal(err)
		}
		written.Version = now.Version
	}
	watch := two.Watcher().Watch(written.Name)
	defer watch.Stop()
	swap([]byte("{}"))
	if _, err := watch.Wait(t.Context(), "", place); err != nil { // from here on it is notified
		t.Fatal(err)
	}
	known, err := two.Load(t.Context(), written.Name)
	if err != nil {
		t.Fatal(err)
	}
	swap(data)
	row, err := watch.Wait(t.Context(), known.Version, place)
	switch {
	case err != nil:
		t.Error(err)
	case !brought && row.Version != "":
		t.Errorf("a notice brings %d bytes", len(row.Data))
	case brought && (row.Name != written.Name || row.Version != written.Version || !bytes.Equal(row.Data, data)):
		t.Errorf("a notice brings %q %q %q, and what was written is %q %q %q",
			row.Name, row.Version, row.Data, written.Name, written.Version, data)
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
