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

// TestDeniedWatch: a watch for which the servers cannot be trusted does not try them again and again without a
// pause, and ends with the call that it was for.
func TestDeniedWatch(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	var dials atomic.Int32
	s, err := openAs[*store]([]string{server.Listener.Addr().String()}, Options{
		TLS: &tls.Config{RootCAs: x509.NewCertPool()},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	began := time.Now()
	watch := s.nodeStore.Watch("m", sequence.WatchChanges, 0, func() {})
	for took := time.Duration(0); took < 2*time.Second || dials.Load() < 2; took = time.Since(began) {
		if n := dials.Load(); took > time.Minute || float64(n) > 20+10*took.Seconds() {
			t.Fatalf("%d connections were made in %v", n, took)
		}
		time.Sleep(20 * time.Millisecond)
	}
	watch.Stop()
	if _, err := s.NextChange(t.Context(), driver.Lock{Name: "m"}); !errors.Is(err, driver.ErrDenied) {
		t.Fatal(err)
	}
	before := int32(-1)
	for limit := time.Now().Add(time.Minute); dials.Load() != before; time.Sleep(3 * time.Second) {
		// the last may be under way
		if time.Now().After(limit) {
			t.Fatal("connections are made when nobody waits any more")
		}
		before = dials.Load()
	}
}
