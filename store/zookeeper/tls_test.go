package zookeeper

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
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// TestTLS: with the right authority the store works, and with the wrong one it says so.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, bad := certificate(t, filepath.Join(dir, "good")), certificate(t, filepath.Join(dir, "bad"))
	c := start(t, zktest.Options{Members: 1, Lines: []string{"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
		"client.portUnification=true", "ssl.clientAuth=none", "ssl.keyStore.location=" + good + "-key.pem", "ssl.trustStore.location=" + good + ".pem"}})
	try := func(ca string) error {
		client, err := holdfast.Open(t.Context(), "zookeeper://"+c.Members[0].Endpoint+"?ca="+ca, &holdfast.Options{TTL: 5 * time.Second})
		if err != nil {
			return err
		}
		defer client.Close()
		l, err := client.Mutex(t.Name(), nil).Lock(t.Context())
		if err != nil {
			return err
		}
		return l.Unlock()
	}
	fails(t, try(good+".pem"))
	began := time.Now()
	err := try(bad + ".pem")
	t.Logf("a wrong authority: %v after %v", err, time.Since(began).Round(time.Millisecond))
	if !errors.Is(err, holdfast.ErrDenied) || time.Since(began) > 5*time.Second {
		t.Errorf("a wrong authority: %v after %v", err, time.Since(began))
	}
}

// certificate writes a self-signed certificate for the loopback interface, and beside it one with its key.
func certificate(t *testing.T, path string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "localhost"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
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
	for name, text := range map[string][]byte{
		path + ".pem":     public,
		path + "-key.pem": append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), public...),
	} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}
