package bench

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/gofrs/flock"

	"github.com/holdfast-go/holdfast/internal/benchtest"
)

// The file is not among those by which scripts/bench measures an earlier version, which may not have the module.
func init() {
	filePeers = append(filePeers, benchtest.Locker{Name: "gofrs-flock", Open: openGofrsFlock})
}

// openGofrsFlock makes a lock of gofrs/flock for each cycle, since one that is used by two goroutines excludes neither.
// It has no token and no TTL.
func openGofrsFlock(b testing.TB, address string) benchtest.Lock {
	dir := strings.TrimPrefix(address, "file://") + "-gofrs"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	return func(_ context.Context, name string, _ int) (benchtest.Lease, error) {
		l := flock.New(dir + "/" + name)
		return benchtest.Lease{Release: l.Unlock}, l.Lock()
	}
}
