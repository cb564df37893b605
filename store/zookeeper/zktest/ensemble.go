// Package zktest runs real ZooKeeper ensembles for tests: servers as processes of their own, on free ports of the loopback
// interface, that can be stopped, killed, started again and cut off from each other and from their clients. It needs Java and
// ZooKeeper's jars where Debian's packages zookeeper and libzookeeper-java put them.
package zktest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Jars is where Debian has the jars of Java packages.
const Jars = "/usr/share/java"

// ClassPath is a class path of jars by their names, without directory and ending.
func ClassPath(jars ...string) string {
	all := make([]string, len(jars))
	for i, j := range jars {
		all[i] = filepath.Join(Jars, j+".jar")
	}
	return strings.Join(all, ":")
}

// Options are how an ensemble is run.
type Options struct {
	Members int      // default 3
	Lines   []string // more of the configuration of every server
	Args    []string // more arguments of every Java machine
	Direct  bool     // members reach each other directly, so that none can be isolated; for measurements
	// LeastTTL and MostTTL bound the session times; defaults 1 s and 25 h.
	LeastTTL, MostTTL time.Duration
}

// Ensemble is one ZooKeeper ensemble.
type Ensemble struct {
	Members []*Member
	dir     string
}

// Member is one server of an ensemble.
type Member struct {
	Name     string
	Endpoint string // host:port for clients
	Dir      string // of its data
	args     []string
	log      string
	ports    []string // where its peers reach it
	out      *proxy   // by which it reaches its peers

	mu   sync.Mutex
	proc *exec.Cmd
	done chan struct{}
}

var ports struct {
	sync.Mutex
	next int
}

// listen finds a free port between 15000 and 32000.
func listen() (net.Listener, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.next == 0 {
		ports.next = 15000 + rand.N(16000)
	}
	for range 2000 {
		ports.next++
		if ports.next >= 32000 {
			ports.next = 15000
		}
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(ports.next)); err == nil {
			return l, nil
		}
	}
	return nil, errors.New("no free port")
}

func freePort() (string, error) {
	l, err := listen()
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Start runs an ensemble and returns when it takes clients. Close ends it.
func Start(ctx context.Context, o Options) (*Ensemble, error) {
	if o.Members == 0 {
		o.Members = 3
	}
	if o.LeastTTL == 0 {
		o.LeastTTL = time.Second
	}
	if o.MostTTL == 0 {
		o.MostTTL = 25 * time.Hour
	}
	dir, err := os.MkdirTemp("", "holdfast-zookeeper")
	if err != nil {
		return nil, err
	}
	e := &Ensemble{dir: dir}
	if err := e.start(ctx, o); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Ensemble) start(ctx context.Context, o Options) error {
	var servers []string
	for i := range o.Members {
		var at []string
		for range 3 {
			p, err := freePort()
			if err != nil {
				return err
			}
			at = append(at, p)
		}
		m := &Member{Name: strconv.Itoa(i + 1), Endpoint: at[0], Dir: filepath.Join(e.dir, strconv.Itoa(i+1)), ports: at[1:], log: filepath.Join(e.dir, strconv.Itoa(i+1)+".log")}
		l, err := listen()
		if err != nil {
			return err
		}
		m.out = newProxy(l, "")
		e.Members = append(e.Members, m)
		_, peer, _ := net.SplitHostPort(at[1])
		_, election, _ := net.SplitHostPort(at[2])
		servers = append(servers, fmt.Sprintf("server.%s=127.0.0.1:%s:%s", m.Name, peer, election))
	}
	for _, m := range e.Members {
		dir := m.Dir
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		_, client, _ := net.SplitHostPort(m.Endpoint)
		lines := append([]string{"dataDir=" + dir, "clientPortAddress=127.0.0.1", "clientPort=" + client, "admin.enableServer=false",
			"tickTime=500", "initLimit=20", "syncLimit=4", "maxClientCnxns=0", "4lw.commands.whitelist=*", "snapCount=1000000",
			fmt.Sprintf("minSessionTimeout=%d", o.LeastTTL.Milliseconds()), fmt.Sprintf("maxSessionTimeout=%d", o.MostTTL.Milliseconds())}, o.Lines...)
		if o.Members > 1 {
			lines = append(lines, servers...)
		}
		cfg := filepath.Join(dir, "zoo.cfg")
		if err := os.WriteFile(cfg, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "myid"), []byte(m.Name), 0o600); err != nil {
			return err
		}
		m.args = []string{"java", "-Xmx192m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
			"-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64", "-Dzookeeper.extendedTypesEnabled=true", "-Dzookeeper.globalOutstandingLimit=100000"}
		if !o.Direct {
			_, socks, _ := net.SplitHostPort(m.out.addr)
			m.args = append(m.args, "-DsocksProxyHost=127.0.0.1", "-DsocksProxyPort="+socks, "-DsocksNonProxyHosts=")
		}
		m.args = append(m.args, o.Args...)
		m.args = append(m.args, "-cp", ClassPath("zookeeper", "netty-codec", "netty-resolver", "slf4j-simple"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", cfg)
		if err := m.Start(); err != nil {
			return err
		}
	}
	return e.Ready(ctx)
}

// Ready waits until all members that run are in service, one of them as the leader.
func (e *Ensemble) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		ready, leads := 0, false
		running := 0
		for _, m := range e.Members {
			if m.running() {
				running++
			}
			switch m.Mode() {
			case "leader", "standalone":
				leads = true
				ready++
			case "follower":
				ready++
			}
		}
		if leads && ready == running {
			return nil
		}
		select {
		case <-time.After(30 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the ensemble does not get ready: %w\n%s", ctx.Err(), e.logs())
		}
	}
}

// logs is the end of what the servers have written.
func (e *Ensemble) logs() string {
	var b strings.Builder
	for _, m := range e.Members {
		text, _ := os.ReadFile(m.log)
		fmt.Fprintf(&b, "server %s: %s\n", m.Name, text[max(0, len(text)-1500):])
	}
	return b.String()
}

// Say sends a four-letter word and returns the answer, or nothing.
func (m *Member) Say(word string) string {
	nc, err := net.DialTimeout("tcp", m.Endpoint, time.Second)
	if err != nil {
		return ""
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(time.Second))
	if _, err := nc.Write([]byte(word)); err != nil {
		return ""
	}
	text, _ := io.ReadAll(nc)
	return string(text)
}

// Mode is leader, follower or standalone; empty while the server does not serve.
func (m *Member) Mode() string {
	for s := bufio.NewScanner(strings.NewReader(m.Say("srvr"))); s.Scan(); {
		if mode, ok := strings.CutPrefix(s.Text(), "Mode: "); ok {
			return mode
		}
	}
	return ""
}

// Leader is the member that leads.
func (e *Ensemble) Leader(ctx context.Context) (*Member, error) {
	for ctx.Err() == nil {
		for _, m := range e.Members {
			if m.Mode() == "leader" {
				return m, nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, ctx.Err()
}

// Endpoints are the servers' addresses.
func (e *Ensemble) Endpoints() (at []string) {
	for _, m := range e.Members {
		at = append(at, m.Endpoint)
	}
	return at
}

// Isolate cuts a member off from its peers, in both directions; Join undoes it for all.
func (e *Ensemble) Isolate(m *Member) {
	for _, o := range e.Members {
		o.out.stop(func(to string) bool { return o == m || slices.Contains(m.ports, to) })
	}
}

// Join lets all members reach each other. What hung is broken, as it would be after a while.
func (e *Ensemble) Join() {
	for _, o := range e.Members {
		o.out.stop(func(string) bool { return false })
	}
}

// Close kills the servers and removes what they wrote.
func (e *Ensemble) Close() {
	for _, m := range e.Members {
		m.Kill()
	}
	for _, m := range e.Members {
		m.out.close()
	}
	_ = os.RemoveAll(e.dir)
}

// Start runs a member's server again.
func (m *Member) Start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	m.proc = exec.Command(m.args[0], m.args[1:]...)
	m.proc.Stdout, m.proc.Stderr = log, log
	if err := m.proc.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	m.done = done
	go func(p *exec.Cmd) { _ = p.Wait(); close(done) }(m.proc)
	return nil
}

func (m *Member) running() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.done:
		return false
	default:
		return m.proc != nil
	}
}

func (m *Member) signal(s os.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc != nil {
		_ = m.proc.Process.Signal(s)
	}
}

// Stop has the process stand still; Continue lets it go on.
func (m *Member) Stop() { m.signal(syscall.SIGSTOP) }

// Continue lets a stopped process go on.
func (m *Member) Continue() { m.signal(syscall.SIGCONT) }

// Terminate stops the process in good order, and kills it if that takes long.
func (m *Member) Terminate() { m.end(syscall.SIGTERM) }

// Kill kills the process.
func (m *Member) Kill() { m.end(syscall.SIGKILL) }

func (m *Member) end(s os.Signal) {
	m.signal(s)
	m.mu.Lock()
	done := m.done
	m.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-time.After(3 * time.Second):
		m.signal(syscall.SIGKILL)
		<-done
	}
}

// Link is one client's way to an ensemble, which can be cut.
type Link struct{ proxies []*proxy }

// Link makes a way to all members; with some given, to those alone.
func (e *Ensemble) Link(to ...*Member) (*Link, error) {
	if len(to) == 0 {
		to = e.Members
	}
	l := &Link{}
	for _, m := range to {
		at, err := listen()
		if err != nil {
			return nil, err
		}
		l.proxies = append(l.proxies, newProxy(at, m.Endpoint))
	}
	return l, nil
}

// Endpoints are the link's ends on the client's side.
func (l *Link) Endpoints() (at []string) {
	for _, p := range l.proxies {
		at = append(at, p.addr)
	}
	return at
}

// Cut has everything on the link stand still, without a word; Heal lets it go on and arrive late.
func (l *Link) Cut() {
	for _, p := range l.proxies {
		p.stop(func(string) bool { return true })
	}
}

// Heal undoes Cut.
func (l *Link) Heal() {
	for _, p := range l.proxies {
		p.stop(func(string) bool { return false })
	}
}

// Reset closes the connections on the link; what was on its way is lost.
func (l *Link) Reset() {
	for _, p := range l.proxies {
		p.reset()
	}
}

// Close ends the link.
func (l *Link) Close() {
	for _, p := range l.proxies {
		p.close()
	}
}
