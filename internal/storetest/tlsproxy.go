//go:build unix

package storetest

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// TLSProxy takes connections by TLS, for which clients need a certificate, and passes on what they send to a server. It
// reads the server's files for each connection. It ends with the test.
func TLSProxy(t testing.TB, files *SecretFiles, dial func() (net.Conn, error)) (address string) {
	t.Helper()
	l, err := servertest.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ca, cert, key := files.ServerFiles()
	secure := tls.NewListener(l, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		clients := x509.NewCertPool()
		clients.AppendCertsFromPEM(pem)
		return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients,
			ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"http/1.1", "postgresql"}}, nil
	}})
	var mu sync.Mutex
	var conns []net.Conn
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			in, err := secure.Accept()
			if err != nil {
				return
			}
			keep(in)
			work.Go(func() {
				defer in.Close()
				if in.(*tls.Conn).HandshakeContext(t.Context()) != nil {
					return
				}
				out, err := dial()
				if err != nil {
					return
				}
				keep(out)
				work.Go(func() {
					_, _ = io.Copy(in, out)
					in.Close()
				})
				_, _ = io.Copy(out, in)
				out.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return l.Addr().String()
}
