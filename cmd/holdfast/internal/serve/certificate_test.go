package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestCertificate: the server's certificate and the authorities of its clients are those that were loaded last. Files
// that cannot be used change neither.
func TestCertificate(t *testing.T) {
	t.Parallel()
	files := storetest.NewSecretFiles(t, "client")
	ca, cert, key := files.ServerFiles()
	c := &Certificate{}
	if err := c.Load(cert, key, ca); err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", c.Config(tls.RequireAndVerifyClientCert))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if conn.(*tls.Conn).HandshakeContext(context.Background()) == nil {
					_, _ = conn.Write([]byte("."))
				}
			}()
		}
	}()
	connect := func(dir string) error {
		o := driverutil.TLSOptions{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"),
			Key: filepath.Join(dir, "key.pem")}
		f, err := o.Open()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := f.Dialer((&net.Dialer{}).DialContext, driverutil.MaxOpenTime)(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1)) // with TLS 1.3, a certificate is refused after the handshake
		return err
	}
	if err := connect(files.Client); err != nil {
		t.Errorf("at the start: %v", err)
	}
	files.Replace()
	if err := c.Load(cert, key, os.DevNull); err == nil {
		t.Error("authorities that are torn are loaded")
	}
	if err := c.Load(ca, key, ca); err == nil {
		t.Error("a certificate with another key is loaded")
	}
	if err := connect(files.Old); err != nil {
		t.Errorf("before the new files are loaded: %v", err)
	}
	if err := c.Load(cert, key, ca); err != nil {
		t.Fatal(err)
	}
	if err := connect(files.Client); err != nil {
		t.Errorf("with the new files: %v", err)
	}
	if err := os.WriteFile(filepath.Join(files.Old, "ca.pem"), read(t, ca), 0o600); err != nil {
		t.Fatal(err)
	}
	if connect(files.Old) == nil {
		t.Error("a certificate of the old authority is accepted")
	}
}

// TestRemovedAuthority: when an authority is removed from --client-ca, its certificates count for nothing, also on
// connections that exist. What was begun on them ends. A client that connects again with a new certificate goes on.
func TestRemovedAuthority(t *testing.T) {
	t.Parallel()
	files := storetest.NewSecretFiles(t, "client")
	ca, cert, key := files.ServerFiles()
	c := &Certificate{}
	load := func() {
		t.Helper()
		if err := c.Load(cert, key, ca); err != nil {
			t.Fatal(err)
		}
	}
	load()
	s := startServer(t, func(config *Config) { config.Access = NewCertificateAccess(c) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l, c.Config(tls.RequireAndVerifyClientCert)) }()
	o := driverutil.TLSOptions{CA: filepath.Join(files.Client, "ca.pem"), Cert: filepath.Join(files.Client, "cert.pem"),
		Key: filepath.Join(files.Client, "key.pem")}
	client := func() *testServer {
		f, err := o.Open()
		if err != nil {
			t.Fatal(err)
		}
		own := *s
		own.url, own.transport = "https://"+l.Addr().String(), &http.Transport{
			DialTLSContext: f.Dialer((&net.Dialer{}).DialContext, driverutil.MaxOpenTime)}
		t.Cleanup(own.transport.CloseIdleConnections)
		return &own
	}
	caller := client()
	held := client().hold("held", `{"ttl_ms": 600000, "heartbeat_ms": 100}`)
	held.next(eventAcquired)
	caller.want(http.MethodGet, "/v1/locks/held", "")

	load() // with the same authority
	s.SetAccess(NewCertificateAccess(c))
	caller.want(http.MethodGet, "/v1/locks/held", "")
	held.next(eventHeartbeat, eventRenewed)

	files.Replace()
	load()
	// The certificate that this client has from now on is another one.
	caller.refuse(codeUnauthorized, http.MethodGet, "/v1/locks/held", "")
	caller.want(http.MethodGet, "/v1/locks/held", "")
	s.SetAccess(NewCertificateAccess(c))
	if line := held.next(eventLost); line["cause"] != string(causeRevoked) {
		t.Errorf("%v", line)
	}
	held.close()
	client().want(http.MethodGet, "/v1/locks/held", "")
}

// TestExpiredOnConnection: a certificate that expires while its connection is open counts on, and a server's
// certificate that is signed by the same authority does not count as a client's.
func TestExpiredOnConnection(t *testing.T) {
	t.Parallel()
	sign := func(c, by *x509.Certificate, own, key *ecdsa.PrivateKey, until time.Duration) *x509.Certificate {
		t.Helper()
		c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(until)
		der, err := x509.CreateCertificate(rand.Reader, c, by, &own.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		if c, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		return c
	}
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	authority := sign(template, template, keys[0], keys[0], time.Hour)
	c := &Certificate{}
	c.current.Store(&certificates{clients: x509.NewCertPool()})
	c.current.Load().clients.AddCert(authority)
	for usage, want := range map[x509.ExtKeyUsage]bool{x509.ExtKeyUsageClientAuth: true, x509.ExtKeyUsageServerAuth: false} {
		own := sign(&x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{usage}}, authority, keys[1], keys[0],
			-time.Minute)
		r := &http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{own},
			VerifiedChains: [][]*x509.Certificate{{own, authority}}}}
		if got := c.ofClient(r) != nil; got != want {
			t.Errorf("usage %d: %v", usage, got)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
