package servertest

import (
	"net"
	"sync"
	"time"
)

// Net is all links of one client, which dials through them. The zero value is ready for use.
type Net struct {
	mu    sync.Mutex
	links map[string]*Link
	cut   bool
}

// Dial connects to an address through a link.
func (n *Net) Dial(addr string) (net.Conn, error) {
	k, err := n.Link(addr)
	if err != nil {
		return nil, err
	}
	return net.DialTimeout("tcp", k.Addr, 2*time.Second)
}

// Link returns the link to an address, and makes it if there is none.
func (n *Net) Link(addr string) (*Link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := n.links[addr]
	if k == nil {
		var err error
		if k, err = NewLink(addr); err != nil {
			return nil, err
		}
		if n.links == nil {
			n.links = map[string]*Link{}
		}
		n.links[addr] = k
		if n.cut {
			k.Cut()
		}
	}
	return k, nil
}

// Cut cuts all links, also future ones.
func (n *Net) Cut() { n.forEachLink(true, (*Link).Cut) }

// Heal heals all links.
func (n *Net) Heal() { n.forEachLink(false, (*Link).Heal) }

// Each calls a function for each link.
func (n *Net) Each(do func(*Link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, k := range n.links {
		do(k)
	}
}

func (n *Net) forEachLink(cut bool, do func(*Link)) {
	n.mu.Lock()
	n.cut = cut
	n.mu.Unlock()
	n.Each(do)
}

// Close closes all links.
func (n *Net) Close() { n.Each((*Link).Close) }
