// Package etcdtest runs real etcd clusters for tests.
package etcdtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Options configure a cluster.
type Options struct {
	Members int      // default 3
	Args    []string // further arguments of every server
	Direct  bool     // members reach each other directly, so that none can be isolated; for measurements
	// Cert and Key are files in PEM, with which clients connect by TLS. Start does not wait for such a cluster.
	Cert, Key string
}

// Cluster is one etcd cluster.
type Cluster struct {
	servertest.Cluster
	opts Options
	ids  []string // of the members, in hex
}

// fromMember matches the header by which a member of etcd names itself to another.
var fromMember = regexp.MustCompile(`(?i)x-server-from: ([0-9a-f]+)`)

// senderID is the ID of the member that sent a request; empty if it came from elsewhere.
func senderID(request []byte) string {
	if m := fromMember.FindSubmatch(request); m != nil {
		return strings.ToLower(string(m[1]))
	}
	return ""
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
	c := &Cluster{Cluster: servertest.Cluster{Dir: dir}, opts: o}
	if err := c.startMembers(ctx, binary); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) startMembers(ctx context.Context, binary string) error {
	var all []string
	// for peers: where it listens, and where others reach it through the link
	type address struct{ listen, peer string }
	var at []address
	for i := range c.opts.Members {
		client, err := servertest.FreePort()
		if err != nil {
			return err
		}
		port, err := servertest.FreePort()
		if err != nil {
			return err
		}
		listen := "127.0.0.1:" + port
		k, err := servertest.NewLabelled(listen, senderID)
		if err != nil {
			return err
		}
		c.Links = append(c.Links, k)
		name := "n" + strconv.Itoa(i+1)
		c.Members = append(c.Members, &servertest.Server{Name: name, Endpoint: "127.0.0.1:" + client,
			Dir: filepath.Join(c.Dir, name)})
		at = append(at, address{listen, k.Addr})
		if c.opts.Direct {
			at[i].peer = listen
		}
		all = append(all, name+"=http://"+at[i].peer)
	}
	scheme := "http://"
	var extra []string
	if c.opts.Cert != "" {
		scheme = "https://"
		extra = []string{"--cert-file", c.opts.Cert, "--key-file", c.opts.Key}
	}
	for i, m := range c.Members {
		m.Args = append([]string{binary, "--name", m.Name, "--data-dir", m.Dir,
			"--listen-client-urls", scheme + m.Endpoint, "--advertise-client-urls", scheme + m.Endpoint,
			"--listen-peer-urls", "http://" + at[i].listen, "--initial-advertise-peer-urls", "http://" + at[i].peer,
			"--initial-cluster", strings.Join(all,
				","), "--initial-cluster-state", "new", "--initial-cluster-token", filepath.Base(c.Dir),
			"--heartbeat-interval", "50", "--election-timeout", "500", "--log-level", "error", "--unsafe-no-fsync"}, append(extra, c.opts.Args...)...)
		if err := m.Start(); err != nil {
			return err
		}
	}
	if c.opts.Cert != "" {
		return nil // the caller, which has the certificate, waits for it
	}
	if err := c.Ready(ctx); err != nil {
		return err
	}
	cli, err := c.Client()
	if err != nil {
		return err
	}
	defer cli.Close()
	r, err := cli.MemberList(ctx)
	if err != nil {
		return err
	}
	c.ids = make([]string, len(c.Members))
	for _, got := range r.Members {
		for i, m := range c.Members {
			if m.Name == got.Name {
				c.ids[i] = strconv.FormatUint(got.ID, 16)
			}
		}
	}
	return nil
}

// Ready waits until the cluster takes writes and all running members have a leader. It gives up after three minutes.
func (c *Cluster) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cli, err := c.Client()
	if err != nil {
		return err
	}
	defer cli.Close()
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := cli.Delete(try, "etcdtest")
		for _, m := range c.Members {
			if err == nil && m.Running() {
				err = checkHasLeader(try, cli, m)
			}
		}
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

// checkHasLeader returns an error if a member has no leader.
func checkHasLeader(ctx context.Context, cli *clientv3.Client, m *servertest.Server) error {
	s, err := cli.Status(ctx, m.Endpoint)
	if err == nil && s.Leader == 0 {
		err = fmt.Errorf("%s has no leader", m.Name)
	}
	return err
}

// Client connects to all members.
func (c *Cluster) Client() (*clientv3.Client, error) { return Connect(c.Endpoints()) }

// Connect makes a client that reconnects soon after a fault.
func Connect(endpoints []string, more ...grpc.DialOption) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 2 * time.Second, Logger: zap.NewNop(),
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: append(more, grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second,
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2,
				MaxDelay: 500 * time.Millisecond}}))})
}

// Leader returns the member that leads, and waits until there is one.
func (c *Cluster) Leader(ctx context.Context) (*servertest.Server, error) {
	cli, err := c.Client()
	if err != nil {
		return nil, err
	}
	defer cli.Close()
	for ctx.Err() == nil {
		for _, m := range c.Members {
			try, cancel := context.WithTimeout(ctx, time.Second)
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
func (c *Cluster) Isolate(m *servertest.Server) {
	alone := slices.Index(c.Members, m)
	for i, k := range c.Links {
		k.CutOnly(func(from string) bool { return i == alone || from == c.ids[alone] })
	}
}
