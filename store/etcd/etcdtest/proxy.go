package etcdtest

import (
	"bytes"
	"net"
	"regexp"
	"sync"
)

// proxy is a TCP link whose connections can be made to stand still. What is sent meanwhile arrives when they go on, as
// it does on a real network that comes back.
type proxy struct {
	addr   string
	listen net.Listener
	work   sync.WaitGroup

	mu    sync.Mutex
	conns map[*pipe]struct{}
	still func(p *pipe) bool // which connections stand still
	going chan struct{}      // closed and made anew when still changes
	over  bool
}

// pipe is one connection.
type pipe struct {
	in, out net.Conn
	from    string // the member that has dialled, by its id in hex, once that is known
}

// fromMember is in the first request of a member of etcd to another.
var fromMember = regexp.MustCompile(`(?i)x-server-from: ([0-9a-f]+)`)

func newProxy(listen net.Listener, to string) *proxy {
	p := &proxy{addr: listen.Addr().String(), listen: listen, conns: map[*pipe]struct{}{}, going: make(chan struct{}), still: func(*pipe) bool { return false }}
	p.work.Go(func() {
		for {
			in, err := listen.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(in, to) })
		}
	})
	return p
}

func (p *proxy) serve(in net.Conn, to string) {
	defer in.Close()
	c := &pipe{in: in}
	p.wait(c)
	out, err := net.Dial("tcp", to)
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
	var both sync.WaitGroup
	both.Go(func() { p.copy(c, out, in, true) })
	p.copy(c, in, out, false)
	both.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

func (p *proxy) copy(c *pipe, to, from net.Conn, request bool) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if request && c.from == "" && n > 0 {
			if m := fromMember.FindSubmatch(b[:n]); m != nil {
				p.mu.Lock()
				c.from = string(bytes.ToLower(m[1]))
				p.mu.Unlock()
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
func (p *proxy) wait(c *pipe) {
	for {
		p.mu.Lock()
		still, going := !p.over && p.still(c), p.going
		p.mu.Unlock()
		if !still {
			return
		}
		<-going
	}
}

// stop makes connections stand still, those that exist and those to come.
func (p *proxy) stop(which func(c *pipe) bool) {
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
