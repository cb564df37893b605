// Package tlsfiles makes TLS configurations of the files that a store's URL names.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/holdfast-go/holdfast/driver"
)

// Config trusts the certificates in ca (empty: those of the system), shows cert with its key if they are named, and
// expects a server of that name (empty: the one that is dialed). A file that cannot be used is an ErrInvalid, and so is one
// of cert and key without the other.
func Config(ca, cert, key, name string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: there is no certificate in %s", driver.ErrInvalid, ca)
		}
	}
	switch {
	case (cert == "") != (key == ""):
		return nil, fmt.Errorf("%w: a client's own certificate takes two files, tls-cert and tls-key", driver.ErrInvalid)
	case cert != "":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
