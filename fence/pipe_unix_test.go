//go:build unix

package fence_test

import (
	"syscall"
	"testing"
)

func mustMakePipe(t *testing.T, name string) {
	t.Helper()
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
}
