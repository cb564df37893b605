package servertest

import (
	"os"

	"github.com/holdfast-go/holdfast/internal/linktest"
)

// Cluster is what all kinds of clusters have in common.
type Cluster struct {
	Members []*Server
	Dir     string           // removed by Close
	Links   []*linktest.Link // between the members; closed by Close
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

// Join reconnects all members.
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

// Link makes links for one client to the given members, or to all. ends are their addresses on the client's side.
func (c *Cluster) Link(to ...*Server) (way *linktest.Net, ends []string, err error) {
	if len(to) == 0 {
		to = c.Members
	}
	way = &linktest.Net{}
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
