//go:build unix

package storetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// SecretFiles are the files of a server and of its clients: a password, and the certificates with which both prove who
// they are. There is an old and a new generation of each. The clients' files are in Client, the server's in Server, and
// those of the old generation alone, for a client that was forgotten, in Old.
type SecretFiles struct {
	Client, Server, Old string // directories
	OldPassword         string
	NewPassword         string

	t        testing.TB
	old, new generation
}

// generation is an authority, and what it has signed.
type generation struct{ ca, server, serverKey, client, clientKey []byte }

// The names of the files in the directories.
const (
	fileCA       = "ca.pem"
	fileCert     = "cert.pem"
	fileKey      = "key.pem"
	filePassword = "password"
)

// NewSecretFiles makes all files, with the old generation. The certificates of the client are for the user.
func NewSecretFiles(t testing.TB, user string) *SecretFiles {
	t.Helper()
	dir := t.TempDir()
	f := &SecretFiles{t: t, Client: filepath.Join(dir, "client"), Server: filepath.Join(dir, "server"),
		Old: filepath.Join(dir, "old"), OldPassword: "0d1a1ee2-0000-4000-8000-0000000000a1",
		NewPassword: "0d1a1ee2-0000-4000-8000-0000000000b2", old: newGeneration(t, user), new: newGeneration(t, user)}
	for _, d := range []string{f.Client, f.Server, f.Old} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		f.write(d, fileCA, f.old.ca)
		f.write(d, fileCert, f.old.client)
		f.write(d, fileKey, f.old.clientKey)
		f.write(d, filePassword, []byte(f.OldPassword+"\n"))
	}
	f.write(f.Server, fileCert, f.old.server)
	f.write(f.Server, fileKey, f.old.serverKey)
	return f
}

// write replaces a file.
func (f *SecretFiles) write(dir, name string, content []byte) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// TLSOptions are the options of a store's URL for the certificates in a directory of clients.
func (f *SecretFiles) TLSOptions(dir string) string {
	return "tls-ca=" + filepath.Join(dir, fileCA) + "&tls-cert=" + filepath.Join(dir, fileCert) + "&tls-key=" +
		filepath.Join(dir, fileKey)
}

// Password is the file with the password in a directory of clients.
func (f *SecretFiles) Password(dir string) string { return filepath.Join(dir, filePassword) }

// ServerFiles are the files that the server reads: whom it trusts, its certificate, and its key.
func (f *SecretFiles) ServerFiles() (ca, cert, key string) {
	return filepath.Join(f.Server, fileCA), filepath.Join(f.Server, fileCert), filepath.Join(f.Server, fileKey)
}

// tear leaves the clients' files as they are in the middle of being replaced.
func (f *SecretFiles) tear() {
	f.write(f.Client, filePassword, nil)
	f.write(f.Client, fileCA, f.new.ca[:len(f.new.ca)/2])
	f.write(f.Client, fileCert, f.new.client) // and not yet its key
}

// trustBoth makes both sides trust both authorities, and use the old certificates.
func (f *SecretFiles) trustBoth() {
	f.write(f.Server, fileCA, slices.Concat(f.old.ca, f.new.ca))
	f.trustBothAgain()
	f.write(f.Client, fileCert, f.old.client)
}

// trustBothAgain makes clients trust both authorities.
func (f *SecretFiles) trustBothAgain() { f.write(f.Client, fileCA, slices.Concat(f.old.ca, f.new.ca)) }

// forgetNew makes clients trust the old authority alone.
func (f *SecretFiles) forgetNew() { f.write(f.Client, fileCA, f.old.ca) }

// useNew makes both sides use the new certificates.
func (f *SecretFiles) useNew() {
	f.write(f.Client, fileCert, f.new.client)
	f.write(f.Client, fileKey, f.new.clientKey)
	f.write(f.Server, fileCert, f.new.server)
	f.write(f.Server, fileKey, f.new.serverKey)
}

// Replace makes both sides use the new certificates, and trust the new authority alone.
func (f *SecretFiles) Replace() {
	f.useNew()
	f.trustNew()
}

// trustNew makes both sides trust the new authority alone.
func (f *SecretFiles) trustNew() {
	f.write(f.Client, fileCA, f.new.ca)
	f.write(f.Server, fileCA, f.new.ca)
}

// writePassword writes the new password for the clients.
func (f *SecretFiles) writePassword() { f.write(f.Client, filePassword, []byte(f.NewPassword+"\n")) }

// newGeneration makes an authority, a certificate of a server on the loopback interface, and one of a client.
func newGeneration(t testing.TB, user string) (g generation) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{Subject: pkix.Name{CommonName: "authority " + rand.Text()}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	g.ca, _ = signCertificate(t, ca, ca, key, key)
	for name, to := range map[string]struct{ cert, key *[]byte }{"server": {&g.server, &g.serverKey},
		user: {&g.client, &g.clientKey}} {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		leaf := &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
		*to.cert, *to.key = signCertificate(t, leaf, ca, own, key)
	}
	return g
}

// Share lets another user read the server's files, as whom the server may run.
func (f *SecretFiles) Share() {
	f.t.Helper()
	for path := f.Server; len(path) > len(os.TempDir()); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			f.t.Fatal(err)
		}
	}
	for _, name := range []string{fileCA, fileCert, fileKey} {
		if err := os.Chmod(filepath.Join(f.Server, name), 0o644); err != nil {
			f.t.Fatal(err)
		}
	}
}

// CopyServerFiles copies the server's files to a directory, whose owner alone may read them there.
func (f *SecretFiles) CopyServerFiles(dir string) {
	f.t.Helper()
	owner, err := os.Stat(dir)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, name := range []string{fileCA, fileCert, fileKey} {
		content, err := os.ReadFile(filepath.Join(f.Server, name))
		if err != nil {
			f.t.Fatal(err)
		}
		f.write(dir, name, content)
		if s, ok := owner.Sys().(*syscall.Stat_t); ok {
			if err := os.Chown(filepath.Join(dir, name), int(s.Uid), int(s.Gid)); err != nil {
				f.t.Fatal(err)
			}
		}
	}
}
