// Package etcdtest runs real etcd clusters for tests: servers as processes of their own, on free ports of the loopback
// interface, that can be stopped, killed, started again and cut off from each other and from their clients.
package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Options are how a cluster is run.
type Options struct {
	Members int      // default 3
	Args    []string // further arguments of every server
	Direct  bool     // members reach each other directly, so that none can be isolated; for measurements
	// TLS has clients connect by TLS: CA, Cert and Key are files in PEM.
	TLS *struct{ CA, Cert, Key string }
}

// Cluster is one etcd cluster.
type Cluster struct {
	Members []*Member
	dir     string
	opts    Options
}

// Member is one server of a cluster.
type Member struct {
	Name     string
	Endpoint string // host:port for clients
	ID       string // in hex
	Data     string // its directory
	args     []string
	log      string
	peer     string // host:port for its peers
	peers    *proxy // behind which that is

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

// Start runs a cluster and returns when it takes writes. Close ends it.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Members == 0 {
		o.Members = 3
	}
	binary, err := Tool("etcd")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "holdfast-etcd")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, opts: o}
	if err := c.start(ctx, binary); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, binary string) error {
	var all []string
	type address struct{ client, peer string }
	var at []address
	for i := range c.opts.Members {
		client, err := freePort()
		if err != nil {
			return err
		}
		peer, err := freePort()
		if err != nil {
			return err
		}
		l, err := listen()
		if err != nil {
			return err
		}
		m := &Member{Name: "n" + strconv.Itoa(i+1), Endpoint: client, Data: filepath.Join(c.dir, "n"+strconv.Itoa(i+1)), log: filepath.Join(c.dir, "n"+strconv.Itoa(i+1)+".log")}
		m.peers = newProxy(l, peer)
		c.Members = append(c.Members, m)
		at = append(at, address{client, peer})
		m.peer = m.peers.addr
		if c.opts.Direct {
			m.peer = peer
		}
		all = append(all, m.Name+"=http://"+m.peer)
	}
	scheme := "http://"
	var extra []string
	if t := c.opts.TLS; t != nil {
		scheme = "https://"
		extra = []string{"--cert-file", t.Cert, "--key-file", t.Key}
	}
	for i, m := range c.Members {
		m.args = append([]string{binary, "--name", m.Name, "--data-dir", m.Data,
			"--listen-client-urls", scheme + at[i].client, "--advertise-client-urls", scheme + at[i].client,
			"--listen-peer-urls", "http://" + at[i].peer, "--initial-advertise-peer-urls", "http://" + m.peer,
			"--initial-cluster", strings.Join(all, ","), "--initial-cluster-state", "new", "--initial-cluster-token", filepath.Base(c.dir),
			"--heartbeat-interval", "50", "--election-timeout", "500", "--log-level", "error", "--unsafe-no-fsync"}, append(extra, c.opts.Args...)...)
		if err := m.Start(); err != nil {
			return err
		}
	}
	if c.opts.TLS != nil {
		return nil // whoever has a certificate sees whether it is there
	}
	return c.ready(ctx)
}

func (c *Cluster) ready(ctx context.Context) error {
	cli, err := c.Client()
	if err != nil {
		return err
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	if err := Ready(ctx, cli); err != nil {
		return err
	}
	r, err := cli.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, got := range r.Members {
		for _, m := range c.Members {
			if m.Name == got.Name {
				m.ID = strconv.FormatUint(got.ID, 16)
			}
		}
	}
	return nil
}

// Ready waits until the cluster takes writes.
func Ready(ctx context.Context, cli *clientv3.Client) error {
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		_, err := cli.Delete(try, "etcdtest")
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the cluster does not get ready: %w", err)
		}
	}
}

// Endpoints are the servers' addresses.
func (c *Cluster) Endpoints() (at []string) {
	for _, m := range c.Members {
		at = append(at, m.Endpoint)
	}
	return at
}

// Client connects to all members.
func (c *Cluster) Client() (*clientv3.Client, error) { return Connect(c.Endpoints()) }

// Connect makes a client that comes back soon after a fault.
func Connect(endpoints []string, more ...grpc.DialOption) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 2 * time.Second, Logger: zap.NewNop(),
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: append(more, grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second,
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}}))})
}

// Leader is the member that leads.
func (c *Cluster) Leader(ctx context.Context) (*Member, error) {
	cli, err := c.Client()
	if err != nil {
		return nil, err
	}
	defer cli.Close()
	for ctx.Err() == nil {
		for _, m := range c.Members {
			try, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			s, err := cli.Status(try, m.Endpoint)
			cancel()
			if err == nil && s.Leader != 0 && s.Leader == s.Header.MemberId {
				return m, nil
			}
		}
	}
	return nil, ctx.Err()
}

// Isolate cuts a member off from its peers, in both directions; Join undoes it for all.
func (c *Cluster) Isolate(m *Member) {
	for _, o := range c.Members {
		o.peers.stop(func(p *pipe) bool { return o == m || p.from == m.ID })
	}
}

// Join lets all members reach each other.
func (c *Cluster) Join() {
	for _, o := range c.Members {
		o.peers.stop(func(*pipe) bool { return false })
	}
}

// Close kills the servers and removes what they wrote.
func (c *Cluster) Close() {
	for _, m := range c.Members {
		m.Kill()
	}
	for _, m := range c.Members {
		m.peers.close()
	}
	_ = os.RemoveAll(c.dir)
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

// Link is one client's way to a cluster, which can be cut.
type Link struct{ proxies []*proxy }

// Link makes a way to all members; with some given, to those alone.
func (c *Cluster) Link(to ...*Member) (*Link, error) {
	if len(to) == 0 {
		to = c.Members
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
		p.stop(func(*pipe) bool { return true })
	}
}

// Heal undoes Cut.
func (l *Link) Heal() {
	for _, p := range l.proxies {
		p.stop(func(*pipe) bool { return false })
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
