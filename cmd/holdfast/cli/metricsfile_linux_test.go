package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMetricsFileOnFullDisk: a full disk changes nothing but one line of stderr. The file keeps what it had, and the
// next program goes on from there.
func TestMetricsFileOnFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a disk")
	}
	w := newWorkspace(t)
	disk := w.filePath("disk")
	if err := errors.Join(os.Mkdir(disk, 0o700),
		unix.Mount("holdfast-test", disk, "tmpfs", 0, "size=1m,mode=0700")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	run := func() result { return w.runProgram("run", "--metrics-file", "disk/a.prom", "a", "sh", "-c", "exit 7") }
	check := func(ends float64) {
		t.Helper()
		w.checkMetrics("disk/a.prom", map[string]float64{
			`holdfast_command_ends_total{command="run",name="a",outcome="failed"}`: ends})
	}
	run().check(t, 7)
	check(1)
	ballast := filepath.Join(disk, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	got := run()
	if got.check(t, 7, "no space left"); strings.Count(got.err, "\n") != 1 {
		t.Error(got.description)
	}
	check(1)
	w.checkNothingLeft("disk", "a.prom", "ballast")
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	run().check(t, 7)
	check(2)
}
