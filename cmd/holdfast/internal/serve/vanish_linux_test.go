package serve

import (
	"context"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestVanishedClient: a client whose machine is gone, so that nothing is confirmed and nothing is closed, is found, and
// its lock is released when the time has passed that the last line promised.
func TestVanishedClient(t *testing.T) {
	t.Parallel()
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
	s.lock("a")
	s.await("count", func() bool { return s.counts.unreachable.Load() == 1 })
}
