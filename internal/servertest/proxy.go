package servertest

import (
	"net"
	"sync"
)

// Proxy takes TCP connections, whose two ends can be made to stand still. What is sent meanwhile arrives when they go on, as
// it does on a real network that comes back.
type Proxy struct {
	Addr   string
	listen net.Listener
	to     string                      // where connections go; empty: where those who make them say, by SOCKS 5
	sender func(request []byte) string // may be nil
	work   sync.WaitGroup

	mu    sync.Mutex
	conns map[*pipe]struct{}
	still func(label string) bool // which connections stand still
	going chan struct{}           // closed and made anew when still changes
	over  bool
}

// pipe is one connection.
type pipe struct {
	in, out net.Conn
	label   string
}

// NewProxy passes connections on to an address.
func NewProxy(to string) (*Proxy, error) { return NewLabelled(to, nil) }

// NewLabelled passes connections on to an address, and labels each with what sender reads from the first request on it.
func NewLabelled(to string, sender func(request []byte) string) (*Proxy, error) {
	l, err := Listen()
	if err != nil {
		return nil, err
	}
	p := &Proxy{Addr: l.Addr().String(), listen: l, to: to, sender: sender, conns: map[*pipe]struct{}{}, going: make(chan struct{}), still: func(string) bool { return false }}
	p.work.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(in) })
		}
	})
	return p, nil
}

// NewSocks passes connections on to where those who make them say, by SOCKS 5, and labels each with that address.
func NewSocks() (*Proxy, error) { return NewLabelled("", nil) }

func (p *Proxy) serve(in net.Conn) {
	defer in.Close()
	c := &pipe{in: in, label: p.to}
	if p.to == "" {
		to, err := wanted(in)
		if err != nil {
			return
		}
		c.label = to
	}
	p.wait(c)
	out, err := net.Dial("tcp", c.label)
	if err != nil {
		return
	}
	defer out.Close()
	c.out = out
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		return
	}
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	if p.to == "" {
		if _, err := in.Write(socksGranted); err != nil {
			return
		}
	}
	var both sync.WaitGroup
	both.Go(func() { p.copy(c, out, in, p.sender) })
	p.copy(c, in, out, nil)
	both.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

func (p *Proxy) copy(c *pipe, to, from net.Conn, sender func([]byte) string) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if sender != nil && n > 0 {
			if label := sender(b[:n]); label != "" {
				p.mu.Lock()
				c.label = label
				p.mu.Unlock()
				sender = nil
			}
		}
		p.wait(c)
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

// wait blocks while the connection stands still.
func (p *Proxy) wait(c *pipe) {
	for {
		p.mu.Lock()
		still, going := !p.over && p.still(c.label), p.going
		p.mu.Unlock()
		if !still {
			return
		}
		<-going
	}
}

// Stop makes those connections stand still whose labels are chosen, those that exist and those to come, and lets the others go on.
func (p *Proxy) Stop(which func(label string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.still = which
	close(p.going)
	p.going = make(chan struct{})
}

// Close breaks all connections, and takes no more.
func (p *Proxy) Close() {
	p.listen.Close()
	p.mu.Lock()
	p.over = true
	for c := range p.conns {
		c.in.Close()
		c.out.Close()
	}
	p.mu.Unlock()
	p.Stop(func(string) bool { return false })
	p.work.Wait()
}
