package cli

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDiskEndsNoCommand: a disk that becomes full under the store ends no command: its lock is renewed past its
// TTL, and then released.
func TestFullDiskEndsNoCommand(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a disk")
	}
	w := newWorkspace(t)
	disk := t.TempDir()
	if err := unix.Mount("holdfast-test", disk, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	w.store = "file://" + filepath.Join(disk, "store")
	r := w.startProgram("run", "--events", "record", "--ttl", "9s", "a", "sh", "-c",
		"echo held; sleep 11").awaitOutput("held")
	if err := os.WriteFile(filepath.Join(disk, "ballast"), make([]byte, 2<<20), 0o600); !errors.Is(err,
		syscall.ENOSPC) {
		t.Fatal(err)
	}
	got := r.wait()
	got.check(t, 0)
	if got.err != "" { // where a lock that could not be released would be named
		t.Error(got.description)
	}
	if last, _ := w.readRecord(w.filePath("record")); last["outcome"] != "exited" {
		t.Errorf("record: %v", last)
	}
}
