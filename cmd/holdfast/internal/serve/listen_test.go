package serve

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLockOfSocket: the lock of a socket is not opened through a symbolic link, whose target stays as it is.
func TestLockOfSocket(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.Symlink(target, filepath.Join(dir, "s.lock")); err != nil {
		t.Fatal(err)
	}
	a, err := ParseAddress("unix:" + filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := a.Listen(); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("%v %v", l, err)
	}
	if _, err := os.Stat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target: %v", err)
	}
}
