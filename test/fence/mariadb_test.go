package fence_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// startMariaDB starts a MariaDB server for one test, and returns the name of a database in it for database/sql. It needs
// the Debian package mariadb-server.
func startMariaDB(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-mariadb-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	who := ownUser(t)
	if os.Geteuid() == 0 { // the server refuses to run as root
		who = serverUser(t, dir, data)
	}
	install := exec.Command("mariadb-install-db", "--no-defaults", "--user="+who, "--datadir="+data,
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", "--tmpdir="+data)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("make the database: %v\n%s", err, out)
	}
	port, err := servertest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	program := "mariadbd"
	if _, err := exec.LookPath(program); err != nil {
		program = "/usr/sbin/mariadbd" // not in the PATH of all users
	}
	server := &servertest.Server{Name: "mariadb", Endpoint: "127.0.0.1:" + port, Dir: data, Args: []string{
		program, "--no-defaults", "--user=" + who, "--datadir=" + data, "--bind-address=127.0.0.1", "--port=" + port,
		"--socket=" + filepath.Join(dir, "socket"), "--tmpdir=" + data, "--innodb-buffer-pool-size=32M", "--skip-log-bin",
		"--innodb-flush-log-at-trx-commit=0"}}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	root := fmt.Sprintf("root@tcp(%s)/", server.Endpoint)
	db, err := sql.Open("mysql", root)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for db.PingContext(ctx) != nil {
		if ctx.Err() != nil {
			t.Fatalf("the server does not answer:\n%s", server.LogTail())
		}
		time.Sleep(20 * time.Millisecond)
	}
	if _, err := db.ExecContext(ctx, `create database shop`); err != nil {
		t.Fatal(err)
	}
	return root + "shop"
}

func ownUser(t testing.TB) string {
	t.Helper()
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return u.Username
}

// serverUser gives directories to the user that Debian has made for the server.
func serverUser(t testing.TB, dirs ...string) string {
	t.Helper()
	const name = "mysql"
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	for _, d := range dirs {
		if err := os.Chown(d, uid, gid); err != nil || err1 != nil || err2 != nil {
			t.Fatal(err, err1, err2)
		}
	}
	return name
}
