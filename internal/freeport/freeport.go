// Package freeport finds ports of the loopback interface for the servers of tests, below those that the kernel gives to clients.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// What Listen takes is apart from what Port gives, so that a server which is down for a while finds its port free again.
var (
	servers   = portRange{first: 15000, end: 25000}
	listeners = portRange{first: 25000, end: 32000}
)

// Listen listens on a free port.
func Listen() (net.Listener, error) { return listeners.listenOnNext() }

// Port is a port that nobody listens on, and that Port gives to no other process before this one has ended: neither before
// the server has bound it, nor while that is down.
func Port() (string, error) { return servers.reservePort() }

// portRange are taken in turn, from anywhere on.
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

// reservePort finds a port that no process has reserved and nobody listens on. Whoever reserves a port holds the UDP port of the same
// number, which none of the servers uses, and the kernel frees it when the process ends.
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

// tryPortsLocked goes through the ports until take takes one.
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
