package serve

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestCertificate: the server's certificate and the authorities of its clients are those that were loaded last. Files that
// cannot be used change neither.
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

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
