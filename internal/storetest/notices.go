package storetest

import (
	"testing"

	"github.com/holdfast-go/holdfast/engine/record"
)

// CheckNotices checks that a client that listens for notices of a record gets those of the swaps that name its session, and
// no others. one and two are tables of two clients, in a store whose watches show each change once.
func CheckNotices(t *testing.T, one, two record.Table) {
	t.Helper()
	listener, watcher := two.(record.ClientNotifier), two.(record.Notifier)
	var row record.Row
	swap := func(name string, sessions ...string) {
		t.Helper()
		if row.Name != name {
			row = record.Row{Name: name}
		}
		row.Data, row.Notify = []byte("{}"), sessions
		now, err := one.Swap(t.Context(), row)
		if err != nil {
			t.Fatal(err)
		}
		row.Version = now.Version
	}
	listen := func() <-chan struct{} {
		t.Helper()
		noticed, stop, err := listener.ListenForNotice(t.Context(), row.Name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
		return noticed
	}
	swap("other")
	other := listen()
	swap("m")
	noticed := listen()
	for _, sessions := range [][]string{nil, {record.NewSession()}, {listener.Session() + "\x00"}} {
		before := row.Version
		swap("m", sessions...)
		if err := watcher.Wait(t.Context(), "m", before); err != nil {
			t.Fatal(err)
		}
		if IsClosed(noticed) {
			t.Errorf("it was notified of a change that concerns %q", sessions)
		}
	}
	swap("m", record.NewSession(), listener.Session())
	Eventually(t, "the notice", func() bool { return IsClosed(noticed) })
	noticed = listen()
	many := make([]string, 1000)
	for i := range many {
		many[i] = record.NewSession()
	}
	swap("m", many...)
	Eventually(t, "the notice for too many to be named", func() bool { return IsClosed(noticed) })
	noticed = listen()
	if err := one.Delete(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the notice of the removal", func() bool { return IsClosed(noticed) })
	if IsClosed(other) {
		t.Error("it was notified about another record")
	}
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
