package sessiontest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// Soon is the time within which a client must report a final error: before it would give up on servers that do not
// answer.
const Soon = 8 * time.Second

// TLS calls start to run a server with a certificate and its key. It connects with that certificate as the authority,
// and then with another one.
func (h *Harness[C, P]) TLS(t *testing.T, start func(cert, key string) C) {
	dir := t.TempDir()
	good, key := writeCertificate(t, filepath.Join(dir, "good"))
	bad, _ := writeCertificate(t, filepath.Join(dir, "bad"))
	c := start(good, key)
	try := func(ca string) error {
		client, err := holdfast.Open(t.Context(), h.clusterURL(c.Endpoints()...)+"?tls-ca="+ca,
			&holdfast.Options{TTL: 20 * time.Second})
		if err != nil {
			return err
		}
		defer client.Close()
		l, err := client.Mutex(t.Name(), nil).Lock(t.Context())
		if err != nil {
			return err
		}
		return l.Release()
	}
	var err error
	for limit := time.Now().Add(2 * time.Minute); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		if err = try(good); err == nil { // the server is there
			break
		}
	}
	CheckError(t, err)
	began := time.Now()
	err = try(bad)
	t.Logf("a wrong authority: %v after %v", err, time.Since(began).Round(time.Millisecond))
	if !errors.Is(err, holdfast.ErrDenied) || time.Since(began) > Soon {
		t.Errorf("a wrong authority: %v after %v", err, time.Since(began))
	}
}

// writeCertificate writes a self-signed certificate for the loopback interface, and a second file with its key and
// the certificate.
func writeCertificate(t *testing.T, path string) (cert, both string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject: pkix.Name{CommonName: filepath.Base(path)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127,
			0,
			0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	cert, both = path+".pem", path+"-key.pem"
	CheckError(t, os.WriteFile(cert, public, 0o600))
	CheckError(t, os.WriteFile(both, append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		public...), 0o600))
	return cert, both
}
