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
	servers   = ports{first: 15000, end: 25000}
	listeners = ports{first: 25000, end: 32000}
)

// Listen listens on a free port.
func Listen() (net.Listener, error) { return listeners.listen() }

// Port is a port that nobody listens on.
func Port() (string, error) {
	l, err := servers.listen()
	if err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port, l.Close()
}

// ports are taken in turn, from anywhere on.
type ports struct {
	first, end int
	mu         sync.Mutex
	next       int
}

func (p *ports) listen() (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == 0 {
		p.next = p.first + rand.N(p.end-p.first)
	}
	for range p.end - p.first {
		p.next++
		if p.next >= p.end {
			p.next = p.first
		}
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(p.next)); err == nil {
			return l, nil
		}
	}
	return nil, errors.New("no free port")
}
