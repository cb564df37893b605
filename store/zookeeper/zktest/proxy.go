package zktest

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
)

// proxy takes TCP connections, whose two ends can be made to stand still. What is sent meanwhile arrives when they go on, as
// it does on a real network that comes back.
type proxy struct {
	addr   string
	listen net.Listener
	to     string // where its connections go; empty: where those who make them say, by SOCKS 5
	work   sync.WaitGroup

	mu    sync.Mutex
	conns map[*pipe]struct{}
	still func(to string) bool // whether connections to that address stand still
	going chan struct{}        // closed and made anew when still changes
	over  bool
}

// pipe is one connection.
type pipe struct{ in, out net.Conn }

func newProxy(listen net.Listener, to string) *proxy {
	p := &proxy{addr: listen.Addr().String(), listen: listen, to: to, conns: map[*pipe]struct{}{}, going: make(chan struct{}), still: func(string) bool { return false }}
	p.work.Go(func() {
		for {
			in, err := listen.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(in) })
		}
	})
	return p
}

func (p *proxy) serve(in net.Conn) {
	defer in.Close()
	to := p.to
	if to == "" {
		var err error
		if to, err = wanted(in); err != nil {
			return
		}
	}
	p.wait(to)
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	c := &pipe{in, out}
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		return
	}
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	if p.to == "" {
		if _, err := in.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0}); err != nil {
			return
		}
	}
	var both sync.WaitGroup
	both.Go(func() { p.copy(to, out, in) })
	p.copy(to, in, out)
	both.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// wanted reads where a SOCKS client wants to go, as an IPv4 address: ours have no other.
func wanted(in net.Conn) (string, error) {
	b := make([]byte, 256)
	if _, err := io.ReadFull(in, b[:2]); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(in, b[:b[1]]); err != nil {
		return "", err
	}
	if _, err := in.Write([]byte{5, 0}); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(in, b[:10]); err != nil {
		return "", err
	}
	if b[3] != 1 {
		return "", errors.New("no IPv4 address")
	}
	return net.JoinHostPort(net.IP(b[4:8]).String(), strconv.Itoa(int(binary.BigEndian.Uint16(b[8:10])))), nil
}

func (p *proxy) copy(at string, to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		p.wait(at)
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// wait blocks while connections to an address stand still.
func (p *proxy) wait(to string) {
	for {
		p.mu.Lock()
		still, going := !p.over && p.still(to), p.going
		p.mu.Unlock()
		if !still {
			return
		}
		<-going
	}
}

// stop makes connections stand still, those that exist and those to come.
func (p *proxy) stop(which func(to string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.still = which
	close(p.going)
	p.going = make(chan struct{})
}

// reset closes all connections.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.in.Close()
		c.out.Close()
	}
}

func (p *proxy) close() {
	p.listen.Close()
	p.mu.Lock()
	p.over = true
	close(p.going)
	p.going = make(chan struct{})
	p.mu.Unlock()
	p.reset()
	p.work.Wait()
}
