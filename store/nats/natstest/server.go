// Package natstest runs real NATS servers with JetStream for tests, as child processes on free ports of the loopback
// interface.
package natstest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// Options configure servers.
type Options struct {
	Members int // 1 or 3; default 1
	// SyncAlways has the servers sync each write to disk, as locks need it. It makes tests slower.
	SyncAlways bool
	// Domain is the JetStream domain of the servers. Default: none.
	Domain string
	// Config is further text of the configuration of each server, such as a block of users.
	Config string
	// User and Password name a user that Config defines, by whom the kit connects.
	User, Password string
	// Secure is set if Config has the clients connect by TLS. Start does not wait for such servers.
	Secure bool
}

// Cluster is one or three servers.
type Cluster struct {
	servertest.Cluster
	opts Options
}

// startTime bounds how long the servers may take to answer.
const startTime = 90 * time.Second

// Start runs servers and returns when they take writes. Close ends them.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	o.Members = max(o.Members, 1)
	binary, err := Tool()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "holdfast-nats-")
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
	var routes []string // where the others reach each server
	for i := range c.opts.Members {
		client, err := servertest.FreePort()
		if err != nil {
			return err
		}
		route, err := servertest.FreePort()
		if err != nil {
			return err
		}
		name := "n" + strconv.Itoa(i+1)
		c.Members = append(c.Members, &servertest.Server{Name: name, Endpoint: "127.0.0.1:" + client,
			Dir: filepath.Join(c.Dir, name), Args: []string{binary, filepath.Join(c.Dir, name+".conf")}})
		routes = append(routes, "127.0.0.1:"+route)
	}
	for i, m := range c.Members {
		if err := os.WriteFile(m.Args[1], []byte(c.config(m, routes, i)), 0o600); err != nil {
			return err
		}
		if err := m.Start(); err != nil {
			return err
		}
	}
	if c.opts.Secure {
		return nil // the caller, which has the certificate, waits for them
	}
	return c.Ready(ctx)
}

// config is the configuration of a server.
func (c *Cluster) config(m *servertest.Server, routes []string, i int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "server_name: %s\nlisten: %q\n", m.Name, m.Endpoint)
	more := ""
	if c.opts.SyncAlways {
		more += ", sync_interval: always"
	}
	if c.opts.Domain != "" {
		more += fmt.Sprintf(", domain: %q", c.opts.Domain)
	}
	fmt.Fprintf(&b, "jetstream { store_dir: %q%s }\n", m.Dir, more)
	if c.opts.Members > 1 {
		var others []string
		for j, at := range routes {
			if j != i {
				others = append(others, strconv.Quote("nats://"+at))
			}
		}
		fmt.Fprintf(&b, "cluster { name: test, listen: %q, no_advertise: true, routes: [ %s ] }\n", routes[i],
			strings.Join(others, ", "))
	}
	b.WriteString(c.opts.Config + "\n")
	return b.String()
}

// Ready waits until the servers that run take writes.
func (c *Cluster) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		err := c.tryReady(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the servers do not answer: %w\n%s", err, c.Members[0].LogTail())
		}
	}
}

// tryReady makes a bucket on all servers. Each server that runs must answer.
func (c *Cluster) tryReady(ctx context.Context) error {
	running := 0
	for i, m := range c.Members {
		if !m.Running() {
			continue
		}
		running++
		conn, err := c.Connect(m)
		if err != nil {
			return err
		}
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if i == 0 {
			_, err = js.CreateKeyValue(short, jetstream.KeyValueConfig{Bucket: "natstest", Replicas: c.opts.Members})
		} else {
			_, err = js.KeyValue(short, "natstest")
		}
		if err != nil {
			return err
		}
	}
	if running <= c.opts.Members/2 {
		return errors.New("too few servers run")
	}
	return nil
}

// Connect connects to the given servers, or to all.
func (c *Cluster) Connect(to ...*servertest.Server) (*nats.Conn, error) {
	if len(to) == 0 {
		to = c.Members
	}
	var at []string
	for _, m := range to {
		at = append(at, "nats://"+m.Endpoint)
	}
	return nats.Connect(strings.Join(at, ","), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.FlusherTimeout(2*time.Second), nats.UserInfo(c.opts.User, c.opts.Password))
}

// URL is the URL of a bucket, without options.
func (c *Cluster) URL(bucket string) string {
	return "nats://" + strings.Join(c.Endpoints(), ",") + "/" + bucket
}

// Restart starts a server that was killed, with the same files, and waits until it takes writes.
func (c *Cluster) Restart(ctx context.Context, m *servertest.Server) error {
	if err := m.Start(); err != nil {
		return err
	}
	return c.Ready(ctx)
}

// Leader returns the server that leads a bucket, and waits until there is one.
func (c *Cluster) Leader(ctx context.Context, bucket string) (*servertest.Server, error) {
	conn, err := c.Connect()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	for ctx.Err() == nil {
		short, cancel := context.WithTimeout(ctx, time.Second)
		s, err := js.Stream(short, "KV_"+bucket)
		cancel()
		if err != nil {
			continue
		}
		for _, m := range c.Members {
			if info := s.CachedInfo().Cluster; info != nil && info.Leader == m.Name {
				return m, nil
			}
		}
	}
	return nil, ctx.Err()
}
