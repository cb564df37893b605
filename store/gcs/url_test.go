package gcs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// TestDeadConnection: a connection on which nothing arrives any more is not used again and again.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_,
			_ = io.WriteString(w, r.Proto)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	var made atomic.Int32
	via, err := servertest.NewLabelled(strings.TrimPrefix(server.URL, "https://"), func([]byte) string {
		if made.Add(1) == 1 {
			return "first"
		}
		return "later"
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	link := newTransport()
	link.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
	link.TLSClientConfig.RootCAs.AddCert(server.Certificate())
	t.Cleanup(link.CloseIdleConnections)
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+via.Addr, nil)
		if err != nil {
			return err
		}
		reply, err := link.RoundTrip(r)
		if err != nil {
			return err
		}
		defer reply.Body.Close()
		proto, err := io.ReadAll(reply.Body)
		if string(proto) != "HTTP/2.0" {
			t.Errorf("it speaks %s", proto)
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	via.CutOnly(func(label string) bool { return label == "first" })
	start := time.Now()
	for err = ask(); err != nil && time.Since(start) < 15*time.Second; err = ask() {
	}
	if took := time.Since(start); err != nil || took > 10*time.Second {
		t.Errorf("another connection would have answered, but after %v: %v", took, err)
	}
}

// TestEmulatorVariable: the variable by which Google's libraries find an emulator counts here too, unless the URL has
// an endpoint.
func TestEmulatorVariable(t *testing.T) {
	t.Setenv("STORAGE_EMULATOR_HOST", "localhost:9000")
	type settings struct {
		endpoint, credentials string
		anonymous             bool
	}
	for text, want := range map[string]settings{
		"gcs://b":                                       {endpoint: "http://localhost:9000", anonymous: true},
		"gcs://b?credentials=/key":                      {endpoint: "http://localhost:9000", credentials: "/key"},
		"gcs://b?endpoint=http://other":                 {endpoint: "http://other"},
		"gcs://b?endpoint=https://other&anonymous=true": {endpoint: "https://other", anonymous: true},
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		p, err := readURL(u)
		if got := (settings{p.opts.Endpoint, p.credentials, p.anonymous}); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}
