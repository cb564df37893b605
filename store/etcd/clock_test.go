package etcd

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// versionServer is a member that tells its version, with its time, or another HTTP server.
func versionServer(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	s := httptest.NewUnstartedServer(answer)
	t.Cleanup(s.Close)
	return s
}

// tellVersion answers as members do.
func tellVersion(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"etcdserver":"3.6.0"}`)
}

// clockTable opens a table of a cluster with these endpoints, which need not speak etcd's protocol.
func clockTable(t *testing.T, endpoints ...string) record.Table {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	tb, err := NewTable(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tb.Close() })
	return tb
}

// TestReadClockAgain: the member that has told its time last is asked first, on the connection that exists.
func TestReadClockAgain(t *testing.T) {
	t.Parallel()
	var refused, connections atomic.Int64
	bad := versionServer(t, func(http.ResponseWriter, *http.Request) {
		refused.Add(1)
		panic(http.ErrAbortHandler)
	})
	good := versionServer(t, tellVersion)
	good.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	bad.Start()
	good.Start()
	tb := clockTable(t, bad.Listener.Addr().String(), good.Listener.Addr().String())
	for range 3 {
		if _, _, err := tb.ReadClock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if r, c := refused.Load(), connections.Load(); r != 1 || c != 1 {
		t.Errorf("the member that does not answer was asked %d times, and the other one got %d connections", r, c)
	}
}

// TestReadClockErrors: only an answer says that members tell no time by HTTP. One that cannot be reached may be back
// soon.
func TestReadClockErrors(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	serve := func(answer http.HandlerFunc) string {
		s := versionServer(t, answer)
		s.Start()
		return s.Listener.Addr().String()
	}
	for what, c := range map[string]struct {
		endpoint    string
		unsupported bool
		works       bool
	}{
		"nobody listens": {endpoint: closed.Addr().String()},
		"cut off":        {endpoint: serve(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })},
		"no date": {unsupported: true, endpoint: serve(func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Date"] = nil
			tellVersion(w, r)
		})},
		"another service": {unsupported: true, endpoint: serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
		})},
		"a redirect": {unsupported: true, endpoint: serve(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/version" {
				http.Redirect(w, r, "/other", http.StatusFound)
				return
			}
			tellVersion(w, r)
		})},
		"no HTTP":  {unsupported: true, endpoint: "unix:///nothing"},
		"a member": {works: true, endpoint: serve(tellVersion)},
	} {
		tb := clockTable(t, c.endpoint)
		if _, _, err := tb.ReadClock(t.Context()); (err == nil) != c.works || errors.Is(err, driver.ErrUnsupported) != c.unsupported {
			t.Errorf("%s: %v", what, err)
		}
	}
}
