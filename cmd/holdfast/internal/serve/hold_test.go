package serve

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestHoldWhileConnected: a lock is held for as long as the connection is open, and released when the client closes it.
func TestHoldWhileConnected(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	a := s.hold("a/b c%", `{"ttl_ms": 10000, "note": "INC-1", "owner": "alice"}`)
	got := a.next(eventAcquired)
	if text(got, "lock") != "a/b c%" || number(s, got, "token") < 1 || number(s, got, "remaining_ms") > 10000 {
		t.Errorf("%v", got)
	}
	if s.isFree("a/b c%") {
		t.Fatal("the lock is not held")
	}
	lock, err := s.direct.Inspect(context.Background(), "a/b c%")
	if err != nil || lock.Holders[0].Owner != "alice" || lock.Holders[0].Meta != "INC-1" {
		t.Errorf("%v %v", lock, err)
	}
	a.next(eventRenewed) // also without any word of the client
	hold := "/v1/holds/" + text(got, "hold")
	if c := s.want(http.MethodPost, hold+"/check", ""); number(s, c, "token") != number(s, got, "token") {
		t.Errorf("%v", c)
	}
	b := s.hold("a/b c%", "")
	b.next(eventWaiting)
	a.close()
	if later := b.next(eventAcquired); number(s, later, "token") <= number(s, got, "token") {
		t.Errorf("%v is not later than %v", later, got)
	}
	s.refuse(codeReleased, http.MethodPost, hold+"/check", "")
	s.refuse(codeReleased, http.MethodPost, hold+"/release", "")
	s.refuse(codeNotFound, http.MethodPost, "/v1/holds/x/release", "")
}

// TestHoldRelease: a release by another request is confirmed, and ends the stream.
func TestHoldRelease(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	a := s.hold("a", "")
	hold := "/v1/holds/" + text(a.next(eventAcquired), "hold")
	s.want(http.MethodPost, hold+"/release", "{}")
	if !s.isFree("a") {
		t.Error("the lock is not free after its release was confirmed")
	}
	a.next(eventReleased)
	a.awaitEnd()
	s.refuse(codeReleased, http.MethodPost, hold+"/release", "")

	holder := s.lock("a")
	b := s.hold("a", "")
	hold = "/v1/holds/" + text(b.next(eventWaiting), "hold")
	s.refuse(codeNotAcquired, http.MethodPost, hold+"/check", "")
	s.refuse(codeNotAcquired, http.MethodPost, hold+"/release", "")
	b.next(eventFailed)
	b.awaitEnd()
	if err := holder.Release(); err != nil {
		t.Error(err)
	}
}

// TestHoldDetach: a detached lock stays held without its connection, and its handle releases it.
func TestHoldDetach(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	a := s.hold("a", "")
	got := a.next(eventAcquired)
	handle := s.want(http.MethodPost, "/v1/holds/"+text(got, "hold")+"/detach", "")
	if line := a.next(eventDetached); line["handle"] != handle["handle"] || handle["token"] != got["token"] {
		t.Errorf("%v %v", line, handle)
	}
	a.awaitEnd()
	if s.isFree("a") {
		t.Fatal("the lock is not held")
	}
	s.want(http.MethodPost, "/v1/handles/"+text(handle, "handle")+"/renew", "")
	s.want(http.MethodPost, "/v1/handles/"+text(handle, "handle")+"/release", "")
	if !s.isFree("a") {
		t.Error("the lock is held")
	}
	s.refuse(codeLost, http.MethodPost, "/v1/handles/"+text(handle, "handle")+"/release", "")
}

// TestHoldSeveral: several locks are one hold: they are acquired all or none, and released by one request, or with the
// connection. Who waits learns which of them is held.
func TestHoldSeveral(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	holder := s.lock("c")
	const also = `"also": ["c", "a"]`
	if p := s.refuse(codeHeld, http.MethodPost, "/v1/locks/b/hold", `{"wait_ms": 0, `+also+`}`); p["lock"] != "c" {
		t.Errorf("%v", p)
	}
	if !s.isFree("a") || !s.isFree("b") {
		t.Error("a lock is held, though not all are")
	}
	a := s.hold("b", `{"min_hold_ms": 1, `+also+`}`)
	for a.next(eventWaiting)["lock"] != "c" { // the first line is from before the store was asked
	}
	if err := holder.Release(); err != nil {
		t.Fatal(err)
	}
	got := a.next(eventAcquired)
	var others []string
	for _, l := range got["also"].([]any) {
		others = append(others, text(l.(map[string]any), "lock"))
		number(s, l.(map[string]any), "token")
	}
	if text(got, "lock") != "b" || strings.Join(others, " ") != "a c" {
		t.Errorf("%v", got)
	}
	three := []string{"a", "b", "c"}
	for _, name := range three {
		if s.isFree(name) {
			t.Errorf("%s is not held", name)
		}
	}
	hold := "/v1/holds/" + text(got, "hold")
	if c := s.want(http.MethodPost, hold+"/check", ""); number(s, c, "token") != number(s, got, "token") {
		t.Errorf("%v", c)
	}
	if err := s.direct.RequestRelease(context.Background(), "c", ""); err != nil {
		t.Fatal(err)
	}
	a.next(eventReleaseRequested)
	s.want(http.MethodPost, hold+"/release", "")
	a.next(eventReleased)
	for _, name := range three {
		s.lock(name)
	}

	b := s.hold("x", `{"also": ["y"]}`)
	b.next(eventAcquired)
	b.close()
	s.lock("x")
	s.lock("y")
	for _, wrong := range []string{`"also": ["x"]`, `"also": ["y", "y"]`, `"also": ["y"], "newest_only": true`,
		`"also": ["y"], "max_hold_ms": 60000`} {
		s.refuse(codeInvalid, http.MethodPost, "/v1/locks/x/hold", "{"+wrong+"}")
	}
}

// TestHoldSeveralLost: the loss of one of several locks ends the hold, and is told with its name. The others are kept
// until the client has stopped.
func TestHoldSeveralLost(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	a := s.hold("a", `{"ttl_ms": 3000, "also": ["b"]}`)
	hold := "/v1/holds/" + text(a.next(eventAcquired), "hold")
	if err := s.direct.Break(context.Background(), "b", "", holdfast.BreakGraceful, ""); err != nil {
		t.Fatal(err)
	}
	if lost := a.next(eventLost); lost["cause"] != "broken" || lost["lock"] != "b" {
		t.Errorf("%v", lost)
	}
	if s.isFree("a") {
		t.Error("others can hold a lock before the client has closed its connection")
	}
	if p := s.refuse(codeLost, http.MethodPost, hold+"/check", ""); p["cause"] != "broken" || p["lock"] != "b" {
		t.Errorf("%v", p)
	}
	if p := s.refuse(codeLost, http.MethodPost, hold+"/release", ""); p["lock"] != "b" {
		t.Errorf("%v", p)
	}
	a.awaitEnd()
	s.lock("a")
	s.lock("b")
}

// TestHoldSeveralDetach: several locks are left to one handle. If one of them was lost, the others are free when the
// client has stopped, also those that were detached by then.
func TestHoldSeveralDetach(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	const body = `{"ttl_ms": 3600000, "also": ["b", "c"]}`
	a := s.hold("a", body)
	hold := "/v1/holds/" + text(a.next(eventAcquired), "hold")
	handle := s.want(http.MethodPost, hold+"/detach", "")
	if line := a.next(eventDetached); line["handle"] != handle["handle"] {
		t.Errorf("%v %v", line, handle)
	}
	a.awaitEnd()
	names := []string{"a", "b", "c"}
	for _, name := range names {
		if s.isFree(name) {
			t.Errorf("%s is not held", name)
		}
	}
	s.want(http.MethodPost, "/v1/handles/"+text(handle, "handle")+"/release", "")

	b := s.hold("a", body)
	hold = "/v1/holds/" + text(b.next(eventAcquired), "hold")
	if err := s.direct.Break(context.Background(), "b", "", holdfast.BreakForce, ""); err != nil {
		t.Fatal(err)
	}
	if p := s.refuse(codeLost, http.MethodPost, hold+"/detach", ""); p["lock"] != "b" {
		t.Errorf("%v", p)
	}
	b.next(eventLost)
	if s.isFree("a") {
		t.Error("others can hold a lock before the client has closed its connection")
	}
	b.close()
	for _, name := range names {
		s.lock(name)
	}
}

// TestHoldLost: a loss is reported while the claim still keeps others out, and the lock passes on when the client has
// closed its connection.
func TestHoldLost(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	a := s.hold("a", `{"ttl_ms": 15000}`)
	got := a.next(eventAcquired)
	if err := s.direct.Break(context.Background(), "a", "", holdfast.BreakGraceful, ""); err != nil {
		t.Fatal(err)
	}
	// The server learns of it with the next renewal, 5 s later.
	lost := a.next(eventLost)
	if lost["cause"] != string(holdfast.LossBroken) {
		t.Errorf("%v", lost)
	}
	if s.isFree("a") {
		t.Error("others can hold the lock before the client has closed its connection")
	}
	if p := s.refuse(codeLost, http.MethodPost, "/v1/holds/"+text(got, "hold")+"/check", ""); p["cause"] != "broken" {
		t.Errorf("%v", p)
	}
	a.close()
	s.lock("a") // well before the TTL has passed
}

// TestReleaseOfLostHold: who releases a lock that was lost learns that it was lost, and the lock is free at once.
func TestReleaseOfLostHold(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	a := s.hold("a", `{"ttl_ms": 15000}`)
	hold := "/v1/holds/" + text(a.next(eventAcquired), "hold")
	if err := s.direct.Break(context.Background(), "a", "", holdfast.BreakGraceful, ""); err != nil {
		t.Fatal(err)
	}
	a.next(eventLost)
	s.refuse(codeLost, http.MethodPost, hold+"/release", "")
	a.awaitEnd()
	s.lock("a")
}

// TestWaiting: a waiter learns its position, and that it changes.
func TestWaiting(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	holder := s.lock("a")
	first := s.hold("a", `{"fair": true}`)
	first.next(eventWaiting)
	s.awaitWaiters("a", 1)
	second := s.hold("a", `{"fair": true}`)
	awaitPosition := func(st *stream, want int64) {
		t.Helper()
		for {
			if line := st.next(eventWaiting); line["position"] != nil && number(s, line, "position") == want {
				return
			}
		}
	}
	awaitPosition(second, 2)
	first.close()
	awaitPosition(second, 1)
	if err := holder.Release(); err != nil {
		t.Fatal(err)
	}
	second.next(eventAcquired)
}

// TestHoldReleaseRequested: the client learns that somebody asks for its lock.
func TestHoldReleaseRequested(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	a := s.hold("a", `{"ttl_ms": 9000}`)
	got := a.next(eventAcquired)
	s.want(http.MethodPost, "/v1/locks/a/request-release", "")
	a.next(eventReleaseRequested)
	if c := s.want(http.MethodPost, "/v1/holds/"+text(got, "hold")+"/check", ""); c["release_requested"] != true {
		t.Errorf("%v", c)
	}
}

// slowStore needs longer for a claim than the server waits before its first line.
type slowStore struct{ driver.Store }

func (s slowStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	time.Sleep(2 * waitingAfter)
	return s.Store.Acquire(ctx, c)
}

// TestSlowTry: one attempt that fails is answered with a status, even when the store is slow.
func TestSlowTry(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(slowStore{memory.New(nil).Open()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, func(c *Config) { c.Client = client })
	t.Cleanup(func() { client.Close() })
	s.hold("a", `{"wait_ms": 0}`).next(eventAcquired)
	s.refuse(codeHeld, http.MethodPost, "/v1/locks/a/hold", `{"wait_ms": 0}`)
}

// TestKinds: read-write locks and semaphores are held as in the library, and a wait has a limit.
func TestKinds(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	s.hold("rw", `{"kind": "rw", "shared": true}`).next(eventAcquired)
	s.hold("rw", `{"kind": "rw", "shared": true}`).next(eventAcquired)
	s.refuse(codeHeld, http.MethodPost, "/v1/locks/rw/hold", `{"kind": "rw", "wait_ms": 0}`)
	// Far longer than waitingAfter: a wait that has ended by then is answered with a status.
	writer := s.hold("rw", `{"kind": "rw", "wait_ms": 3000}`)
	if line := writer.next(eventFailed); line["code"] != string(codeTimeout) {
		t.Errorf("%v", line)
	}
	if line := s.hold("s", `{"kind": "semaphore", "limit": 3, "weight": 2}`).next(eventAcquired); fmt.Sprint(line["permits"]) != "[0 1]" {
		t.Errorf("%v", line)
	}
	if line := s.hold("m", "").next(eventAcquired); line["permits"] != nil {
		t.Errorf("%v", line)
	}
	s.refuse(codeHeld, http.MethodPost, "/v1/locks/s/hold", `{"kind": "semaphore", "limit": 3, "weight": 2, "wait_ms": 0}`)
	s.hold("s", `{"kind": "semaphore", "limit": 3, "wait_ms": 0}`).next(eventAcquired)
	s.refuse(codeMismatch, http.MethodPost, "/v1/locks/s/hold", `{"kind": "semaphore", "limit": 4, "wait_ms": 0}`)
	for _, body := range []string{
		`{"kind": "semaphore"}`, `{"kind": "semaphore", "limit": 3, "weight": 0}`, `{"kind": "mutex", "limit": 2}`,
		`{"kind": "rw", "weight": 2}`, `{"shared": true}`,
		`{"kind": "x"}`, `{"ttl_ms": 0}`, `{"ttl_ms": -1}`, `{"ttl_ms": 9e18}`, `{"ttl_ms": "1s"}`, `{"wait_ms": -1}`,
		`{"heartbeat_ms": 1}`, `{"on_shutdown": "x"}`, `{"unknown": 1}`, `[]`, `{} {}`, `{`, `{"owner": "a\u0000"}`,
		`{"min_hold_ms": -1}`, `{"max_hold_ms": 1}`, `{"note": "` + strings.Repeat("x", 2000) + `"}`,
	} {
		s.refuse(codeInvalid, http.MethodPost, "/v1/locks/x/hold", body)
	}
}

// TestEventStream: a client that accepts server-sent events gets the same lines as events.
func TestEventStream(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	s.header.Set("Accept", "text/event-stream")
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	response := s.send(ctx, http.MethodPost, "/v1/locks/a/hold", "")
	defer response.Body.Close()
	in := bufio.NewScanner(response.Body)
	var lines []string
	for len(lines) < 3 && in.Scan() {
		lines = append(lines, in.Text())
	}
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" || len(lines) < 3 ||
		lines[0] != "event: acquired" || !strings.HasPrefix(lines[1], `data: {"event":"acquired",`) || lines[2] != "" {
		t.Errorf("%s: %q", kind, lines)
	}
}

// TestClientThatReadsNothing: a client that reads nothing is found, and its lock is released when the time has passed
// that the last line promised.
func TestClientThatReadsNothing(t *testing.T) {
	t.Parallel()
	t.Run("unix", func(t *testing.T) {
		t.Parallel()
		s, path := startUnixServer(t, nil)
		c, err := net.Dial("unix", path)
		testSilentReader(s, c, err)
	})
	t.Run("tcp", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, nil)
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err == nil {
			_ = c.(*net.TCPConn).SetReadBuffer(1)
		}
		testSilentReader(s, c, err)
	})
}

// TestUnreachableClientKeepsItsLock: a client that cannot be told anything keeps its lock until the time has passed
// that the last line promised.
func TestUnreachableClientKeepsItsLock(t *testing.T) {
	t.Parallel()
	s, path := startUnixServer(t, nil)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sendHold(c, `{"ttl_ms": 20000, "heartbeat_ms": 100}`)
	// The server gives up after a write has waited for 5 s. The last line has promised about 12 s or more.
	s.await("count", func() bool { return s.counts.unreachable.Load() == 1 })
	if s.isFree("a") {
		t.Error("the lock is free although its holder may be working")
	}
	s.lock("a")
}

// sendHold asks for the lock a, and reads nothing.
func sendHold(c net.Conn, body string) { sendRequest(c, "", body) }

// sendRequest is sendHold with a header.
func sendRequest(c net.Conn, header, body string) {
	fmt.Fprintf(c, "POST /v1/locks/a/hold HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s"+
		"Content-Length: %d\r\n\r\n%s", header, len(body), body)
}

func testSilentReader(s *testServer, c net.Conn, err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
	defer c.Close()
	sendHold(c, `{"ttl_ms": 4000, "heartbeat_ms": 100}`)
	s.await("count", func() bool { return s.counts.unreachable.Load() == 1 })
	s.lock("a")
}

// TestShutdown: when the server shuts down, holders are told, a lock passes on when its client has stopped, and claims
// whose clients have asked for that stay held with a handle.
func TestShutdown(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	told := s.hold("told", `{"ttl_ms": 86400000}`)
	told.next(eventAcquired)
	detached := s.hold("detached", `{"on_shutdown": "detach"}`)
	got := detached.next(eventAcquired)
	waiter := s.hold("told", "")
	waiter.next(eventWaiting)
	watcher := s.open(http.MethodGet, "/v1/locks/told/watch", "")
	watcher.next(eventLock)

	clean := make(chan bool, 1)
	go func() { clean <- s.Shutdown() }()
	if line := told.next(eventLost); line["cause"] != string(causeShutdown) {
		t.Errorf("%v", line)
	}
	for _, st := range []*stream{waiter, watcher} {
		for line := (map[string]any)(nil); line["event"] != string(eventFailed); line = st.next(eventFailed, eventLock) {
		}
		st.awaitEnd()
	}
	if line := detached.next(eventDetached); line["token"] != got["token"] {
		t.Errorf("%v", line)
	}
	detached.awaitEnd()
	if s.isFree("told") || s.isFree("detached") {
		t.Error("a lock is free although its holder may be working")
	}
	told.close()
	s.lock("told")
	if !<-clean {
		t.Error("something is left")
	}
	if s.isFree("detached") {
		t.Error("the detached lock is free")
	}
}

// TestAbandon: when the program that all clients are part of has ended, what they hold is released at once, whatever
// they were told and have asked for, and their runs have failed.
func TestAbandon(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	s.hold("a", `{"ttl_ms": 86400000}`).next(eventAcquired)
	s.hold("b", `{"ttl_ms": 86400000, "on_shutdown": "detach"}`).next(eventAcquired)
	s.hold("broken", `{"ttl_ms": 4000}`).next(eventAcquired)
	s.want(http.MethodPost, "/v1/locks/broken/break", "") // which its next renewal finds
	s.await("a broken hold", func() bool { return s.counts.lost.Load() == 1 })
	s.want(http.MethodPost, "/v1/ledgers/l/keys/k/begin", `{"ttl_ms": 86400000}`)
	s.Abandon()
	if !s.Shutdown() {
		t.Error("something is left")
	}
	for _, name := range []string{"a", "b", "broken"} {
		if !s.isFree(name) {
			t.Errorf("%s is held", name)
		}
	}
	runs, err := s.direct.Ledger("l", nil).LastRuns(t.Context(), "k", 10)
	if err != nil || len(runs) != 1 || runs[0].State != holdfast.RunFailed || runs[0].Error != errAbandoned.Error() {
		t.Errorf("%+v %v", runs, err)
	}
}

// TestAbandonUnreachable: neither is the lock of a client kept that could not be reached before.
func TestAbandonUnreachable(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	c := s.dial()
	sendHold(c, `{"ttl_ms": 86400000}`)
	awaitLine(t, bufio.NewReader(c), eventAcquired)
	_ = c.(*net.TCPConn).SetLinger(0) // a reset
	c.Close()
	s.await("count", func() bool { return s.counts.unreachable.Load() == 1 })
	if s.isFree("a") {
		t.Error("the lock was released before")
	}
	s.Abandon()
	if !s.Shutdown() || !s.isFree("a") {
		t.Error("the lock is held")
	}
}

// TestShutdownGrace: clients that do not stop delay the shutdown for the grace period only, and keep their locks. The
// end of such a hold is counted once.
func TestShutdownGrace(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(c *Config) { c.Grace = 50 * time.Millisecond })
	a := s.hold("a", `{"ttl_ms": 86400000}`)
	a.next(eventAcquired)
	if !s.Shutdown() {
		t.Error("something is left")
	}
	a.next(eventLost)
	a.awaitEnd()
	if s.isFree("a") {
		t.Error("others can hold the lock before the client has closed its connection")
	}
	if c := &s.counts; c.shutdown.Load() != 1 || c.unreachable.Load() != 0 {
		t.Errorf("%d ends by the shutdown, %d of unreachable clients", c.shutdown.Load(), c.unreachable.Load())
	}
}

// TestShutdownWhileRunsAreInProgress: the workers of runs can report their ends while the server shuts down, and
// nothing new begins.
func TestShutdownWhileRunsAreInProgress(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	run := "/v1/runs/" + text(s.want(http.MethodPost, "/v1/ledgers/l/keys/k/begin", ""), "run")
	clean := make(chan bool, 1)
	go func() { clean <- s.Shutdown() }()
	<-s.closing
	s.refuse(codeShuttingDown, http.MethodPost, "/v1/ledgers/l/keys/other/begin", "")
	s.refuse(codeShuttingDown, http.MethodPost, "/v1/locks/a/hold", "")
	s.refuse(codeShuttingDown, http.MethodPost, "/v1/locks/a/acquire", `{"ttl_ms": 60000}`)
	s.refuse(codeShuttingDown, http.MethodPost, "/v1/locks/a/try", `{"ttl_ms": 60000}`)
	s.refuse(codeShuttingDown, http.MethodGet, "/readyz", "")
	s.want(http.MethodPost, run+"/beat", "")
	s.want(http.MethodPost, run+"/succeed", "")
	if !<-clean {
		t.Error("the shutdown has left something")
	}
}

// TestShutdownWhileAClientReadsNothing: the lock of a client that reads nothing is left to its TTL before the shutdown
// has ended, although a line to it may still wait for much longer.
func TestShutdownWhileAClientReadsNothing(t *testing.T) {
	t.Parallel()
	l := make(pipeListener, 1)
	s := startServerOn(t, l, func(c *Config) { c.Grace = 50 * time.Millisecond })
	client, connection := net.Pipe()
	defer client.Close()
	l <- connection
	sendHold(client, `{"ttl_ms": 86400000, "heartbeat_ms": 100}`)
	awaitLine(t, bufio.NewReader(client), eventAcquired)
	// A pipe has no buffer: one byte of a line says that the server waits until the rest of it is read.
	if _, err := client.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if !s.Shutdown() {
		t.Error("the shutdown has left something")
	}
	if lock, err := s.direct.Inspect(t.Context(), "a"); err != nil || len(lock.Holders) != 1 || !lock.Holders[0].Detached {
		t.Errorf("the lock is not left to its TTL: %+v %v", lock, err)
	}
}

// pipeListener accepts the connections that are put into it.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l pipeListener) Close() error   { close(l); return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestCheckPromises: what the answer to a check has told a client counts, too, if the client cannot be reached later.
func TestCheckPromises(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	check := "/v1/holds/" + text(s.hold("a", `{"ttl_ms": 9000}`).next(eventAcquired), "hold") + "/check"
	h := s.onlyHold()
	// At one of the checks the lock was renewed since the last line.
	for ahead := false; !ahead; time.Sleep(20 * time.Millisecond) {
		before := h.promisedUntil()
		asked := time.Now()
		left := time.Duration(number(s, s.want(http.MethodPost, check, ""), "remaining_ms")) * time.Millisecond
		if told := asked.Add(left); told.After(h.promisedUntil()) {
			t.Fatalf("the client was told %v more than the server keeps", told.Sub(h.promisedUntil()))
		} else if told.After(before) {
			ahead = true
		}
	}
	h.setEnd(newProblem(codeReleased, "test"))
	if h.promise(time.Now().Add(time.Hour)) == nil || time.Until(h.promisedUntil()) > time.Minute {
		t.Error("a hold that has ended was promised")
	}
}

// TestConnectionEnds: a lock is released when its client closes the connection, and is kept for as long as the client
// was told if the connection ends in a way that may not be the client's: by a reset, for one direction alone, without
// an announcement over TLS, or at a proxy.
func TestConnectionEnds(t *testing.T) {
	t.Parallel()
	overTLS := func(s *testServer) net.Conn {
		other := httptest.NewTLSServer(nil) // for its certificate
		s.Cleanup(other.Close)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			s.Fatal(err)
		}
		go func() { _ = s.Serve(l, &tls.Config{Certificates: other.TLS.Certificates}) }()
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			s.Fatal(err)
		}
		return c
	}
	for name, c := range map[string]struct {
		dial   func(s *testServer) net.Conn // nil: TCP
		header string
		end    func(c net.Conn) error
		closed bool
	}{
		"close": {end: net.Conn.Close, closed: true},
		"reset": {end: func(c net.Conn) error { return errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()) }},
		"half":  {end: func(c net.Conn) error { return c.(*net.TCPConn).CloseWrite() }},
		"proxy": {header: "Via: 1.1 proxy\r\n", end: net.Conn.Close},
		"TLS":   {dial: overTLS, end: net.Conn.Close, closed: true},
		"TLS without an announcement": {dial: overTLS,
			end: func(c net.Conn) error { return c.(*tls.Conn).NetConn().Close() }},
		"TLS, one direction": {dial: overTLS, end: func(c net.Conn) error { return c.(*tls.Conn).CloseWrite() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, nil)
			if c.dial == nil {
				c.dial = (*testServer).dial
			}
			conn := c.dial(s)
			defer conn.Close()
			sendRequest(conn, c.header, `{"ttl_ms": 86400000}`)
			in := bufio.NewReader(conn)
			awaitLine(t, in, eventAcquired)
			if err := c.end(conn); err != nil {
				t.Fatal(err)
			}
			if c.closed {
				s.lock("a")
				return
			}
			if name == "half" {
				awaitLine(t, in, eventLost)
			}
			s.await("count", func() bool { return s.counts.unreachable.Load() == 1 })
			if s.isFree("a") {
				t.Error("the lock is free although its holder may be working")
			}
		})
	}
}

// TestCloseOfUnixSocket: the lock of a client that closes its end of a unix socket is released at once, whether or
// not it has read all lines; if it ends its direction alone, the lock is kept.
func TestCloseOfUnixSocket(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*bufio.Reader, *net.UnixConn) error{
		"all read": func(_ *bufio.Reader, c *net.UnixConn) error { return c.Close() },
		"not read": func(in *bufio.Reader, c *net.UnixConn) error {
			_, err := in.Peek(1) // of the next line
			return errors.Join(err, c.Close())
		},
		"half": func(_ *bufio.Reader, c *net.UnixConn) error { return c.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, path := startUnixServer(t, nil)
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			sendHold(c, `{"ttl_ms": 86400000, "heartbeat_ms": 100}`)
			in := bufio.NewReaderSize(c, 16)
			awaitLine(t, in, eventAcquired)
			if err := end(in, c.(*net.UnixConn)); err != nil {
				t.Fatal(err)
			}
			if name != "half" {
				s.lock("a")
				return
			}
			awaitLine(t, in, eventLost)
			if s.isFree("a") {
				t.Error("the lock is free although its holder may be working")
			}
		})
	}
}

// awaitLine reads lines until one has this event.
func awaitLine(t *testing.T, in *bufio.Reader, e event) {
	t.Helper()
	for line := ""; !strings.Contains(line, `"event":"`+string(e)+`"`); {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			t.Fatalf("there is no %s: %v", e, err)
		}
	}
}

// failingConn returns these errors: one per call, of a read or a write.
type failingConn struct {
	net.Conn
	errs []error
}

func (c *failingConn) fail() (int, error) {
	err := c.errs[0]
	if len(c.errs) > 1 {
		c.errs = c.errs[1:]
	}
	return 0, err
}

func (c *failingConn) Read([]byte) (int, error)        { return c.fail() }
func (c *failingConn) Write([]byte) (int, error)       { return c.fail() }
func (c *failingConn) SetReadDeadline(time.Time) error { return nil }

// TestReasonsOfEnds: a connection that was reset or has timed out was not closed by the client, although the system
// reports its end next, and whether a read or a write learns of it first.
func TestReasonsOfEnds(t *testing.T) {
	for _, c := range []struct {
		errs  []error
		write bool // the first call is one
		ended bool
	}{
		{[]error{io.EOF}, false, true}, {[]error{syscall.ECONNRESET, io.EOF}, false, false},
		{[]error{syscall.ETIMEDOUT, io.EOF}, false, false}, {[]error{os.ErrDeadlineExceeded, io.EOF}, false, true},
		{[]error{os.ErrDeadlineExceeded}, false, false}, {[]error{syscall.EHOSTUNREACH, syscall.ECONNRESET}, false, false},
		{[]error{syscall.ECONNRESET, io.EOF}, true, false}, {[]error{syscall.ETIMEDOUT, io.EOF}, true, false},
		{[]error{syscall.EPIPE, io.EOF}, true, true}, {[]error{os.ErrDeadlineExceeded, io.EOF}, true, true},
	} {
		conn := &connection{Conn: &failingConn{errs: c.errs}}
		call := conn.Read
		if c.write {
			call = conn.Write
		}
		_, _ = call(nil)
		if conn.isInputEnded() != c.ended {
			t.Errorf("%v: ended by the client: %v", c.errs, !c.ended)
		}
	}
}

// TestCampaignStream: a candidate leads for as long as its connection is open, and others see what it publishes.
func TestCampaignStream(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	observer := s.open(http.MethodGet, "/v1/elections/e/observe", "")
	if line := observer.next(eventLeader); line["leader"] != nil {
		t.Errorf("%v", line)
	}
	first := s.open(http.MethodPost, "/v1/elections/e/campaign", `{"note": "host-1:80"}`)
	first.next(eventAcquired)
	note := func(answer map[string]any) string {
		leader, _ := answer["leader"].(map[string]any)
		return text(leader, "note")
	}
	if line := observer.next(eventLeader); note(line) != "host-1:80" {
		t.Errorf("%v", line)
	}
	if answer := s.want(http.MethodGet, "/v1/elections/e/leader", ""); note(answer) != "host-1:80" {
		t.Errorf("%v", answer)
	}
	second := s.open(http.MethodPost, "/v1/elections/e/campaign", `{"note": "host-2:80"}`)
	second.next(eventWaiting)
	first.close()
	second.next(eventAcquired)
	for note(observer.next(eventLeader)) != "host-2:80" {
	}
}

// TestClientGoesWhileWaiting: a client that goes away while it waits leaves no claim.
func TestClientGoesWhileWaiting(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	holder := s.lock("a")
	waiter := s.hold("a", `{"fair": true}`)
	waiter.next(eventWaiting)
	s.awaitWaiters("a", 1)
	waiter.close()
	s.awaitWaiters("a", 0)
	if err := holder.Release(); err != nil {
		t.Error(err)
	}
	if lease, err := s.direct.Mutex("a", nil).TryLock(context.Background()); err != nil {
		t.Error(err)
	} else if err := lease.Release(); err != nil && !errors.Is(err, holdfast.ErrReleased) {
		t.Error(err)
	}
}

// lateStore grants a claim, and tells it only after its caller has given up.
type lateStore struct{ driver.Store }

func (s lateStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := s.Store.Acquire(ctx, c)
	<-ctx.Done()
	return g, err
}

// TestMinHoldOfUntoldHold: a lock that was granted when its client had already ended the wait is free at once. Its
// MinHold, in which nobody worked, is not kept.
func TestMinHoldOfUntoldHold(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(lateStore{memory.New(nil).Open()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s := startServer(t, func(c *Config) { c.Client = client })
	st := s.hold("a", `{"ttl_ms": 600000, "min_hold_ms": 600000}`)
	holders := func(n int) func() bool {
		return func() bool {
			l, err := client.Inspect(t.Context(), "a")
			return err == nil && len(l.Holders) == n
		}
	}
	st.next(eventWaiting)
	s.await("a holder", holders(1))
	st.close()
	s.await("a free lock", holders(0))
}
