package servertest

import "os"

// Cluster is what clusters of all makes have in common.
type Cluster struct {
	Members []*Server
	Dir     string   // removed by Close
	Proxies []*Proxy // between the members; closed by Close
}

// Servers are the members.
func (c *Cluster) Servers() []*Server { return c.Members }

// Endpoints are the members' addresses.
func (c *Cluster) Endpoints() (at []string) {
	for _, m := range c.Members {
		at = append(at, m.Endpoint)
	}
	return at
}

// Join lets all members reach each other again.
func (c *Cluster) Join() {
	for _, p := range c.Proxies {
		p.Stop(func(string) bool { return false })
	}
}

// Close kills the servers and removes what they wrote.
func (c *Cluster) Close() {
	for _, m := range c.Members {
		m.Kill()
	}
	for _, p := range c.Proxies {
		p.Close()
	}
	_ = os.RemoveAll(c.Dir)
}

// Link is one client's way to a cluster, which can be cut.
type Link struct{ proxies []*Proxy }

// Link makes a way to all members; with some given, to those alone.
func (c *Cluster) Link(to ...*Server) (*Link, error) {
	if len(to) == 0 {
		to = c.Members
	}
	l := &Link{}
	for _, m := range to {
		p, err := NewProxy(m.Endpoint)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.proxies = append(l.proxies, p)
	}
	return l, nil
}

// Endpoints are the link's ends on the client's side.
func (l *Link) Endpoints() (at []string) {
	for _, p := range l.proxies {
		at = append(at, p.Addr)
	}
	return at
}

// Cut has everything on the link stand still, without a word; Heal lets it go on and arrive late.
func (l *Link) Cut() {
	for _, p := range l.proxies {
		p.Stop(func(string) bool { return true })
	}
}

// Heal undoes Cut.
func (l *Link) Heal() {
	for _, p := range l.proxies {
		p.Stop(func(string) bool { return false })
	}
}

// Close ends the link.
func (l *Link) Close() {
	for _, p := range l.proxies {
		p.Close()
	}
}
