// Package linktest puts a way between a client and its server that tests can cut, slow down and lose replies on.
package linktest

import (
	"bytes"
	"context"
	"net"
	"runtime/pprof"
	"sync"
	"time"
)

// Link is a way to a server that can be cut: a TCP proxy. While it is cut it takes bytes in and passes none on, as a
// network that drops packets does to those who wait; when it heals, what was held back is delivered, late.
type Link struct {
	Addr string
	l    net.Listener

	mu      sync.Mutex
	to      string
	healed  *sync.Cond
	stalled [2]bool // to the server, from it
	swallow int     // replies still to be lost: each is dropped, and its connection reset
	weather func() (delay time.Duration, reset bool)
	old     []byte // words of the server that are replaced
	new     []byte
	delayed []byte // words of the request that is taken out
	late    chan Late
	made    int
	conns   map[net.Conn]bool
	closed  bool
}

// NewLink makes a link to an address.
func NewLink(to string) (*Link, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	k := &Link{Addr: l.Addr().String(), to: to, l: l, conns: map[net.Conn]bool{}}
	k.healed = sync.NewCond(&k.mu)
	go func() {
		pprof.SetGoroutineLabels(context.Background()) // nobody's client is to be blamed for these
		k.accept()
	}()
	return k, nil
}

func (k *Link) accept() {
	for {
		in, err := k.l.Accept()
		if err != nil {
			return
		}
		go func() {
			k.mu.Lock()
			to := k.to
			k.mu.Unlock()
			out, err := net.Dial("tcp", to)
			k.mu.Lock()
			if err != nil || k.closed {
				k.mu.Unlock()
				in.Close()
				return
			}
			k.conns[in], k.conns[out] = true, true
			k.made++
			k.mu.Unlock()
			go k.pipe(out, in, 0)
			go k.pipe(in, out, 1)
		}()
	}
}

func (k *Link) pipe(to, from net.Conn, direction int) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			data, ok := k.pass(direction, b[:n])
			if !ok {
				return
			}
			if _, err := to.Write(data); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits while the link is cut, and gives the bytes that go on. If they do not, their connection ends.
func (k *Link) pass(direction int, data []byte) ([]byte, bool) {
	k.mu.Lock()
	for k.stalled[direction] && !k.closed {
		k.healed.Wait()
	}
	lost := direction == 1 && k.swallow > 0
	if lost {
		k.swallow--
	}
	if direction == 0 && k.delayed != nil && bytes.Contains(data, k.delayed) {
		k.late <- Late{k.to, bytes.Clone(data)}
		k.delayed, lost = nil, true
	}
	if direction == 1 && k.old != nil {
		data = bytes.ReplaceAll(data, k.old, k.new)
	}
	weather, closed := k.weather, k.closed
	k.mu.Unlock()
	if weather != nil {
		delay, reset := weather()
		time.Sleep(delay)
		lost = lost || reset
	}
	return data, !lost && !closed
}

// Cut stalls both directions.
func (k *Link) Cut() { k.stall(true, true) }

// CutReplies stalls what comes from the server only.
func (k *Link) CutReplies() { k.stall(false, true) }

// Heal delivers what was held back and goes on.
func (k *Link) Heal() { k.stall(false, false) }

func (k *Link) stall(requests, replies bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stalled = [2]bool{requests, replies}
	k.healed.Broadcast()
}

// LoseReplies drops the next n replies, and with each the connection that it would have come by.
func (k *Link) LoseReplies(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.swallow = n
}

// Weather is asked about whatever travels, in each direction: for how long it is delayed, and whether its connection is
// reset instead.
func (k *Link) Weather(ask func() (delay time.Duration, reset bool)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.weather = ask
}

// Replace puts other words, of the same length, into what the server says.
func (k *Link) Replace(old, new string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.old, k.new = []byte(old), []byte(new)
}

// Late is a request that was taken out of its connection.
type Late struct {
	to   string
	data []byte
}

// Delay takes the next request that has these words out, and gives it; its connection ends. Whatever the client sends by
// another one overtakes it.
func (k *Link) Delay(words string) <-chan Late {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.delayed, k.late = []byte(words), make(chan Late, 1)
	return k.late
}

// Arrive brings it to the server, and returns when that has answered.
func (l Late) Arrive() error {
	conn, err := net.Dial("tcp", l.to)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(l.data); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// Made is how many connections were made.
func (k *Link) Made() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.made
}

// To leads to another address from now on, and ends all connections.
func (k *Link) To(addr string) {
	k.mu.Lock()
	k.to = addr
	k.mu.Unlock()
	k.Reset()
}

// Reset ends all connections.
func (k *Link) Reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		c.Close()
	}
	clear(k.conns)
}

// Close ends the link.
func (k *Link) Close() {
	k.l.Close()
	k.mu.Lock()
	k.closed = true
	k.healed.Broadcast()
	k.mu.Unlock()
	k.Reset()
}

// Net is all links of one client: it dials through them.
type Net struct {
	mu    sync.Mutex
	links map[string]*Link
	cut   bool
}

// Dial connects to an address through a link.
func (n *Net) Dial(addr string) (net.Conn, error) {
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
	return net.DialTimeout("tcp", k.Addr, 2*time.Second)
}

// Cut cuts all links, also those to come.
func (n *Net) Cut() { n.each(true, (*Link).Cut) }

// Heal heals them.
func (n *Net) Heal() { n.each(false, (*Link).Heal) }

// Each does something to each link.
func (n *Net) Each(do func(*Link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, k := range n.links {
		do(k)
	}
}

func (n *Net) each(cut bool, do func(*Link)) {
	n.mu.Lock()
	n.cut = cut
	n.mu.Unlock()
	n.Each(do)
}

// Close ends all links.
func (n *Net) Close() { n.Each((*Link).Close) }
