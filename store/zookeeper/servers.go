package zookeeper

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// server is one server of the ensemble: a name, and one of its addresses, since one name may stand for all servers.
type server struct{ name, address string }

// lookupTime is how long all names together may take: connections are made in a hurry.
const lookupTime = time.Second

// servers looks up where the servers are. Of a name that cannot be looked up the last addresses are given; or the name itself,
// which a dial then tells what is wrong with. Where connections are made by the user's own Dial, names are for that to look up.
func (t *tree) servers(ctx context.Context) (all []server) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	for _, name := range t.opts.Servers {
		var addresses []string
		if host, port, err := net.SplitHostPort(name); err == nil && t.opts.Dial == nil {
			hosts, _ := t.opts.lookup(ctx, host)
			for _, h := range hosts {
				addresses = append(addresses, net.JoinHostPort(h, port))
			}
		}
		t.mu.Lock()
		if len(addresses) == 0 {
			addresses = t.addresses[name]
		}
		if len(addresses) == 0 {
			addresses = []string{name}
		} else {
			t.addresses[name] = addresses
		}
		t.mu.Unlock()
		for _, a := range addresses {
			all = append(all, server{name, a})
		}
	}
	return all
}

// dial makes a connection, and has the server show that it is the one of that name.
func (o *Options) dial(ctx context.Context, s server) (net.Conn, error) {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	nc, err := dial(ctx, "tcp", s.address)
	if err != nil || o.TLS == nil {
		return nc, err
	}
	cfg := o.TLS
	if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		cfg = cfg.Clone()
		cfg.ServerName, _, _ = net.SplitHostPort(s.name)
	}
	secure := tls.Client(nc, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return secure, nil
}
