package servertest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Listen and FreePort use different ranges, so that a server that is down for a while finds its port free again. Both
// ranges are below the ports that the kernel gives to clients.
var (
	servers   = portRange{first: 15000, end: 25000}
	listeners = portRange{first: 25000, end: 32000}
)

// Listen listens on a free port of the loopback interface, such as for a proxy in front of a server.
func Listen() (net.Listener, error) { return listeners.listenOnNext() }

// FreePort returns a port of the loopback interface that nobody listens on, for a server that the caller starts.
// FreePort returns the port to no other process until this process has ended: neither before the server listens on it,
// nor while the server is down. This process gets it again only when it has used all others.
func FreePort() (string, error) { return servers.reservePort() }

// portRange is a range of ports that are tried in turn, from a random one on.
type portRange struct {
	first, end int
	mu         sync.Mutex
	next       int
	reserved   map[int]net.PacketConn
}

func (p *portRange) listenOnNext() (l net.Listener, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = p.tryPortsLocked(func(_ int, addr string) bool { l, err = net.Listen("tcp", addr); return err == nil })
	return l, err
}

// reservePort finds a port that no process has reserved and nobody listens on. A process reserves a port by holding
// the UDP port of the same number, which none of the servers uses; the kernel frees it when the process ends. A server
// that speaks UDP uses another address, such as 127.0.0.2.
func (p *portRange) reservePort() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	port, err := p.tryPortsLocked(func(port int, addr string) bool {
		mark := p.reserved[port] // by ourselves, when a process has gone through all of them
		if mark == nil {
			var err error
			if mark, err = net.ListenPacket("udp", addr); err != nil {
				return false
			}
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			if p.reserved[port] == nil {
				_ = mark.Close()
			}
			return false
		}
		if p.reserved == nil {
			p.reserved = map[int]net.PacketConn{}
		}
		p.reserved[port] = mark
		return l.Close() == nil
	})
	return strconv.Itoa(port), err
}

// tryPortsLocked tries the ports in turn until take accepts one. It is called with mu held.
func (p *portRange) tryPortsLocked(take func(port int, addr string) bool) (int, error) {
	if p.next == 0 {
		p.next = p.first + rand.N(p.end-p.first)
	}
	for range p.end - p.first {
		p.next++
		if p.next >= p.end {
			p.next = p.first
		}
		if take(p.next, "127.0.0.1:"+strconv.Itoa(p.next)) {
			return p.next, nil
		}
	}
	return 0, errors.New("no free port")
}
