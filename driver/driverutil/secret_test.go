package driverutil_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestSecret: a secret is read from its file each time, without the line break at its end. While the file is empty or
// missing, it is the last one, and the problem names the file.
func TestSecret(t *testing.T) {
	t.Parallel()
	var s driverutil.Secret
	if s.SetText("in the URL"); s.Current() != "in the URL" || s.IsFile() || s.Problem() != nil {
		t.Errorf("%q, %v", s.Current(), s.Problem())
	}
	path := filepath.Join(t.TempDir(), "password")
	if err := s.ReadFrom(path); err == nil || s.IsFile() {
		t.Errorf("a file that does not exist: %v", err)
	}
	if write(t, path, ""); s.ReadFrom(path) == nil {
		t.Error("a file that is empty")
	}
	if write(t, path, "one\r\n"); s.ReadFrom(path) != nil || !s.IsFile() {
		t.Error("it is no file")
	}
	for _, c := range []struct{ text, want, problem string }{
		{"one\r\n", "one", ""}, {"\n", "one", path}, {" two ", " two ", ""}, {"-", " two ", path}, {"three", "three", ""}} {
		if c.text == "-" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		} else {
			write(t, path, c.text)
		}
		got, err := s.Current(), s.Problem()
		if got != c.want || (err != nil) != (c.problem != "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%q: %q, %v", c.text, got, err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTLSFiles: each connection is made with the certificates that the files have then. While a file is torn, or the
// key is not that of the certificate, those before are used, and the error of a connection that fails names the file.
func TestTLSFiles(t *testing.T) {
	t.Parallel()
	files := storetest.NewSecretFiles(t, "client")
	at := storetest.TLSProxy(t, files, func() (net.Conn, error) { return nil, errors.New("there is nothing behind it") })
	path := func(name string) string { return filepath.Join(files.Client, name) }
	o := driverutil.TLSOptions{CA: path("ca.pem"), Cert: path("cert.pem"), Key: path("key.pem")}
	f, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	dial := f.Dialer((&net.Dialer{}).DialContext, driverutil.MaxOpenTime)
	connect := func() error {
		conn, err := dial(t.Context(), "tcp", at)
		if err == nil {
			conn.Close()
		}
		return err
	}
	other := storetest.NewSecretFiles(t, "client")
	copyOf := func(from, name string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, path(name), string(text))
	}
	for what, tear := range map[string]func(){
		"an authority that is torn": func() { write(t, path("ca.pem"), "-----BEGIN") },
		"no authority":              func() { _ = os.Remove(path("ca.pem")) },
		"another key":               func() { copyOf(other.Client, "key.pem") },
		"a torn certificate":        func() { write(t, path("cert.pem"), "") },
	} {
		tear()
		if err := connect(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if p := f.Problem(); p == nil || !strings.Contains(p.Error(), files.Client) {
			t.Errorf("%s: the problem is %v", what, p)
		}
		if _, err := o.Open(); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: it can be opened", what)
		}
		for _, name := range []string{"ca.pem", "cert.pem", "key.pem"} {
			copyOf(files.Old, name)
		}
		if err := connect(); err != nil || f.Problem() != nil {
			t.Errorf("after %s: %v, %v", what, err, f.Problem())
		}
	}
	copyOf(other.Client, "ca.pem")
	var distrust *tls.CertificateVerificationError
	if err := connect(); !errors.As(err, &distrust) {
		t.Errorf("another authority: %v", err)
	}
	write(t, path("ca.pem"), "")
	if err := connect(); !errors.As(err, &distrust) || !strings.Contains(err.Error(), path("ca.pem")) {
		t.Errorf("another authority, and a file that is torn: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dial(ended, "tcp", at); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// TestTLSOptions: any option turns TLS on, and both files of a pair are needed.
func TestTLSOptions(t *testing.T) {
	t.Parallel()
	for what, o := range map[string]driverutil.TLSOptions{"nothing": {}, "tls=false": {Off: true}} {
		if f, err := o.Open(); f != nil || err != nil {
			t.Errorf("%s: %v, %v", what, f, err)
		}
	}
	for what, o := range map[string]driverutil.TLSOptions{"tls": {On: true}, "tls-name": {Name: "n"}} {
		if f, err := o.Open(); err != nil || f.Config().ServerName != o.Name {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, o := range map[string]driverutil.TLSOptions{"tls-cert alone": {Cert: "/a"}, "no such file": {CA: "/does/not/exist"}} {
		if f, err := o.Open(); f != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, f, err)
		}
	}
}
