package nats

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/nats/natstest"
)

// TestRotation: the password, or the token, and the certificates are replaced while locks are held and waited for.
// Nothing is lost, and the server refuses the old ones.
func TestRotation(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct{ user, option, config string }{
		"password": {"locker@", "password-file", `authorization { user: locker, password: %q }`},
		"token":    {"", "token-file", `authorization { token: %q }`},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			files := storetest.NewSecretFiles(t, "locker")
			ca, cert, key := files.ServerFiles()
			s := startServers(t, natstest.Options{Secure: true, Config: fmt.Sprintf("tls { ca_file: %q, cert_file: %q, "+
				"key_file: %q, verify: true }\n"+c.config, ca, cert, key, files.OldPassword)})
			m := s.Members[0]
			logged := func() int {
				text, err := os.ReadFile(m.Dir + ".log")
				if err != nil {
					t.Fatal(err)
				}
				return bytes.Count(text, []byte("Reloaded server configuration"))
			}
			reload := func() {
				before := logged()
				if err := syscall.Kill(m.PID(), syscall.SIGHUP); err != nil {
					t.Fatal(err)
				}
				storetest.Eventually(t, "the server reads its files", func() bool { return logged() > before })
			}
			storetest.Rotate(t, storetest.Rotation{Files: files, OnePassword: true, Reload: reload,
				Accept: func() {
					text, err := os.ReadFile(m.Args[1])
					if err != nil {
						t.Fatal(err)
					}
					text = bytes.ReplaceAll(text, []byte(files.OldPassword), []byte(files.NewPassword))
					if err := os.WriteFile(m.Args[1], text, 0o600); err != nil {
						t.Fatal(err)
					}
					reload()
				},
				URL: func(dir string) string {
					return strings.Replace(s.URL("locks"), "//", "//"+c.user, 1) + "?create=true&" + c.option + "=" +
						files.Password(dir) + "&" + files.TLSOptions(dir)
				}})
		})
	}
}
