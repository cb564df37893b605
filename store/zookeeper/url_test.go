package zookeeper

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestURL: a URL names servers, user, namespace, layout and encryption, and what is wrong with one is said,
// without its password.
func TestURL(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	mustSucceed(t, os.WriteFile(secret, []byte("hunter2\n"), 0o600))
	for raw, want := range map[string]string{
		"zookeeper://h1:1,h2:2":                                             "zookeeper://h1:1,h2:2 curator anyone 0",
		"zookeeper://h1,h2:2/":                                              "zookeeper://h1:2181,h2:2 curator anyone 0",
		"zookeeper://[::1]:7":                                               "zookeeper://[::1]:7 curator anyone 0",
		"zookeeper://u:hunter2@h:1?tls=true":                                "zookeeper://h:1 curator auth 1",
		"zookeeper://u:hunter2@h:1?acl=anyone":                              "zookeeper://h:1 curator anyone 0",
		"zookeeper://h:1?namespace=/a/b/":                                   "zookeeper://h:1/a/b curator anyone 0",
		"zookeeper://h:1?layout=kazoo":                                      "zookeeper://h:1 kazoo anyone 0",
		"zookeeper://h:1?layout=both&tls-name=n":                            "zookeeper://h:1 both anyone 1",
		"zookeeper://u:hunter2@h:1/path":                                    "",
		"zookeeper://u:hunter2@":                                            "",
		"zookeeper://u:hunter2@h:1?nope=1":                                  "",
		"zookeeper://u:hunter2@h:1?tls=maybe":                               "",
		"zookeeper://u:hunter2@h:1?layout=other":                            "",
		"zookeeper://u:hunter2@h:1?acl=all":                                 "",
		"zookeeper://u:hunter2@h:1?tls-ca=/does/not/be":                     "",
		"zookeeper://u:hunter2@h:1?tls-cert=/does/not/be&tls-key=/nor/this": "",
		"zookeeper://u:hunter2@h:1?tls-cert=/does/not/be":                   "",
		"zookeeper://u:hunter2@h:1?namespace=%ff":                           "",
		"zookeeper://u:hunter2@h1:1,:2?layout=curator":                      "",
		"zookeeper://u:hunter2@h:1?password-file=/does/not/be":              "",
		"zookeeper://h:1?password-file=" + secret:                           "",
		"zookeeper://u@h:1?password-file=" + secret:                         "zookeeper://h:1 curator auth 0",
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := openURL(t.Context(), u)
		if want == "" {
			if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", raw, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		nodeStore := opened.(*store).nodeStore
		tls := " 0"
		if nodeStore.opts.TLS != nil {
			tls = " 1"
		}
		who := "anyone"
		if nodeStore.opts.ACL[0].Scheme != "world" {
			who = nodeStore.opts.ACL[0].Scheme
		}
		if got := nodeStore.info.Store + " " + string(nodeStore.opts.Layout) + " " + who + tls; got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
		if strings.Contains(raw, secret) && nodeStore.opts.Auth[0].Credential != "u:hunter2" {
			t.Errorf("%s: %v", raw, nodeStore.opts.Auth)
		}
		opened.Close()
	}
}
