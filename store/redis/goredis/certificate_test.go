package goredis

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storetest"
)

// certificate is one of a server on loopback, and its own authority.
type certificate struct {
	certFile, keyFile string
	authorities       *x509.CertPool
}

func newCertificate(t *testing.T) *certificate {
	t.Helper()
	c := &certificate{authorities: x509.NewCertPool()}
	c.certFile, c.keyFile = storetest.WriteCertificate(t, filepath.Join(t.TempDir(), "server"))
	text, err := os.ReadFile(c.certFile)
	if err != nil || !c.authorities.AppendCertsFromPEM(text) {
		t.Fatalf("%s is no authority: %v", c.certFile, err)
	}
	return c
}

// trusting returns the settings of a client that trusts the server.
func (c *certificate) trusting() *tls.Config { return &tls.Config{RootCAs: c.authorities} }

// distrusting returns the settings of one that trusts nobody.
func distrusting() *tls.Config { return &tls.Config{RootCAs: x509.NewCertPool()} }
