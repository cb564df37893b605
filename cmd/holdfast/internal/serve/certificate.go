package serve

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// Certificate is the server's certificate, and the authorities of its clients' certificates. Both may be replaced while
// the server runs.
type Certificate struct {
	current atomic.Pointer[certificates]
}

type certificates struct {
	own     tls.Certificate
	clients *x509.CertPool // nil: clients need no certificate
}

// Load reads the certificate and its key, and the authorities of clients if a file is named. After an error those
// before stay in use.
func (c *Certificate) Load(certFile, keyFile, clientCA string) (err error) {
	var now certificates
	if now.own, err = tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		return fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	if now.own.Leaf == nil {
		if now.own.Leaf, err = x509.ParseCertificate(now.own.Certificate[0]); err != nil {
			return fmt.Errorf("--tls-cert: %w", err)
		}
	}
	if clientCA != "" {
		pem, err := os.ReadFile(clientCA)
		if err != nil {
			return fmt.Errorf("--client-ca: %w", err)
		}
		now.clients = x509.NewCertPool()
		if !now.clients.AppendCertsFromPEM(pem) {
			return fmt.Errorf("--client-ca: %s has no certificate", clientCA)
		}
	}
	c.current.Store(&now)
	return nil
}

// Config is the server's configuration of TLS. auth says which clients need a certificate, if there are authorities.
func (c *Certificate) Config(auth tls.ClientAuthType) *tls.Config {
	base := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &c.current.Load().own, nil }}
	if c.current.Load().clients == nil {
		return base
	}
	base.ClientAuth = auth
	base.SessionTicketsDisabled = true // a session that is resumed would keep the authorities of then
	config := base.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := base.Clone()
		now.ClientCAs = c.current.Load().clients
		return now, nil
	}
	return config
}

// ofClient is the certificate of a request's client. It is nil if there is none, or none that one of the authorities
// has signed which were read last: a connection may be older than they, and be used as long as its client likes. That
// a certificate expires ends no connection, so the time is one at which the handshake's chain was valid.
func (c *Certificate) ofClient(r *http.Request) *x509.Certificate {
	if c == nil || r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return nil
	}
	chain, now, conn := r.TLS.VerifiedChains[0], c.current.Load(), connectionOf(r)
	if now == nil || now.clients == nil {
		return nil
	}
	if conn.trustedBy.Load() == now {
		return chain[0]
	}
	o := x509.VerifyOptions{Roots: now.clients, Intermediates: x509.NewCertPool(), CurrentTime: time.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, by := range r.TLS.PeerCertificates[1:] {
		o.Intermediates.AddCert(by)
	}
	for _, each := range chain {
		if each.NotAfter.Before(o.CurrentTime) {
			o.CurrentTime = each.NotAfter
		}
	}
	if _, err := chain[0].Verify(o); err != nil {
		return nil
	}
	conn.trustedBy.Store(now)
	return chain[0]
}

// Names are the names that the certificate is for, without those with a wildcard. They need --host.
func (c *Certificate) Names() (names []string) {
	now := c.current.Load()
	if now == nil {
		return nil
	}
	for _, name := range now.own.Leaf.DNSNames {
		if !strings.Contains(name, "*") {
			names = append(names, strings.ToLower(name))
		}
	}
	return names
}
