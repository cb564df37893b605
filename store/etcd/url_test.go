package etcd

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestURL: a URL names endpoints, user, prefix and encryption. The error for a wrong one says what is wrong, and
// contains no password.
func TestURL(t *testing.T) {
	for raw, want := range map[string]string{
		"etcd://h1:1,h2:2":                         "http://h1:1 http://h2:2",
		"etcd://h1,h2:2/":                          "http://h1:2379 http://h2:2",
		"etcd://[::1]:7":                           "http://[::1]:7",
		"etcd://u:hunter2@h:1?tls=true":            "https://h:1",
		"etcd://h:1?prefix=/locks/":                "http://h:1",
		"etcd://h:1?tls-name=n":                    "https://h:1",
		"etcd://u:hunter2@h:1/path":                "",
		"etcd://u:hunter2@":                        "",
		"etcd://u:hunter2@h:1?nope=1":              "",
		"etcd://u:hunter2@h:1?tls=maybe":           "",
		"etcd://u:hunter2@h:1?tls-ca=/does/not/be": "",
		"etcd://u:hunter2@h:1?tls-cert=/does/not/be&tls-key=/nor/this": "",
		"etcd://u:hunter2@h:1?tls-cert=/does/not/be":                   "",
		"etcd://u:hunter2@h:1?password-file=/does/not/be":              "",
		"etcd://h:1?password-file=" + secretFile(t):                    "",
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		cfg, o, err := readURL(u)
		if got := strings.Join(cfg.Endpoints, " "); want != "" && (err != nil || got != want) {
			t.Errorf("%s: %s, %v, want %s", raw, got, err, want)
		}
		if want == "" && (!errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v", raw, err)
		}
		if strings.Contains(raw, "prefix=") && o.Prefix != "/locks/" {
			t.Errorf("%s: the prefix is %q", raw, o.Prefix)
		}
	}
	u := &url.URL{Scheme: "etcd", User: url.User("u"), Host: "h", RawQuery: "password-file=" + secretFile(t)}
	if cfg, _, err := readURL(u); err != nil || cfg.Username != "u" || cfg.Password != "hunter2" {
		t.Errorf("the password from a file: %q of %q, %v", cfg.Password, cfg.Username, err)
	}
}

func secretFile(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "secret")
	fails(t, os.WriteFile(path, []byte("hunter2\n"), 0o600))
	return path
}
