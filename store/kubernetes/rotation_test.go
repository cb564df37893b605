package kubernetes

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// TestRotation: the certificates are replaced while locks are held and waited for. Nothing is lost, and old ones are
// refused.
func TestRotation(t *testing.T) {
	t.Parallel()
	c, err := kubernetestest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	pem, err := os.ReadFile(c.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	files := storetest.NewSecretFiles(t, "locker")
	at := storetest.TLSProxy(t, files, func() (net.Conn, error) {
		return tls.Dial("tcp", strings.TrimPrefix(c.Address(), "https://"), &tls.Config{RootCAs: roots})
	})
	storetest.Rotate(t, storetest.Rotation{Files: files, Reload: func() {}, URL: func(dir string) string {
		path := filepath.Join(dir, "kubeconfig")
		text := fmt.Sprintf(`
current-context: here
contexts: [{name: here, context: {cluster: c, user: u, namespace: default}}]
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: ca.pem}}]
users: [{name: u, user: {token: all, client-certificate: cert.pem, client-key: key.pem}}]
`, at)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "kubernetes://?kubeconfig=" + path
	}})
}

// TestTornTokenFile: while the file of a token is empty, the token before stays in use, also after the server has
// refused it.
func TestTornTokenFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	a := &authTransport{user: kubeUser{TokenFile: path}, tokenFile: new(driverutil.Secret)}
	if err := a.tokenFile.ReadFrom(path); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, bad, want string }{{"one\n", "", "one"}, {"", "one", "one"}, {" two ", "one", "two"}} {
		write(c.text)
		if token, _, err := a.currentToken(t.Context(), c.bad); token != c.want || err != nil {
			t.Errorf("a file with %q: %q, %v", c.text, token, err)
		}
	}
}
