package serve

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"sync/atomic"
)

// Certificate is the server's certificate, which may be replaced while the server runs.
type Certificate struct {
	current atomic.Pointer[tls.Certificate]
}

// Load reads the certificate and its key. After an error the one before stays in use.
func (c *Certificate) Load(certFile, keyFile string) error {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return err
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return err
		}
	}
	c.current.Store(&pair)
	return nil
}

// Get is for tls.Config.GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.current.Load(), nil
}

// Names are the names that the certificate is for, without those with a wildcard. They need --host.
func (c *Certificate) Names() (names []string) {
	pair := c.current.Load()
	if pair == nil {
		return nil
	}
	for _, name := range pair.Leaf.DNSNames {
		if !strings.Contains(name, "*") {
			names = append(names, strings.ToLower(name))
		}
	}
	return names
}
