package servertest

import (
	"os"
)

// Cluster is what all kinds of clusters have in common: servers, their data, and the links between them. A test kit
// embeds it.
type Cluster struct {
	Members []*Server
	Dir     string  // with the data of all members; removed by Close
	Links   []*Link // between the members, which a test may cut; closed by Close
}

// Servers returns the members.
func (c *Cluster) Servers() []*Server { return c.Members }

// Endpoints returns the members' addresses.
func (c *Cluster) Endpoints() (at []string) {
	for _, m := range c.Members {
		at = append(at, m.Endpoint)
	}
	return at
}

// Join heals all links between the members.
func (c *Cluster) Join() {
	for _, k := range c.Links {
		k.Heal()
	}
}

// Close kills the servers and removes what they wrote.
func (c *Cluster) Close() {
	for _, m := range c.Members {
		m.Kill()
	}
	for _, k := range c.Links {
		k.Close()
	}
	_ = os.RemoveAll(c.Dir)
}

// Link makes links for one client to the given members, or to all. ends are the addresses that the client dials instead
// of theirs. The caller closes way.
func (c *Cluster) Link(to ...*Server) (way *Net, ends []string, err error) {
	if len(to) == 0 {
		to = c.Members
	}
	way = &Net{}
	for _, m := range to {
		k, err := way.Link(m.Endpoint)
		if err != nil {
			way.Close()
			return nil, nil, err
		}
		ends = append(ends, k.Addr)
	}
	return way, ends, nil
}
