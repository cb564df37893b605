// Package pgtest starts real PostgreSQL servers and PgBouncers for tests: on loopback, on free ports, and as child
// processes that end with the test. It needs the Debian packages postgresql and pgbouncer, or similar ones.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/jackc/pgx/v5"
)

// Server is one PostgreSQL process.
type Server struct {
	Addr string // host:port
	port string
	dir  string
	args []string
	env  []string
	cmd  *exec.Cmd
	done chan struct{}
}

// findProgram finds one of PostgreSQL's programs, which Debian does not put into the PATH. It takes the newest version.
func findProgram(name string) (string, error) {
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 {
		slices.SortFunc(found, func(a, b string) int { return majorVersion(b) - majorVersion(a) })
		return found[0], nil
	}
	if dir, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		if path := filepath.Join(strings.TrimSpace(string(dir)), name); exec.Command(path, "--version").Run() == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("PostgreSQL is needed (Debian: apt-get install postgresql): %w", err)
	}
	return path, nil
}

// majorVersion reads the version from a path of Debian's packages.
func majorVersion(path string) int {
	n, _ := strconv.Atoi(strings.Split(path, "/")[4])
	return n
}

// newServerDir makes a directory that the servers' user may write.
func newServerDir(env []string) (*Server, error) {
	dir, err := os.MkdirTemp("", "holdfast-postgres-")
	if err != nil {
		return nil, err
	}
	uid, gid, err := serverUser()
	if err == nil && uid >= 0 {
		err = os.Chown(dir, uid, gid)
	}
	return &Server{dir: dir, env: env}, err
}

// assignPort chooses a free port. It must be called just before the server starts, because other tests choose
// ports, too.
func (s *Server) assignPort() (err error) {
	s.port, err = servertest.FreePort()
	s.Addr = "127.0.0.1:" + s.port
	return err
}

// Start starts a server with the superuser test, who needs no password, and the database postgres. The settings,
// such as
// "max_connections=20", are added to its configuration. The caller must Stop it.
func Start(settings ...string) (*Server, error) { return startServer(nil, settings) }

// StartAt starts a server whose clock is ahead of the machine's, or behind if negative. It needs libfaketime.
func StartAt(ahead time.Duration, settings ...string) (*Server, error) {
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(found) == 0 {
		return nil, errors.New("libfaketime is needed (Debian: apt-get install faketime)")
	}
	env := []string{"LD_PRELOAD=" + found[0], fmt.Sprintf("FAKETIME=%+d", int(ahead.Seconds())),
		"FAKETIME_DONT_FAKE_MONOTONIC=1"}
	return startServer(env, settings)
}

// startServer makes a database and starts a server on it.
func startServer(env, settings []string) (*Server, error) {
	s, err := newServerDir(env)
	if err != nil {
		return nil, err
	}
	initdb, err := findProgram("initdb")
	if err == nil {
		err = s.runCommand(initdb, "-D", s.dir+"/data", "-U", "test", "-A", "trust", "-E", "UTF8", "--locale=C",
			"--no-sync")
	}
	if err != nil {
		os.RemoveAll(s.dir)
		return nil, err
	}
	return s, s.runPostgres(settings)
}

// Standby starts a read-only server that replicates this one.
func (s *Server) Standby(settings ...string) (*Server, error) {
	f, err := newServerDir(nil)
	if err != nil {
		return nil, err
	}
	backup, err := findProgram("pg_basebackup")
	if err == nil {
		err = f.runCommand(backup, "-D", f.dir+"/data", "-h", "127.0.0.1", "-p", s.port, "-U", "test",
			"-R", "-X", "stream", "-c", "fast", "--no-sync")
	}
	if err != nil {
		os.RemoveAll(f.dir)
		return nil, err
	}
	return f, f.runPostgres(settings)
}

// runPostgres starts the server. fsync is off, because the tests need no durability beyond a crash of the
// process.
func (s *Server) runPostgres(settings []string) error {
	if err := s.assignPort(); err != nil {
		return err
	}
	s.args = []string{"-D", s.dir + "/data", "-h", "127.0.0.1", "-p", s.port, "-k", s.dir}
	for _, v := range append([]string{"fsync=off", "shared_buffers=16MB", "log_min_messages=fatal"}, settings...) {
		s.args = append(s.args, "-c", v)
	}
	err := s.StartAgain()
	if err != nil {
		s.Stop()
	}
	return err
}

// runCommand runs a program as the servers' user.
func (s *Server) runCommand(name string, args ...string) error {
	attr, err := childAttributes()
	if err != nil {
		return err
	}
	c := exec.Command(name, args...)
	c.SysProcAttr, c.Dir = attr, s.dir
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// StartAgain starts a server again that was killed, with the same data, and returns when it answers.
func (s *Server) StartAgain() error {
	postgres, err := findProgram("postgres")
	if err != nil {
		return err
	}
	log := filepath.Join(s.dir, "log")
	if s.cmd, s.done, err = spawnProcess(s.dir, log, s.env, postgres, s.args...); err != nil {
		return err
	}
	return s.awaitAnswer(log, func() error { return s.Exec("select 1") })
}

// spawnProcess starts a process whose output goes to a file. The channel is closed when the process ends.
func spawnProcess(dir, logFile string, env []string, name string, args ...string) (*exec.Cmd, chan struct{}, error) {
	attr, err := childAttributes()
	if err != nil {
		return nil, nil, err
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	c := exec.Command(name, args...)
	c.Stdout, c.Stderr, c.SysProcAttr, c.Dir, c.Env = log, log, attr, dir, append(os.Environ(), env...)
	if err := servertest.StartProcess(c); err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	go func() { c.Wait(); close(done) }()
	return c, done, nil
}

// awaitAnswer waits until the server answers, or reports what it logged before it ended.
func (s *Server) awaitAnswer(log string, answers func() error) error {
	var err error
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if err = answers(); err == nil {
			return nil
		}
		select {
		case <-s.done:
			text, _ := os.ReadFile(log)
			return fmt.Errorf("the server on %s has ended: %s", s.Addr, text)
		default:
		}
	}
	return fmt.Errorf("the server on %s does not answer: %w", s.Addr, err)
}

// URL is the address of the database postgres, for a user who needs no password.
func (s *Server) URL(user string) string { return "postgres://" + user + "@" + s.Addr + "/postgres" }

// Exec runs statements as the superuser, on a new connection.
func (s *Server) Exec(text string) error {
	_, err := s.QueryValue(text)
	return err
}

// QueryValue runs statements like Exec, and returns the first value of the last result as text.
func (s *Server) QueryValue(text string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, s.URL("test")+"?sslmode=disable")
	if err != nil {
		return "", err
	}
	defer c.Close(ctx)
	results, err := c.PgConn().Exec(ctx, text).ReadAll()
	if err != nil || len(results) == 0 {
		return "", err
	}
	if rows := results[len(results)-1].Rows; len(rows) > 0 && len(rows[0]) > 0 {
		return string(rows[0][0]), nil
	}
	return "", nil
}

// Kill ends the server at once, like a crash.
func (s *Server) Kill() {
	_ = s.cmd.Process.Signal(syscall.SIGQUIT)
	<-s.done
}

// Stop kills the server and removes its data.
func (s *Server) Stop() {
	if s.cmd != nil {
		s.Kill()
	}
	os.RemoveAll(s.dir)
}

// Bouncer starts a PgBouncer in front of the server, with that pool_mode and that many connections to it. The
// caller uses
// its URL, and must Stop it.
func (s *Server) Bouncer(mode string, size int) (*Server, error) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		return nil, fmt.Errorf("PgBouncer is needed (Debian: apt-get install pgbouncer): %w", err)
	}
	b, err := newServerDir(nil)
	if err != nil {
		return nil, err
	}
	if err := b.assignPort(); err != nil {
		return nil, err
	}
	text := fmt.Sprintf(`[databases]
postgres = host=127.0.0.1 port=%s dbname=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = trust
auth_file = %s/users
pool_mode = %s
default_pool_size = %d
max_client_conn = 500
`, s.port, b.port, b.dir, mode, size)
	err = errors.Join(os.WriteFile(b.dir+"/ini", []byte(text), 0o644),
		os.WriteFile(b.dir+"/users", []byte("\"test\" \"\"\n"), 0o644))
	if err == nil {
		b.cmd, b.done, err = spawnProcess(b.dir, b.dir+"/log", nil, path, "-q", b.dir+"/ini")
	}
	if err == nil {
		err = b.awaitAnswer(b.dir+"/log", func() error { return b.Exec("select 1") })
	}
	if err != nil {
		b.Stop()
		return nil, err
	}
	return b, nil
}
