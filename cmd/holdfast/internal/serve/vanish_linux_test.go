package serve

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"golang.org/x/sys/unix"
)

// TestVanishedClient: a client whose machine is gone, so that nothing is confirmed and nothing is closed, is found, and
// its lock is released when the time has passed that the last line promised. That holds although the lock was broken
// gracefully meanwhile: the client has not read that.
func TestVanishedClient(t *testing.T) {
	for name, broken := range map[string]bool{"held": false, "broken": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testVanishedClient(t, broken)
		})
	}
}

func testVanishedClient(t *testing.T, broken bool) {
	s := startServer(t, nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sendHold(c, `{"ttl_ms": 4000}`)
	s.await("holder", func() bool {
		lock, err := s.direct.Inspect(context.Background(), "a")
		return err == nil && len(lock.Holders) == 1
	})
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// The system drops all packets for this socket before it looks at them.
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: 1, Filter: &drop})
	})
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	if broken {
		if err := s.direct.Break(context.Background(), "a", "", holdfast.BreakGraceful, ""); err != nil {
			t.Fatal(err)
		}
	}
	s.lock("a")
	if early := time.Until(s.onlyHold().promisedUntil()); early > 0 {
		t.Errorf("the lock was free %v before the time that the client was told last", early)
	}
	// The first end counts: the loss, if the server learns of it before it misses the client.
	s.await("count", func() bool {
		return s.counts.unreachable.Load() == 1 || broken && s.counts.lost.Load() == 1
	})
}
