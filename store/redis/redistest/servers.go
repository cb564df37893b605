//go:build unix

// Package redistest starts real Redis servers for tests, on loopback and on free ports, as child processes that end
// with the test: one server, a primary with replicas and Sentinels, a Cluster. It needs redis-server in the PATH.
package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// Server is one Redis process.
type Server struct {
	Addr string // host:port
	Port string
	Dir  string
	args []string
	env  []string // in addition to those of the test
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Start starts a server with these options, in addition to those that keep it on loopback and without a disk. A later
// option overrides an earlier one. It returns when the server answers. The caller must stop it.
func Start(args ...string) (*Server, error) {
	s, err := newServer(args)
	if err != nil {
		return nil, err
	}
	return s, s.startProcess()
}

// newServer makes a server that is not started yet. It chooses the port of the Cluster's bus too: the default, the port
// and 10000, may be in use.
func newServer(args []string) (*Server, error) {
	port, err := servertest.FreePort()
	if err != nil {
		return nil, err
	}
	bus, err := servertest.FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "holdfast-redis-")
	if err != nil {
		return nil, err
	}
	s := &Server{Port: port, Addr: "127.0.0.1:" + port, Dir: dir}
	s.args = append([]string{"--bind", "127.0.0.1", "--port", port, "--cluster-port", bus, "--dir", dir, "--save", "",
		"--appendonly", "no", "--enable-debug-command", "local", "--repl-diskless-sync-delay", "0"}, args...)
	return s, nil
}

// PID is the id of the server's process, for tools that send it signals.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// startProcess starts the process, and returns when it answers. The error has the server's log if it ends instead.
func (s *Server) startProcess() error {
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command("redis-server", s.args...)
	s.cmd.Env = append(os.Environ(), s.env...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := servertest.StartProcess(s.cmd); err != nil {
		return fmt.Errorf("starting redis-server (Debian: apt-get install redis-server): %w", err)
	}
	cmd, done := s.cmd, make(chan struct{})
	s.done = done
	go func() { cmd.Wait(); close(done) }()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if answer, err := s.Do("PING"); err == nil && answer != "" {
			return nil
		}
		select {
		case <-done:
			text, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
			return fmt.Errorf("redis-server on %s has ended: %s", s.Addr, text)
		default:
		}
	}
	return fmt.Errorf("redis-server on %s does not answer", s.Addr)
}

// CountScripts returns how many scripts the server has run since its statistics began.
func (s *Server) CountScripts() (n int64, err error) {
	info, err := s.Do("INFO", "commandstats")
	for line := range strings.Lines(info) {
		var calls int64
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d", &calls); err == nil {
			n += calls
		} else if _, err := fmt.Sscanf(line, "cmdstat_eval:calls=%d", &calls); err == nil {
			n += calls
		}
	}
	return n, err
}

// Do sends one command over a connection of its own, and returns the reply without its last line break. It is for tests
// that need no client, and reads no arrays.
func (s *Server) Do(words ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Addr, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := conn.Write([]byte(b.String())); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	if n, ok := strings.CutPrefix(line, "$"); ok && n != "-1" {
		size, err := strconv.Atoi(n)
		if err != nil {
			return "", err
		}
		data := make([]byte, size)
		for got := 0; got < size; {
			k, err := r.Read(data[got:])
			if err != nil {
				return "", err
			}
			got += k
		}
		return string(data), nil
	}
	if strings.HasPrefix(line, "-") {
		return "", errors.New(line)
	}
	return line, nil
}

// Signal sends a signal to the process.
func (s *Server) Signal(sig syscall.Signal) { _ = s.cmd.Process.Signal(sig) }

// Kill ends the process at once, even if it was stopped. What was not on the disk is lost.
func (s *Server) Kill() {
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Kill()
	<-s.done
}

// Restart starts the process again on the same port, with the same options.
func (s *Server) Restart() error { return s.startProcess() }

// Stop ends the process and removes its files.
func (s *Server) Stop() {
	s.Kill()
	os.RemoveAll(s.Dir)
}

// Group is a number of servers that belong together.
type Group struct {
	Servers   []*Server // of Replicated, the first is the primary at the start
	Sentinels []*Server
}

// Stop ends them all.
func (g *Group) Stop() {
	for _, s := range append(g.Sentinels, g.Servers...) {
		s.Stop()
	}
}

// Addrs returns the addresses of all servers.
func (g *Group) Addrs() (a []string) {
	for _, s := range g.Servers {
		a = append(a, s.Addr)
	}
	return a
}

// SentinelAddrs returns the addresses of the Sentinels.
func (g *Group) SentinelAddrs() (a []string) {
	for _, s := range g.Sentinels {
		a = append(a, s.Addr)
	}
	return a
}

// Independent starts n servers that know nothing of one another, as for a Redlock.
func Independent(n int, args ...string) (*Group, error) {
	g := &Group{}
	for range n {
		s, err := Start(args...)
		if err != nil {
			g.Stop()
			return nil, err
		}
		g.Servers = append(g.Servers, s)
	}
	return g, nil
}

// MasterName is the name under which the Sentinels of Replicated know their primary.
const MasterName = "m1"

// Replicated starts a primary with two replicas and three Sentinels, and returns when all have found one another. The
// Sentinels wait for a minute before they replace a primary: on a busy machine they would otherwise take a slow server
// for a dead one. A test that wants a failover calls DetectFailuresFast.
func Replicated(ctx context.Context) (*Group, error) {
	g := &Group{}
	fail := func(err error) (*Group, error) {
		g.Stop()
		return nil, err
	}
	for i := range 3 {
		var args []string
		if i > 0 {
			args = []string{"--replicaof", "127.0.0.1 " + g.Servers[0].Port}
		}
		s, err := Start(args...)
		if err != nil {
			return fail(err)
		}
		g.Servers = append(g.Servers, s)
	}
	for range 3 {
		s, err := startSentinel(g.Servers[0].Port)
		if err != nil {
			return fail(err)
		}
		g.Sentinels = append(g.Sentinels, s)
	}
	err := Until(ctx, func() bool {
		for _, s := range g.Sentinels {
			info, err := s.Do("INFO", "sentinel")
			if err != nil || !strings.Contains(info, "slaves=2,sentinels=3") {
				return false
			}
		}
		return true
	})
	if err != nil {
		return fail(fmt.Errorf("the Sentinels do not agree: %w", err))
	}
	return g, nil
}

// DetectFailuresFast makes the Sentinels replace a primary that has not answered for a second.
func (g *Group) DetectFailuresFast() error { return g.setDownAfter("1000") }

// DetectFailuresSlowly makes them wait for a minute again.
func (g *Group) DetectFailuresSlowly() error { return g.setDownAfter("60000") }

func (g *Group) setDownAfter(ms string) error {
	for _, s := range g.Sentinels {
		if _, err := s.Do("SENTINEL", "SET", MasterName, "down-after-milliseconds", ms); err != nil {
			return err
		}
	}
	return nil
}

func startSentinel(primary string) (*Server, error) {
	dir, err := os.MkdirTemp("", "holdfast-sentinel-")
	if err != nil {
		return nil, err
	}
	port, err := servertest.FreePort()
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\nsentinel monitor %s 127.0.0.1 %s 2\n"+
		"sentinel down-after-milliseconds %[3]s 60000\nsentinel failover-timeout %[3]s 5000\n", port, dir, MasterName, primary)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s := &Server{Port: port, Addr: "127.0.0.1:" + port, Dir: dir, args: []string{conf, "--sentinel"}}
	return s, s.startProcess()
}

// Cluster starts a Cluster of three primaries without replicas, and returns when it serves all slots.
func Cluster(ctx context.Context) (*Group, error) {
	g, err := Independent(3, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", "60000")
	if err != nil {
		return nil, err
	}
	args := append([]string{"--cluster", "create"}, g.Addrs()...)
	out, err := exec.CommandContext(ctx, "redis-cli",
		append(args, "--cluster-replicas", "0", "--cluster-yes")...).CombinedOutput()
	if err != nil {
		g.Stop()
		return nil, fmt.Errorf("making the Cluster: %w: %s", err, out)
	}
	err = Until(ctx, func() bool {
		for _, s := range g.Servers {
			info, err := s.Do("CLUSTER", "INFO")
			if err != nil || !strings.Contains(info, "cluster_state:ok") ||
				!strings.Contains(info, "cluster_known_nodes:3") {
				return false
			}
		}
		return true
	})
	if err != nil {
		g.Stop()
		return nil, fmt.Errorf("the Cluster does not serve: %w", err)
	}
	return g, nil
}

// Until polls ok until it returns true. It returns an error if that takes a minute, or when ctx ends.
func Until(ctx context.Context, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}
