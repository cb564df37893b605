package driverutil

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// ReadSecretFile returns the content of a file that the store's URL names, without the line breaks at its end that
// editors and echo write. A password in a file need not be in the URL, where a list of processes or a log may show it.
func ReadSecretFile(path string) (string, error) {
	data, err := os.ReadFile(path)
	return strings.TrimRight(string(data), "\r\n"), err
}

// TLSConfig makes a TLS configuration from the files that the store's URL names. It trusts the certificates in ca
// (empty: those of the system), presents cert with its key if they are named, and expects a server of the given name
// (empty: the one that is dialed). It returns ErrInvalid for a file that cannot be used, and for one of cert and key
// without the other.
func TLSConfig(ca, cert, key, name string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("%w: tls-ca: %w", driver.ErrInvalid, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: tls-ca: there is no certificate in %s", driver.ErrInvalid, ca)
		}
	}
	switch {
	case (cert == "") != (key == ""):
		return nil, fmt.Errorf("%w: a client's own certificate takes two files, tls-cert and tls-key",
			driver.ErrInvalid)
	case cert != "":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%w: tls-cert and tls-key: %w", driver.ErrInvalid, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
