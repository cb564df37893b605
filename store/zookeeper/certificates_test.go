package zookeeper

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
)

// TestOneExpiredCertificate: a server whose certificate cannot be trusted, an expired one, ends no session that
// another server takes.
func TestOneExpiredCertificate(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	way := &servertest.Net{}
	defer way.Close()
	good, err := way.Link(c.Members[0].Endpoint)
	mustSucceed(t, err)
	bad := httptest.NewTLSServer(nil)
	defer bad.Close()
	at := bad.Listener.Addr().String()
	s, err := openAs[*store]([]string{good.Addr, at}, Options{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == at {
				return (&tls.Dialer{Config: &tls.Config{RootCAs: x509.NewCertPool()}}).DialContext(ctx, network,
					address)
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}})
	mustSucceed(t, err)
	defer s.Close()
	client := newClient(t, s, 30*time.Second)
	l := mustLock(t, client, t.Name())
	for range 3 {
		good.Reset()
		time.Sleep(500 * time.Millisecond)
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
	}
	sessiontest.AwaitRenewal(t, l)
	mustSucceed(t, l.Release())
}
