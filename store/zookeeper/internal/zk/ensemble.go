package zk

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Config says how the servers of an ensemble are reached. All fields but Servers may be left empty.
type Config struct {
	// Servers are host:port. A name with several addresses means one server at each of them.
	Servers []string
	// Auth are the credentials that each server is given first.
	Auth []Auth
	// TLS, if set, encrypts the connections. Certificates are checked for its ServerName, or else for the host.
	TLS *tls.Config
	// Handshake, if set, makes TLS connections instead, over a connection to a server of that name.
	Handshake func(ctx context.Context, conn net.Conn, name string) (net.Conn, error)
	// Dial makes the connections, and then also looks up the names. Default: net.Dialer's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Lookup looks up the addresses of a host. Default: the resolver of the system.
	Lookup func(ctx context.Context, host string) ([]string, error)
	// SessionEnded is called once per Conn, when its session has ended, before the Lost of its watchers. It must
	// not block.
	SessionEnded func(*Conn)
}

// Auth is one credential.
type Auth struct{ Scheme, Credential string }

// Ensemble is a group of servers that keep the same nodes, and what its connections have in common: where the servers
// are, and how much of the servers' history any of the connections has seen.
type Ensemble struct {
	config    Config
	life      context.Context
	admission driverutil.Admission

	mu        sync.Mutex
	addresses map[string][]string // of the servers, by name, from the last lookup that succeeded
	lastSeen  int64
	lastError error // of the last server that could not be used
}

// NewEnsemble describes an ensemble. It does no I/O. All connections end when ctx ends.
func NewEnsemble(ctx context.Context, config Config) *Ensemble {
	if config.Lookup == nil {
		config.Lookup = net.DefaultResolver.LookupHost
	}
	return &Ensemble{config: config, life: ctx, addresses: map[string][]string{}}
}

// LastSeen returns the last transaction that any connection has seen. An answer with a smaller Zxid is older than
// what this client knows already.
func (e *Ensemble) LastSeen() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastSeen
}

func (e *Ensemble) noteSeen(zxid int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastSeen = max(e.lastSeen, zxid)
}

// noteServerError remembers why a server could not be used, for the error of calls that wait for one.
func (e *Ensemble) noteServerError(server string, err error) {
	if e.life.Err() != nil || errors.Is(err, context.Canceled) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastError = fmt.Errorf("zookeeper server %s: %v", server, err)
}

// notSentError is the error of a call that was not sent, because no server could be used before ctx ended.
func (e *Ensemble) notSentError(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lastError == nil || e.life.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: no server accepts the session: %v", ctx.Err(), e.lastError)
}

// server is one server: its name, and one of the addresses of that name.
type server struct{ name, address string }

// lookupTime limits the lookups of all names together: a session that has lost its link must be taken up soon.
const lookupTime = time.Second

// lookUpServers returns one entry per address. For a name that cannot be looked up it returns the addresses of the
// last lookup, or else the name itself: the dial will then say what is wrong with it.
func (e *Ensemble) lookUpServers(ctx context.Context) (all []server) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	for _, name := range e.config.Servers {
		var addresses []string
		if host, port, err := net.SplitHostPort(name); err == nil && e.config.Dial == nil {
			hosts, _ := e.config.Lookup(ctx, host)
			for _, h := range hosts {
				addresses = append(addresses, net.JoinHostPort(h, port))
			}
		}
		for _, a := range e.lastAddresses(name, addresses) {
			all = append(all, server{name, a})
		}
	}
	return all
}

// lastAddresses remembers the addresses of a name, or returns the last ones if none were found now.
func (e *Ensemble) lastAddresses(name string, found []string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(found) == 0 { // an outage of the name service must not cost a session
		found = e.addresses[name]
	}
	if len(found) == 0 {
		return []string{name}
	}
	e.addresses[name] = found
	return found
}

// dialServer makes a connection. With TLS, the server must prove that it is the one of its name. The name is the one
// that the user has given, not the address that it was looked up as: certificates are for names.
func (e *Ensemble) dialServer(ctx context.Context, s server) (net.Conn, error) {
	dial := e.config.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	nc, err := dial(ctx, "tcp", s.address)
	switch {
	case err == nil && e.config.Handshake != nil:
		return e.config.Handshake(ctx, nc, s.name)
	case err != nil || e.config.TLS == nil:
		return nc, err
	}
	config := e.config.TLS
	if config.ServerName == "" && !config.InsecureSkipVerify {
		config = config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(s.name)
	}
	secure := tls.Client(nc, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return secure, nil
}
