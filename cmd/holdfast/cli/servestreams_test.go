package cli

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

var serveStreams = flag.Int("serve.streams", 200, "how many locks TestServeManyStreams holds at the same time")

// TestServeManyStreams: one server holds many locks, each for a connection of its own; each is told that its lock is
// renewed, and gives its lock back when it is closed. It shows what that costs.
func TestServeManyStreams(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.store = "redis://" + startRedis(t).Addr
	s := w.startServe("--listen", "unix:"+w.filePath("s"), "--max-streams", fmt.Sprint(*serveStreams), "--rate", "0")
	before := s.memory()
	connections := make([]net.Conn, *serveStreams)
	began := time.Now()
	var all sync.WaitGroup
	room := make(chan struct{}, 100)
	for i := range connections {
		all.Go(func() {
			room <- struct{}{}
			leave := sync.OnceFunc(func() { <-room })
			defer leave()
			c, err := net.Dial("unix", w.filePath("s"))
			if err != nil {
				t.Error(err)
				return
			}
			connections[i] = c
			fmt.Fprintf(c, "POST /v1/locks/lock-%d/hold HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", i)
			in := bufio.NewReader(c)
			for _, event := range []string{"acquired", "renewed"} {
				for line := ""; !strings.Contains(line, `"event":"`+event+`"`); {
					if line, err = in.ReadString('\n'); err != nil {
						t.Errorf("lock %d: %v", i, err)
						return
					}
				}
				leave() // the next one may begin
			}
		})
	}
	all.Wait()
	cpu := s.cpu()
	renewed := time.Now()
	client, err := holdfast.Open(context.Background(), w.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	held := func() (n int) {
		for _, err := range client.List(context.Background(), "lock-") {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	if n := held(); n != *serveStreams {
		t.Errorf("%d of %d locks are held", n, *serveStreams)
	}
	t.Logf("%d streams: %.1f MiB more memory, %.1f KiB each; %v of CPU until each was renewed, within %v", *serveStreams,
		float64(s.memory()-before)/1024, float64(s.memory()-before)/float64(*serveStreams), cpu,
		renewed.Sub(began).Round(time.Millisecond))
	for _, c := range connections {
		if c != nil {
			c.Close()
		}
	}
	w.awaitTrue("all locks are free", func() bool { return held() == 0 })
}

// memory is the memory that the server's process uses, in KiB.
func (s *servedProgram) memory() (kib int) {
	for line := range strings.Lines(s.readFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d", &kib); err == nil {
			break
		}
	}
	return kib
}

// cpu is the time that the server's process has computed.
func (s *servedProgram) cpu() time.Duration {
	stat := s.readFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	var user, system int
	_, _ = fmt.Sscan(fields[11], &user)
	_, _ = fmt.Sscan(fields[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond // the kernel counts in hundredths of a second
}

// TestServeLatency: holding and releasing a lock over a unix socket works many times over one connection each. It shows
// how long that takes, next to the library.
func TestServeLatency(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.store = "redis://" + startRedis(t).Addr
	s := w.startServe("--listen", "unix:"+w.filePath("s"), "--rate", "0")
	client, err := holdfast.Open(context.Background(), w.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	median := func(round func() error) time.Duration {
		t.Helper()
		times := make([]time.Duration, 300)
		for i := range times {
			began := time.Now()
			if err := round(); err != nil {
				t.Fatal(err)
			}
			times[i] = time.Since(began)
		}
		slices.Sort(times)
		return times[len(times)/2].Round(time.Microsecond)
	}
	library := median(func() error {
		return client.Do(context.Background(), "a", func(context.Context, *holdfast.Lease) error { return nil })
	})
	released := median(func() error {
		h, err := s.holdLock("b", "")
		if err != nil {
			return err
		}
		defer h.close()
		response, err := s.post(context.Background(), fmt.Sprintf("/v1/holds/%s/release", h.last["hold"]), "")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return err
		}
		_, err = h.next("released")
		for h.lines.Scan() { // to the end, so that the connection is used again
		}
		return err
	})
	t.Logf("acquire and release, median of 300: %v over HTTP, %v by the library", released, library)
}
