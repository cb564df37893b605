package fence_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/store/mysql/mysqltest"
)

// startMariaDB starts a MariaDB server for one test, and returns the name of a database in it for database/sql.
func startMariaDB(t testing.TB) string {
	t.Helper()
	s, err := mysqltest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.DSN()
}
