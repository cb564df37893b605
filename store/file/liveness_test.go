//go:build linux || darwin || windows

package file

import (
	"context"
	"testing"
)

// TestSharedLivenessFile: a client whose process has died counts as alive as long as another process has its liveness
// file open.
func TestSharedLivenessFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	dead, err := openTable(context.Background(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := openTable(context.Background(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	file, err := dead.LivenessFile()
	if err != nil {
		t.Fatal(err)
	}
	session := dead.Session()
	dead.liveness.closeHandle(dead.liveness.handle) // which is all that the kernel does for a process that dies
	if other.IsDead(session) {
		t.Error("dead, though another process has its liveness file open")
	}
	if err := other.liveness.removeDeadFiles(); err != nil || other.IsDead(session) {
		t.Errorf("removed, though another process has it open: %v", err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	// A process that another test is just starting has all files open for a moment.
	waitUntil(t, func() bool { return other.IsDead(session) })
	dead.liveness.handle = -1
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := dead.LivenessFile(); err == nil {
		t.Error("a closed store has a liveness file")
	}
}

// TestLivenessFileOfStore: the store provides the liveness file of its table, and none once it is closed.
func TestLivenessFileOfStore(t *testing.T) {
	t.Parallel()
	store, err := New(t.Context(), t.TempDir()+"/store", nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := store.LivenessFile()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.LivenessFile(); err == nil {
		t.Error("a closed store has a liveness file")
	}
}
