package serve

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
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

// Load reads the certificate and its key, and the authorities of clients if a file is named. After an error those before
// stay in use.
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
