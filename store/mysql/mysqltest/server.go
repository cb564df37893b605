// Package mysqltest runs a MariaDB server for tests, as a child process on a free port of the loopback interface.
package mysqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	_ "github.com/go-sql-driver/mysql" // for database/sql

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// Server is one server. It needs the Debian package mariadb-server.
type Server struct {
	*servertest.Server
	dir string
}

// Database is a database that a new server has. Its user root has no password.
const Database = "shop"

// startTime bounds how long a server may take to answer.
const startTime = time.Minute

// Start starts a server whose writes survive its own end but no power cut, which is faster. Each setting is an option
// of mariadbd without its dashes, such as "innodb-flush-log-at-trx-commit=1".
func Start(settings ...string) (*Server, error) {
	dir, err := os.MkdirTemp("", "holdfast-mariadb-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	if err := s.install(settings); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.Server.Start(); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.awaitAnswer(); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.Exec("create database " + Database); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// install makes the server's files.
func (s *Server) install(settings []string) error {
	data := s.DataDir()
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	who, err := serverUser(s.dir, data)
	if err != nil {
		return err
	}
	install := exec.Command("mariadb-install-db", "--no-defaults", "--user="+who, "--datadir="+data,
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", "--tmpdir="+data)
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("make the database (Debian: apt-get install mariadb-server): %w\n%s", err, out)
	}
	port, err := servertest.FreePort()
	if err != nil {
		return err
	}
	program := "mariadbd"
	if _, err := exec.LookPath(program); err != nil {
		program = "/usr/sbin/mariadbd" // not in the PATH of all users
	}
	args := []string{program, "--no-defaults", "--user=" + who, "--datadir=" + data, "--bind-address=127.0.0.1",
		"--port=" + port, "--socket=" + s.Socket(), "--tmpdir=" +
			data, "--innodb-buffer-pool-size=32M", "--skip-log-bin",
		"--skip-name-resolve", "--max-connections=500", "--innodb-flush-log-at-trx-commit=2"}
	for _, setting := range settings {
		args = append(args, "--"+setting)
	}
	s.Server = &servertest.Server{Name: "mariadb", Endpoint: "127.0.0.1:" + port, Dir: data, Args: args}
	return nil
}

// serverUser is the user that the server runs as. It refuses to run as root, so root gives the directories to the user
// that Debian has made for the server.
func serverUser(dirs ...string) (string, error) {
	own, err := user.Current()
	if err != nil || own.Uid != "0" {
		return own.Username, err
	}
	u, err := user.Lookup("mysql")
	if err != nil {
		return "", err
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	errs := []error{err1, err2}
	for _, d := range dirs {
		errs = append(errs, os.Chown(d, uid, gid))
	}
	return u.Username, errors.Join(errs...)
}

// awaitAnswer waits until the server answers.
func (s *Server) awaitAnswer() error {
	db, err := sql.Open("mysql", "root@tcp("+s.Endpoint+")/")
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	for db.PingContext(ctx) != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("the server does not answer:\n%s", s.LogTail())
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// StartAgain starts the server after it was killed, with the same files, and waits until it answers.
func (s *Server) StartAgain() error {
	if err := s.Server.Start(); err != nil {
		return err
	}
	return s.awaitAnswer()
}

// Socket is the path of the server's unix socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "socket") }

// DataDir is the directory of the server's files.
func (s *Server) DataDir() string { return filepath.Join(s.dir, "data") }

// DSN is the name of the database for database/sql, for the user root.
func (s *Server) DSN() string { return "root@tcp(" + s.Endpoint + ")/" + Database }

// URL is the store's URL for the user root, without options.
func (s *Server) URL() string { return "mysql://root@" + s.Endpoint + "/" + Database }

// Exec runs a statement as root.
func (s *Server) Exec(text string, args ...any) error {
	db, err := sql.Open("mysql", "root@tcp("+s.Endpoint+")/")
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.Exec(text, args...)
	return err
}

// Close kills the server and removes its files.
func (s *Server) Close() {
	if s.Server != nil {
		s.Kill()
	}
	_ = os.RemoveAll(s.dir)
}
