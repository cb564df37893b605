package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/memory"
)

// testTimeout is how long any step may take that has no time limit of its own.
const testTimeout = time.Minute

// testServer is a server with a memory store, on a port of its own.
type testServer struct {
	*testing.T
	*Server
	url    string
	direct *holdfast.Client // of the same store, as another process has it
	header http.Header      // that all requests have
	// of the connections; nil: each request has one of its own
	transport *http.Transport
}

// startServer starts a server. change may be nil.
func startServer(t *testing.T, change func(*Config)) *testServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startServerOn(t, l, change)
}

func startServerOn(t *testing.T, l net.Listener, change func(*Config)) *testServer {
	t.Helper()
	store := memory.New(nil)
	clients := [2]*holdfast.Client{}
	for i := range clients {
		c, err := holdfast.New(store.Open(), nil)
		if err != nil {
			t.Fatal(err)
		}
		clients[i] = c
	}
	config := Config{Client: clients[0], Store: "memory:", AllowBreak: true, MaxStreams: 100, Grace: testTimeout,
		Report: func(format string, args ...any) { t.Logf(format, args...) }}
	if change != nil {
		change(&config)
	}
	s := &testServer{T: t, Server: New(config), url: "http://" + l.Addr().String(), direct: clients[1],
		header: http.Header{}}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l, nil) }()
	t.Cleanup(func() {
		select {
		case <-s.closing:
		default:
			s.Server.config.Grace = 0
			s.Shutdown()
		}
		_ = s.http.Close()
		<-served
		for _, c := range clients {
			_ = c.Close()
		}
	})
	return s
}

// dial connects to the server.
func (s *testServer) dial() net.Conn {
	s.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// send sends a request. body is a JSON text, or empty.
func (s *testServer) send(ctx context.Context, method, path, body string) *http.Response {
	s.Helper()
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for name, values := range s.header {
		r.Header[name] = values
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if host := s.header.Get("Host"); host != "" {
		r.Host = host
	}
	transport := s.transport
	if transport == nil {
		transport = &http.Transport{DisableKeepAlives: true}
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		s.Fatal(err)
	}
	return answer
}

// call sends a request, checks that its answer is as docs/openapi.yaml says, and returns it.
func (s *testServer) call(method, path, body string) (status int, answer map[string]any) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	response := s.send(ctx, method, path, body)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		s.Fatalf("%s %s: %v: %s", method, path, err, data)
	}
	checkAnswer(s.T, method, path, response, data)
	return response.StatusCode, answer
}

// want calls, and wants an answer without an error.
func (s *testServer) want(method, path, body string) map[string]any {
	s.Helper()
	status, answer := s.call(method, path, body)
	if status != http.StatusOK {
		s.Fatalf("%s %s: %d %v", method, path, status, answer)
	}
	return answer
}

// refuse calls, and wants a problem with this code.
func (s *testServer) refuse(of code, method, path, body string) map[string]any {
	s.Helper()
	status, answer := s.call(method, path, body)
	if answer["code"] != string(of) || float64(status) != answer["status"] {
		s.Errorf("%s %s: want %s; %d %v", method, path, of, status, answer)
	}
	return answer
}

// stream is an answer that is a stream.
type stream struct {
	*testServer
	path  string
	lines chan map[string]any
	close func()
}

// open opens a stream.
func (s *testServer) open(method, path, body string) *stream {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.Cleanup(cancel)
	response := s.send(ctx, method, path, body)
	if response.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(response.Body)
		s.Fatalf("%s: %d %s", path, response.StatusCode, data)
	}
	st := &stream{testServer: s, path: path, lines: make(chan map[string]any, 1000), close: cancel}
	go func() {
		defer close(st.lines)
		defer response.Body.Close()
		in := bufio.NewScanner(response.Body)
		for in.Scan() {
			var line map[string]any
			if err := json.Unmarshal(in.Bytes(), &line); err != nil {
				s.Errorf("%s: %v: %s", path, err, in.Text())
				return
			}
			checkLine(s.T, method, path, in.Bytes())
			st.lines <- line
		}
	}()
	return st
}

func (s *testServer) hold(name, body string) *stream {
	s.Helper()
	return s.open(http.MethodPost, "/v1/locks/"+url.PathEscape(name)+"/hold", body)
}

// onlyHold is the one hold that the server has had.
func (s *testServer) onlyHold() *openHold {
	s.Helper()
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	if len(s.holds.byID) != 1 {
		s.Fatalf("%d holds", len(s.holds.byID))
	}
	for _, h := range s.holds.byID {
		return h
	}
	return nil
}

// next returns the next line that is one of these events. It skips lines that may come at any time.
func (st *stream) next(want ...event) map[string]any {
	st.Helper()
	end := time.After(testTimeout)
	for {
		select {
		case line, ok := <-st.lines:
			if !ok {
				st.Fatalf("%s: the stream has ended without %v", st.path, want)
			}
			for _, e := range want {
				if line["event"] == string(e) {
					return line
				}
			}
			switch event(line["event"].(string)) {
			case eventWaiting, eventHeartbeat, eventRenewed:
			default:
				st.Fatalf("%s: want %v: %v", st.path, want, line)
			}
		case <-end:
			st.Fatalf("%s: there is no %v", st.path, want)
		}
	}
}

// awaitEnd waits for the end of the stream, which has no lines any more.
func (st *stream) awaitEnd() {
	st.Helper()
	select {
	case line, ok := <-st.lines:
		if ok {
			st.Errorf("%s: a line after the last: %v", st.path, line)
		}
	case <-time.After(testTimeout):
		st.Errorf("%s does not end", st.path)
	}
}

// lock locks with the other client.
func (s *testServer) lock(name string) *holdfast.Lease {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	lease, err := s.direct.Mutex(name, nil).Lock(ctx)
	if err != nil {
		s.Fatal(err)
	}
	return lease
}

// isFree reports whether the other client could have a lock.
func (s *testServer) isFree(name string) bool {
	s.Helper()
	lease, err := s.direct.Mutex(name, nil).TryLock(context.Background())
	if err == nil {
		_ = lease.Release()
	}
	return err == nil
}

// awaitWaiters waits until so many claims wait for a lock.
func (s *testServer) awaitWaiters(name string, n int) {
	s.Helper()
	s.await(fmt.Sprintf("%d waiters of %s", n, name), func() bool {
		lock, err := s.direct.Inspect(context.Background(), name)
		return err == nil && len(lock.Waiters) == n
	})
}

func (s *testServer) await(what string, is func() bool) {
	s.Helper()
	for end := time.Now().Add(testTimeout); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatal("there are not: " + what)
		}
	}
}

func number(s *testServer, answer map[string]any, field string) int64 {
	s.Helper()
	n, ok := answer[field].(float64)
	if !ok {
		s.Fatalf("there is no number %s: %v", field, answer)
	}
	return int64(n)
}

func text(answer map[string]any, field string) string { return fmt.Sprint(answer[field]) }

// openAudit opens an audit log whose lines are the fields.
func openAudit(t *testing.T, path string) *AuditLog {
	t.Helper()
	a, err := OpenAuditLog(path, func(f map[string]any) ([]byte, error) {
		data, err := json.Marshal(f)
		return append(data, '\n'), err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// startUnixServer starts a server on a unix socket.
func startUnixServer(t *testing.T, change func(*Config)) (*testServer, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	a, err := ParseAddress("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := a.Listen()
	if err != nil {
		t.Fatal(err)
	}
	return startServerOn(t, l, change), path
}

// newMemoryClient makes a client of a store of its own.
func newMemoryClient(t *testing.T) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(memory.New(nil).Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
