// Package consultest runs real Consul servers for tests, as child processes on free ports of the loopback interface.
package consultest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// Options configure a cluster.
type Options struct {
	Members int      // default 1
	Dev     bool     // the server keeps its data in memory
	HCL     []string // further settings of every server, as in its configuration
	Token   string   // if set, access is by tokens alone, and this one may do everything
	// Cert and Key are files in PEM, with which clients connect by TLS.
	Cert, Key string
	// CA, if set, is a file with whom the servers trust: clients need a certificate then.
	CA string
}

// Cluster is one Consul cluster. It grants sessions of 1 s, so that tests need not wait for long.
type Cluster struct {
	servertest.Cluster
	opts Options
}

// serverAddress is where the servers reach each other. They use UDP, too, and servertest reserves a port by the UDP
// port of 127.0.0.1.
const serverAddress = "127.0.0.2"

// startTime bounds how long a cluster may take to answer.
const startTime = 3 * time.Minute

// Start runs a cluster and returns when it takes writes. Close ends it.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	o.Members = max(o.Members, 1)
	binary, err := Tool()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "holdfast-consul-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Cluster: servertest.Cluster{Dir: dir}, opts: o}
	err = c.startMembers(binary)
	if err == nil {
		err = c.Ready(ctx)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) startMembers(binary string) error {
	var first string // where the first member is reached by the others
	for i := range c.opts.Members {
		var ports [3]string
		for k := range ports {
			var err error
			if ports[k], err = servertest.FreePort(); err != nil {
				return err
			}
		}
		httpPort, httpsPort := ports[0], "-1"
		args := []string{}
		for _, text := range c.opts.HCL {
			args = append(args, "-hcl", text)
		}
		if c.opts.Token != "" {
			args = append(args, "-hcl", fmt.Sprintf(`acl { enabled = true default_policy = "deny"
				tokens { initial_management = %q agent = %q } }`, c.opts.Token, c.opts.Token))
		}
		if c.opts.Cert != "" {
			httpPort, httpsPort = "-1", ports[0]
			args = append(args, "-hcl", fmt.Sprintf(`tls { https { cert_file = %q key_file = %q } }`, c.opts.Cert,
				c.opts.Key))
		}
		if c.opts.CA != "" {
			args = append(args, "-hcl", fmt.Sprintf(`tls { https { ca_file = %q verify_incoming = true } }`, c.opts.CA))
		}
		name := "n" + strconv.Itoa(i+1)
		m := &servertest.Server{Name: name, Endpoint: net.JoinHostPort("127.0.0.1", ports[0]),
			Dir: filepath.Join(c.Dir, name)}
		mode := []string{"-server", "-bootstrap-expect=" + strconv.Itoa(c.opts.Members), "-data-dir", m.Dir}
		if c.opts.Dev {
			mode = []string{"-dev"}
		}
		// The limit of connections is far above the default: all clients of a test have one address.
		m.Args = append([]string{binary, "agent", "-node", name, "-bind", serverAddress, "-client",
			"127.0.0.1", "-log-level", "warn", "-http-port", httpPort, "-https-port", httpsPort,
			"-dns-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1",
			"-serf-wan-port", "-1", "-server-port", ports[1], "-serf-lan-port", ports[2],
			"-hcl", `disable_update_check = true performance { raft_multiplier = 1 } session_ttl_min = "1s"
				connect { enabled = false } limits { http_max_conns_per_client = 2000 }`}, append(mode, args...)...)
		if first == "" {
			first = net.JoinHostPort(serverAddress, ports[2])
		} else {
			m.Args = append(m.Args, "-retry-join", first)
		}
		c.Members = append(c.Members, m)
		if err := m.Start(); err != nil {
			return err
		}
	}
	return nil
}

// Config returns the settings of Consul's client for a member.
func (c *Cluster) Config(m *servertest.Server) *api.Config {
	config := api.DefaultConfig()
	config.Address, config.Token, config.Scheme = m.Endpoint, c.opts.Token, "http"
	if c.opts.Cert != "" {
		config.Scheme, config.TLSConfig.CAFile = "https", c.opts.Cert
	}
	if c.opts.CA != "" {
		config.TLSConfig = api.TLSConfig{CAFile: c.opts.CA, CertFile: c.opts.Cert, KeyFile: c.opts.Key}
	}
	return config
}

// Client returns a client of a member that may do everything.
func (c *Cluster) Client(m *servertest.Server) (*api.Client, error) {
	return api.NewClient(c.Config(m))
}

// Ready waits until each running member takes writes.
func (c *Cluster) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for _, m := range c.Members {
		client, err := c.Client(m)
		if err != nil {
			return err
		}
		for m.Running() {
			try, cancel := context.WithTimeout(ctx, 5*time.Second)
			_, err := client.KV().Delete("consultest", (&api.WriteOptions{}).WithContext(try))
			cancel()
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("the cluster does not get ready: %w\n%s", err, m.LogTail())
			}
			time.Sleep(20 * time.Millisecond)
		}
		if !m.Running() && c.opts.Members == 1 {
			return fmt.Errorf("the server has ended:\n%s", m.LogTail())
		}
	}
	return nil
}

// URL is the store's URL for the first member, without options.
func (c *Cluster) URL() string { return "consul://" + c.Members[0].Endpoint }

// Leader returns the member that leads, and waits until there is one.
func (c *Cluster) Leader(ctx context.Context) (*servertest.Server, error) {
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		for _, m := range c.Members {
			client, err := c.Client(m)
			if err != nil {
				return nil, err
			}
			self, err := client.Agent().Self()
			if stats := self["Stats"]["consul"]; err == nil && stats != nil {
				if s, ok := stats.(map[string]any); ok && s["leader"] == "true" {
					return m, nil
				}
			}
		}
	}
	return nil, ctx.Err()
}

// Isolate is for clusters whose members are connected by links, which these are not.
func (c *Cluster) Isolate(*servertest.Server) { panic("consultest: members cannot be isolated") }
