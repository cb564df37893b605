//go:build unix

package fence_test

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
)

// TestFileAppendedInPart: an append that fails in the middle, as on a full disk, leaves nothing of it in the file. The
// limit of the size of files stands for the disk. It counts for a whole process, so this test runs in its own.
func TestFileAppendedInPart(t *testing.T) {
	name := os.Getenv("FENCE_TEST_FILE")
	if name == "" {
		child := exec.Command(os.Args[0], "-test.run=^TestFileAppendedInPart$")
		child.Env = append(os.Environ(), "FENCE_TEST_FILE="+filepath.Join(t.TempDir(), "log"))
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := fence.AppendFile(t.Context(), name, []byte("0123456789\n"), 0o600, 1); err != nil {
		t.Fatal(err)
	}
	small := before
	small.Cur = 20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small); err != nil {
		t.Fatal(err)
	}
	err := fence.AppendFile(t.Context(), name, []byte("0123456789\n"), 0o600, 1)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, syscall.EFBIG) {
		t.Errorf("the append: %v", err)
	}
	if data, err := os.ReadFile(name); err != nil || string(data) != "0123456789\n" {
		t.Errorf("%q %v", data, err)
	}
}
