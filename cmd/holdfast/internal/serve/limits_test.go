package serve

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// testToken is the token of a caller with all rights but break.
const testToken = "0123456789abcdef0123456789abcdef"

// TestSilentClients: a client that does not send its whole request, and may have no token, is not waited for forever,
// whatever the server thinks of the request.
func TestSilentClients(t *testing.T) {
	t.Parallel()
	access, err := parseAccess(strings.NewReader("token:"+testToken+" alice see,hold *"), "")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := startServerOn(t, l, func(c *Config) { c.Access, c.requestTimeout = access, 2*time.Second })
	const withBody = " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n"
	silent := map[string]net.Conn{}
	for name, request := range map[string]string{
		"nothing": "", "half a header": "GET /healthz HTTP/1.1\r\nHost: l", "probe": "GET /healthz" + withBody + "\r\n",
		"all":       "OPTIONS *" + withBody + "\r\n",
		"no token":  "POST /v1/locks/a/hold" + withBody + "\r\n",
		"bad host":  "GET / HTTP/1.1\r\nHost: example.org\r\nContent-Length: 10\r\n\r\n",
		"no path":   "GET /x" + withBody + "Authorization: Bearer " + testToken + "\r\n\r\n",
		"page":      "POST /" + withBody + "Authorization: Bearer " + testToken + "\r\n\r\n",
		"watch":     "GET /v1/locks/a/watch" + withBody + "Authorization: Bearer " + testToken + "\r\n\r\n",
		"hold":      "POST /v1/locks/a/hold" + withBody + "Authorization: Bearer " + testToken + "\r\n\r\n",
		"part":      "POST /v1/locks/a/hold" + withBody + "Authorization: Bearer " + testToken + "\r\n\r\n{",
		"open body": "GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		c := s.dial()
		defer c.Close()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		silent[name] = c
	}
	// The limit is for requests, and not for what follows.
	c := s.dial()
	defer c.Close()
	sendRequest(c, "Authorization: Bearer "+testToken+"\r\n", `{"heartbeat_ms": 100}`)
	in := bufio.NewReader(c)
	awaitLine(t, in, eventAcquired)
	for range 25 {
		awaitLine(t, in, eventHeartbeat)
	}
	end := time.Now().Add(testTimeout)
	for name, c := range silent {
		_ = c.SetReadDeadline(end)
		if _, err := io.Copy(io.Discard, c); isTimeout(err) {
			t.Errorf("%s: the server still waits", name)
		}
	}
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// TestTooManyConnections: clients that send no request, or none that is admitted, take no connection from others:
// neither from a holder nor from a client that comes when all connections are taken.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	access, err := parseAccess(strings.NewReader("token:"+testToken+" alice see,hold *"), "")
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, func(c *Config) { c.Access, c.maxConnections, c.requestTimeout = access, 4, time.Hour })
	s.header.Set("Authorization", "Bearer "+testToken)
	holder := s.hold("a", `{"heartbeat_ms": 100}`)
	holder.next(eventAcquired)
	var silent []net.Conn
	for i := range 8 {
		c := s.dial()
		defer c.Close()
		if i%2 == 0 {
			_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
		}
		silent = append(silent, c)
		s.want(http.MethodGet, "/v1/locks/a", "") // when it is answered, the connections before it were accepted
		s.await("the end of the request, which may come after its answer", func() bool {
			s.connections.mu.Lock()
			defer s.connections.mu.Unlock()
			return s.connections.open-s.connections.unused.Len() == 1
		})
	}
	_ = silent[0].SetReadDeadline(time.Now().Add(testTimeout))
	if _, err := io.Copy(io.Discard, silent[0]); isTimeout(err) {
		t.Error(err)
	}
	s.holds.mu.Lock()
	n := len(s.holds.byID)
	s.holds.mu.Unlock()
	if n != 1 {
		t.Errorf("%d holds", n)
	}
	for _, name := range []string{"b", "c", "d"} {
		s.hold(name, "").next(eventAcquired)
	}
	refused := s.dial() // requests use all connections
	defer refused.Close()
	_ = refused.SetReadDeadline(time.Now().Add(testTimeout))
	if data, err := io.ReadAll(refused); isTimeout(err) || len(bytes.TrimSpace(data)) > 0 {
		t.Errorf("one connection too many was answered: %q %v", data, err)
	}
	holder.next(eventHeartbeat)
}

// TestReserveOfDescriptors: some descriptors are left for the store.
func TestReserveOfDescriptors(t *testing.T) {
	for descriptors, want := range map[uint64]int{0: 1, 256: 192, 1024: 768, 1 << 20: 1<<20 - maxReserve,
		1 << 63: 1<<30 - maxReserve} {
		if got := maxConnections(descriptors); got != want {
			t.Errorf("%d connections of %d descriptors, not %d", got, descriptors, want)
		}
	}
}
