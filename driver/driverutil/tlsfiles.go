package driverutil

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TLSOptions are the options of a store's URL about TLS.
type TLSOptions struct {
	// CA is a file with the certificates to trust; empty: those of the system.
	CA string
	// Cert and Key are the files with the client's own certificate and its key; both may be empty.
	Cert, Key string
	// Name is the name that a server's certificate must have; empty: the one that is dialed.
	Name string
	// On and Off are whether the option tls is true or false. Without it, both are false.
	On, Off bool
}

// HasFiles reports whether one of the other options is given: each turns TLS on.
func (o *TLSOptions) HasFiles() bool { return o.CA+o.Cert+o.Key+o.Name != "" }

// Open reads the files for the first time. It returns nil if no option asks for TLS, and ErrInvalid for a file that
// cannot be used, or for one of Cert and Key without the other.
func (o *TLSOptions) Open() (*TLSFiles, error) {
	if !o.On && !o.HasFiles() {
		return nil, nil
	}
	if (o.Cert == "") != (o.Key == "") {
		return nil, fmt.Errorf("%w: a client's own certificate takes two files, tls-cert and tls-key", driver.ErrInvalid)
	}
	f := &TLSFiles{options: *o}
	if _ = f.Config(); f.caProblem != nil {
		return nil, fmt.Errorf("%w: tls-ca: %w", driver.ErrInvalid, f.caProblem)
	}
	if _, err := f.clientCertificate(nil); err != nil {
		return nil, fmt.Errorf("%w: tls-cert and tls-key: %w", driver.ErrInvalid, err)
	}
	return f, nil
}

// TLSFiles makes TLS configurations from files, which it reads again for each connection: certificates are replaced
// while a store is open. If a file cannot be used, as when it is being replaced, or a key is not that of the
// certificate, what was read before is used. The methods may be called concurrently.
type TLSFiles struct {
	// Adjust, if set, changes each configuration. It is set before the first connection.
	Adjust func(*tls.Config)

	options TLSOptions

	mu                     sync.Mutex
	roots                  *x509.CertPool   // the last that could be used
	pair                   *tls.Certificate // the last that could be used
	caProblem, pairProblem error
}

// Config returns the configuration for one connection. The pair of certificate and key is read during its handshake.
func (f *TLSFiles) Config() *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.options.Name}
	if f.options.CA != "" {
		roots, err := readRoots(f.options.CA)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.caProblem = err; err == nil {
			f.roots = roots
		}
		c.RootCAs = f.roots
	}
	if f.options.Cert != "" {
		c.GetClientCertificate = f.clientCertificate
	}
	if f.Adjust != nil {
		f.Adjust(c)
	}
	return c
}

// readRoots reads a file of CA certificates in PEM. A file without any is an error: an empty pool would refuse all
// servers.
func readRoots(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("there is no certificate in " + path)
	}
	return roots, nil
}

// clientCertificate reads the client's certificate and key at each handshake. While the files cannot be read, for
// instance because only one of them has been replaced yet, it returns the last pair that could.
func (f *TLSFiles) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if f.options.Cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(f.options.Cert, f.options.Key)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pairProblem = nil
	if err == nil {
		f.pair = &pair
		return f.pair, nil
	}
	f.pairProblem = fmt.Errorf("%s and %s: %w", f.options.Cert, f.options.Key, err)
	if f.pair == nil {
		return nil, f.pairProblem
	}
	return f.pair, nil
}

// Problem says why a file was not used, or is nil.
func (f *TLSFiles) Problem() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := errors.Join(f.caProblem, f.pairProblem)
	if err == nil {
		return nil
	}
	return fmt.Errorf("what the files had before was used: %w", err)
}

// Handshake makes a TLS connection over conn to a server that was dialed at host:port, and closes conn after an error.
func (f *TLSFiles) Handshake(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
	config := f.Config()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	config.ServerName = cmp.Or(config.ServerName, host)
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		if problem := f.Problem(); problem != nil {
			return nil, fmt.Errorf("%w (%w)", err, problem)
		}
		return nil, err
	}
	return secure, nil
}

// Dialer returns a function that makes TLS connections over those of dial, each within limit.
func (f *TLSFiles) Dialer(dial DialFunc, limit time.Duration) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return f.Handshake(ctx, conn, address)
	}
}
