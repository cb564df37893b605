package zookeeper

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// The findings, without the server and what was seen there (ZooKeeper Administrator's Guide: "Configuration
// Parameters", "The Four Letter Words").
var (
	findingServerAway = driver.Finding{Code: "zookeeper-server-away", Severity: driver.SeverityWarning,
		Why: "the others may be too few if one more fails",
		Fix: "start it, or leave it out of the URL"}
	findingVersion = driver.Finding{Code: "zookeeper-version", Severity: driver.SeverityWarning,
		Why: "it has no containers, so the nodes of locks that nobody uses remain forever",
		Fix: "use ZooKeeper 3.5 or later"}
	findingReadOnly = driver.Finding{Code: "zookeeper-read-only", Severity: driver.SeverityWarning,
		Why: "it is cut off from the others and accepts no claims",
		Fix: "connect it with the other servers"}
	findingBounds = driver.Finding{Code: "zookeeper-session-bounds", Severity: driver.SeverityWarning,
		Why: "a client that moves to another server is granted another session timeout, and with a shorter one it loses its locks",
		Fix: "set the same tickTime, minSessionTimeout and maxSessionTimeout in zoo.cfg on all servers"}
	findingMaxTimeout = driver.Finding{Code: "zookeeper-max-session", Severity: driver.SeverityWarning,
		Why: "locks with a longer TTL, such as the default of 30s, are refused",
		Fix: "raise maxSessionTimeout in zoo.cfg on all servers, or give locks a shorter TTL"}
	findingMinTimeout = driver.Finding{Code: "zookeeper-tick", Severity: driver.SeverityWarning,
		Why: "a holder with a TTL below three ticks may treat the lock as its own for up to a sixth of a tick too long",
		Fix: "lower tickTime in zoo.cfg, or give locks a TTL of three ticks or more"}
	findingACL = driver.Finding{Code: "zookeeper-acl", Severity: driver.SeverityWarning,
		What: "this client has credentials, and the nodes that it makes may be changed by anyone",
		Why:  "any client of the servers can remove a lock that is held",
		Fix:  "leave Options.ACL empty, or take acl=anyone out of the URL: then only the creator may change them"}
	findingEagerACL = driver.Finding{Code: "zookeeper-eager-acl", Severity: driver.SeverityWarning,
		What: "the server refuses requests before it has asked the others (enableEagerACLCheck)",
		Why: "such a refusal comes ahead of the answers to earlier requests, and each client that gets one loses its " +
			"connection for a moment",
		Fix: "remove -Dzookeeper.enableEagerACLCheck=true from the Java options of all servers"}
	findingUnseen = driver.Finding{Code: "zookeeper-unseen", Severity: driver.SeverityUnknown,
		Fix: "set 4lw.commands.whitelist=srvr,conf in zoo.cfg"}
)

// Examine asks each server for its version, its mode and the bounds of its session timeouts.
func (s *store) Examine(ctx context.Context) ([]driver.Finding, error) {
	return s.nodeStore.examine(ctx)
}

// Examine asks each server for its version, its mode and the bounds of its session timeouts.
func (s *plainStore) Examine(ctx context.Context) ([]driver.Finding, error) {
	return s.nodeStore.examine(ctx)
}

// Examine asks each server for its version, its mode and the bounds of its session timeouts.
func (s *semaphoreStore) Examine(ctx context.Context) ([]driver.Finding, error) {
	return s.nodeStore.examine(ctx)
}

// Forget removes the node of a lock that has no claims, which the servers would otherwise remove within a minute.
func (s *store) Forget(ctx context.Context, name string) error {
	if err := driver.CheckName(name, s.Info()); err != nil {
		return err
	}
	path := s.nodeStore.pathOf(name)
	removal := zk.Delete(path, zk.AnyVersion)
	err := s.nodeStore.write(ctx, &zk.Write{Calls: []*zk.Call{removal}})
	if err == nil {
		err = removal.Err
	}
	switch err {
	case nil, zk.CodeNoNode:
		return nil
	case zk.CodeNotEmpty:
		return &driver.HeldError{}
	}
	return s.nodeStore.explainError(err, path)
}

// serverState is what a server says of itself.
type serverState struct {
	server         string
	err            error
	version, mode  string
	hidesConf      bool // it does not tell its configuration
	refusesAlone   bool // it refuses requests before it has asked the others
	tick           time.Duration
	minTTL, maxTTL time.Duration
}

// examine looks at all servers at once, and at the options.
func (t *nodeStore) examine(ctx context.Context) (all []driver.Finding, err error) {
	if t.life.Err() != nil {
		return nil, driver.ErrClosed
	}
	states := make([]serverState, len(t.opts.servers))
	var asking sync.WaitGroup
	for i, server := range t.opts.servers {
		asking.Go(func() {
			states[i] = t.opts.readState(ctx, server)
			states[i].refusesAlone = t.refusesAlone(ctx, states[i])
		})
	}
	asking.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	all = examineStates(states)
	if len(t.opts.Auth) > 0 && slices.ContainsFunc(t.opts.ACL, isOpen) {
		all = append(all, findingACL)
	}
	return all, nil
}

// isOpen reports whether an entry of an ACL lets anyone write or remove.
func isOpen(a ACL) bool { return a.Scheme == "world" && a.Perms&(2|4|8|16) != 0 }

// stateTimeout is how long one server may take to say what it knows.
const stateTimeout = 2 * time.Second

// readState asks a server with two of the four-letter words.
func (o *settings) readState(ctx context.Context, server string) serverState {
	s := serverState{server: server}
	about, err := o.sendWord(ctx, server, "srvr")
	if err != nil {
		s.err = err
		return s
	}
	s.mode = about["Mode"]
	s.version, _, _ = strings.Cut(about["Zookeeper version"], "-")
	conf, err := o.sendWord(ctx, server, "conf")
	millis := func(name string) time.Duration {
		n, _ := strconv.ParseInt(conf[name], 10, 64)
		return time.Duration(n) * time.Millisecond
	}
	s.tick, s.minTTL, s.maxTTL = millis("tickTime"), millis("minSessionTimeout"), millis("maxSessionTimeout")
	s.hidesConf = err != nil || s.maxTTL == 0
	return s
}

// refusesAlone has a server refuse a request that nobody may make, a node without an ACL, in a session of its own. The
// refusal has the number of a transaction only if the server has asked the others.
func (t *nodeStore) refusesAlone(ctx context.Context, s serverState) bool {
	if s.mode != "leader" && s.mode != "follower" && s.mode != "observer" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	config := t.zkConfig()
	config.Servers = []string{s.server}
	c := zk.NewEnsemble(t.life, config).NewConn(readerTTL, true)
	if !t.life.Go(c.Run) {
		return false
	}
	defer t.closeUnused(c)
	refused := zk.CreatePersistent("/holdfast-refused", nil, nil)
	return c.WaitForLink(ctx) == nil && c.Do(ctx, refused) == nil && refused.Err == zk.CodeInvalidACL && refused.Zxid <= 0
}

// sendWord sends one four-letter word, over a connection of its own, and returns the lines of the reply, which are
// "name: value" or "name=value".
func (o *settings) sendWord(ctx context.Context, server, word string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	dial := o.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	conn, err := dial(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end)
	}
	switch {
	case o.files != nil:
		if conn, err = o.files.Handshake(ctx, conn, server); err != nil {
			return nil, err
		}
	case o.TLS != nil:
		config := o.TLS.Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(server)
		}
		conn = tls.Client(conn, config)
	}
	if _, err := conn.Write([]byte(word)); err != nil {
		return nil, err
	}
	values := map[string]string{}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), "=")
		if !ok {
			name, value, _ = strings.Cut(lines.Text(), ": ")
		}
		values[name] = strings.TrimSpace(value)
	}
	return values, lines.Err()
}

// wantedTTL is the default TTL of locks, which servers should grant.
const wantedTTL = 30 * time.Second

// examineStates compares what the servers say of themselves.
func examineStates(states []serverState) (all []driver.Finding) {
	add := func(f driver.Finding, server, format string, args ...any) {
		all = append(all, f.With(server, fmt.Sprintf(format, args...)))
	}
	var bounds []string
	for _, s := range states {
		if s.err != nil {
			add(findingServerAway, s.server, "the server does not answer: %v", s.err)
			continue
		}
		var major, minor int
		if n, _ := fmt.Sscanf(s.version, "%d.%d", &major, &minor); n == 2 && (major < 3 || major == 3 && minor < 5) {
			add(findingVersion, s.server, "the server is of version %s", s.version)
		}
		if s.mode == "read-only" {
			add(findingReadOnly, s.server, "the server is in read-only mode")
		}
		if s.refusesAlone {
			all = append(all, findingEagerACL.With(s.server, findingEagerACL.What))
		}
		switch {
		case s.mode == "":
			add(findingUnseen, s.server, "the server does not answer srvr: its version and mode cannot be seen")
		case s.hidesConf:
			add(findingUnseen, s.server, "the server does not answer conf: its session timeouts cannot be seen")
		default:
			bounds = append(bounds, fmt.Sprintf("%v to %v, ticks of %v", s.minTTL, s.maxTTL, s.tick))
			if s.maxTTL < wantedTTL {
				add(findingMaxTimeout, s.server, "maxSessionTimeout is %v", s.maxTTL)
			}
			if 3*s.tick > wantedTTL {
				add(findingMinTimeout, s.server, "tickTime is %v", s.tick)
			}
		}
	}
	if different := slices.Compact(slices.Sorted(slices.Values(bounds))); len(different) > 1 {
		add(findingBounds, "", "the servers grant different session timeouts: %s", strings.Join(different, "; "))
	}
	return all
}
