package mysql

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestRotation: the password and the certificates are replaced while locks are held and waited for. Nothing is lost,
// and the server refuses the old ones.
func TestRotation(t *testing.T) {
	t.Parallel()
	files := storetest.NewSecretFiles(t, "locker")
	files.Share()
	ca, cert, key := files.ServerFiles()
	s := startServer(t, "ssl-ca="+ca, "ssl-cert="+cert, "ssl-key="+key)
	exec := func(text string) {
		t.Helper()
		if err := s.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	exec("create user locker identified by '" + files.OldPassword + "' require x509")
	exec("grant all on shop.* to locker")
	storetest.Rotate(t, storetest.Rotation{Files: files, OnePassword: true,
		Accept: func() { exec("alter user locker identified by '" + files.NewPassword + "'") },
		Reload: func() { exec("flush ssl") },
		URL: func(dir string) string {
			return strings.Replace(s.URL(), "root@", "locker@", 1) + "?create=true&password-file=" + files.Password(dir) + "&" +
				files.TLSOptions(dir)
		}})
}
