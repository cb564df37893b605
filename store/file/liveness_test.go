//go:build linux || darwin

package file

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestHeirloom: a client whose process has died counts as there for as long as another has its heirloom open.
func TestHeirloom(t *testing.T) {
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
	heirloom, err := dead.LivenessFile()
	if err != nil {
		t.Fatal(err)
	}
	session := dead.Session()
	dead.liveness.closeHandle(dead.liveness.handle) // which is all that the kernel does for a process that dies
	if other.IsDead(session) {
		t.Error("gone, though its heir is there")
	}
	if err := other.liveness.removeDeadFiles(); err != nil || other.IsDead(session) {
		t.Errorf("swept, though its heir is there: %v", err)
	}
	if err := heirloom.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return other.IsDead(session) }) // a process that another test is about to start has all files open for a moment
	dead.liveness.handle = -1
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := dead.LivenessFile(); err == nil {
		t.Error("a closed store has an heirloom")
	}
}

// TestHeirloomThroughTheEngine: the store offers what the table has.
func TestHeirloomThroughTheEngine(t *testing.T) {
	t.Parallel()
	store, err := New(t.TempDir()+"/store", nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := store.(driver.LivenessFiler).LivenessFile()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.(driver.LivenessFiler).LivenessFile(); err == nil {
		t.Error("a closed store has an heirloom")
	}
}
