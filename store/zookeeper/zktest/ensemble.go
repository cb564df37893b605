// Package zktest runs real ZooKeeper ensembles for tests. It makes no promise of compatibility. It needs Java and
// ZooKeeper's jars where Debian's packages zookeeper and libzookeeper-java put them.
package zktest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
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

// Options say how an ensemble is run.
type Options struct {
	Members int      // default 3
	Lines   []string // more lines for the configuration of every server
	Args    []string // more arguments for every Java process
	Direct  bool     // members reach each other directly, so that none can be isolated; for measurements
	// MinTTL and MaxTTL limit the session timeouts; defaults 1 s and 25 h.
	MinTTL, MaxTTL time.Duration
}

// Ensemble is one ZooKeeper ensemble.
type Ensemble struct {
	servertest.Cluster
	peerAddresses [][]string // where each member is reached by its peers
}

// Start runs an ensemble and returns when it serves clients. Close ends it.
func Start(ctx context.Context, o Options) (*Ensemble, error) {
	if o.Members == 0 {
		o.Members = 3
	}
	if o.MinTTL == 0 {
		o.MinTTL = time.Second
	}
	if o.MaxTTL == 0 {
		o.MaxTTL = 25 * time.Hour
	}
	dir, err := os.MkdirTemp("", "holdfast-zookeeper")
	if err != nil {
		return nil, err
	}
	e := &Ensemble{Cluster: servertest.Cluster{Dir: dir}}
	if err := e.startMembers(ctx, o); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// startMembers starts all servers and waits until they serve.
func (e *Ensemble) startMembers(ctx context.Context, o Options) error {
	var servers []string
	for i := range o.Members {
		line, err := e.addMember(strconv.Itoa(i + 1))
		if err != nil {
			return err
		}
		servers = append(servers, line)
	}
	for i, m := range e.Members {
		config, err := writeConfig(m, o, servers)
		if err != nil {
			return err
		}
		m.Args = e.javaCommand(i, o, config)
		if err := m.Start(); err != nil {
			return err
		}
	}
	return e.Ready(ctx)
}

// addMember chooses the ports of a server, and returns the line by which the others find it.
func (e *Ensemble) addMember(name string) (line string, err error) {
	var ports []string
	for range 3 {
		p, err := servertest.FreePort()
		if err != nil {
			return "", err
		}
		ports = append(ports, p)
	}
	link, err := servertest.NewSocks()
	if err != nil {
		return "", err
	}
	e.Members = append(e.Members, &servertest.Server{
		Name: name, Endpoint: "127.0.0.1:" + ports[0], Dir: filepath.Join(e.Dir, name),
	})
	e.peerAddresses = append(e.peerAddresses, []string{"127.0.0.1:" + ports[1], "127.0.0.1:" + ports[2]})
	e.Links = append(e.Links, link)
	return fmt.Sprintf("server.%s=127.0.0.1:%s:%s", name, ports[1], ports[2]), nil
}

// writeConfig writes the files of a server, and returns the name of its configuration.
func writeConfig(m *servertest.Server, o Options, servers []string) (file string, err error) {
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(m.Endpoint)
	lines := append([]string{
		"dataDir=" + m.Dir, "clientPortAddress=127.0.0.1", "clientPort=" + port, "admin.enableServer=false",
		"tickTime=500", "initLimit=120", "syncLimit=4", "maxClientCnxns=0", "4lw.commands.whitelist=*", "snapCount=1000000",
		fmt.Sprintf("minSessionTimeout=%d", o.MinTTL.Milliseconds()),
		fmt.Sprintf("maxSessionTimeout=%d", o.MaxTTL.Milliseconds()),
	}, o.Lines...)
	if o.Members > 1 {
		lines = append(lines, servers...)
	}
	file = filepath.Join(m.Dir, "zoo.cfg")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return "", err
	}
	return file, os.WriteFile(filepath.Join(m.Dir, "myid"), []byte(m.Name), 0o600)
}

// javaCommand returns the command line of a member. Unless Direct is set, it reaches its peers through its link.
func (e *Ensemble) javaCommand(member int, o Options, config string) []string {
	args := []string{
		"java", "-Xmx192m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64", "-Dzookeeper.extendedTypesEnabled=true",
		"-Dzookeeper.globalOutstandingLimit=100000",
		// In an election, servers that lack a message ask again after up to a minute. On a busy machine some do.
		"-Dzookeeper.fastleader.maxNotificationInterval=2000",
	}
	if !o.Direct {
		_, socks, _ := net.SplitHostPort(e.Links[member].Addr)
		args = append(args, "-DsocksProxyHost=127.0.0.1", "-DsocksProxyPort="+socks, "-DsocksNonProxyHosts=")
	}
	args = append(args, o.Args...)
	classPath := ClassPath("zookeeper", "netty-codec", "netty-resolver", "slf4j-simple")
	return append(args, "-cp", classPath, "org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
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
			switch queryMode(m) {
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
			return fmt.Errorf("the ensemble does not get ready: %w\n%s", ctx.Err(), e.collectLogs())
		}
	}
}

// collectLogs returns the end of what the servers have written.
func (e *Ensemble) collectLogs() string {
	var b strings.Builder
	for _, m := range e.Members {
		fmt.Fprintf(&b, "server %s: %s\n", m.Name, m.LogTail())
	}
	return b.String()
}

// queryMode returns leader, follower or standalone; empty while the server does not serve.
func queryMode(m *servertest.Server) string {
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

// Leader waits for a leader and returns it.
func (e *Ensemble) Leader(ctx context.Context) (*servertest.Server, error) {
	for ctx.Err() == nil {
		for _, m := range e.Members {
			if queryMode(m) == "leader" {
				return m, nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, ctx.Err()
}

// Isolate cuts a member off from its peers, in both directions. Join undoes that for all members.
func (e *Ensemble) Isolate(m *servertest.Server) {
	isolated := slices.Index(e.Members, m)
	for i, k := range e.Links {
		k.CutOnly(func(to string) bool { return i == isolated || slices.Contains(e.peerAddresses[isolated], to) })
	}
}

// CountPackets asks a server how many packets it has received.
func CountPackets(ctx context.Context, addr string) (n int64, err error) {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "mntr"); err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "zk_packets_received\t"); ok {
			return strconv.ParseInt(value, 10, 64)
		}
	}
	return 0, fmt.Errorf("mntr of %s has no zk_packets_received", addr)
}
