//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// openTurnTables returns two clients of one directory, and the path of the turn of the lock "a/b".
func openTurnTables(t *testing.T) (one, two *table, path string) {
	t.Helper()
	dir := t.TempDir() + "/store"
	for _, to := range []**table{&one, &two} {
		table, err := openTable(t.Context(), dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = table.Close() })
		*to = table
	}
	return one, two, filepath.Join(dir, "turns", encodeName("a/b"))
}

// turnResult is what a call of TakeTurn returned.
type turnResult struct {
	pass func()
	err  error
}

func takeTurnLater(ctx context.Context, table *table) <-chan turnResult {
	results := make(chan turnResult, 1)
	go func() {
		pass, err := table.TakeTurn(ctx, "a/b")
		results <- turnResult{pass, err}
	}()
	return results
}

// TestTurn: one client has the turn at a time. The next has it as soon as it is passed on, and nothing remains of it.
func TestTurn(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	pass, err := one.TakeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		next := takeTurnLater(t.Context(), two)
		waitUntil(t, func() bool { return isWatched(two, path) })
		select {
		case r := <-next:
			t.Fatalf("two clients have the turn: %v", r.err)
		default:
		}
		pass()
		r := <-next
		if r.err != nil {
			t.Fatal(r.err)
		}
		pass, one, two = r.pass, two, one
	}
	pass()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the turn has left a file: %v", err)
	}
}

// isWatched reports whether a client waits for the events of a path.
func isWatched(table *table, path string) bool {
	table.events.mu.Lock()
	defer table.events.mu.Unlock()
	return table.events.waiting[path] != nil
}

// TestTurnEnds: a call that waits for the turn ends with its context, and with its client.
func TestTurnEnds(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	pass, err := one.TakeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	defer pass()
	ctx, cancel := context.WithCancel(t.Context())
	next := takeTurnLater(ctx, two)
	waitUntil(t, func() bool { return isWatched(two, path) })
	cancel()
	if r := <-next; !errors.Is(r.err, context.Canceled) {
		t.Errorf("after the end of the context: %v", r.err)
	}
	next = takeTurnLater(t.Context(), two)
	waitUntil(t, func() bool { return isWatched(two, path) })
	if err := two.Close(); err != nil {
		t.Fatal(err)
	}
	if r := <-next; !errors.Is(r.err, driver.ErrClosed) {
		t.Errorf("after Close: %v", r.err)
	}
}

// TestTurnOfDeadProcess: the file of a process that was killed with the turn is nobody's turn.
func TestTurnOfDeadProcess(t *testing.T) {
	t.Parallel()
	one, _, path := openTurnTables(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pass, err := one.TakeTurn(ctx, "a/b")
	if err != nil {
		t.Fatal(err)
	}
	pass()
}

// TestRemovedTurn: a client that opened the file of a turn before it was passed on does not get the turn by that file.
func TestRemovedTurn(t *testing.T) {
	t.Parallel()
	one, two, _ := openTurnTables(t)
	passFirst, err := one.TakeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	f, err := one.openTurns(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	defer one.closeHandle(f.dir)
	late, err := f.open()
	if err != nil {
		t.Fatal(err)
	}
	passFirst()
	passSecond, err := two.TakeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	defer passSecond()
	if pass, err := f.lock(late); pass != nil || err != nil {
		t.Errorf("two clients have the turn: %v", err)
	}
}

// TestTurnWithoutStore: there are no turns before there is a store, and none where a file has their directory's name.
func TestTurnWithoutStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	none := newTable(dir, (&Options{}).withDefaults())
	if _, err := none.TakeTurn(t.Context(), "a"); err == nil {
		t.Error("a turn without a store")
	}
	one, err := openTable(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	if err := os.WriteFile(filepath.Join(dir, "turns"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := one.TakeTurn(t.Context(), "a"); err == nil {
		t.Error("a turn in a file")
	}
}
