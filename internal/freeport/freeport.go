// Package freeport finds ports for the servers of tests, below those that the kernel gives to clients.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

var ports struct {
	sync.Mutex
	next int
}

// Listen listens on a free port of the loopback interface, between 15000 and 32000.
func Listen() (net.Listener, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.next == 0 {
		ports.next = 15000 + rand.N(16000)
	}
	for range 2000 {
		ports.next++
		if ports.next >= 32000 {
			ports.next = 15000
		}
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(ports.next)); err == nil {
			return l, nil
		}
	}
	return nil, errors.New("no free port")
}

// Port is a port of the loopback interface that nobody listens on.
func Port() (string, error) {
	l, err := Listen()
	if err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port, l.Close()
}
