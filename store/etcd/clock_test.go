package etcd

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/driver"
)

// TestReadClockErrors: only an answer says that members tell no time by HTTP. One that cannot be reached may be back soon.
func TestReadClockErrors(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	serve := func(answer http.HandlerFunc) string {
		s := httptest.NewServer(answer)
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	version := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"etcdserver":"3.6.0"}`)
	}
	for what, c := range map[string]struct {
		endpoint    string
		unsupported bool
		works       bool
	}{
		"nobody listens": {endpoint: closed.Addr().String()},
		"cut off":        {endpoint: serve(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })},
		"no date": {unsupported: true, endpoint: serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Date"] = nil
			version(w)
		})},
		"another service": {unsupported: true, endpoint: serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
		})},
		"a redirect": {unsupported: true, endpoint: serve(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/version" {
				http.Redirect(w, r, "/other", http.StatusFound)
				return
			}
			version(w)
		})},
		"no HTTP":  {unsupported: true, endpoint: "unix:///nothing"},
		"a member": {works: true, endpoint: serve(func(w http.ResponseWriter, _ *http.Request) { version(w) })},
	} {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.endpoint}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		tb, err := NewTable(t.Context(), client, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tb.Close() })
		if _, _, err := tb.ReadClock(t.Context()); (err == nil) != c.works || errors.Is(err, driver.ErrUnsupported) != c.unsupported {
			t.Errorf("%s: %v", what, err)
		}
	}
}
