package zookeeper

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// TestDeniedWatch: a watch for which the servers cannot be trusted does not try them again and again without a pause, and ends with
// the call that it was for.
func TestDeniedWatch(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	var dials atomic.Int32
	s, err := New(Options{Servers: []string{server.Listener.Addr().String()}, TLS: &tls.Config{RootCAs: x509.NewCertPool()},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	stop := s.tree.Watch("m", sequence.AnyChange, 0, func() {})
	time.Sleep(2 * time.Second)
	if n := dials.Load(); n < 2 || n > 20 {
		t.Errorf("%d connections were made in 2 s", n)
	}
	stop()
	if _, err := s.NextChange(t.Context(), driver.Lock{Name: "m"}); !errors.Is(err, driver.ErrDenied) {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	before := dials.Load()
	time.Sleep(2 * time.Second)
	if n := dials.Load() - before; n > 0 {
		t.Errorf("%d connections were made when nobody waited any more", n)
	}
}
