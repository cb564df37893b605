package postgres

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestRotation: the password and the certificates are replaced while locks are held and waited for. Nothing is lost,
// and the server refuses the old ones.
func TestRotation(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	files := storetest.NewSecretFiles(t, "locker")
	query := func(text string) string {
		t.Helper()
		value, err := s.QueryValue(text)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	data := query(`show data_directory`)
	reload := func() {
		t.Helper()
		files.CopyServerFiles(data)
		before := query(`select pg_conf_load_time()`)
		execSQL(t, s, `select pg_reload_conf()`)
		storetest.Eventually(t, "the server reads its files", func() bool {
			return query(`select pg_conf_load_time()`) != before
		})
	}
	execSQL(t, s, `create role locker login password '`+files.OldPassword+`'`)
	execSQL(t, s, `grant create on database postgres to locker`)
	execSQL(t, s, fmt.Sprintf(`copy (values ('hostssl all locker 127.0.0.1/32 scram-sha-256 clientcert=verify-ca'),
		('host all test 127.0.0.1/32 trust')) to '%s'`, filepath.Join(data, "pg_hba.conf")))
	for name, file := range map[string]string{"ssl_ca_file": "ca.pem", "ssl_cert_file": "cert.pem", "ssl_key_file": "key.pem",
		"ssl": "on"} {
		execSQL(t, s, `alter system set `+name+` = '`+file+`'`)
	}
	reload()
	storetest.Rotate(t, storetest.Rotation{Files: files, OnePassword: true, Reload: reload,
		Accept: func() { execSQL(t, s, `alter role locker password '`+files.NewPassword+`'`) },
		URL: func(dir string) string {
			return s.URL("locker") + "?create=true&schema=till&password-file=" + files.Password(dir) +
				"&sslmode=verify-full&sslrootcert=" + filepath.Join(dir, "ca.pem") + "&sslcert=" +
				filepath.Join(dir, "cert.pem") + "&sslkey=" + filepath.Join(dir, "key.pem")
		}})
}
