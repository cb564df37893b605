// Package zktest runs real ZooKeeper ensembles for tests. It needs Java and ZooKeeper's jars where Debian's
// packages zookeeper and libzookeeper-java put them.
package zktest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/freeport"
	"github.com/holdfast-go/holdfast/internal/linktest"
	"github.com/holdfast-go/holdfast/internal/servertest"
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
	servertest.Cluster
	ports [][]string // where each member is reached by its peers
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
	e := &Ensemble{Cluster: servertest.Cluster{Dir: dir}}
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
			p, err := freeport.Port()
			if err != nil {
				return err
			}
			at = append(at, p)
		}
		k, err := linktest.NewSocks()
		if err != nil {
			return err
		}
		name := strconv.Itoa(i + 1)
		e.Members = append(e.Members, &servertest.Server{Name: name, Endpoint: "127.0.0.1:" + at[0], Dir: filepath.Join(e.Dir, name)})
		e.ports, e.Links = append(e.ports, []string{"127.0.0.1:" + at[1], "127.0.0.1:" + at[2]}), append(e.Links, k)
		servers = append(servers, fmt.Sprintf("server.%s=127.0.0.1:%s:%s", name, at[1], at[2]))
	}
	for i, m := range e.Members {
		dir := m.Dir
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		_, client, _ := net.SplitHostPort(m.Endpoint)
		lines := append([]string{"dataDir=" + dir, "clientPortAddress=127.0.0.1", "clientPort=" + client, "admin.enableServer=false",
			"tickTime=500", "initLimit=120", "syncLimit=4", "maxClientCnxns=0", "4lw.commands.whitelist=*", "snapCount=1000000",
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
		m.Args = []string{"java", "-Xmx192m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
			"-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64", "-Dzookeeper.extendedTypesEnabled=true", "-Dzookeeper.globalOutstandingLimit=100000"}
		if !o.Direct {
			_, socks, _ := net.SplitHostPort(e.Links[i].Addr)
			m.Args = append(m.Args, "-DsocksProxyHost=127.0.0.1", "-DsocksProxyPort="+socks, "-DsocksNonProxyHosts=")
		}
		m.Args = append(m.Args, o.Args...)
		m.Args = append(m.Args, "-cp", ClassPath("zookeeper", "netty-codec", "netty-resolver", "slf4j-simple"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", cfg)
		if err := m.Start(); err != nil {
			return err
		}
	}
	return e.Ready(ctx)
}

// Ready waits until all members that run are in service, one of them as the leader.
func (e *Ensemble) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		ready, leads := 0, false
		running := 0
		for _, m := range e.Members {
			if m.Running() {
				running++
			}
			switch mode(m) {
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
		fmt.Fprintf(&b, "server %s: %s\n", m.Name, m.Said())
	}
	return b.String()
}

// mode is leader, follower or standalone; empty while the server does not serve.
func mode(m *servertest.Server) string {
	nc, err := net.DialTimeout("tcp", m.Endpoint, time.Second)
	if err != nil {
		return ""
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := nc.Write([]byte("srvr")); err != nil {
		return ""
	}
	for s := bufio.NewScanner(nc); s.Scan(); {
		if mode, ok := strings.CutPrefix(s.Text(), "Mode: "); ok {
			return mode
		}
	}
	return ""
}

// Leader is the member that leads.
func (e *Ensemble) Leader(ctx context.Context) (*servertest.Server, error) {
	for ctx.Err() == nil {
		for _, m := range e.Members {
			if mode(m) == "leader" {
				return m, nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, ctx.Err()
}

// Isolate cuts a member off from its peers, in both directions; Join undoes it for all.
func (e *Ensemble) Isolate(m *servertest.Server) {
	alone := slices.Index(e.Members, m)
	for i, k := range e.Links {
		k.CutOnly(func(to string) bool { return i == alone || slices.Contains(e.ports[alone], to) })
	}
}
