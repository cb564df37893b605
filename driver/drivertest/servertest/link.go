package servertest

import (
	"bytes"
	"context"
	"net"
	"runtime/pprof"
	"sync"
	"time"
)

// Link is a TCP proxy to a server. While it is cut, it accepts connections and bytes and passes none on, and the server
// sees no connection made or closed, as in a network that drops packets. When it is healed, what was held back is
// delivered, late. Its methods may be called concurrently.
type Link struct {
	Addr   string // host:port that clients dial
	listen net.Listener
	sender func(request []byte) string // may be nil
	work   sync.WaitGroup

	mu      sync.Mutex
	to      string // empty: the address that each client requests by SOCKS 5
	changed *sync.Cond
	cut     func(label string, reply bool) bool // which connections and directions are stalled; nil: none
	swallow int                                 // how many replies are still to be lost
	faults  func() (delay time.Duration, reset bool)
	old     []byte // text of the server that is replaced by new
	new     []byte
	delayed []byte // text of the request that is taken out
	late    chan DelayedRequest
	made    int
	conns   map[net.Conn]bool
	closed  bool
}

// NewLink returns a link to an address (host:port). Close it.
func NewLink(to string) (*Link, error) { return NewLabelled(to, nil) }

// NewSocks returns a link to the address that each client requests by SOCKS 5. Each connection is labeled with that
// address.
func NewSocks() (*Link, error) { return NewLabelled("", nil) }

// NewLabelled returns a link to an address. Each connection is labeled with the first text, not empty, that sender
// returns for a request of it, so that [Link.CutOnly] can choose connections. sender may be nil.
func NewLabelled(to string, sender func(request []byte) string) (*Link, error) {
	l, err := Listen()
	if err != nil {
		return nil, err
	}
	k := &Link{Addr: l.Addr().String(), listen: l, sender: sender, to: to, conns: map[net.Conn]bool{}}
	k.changed = sync.NewCond(&k.mu)
	k.work.Go(func() {
		pprof.SetGoroutineLabels(context.Background()) // tests that look for leaked goroutines must not count these
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			k.work.Go(func() { k.serveConnection(in) })
		}
	})
	return k, nil
}

func (l *Link) serveConnection(in net.Conn) {
	defer l.endConnection(in)
	l.mu.Lock()
	l.conns[in] = true
	to, closed := l.to, l.closed
	l.mu.Unlock()
	if closed {
		return
	}
	socks, label := to == "", ""
	if socks {
		var err error
		if to, err = readSocksTarget(in); err != nil {
			return
		}
		label = to
	}
	l.mu.Lock()
	l.waitWhileCut(&label, false)
	l.mu.Unlock()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer l.endConnection(out)
	l.mu.Lock()
	l.conns[out] = true
	l.made++
	l.mu.Unlock()
	if socks {
		if _, err := in.Write(socksGranted); err != nil {
			return
		}
	}
	var both sync.WaitGroup
	both.Go(func() { l.copyData(out, in, &label, false) })
	l.copyData(in, out, &label, true)
	both.Wait()
}

func (l *Link) endConnection(c net.Conn) {
	c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

func (l *Link) copyData(to, from net.Conn, label *string, reply bool) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, _ := from.Read(b) // nothing is the end
		data, ok := l.filterData(b[:n], label, reply)
		if !ok {
			return
		}
		if _, err := to.Write(data); err != nil {
			return
		}
	}
}

// filterData waits while the link is cut, and returns the bytes to pass on. If it reports false, the connection must
// end.
func (l *Link) filterData(data []byte, label *string, reply bool) ([]byte, bool) {
	l.mu.Lock()
	if l.sender != nil && *label == "" && !reply {
		*label = l.sender(data)
	}
	l.waitWhileCut(label, reply)
	if len(data) == 0 {
		l.mu.Unlock()
		return nil, false
	}
	lost := reply && l.swallow > 0
	if lost {
		l.swallow--
	}
	if !reply && l.delayed != nil && bytes.Contains(data, l.delayed) {
		l.late <- DelayedRequest{l.to, bytes.Clone(data)}
		l.delayed, lost = nil, true
	}
	if reply && l.old != nil {
		data = bytes.ReplaceAll(data, l.old, l.new)
	}
	faults, closed := l.faults, l.closed
	l.mu.Unlock()
	if faults != nil {
		delay, reset := faults()
		time.Sleep(delay)
		lost = lost || reset
	}
	return data, !lost && !closed
}

// waitWhileCut waits, with the mutex held, while a connection is cut.
func (l *Link) waitWhileCut(label *string, reply bool) {
	for l.cut != nil && l.cut(*label, reply) && !l.closed {
		l.changed.Wait()
	}
}

// Cut stalls both directions.
func (l *Link) Cut() { l.setCut(func(string, bool) bool { return true }) }

// CutReplies stalls only what comes from the server.
func (l *Link) CutReplies() { l.setCut(func(_ string, reply bool) bool { return reply }) }

// CutOnly stalls the connections whose labels are chosen, also future ones, and leaves the others alone.
func (l *Link) CutOnly(which func(label string) bool) {
	l.setCut(func(label string, _ bool) bool { return which(label) })
}

// Heal delivers what was held back, and ends the cut.
func (l *Link) Heal() { l.setCut(nil) }

func (l *Link) setCut(cut func(label string, reply bool) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	l.changed.Broadcast()
}

// LoseReplies drops the next n replies, and closes the connection of each.
func (l *Link) LoseReplies(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.swallow = n
}

// SetFaults sets a function that is called for each piece of data, in both directions. It returns for how long the data
// are delayed, and whether the connection is then reset instead. It may be called concurrently.
func (l *Link) SetFaults(ask func() (delay time.Duration, reset bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = ask
}

// Replace replaces a text in what the server sends by another one of the same length.
func (l *Link) Replace(old, new string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.old, l.new = []byte(old), []byte(new)
}

// DelayedRequest is a request that was taken out of its connection.
type DelayedRequest struct {
	to   string
	data []byte
}

// DelayNext takes the next request that contains a text out of its connection, and returns it through the channel;
// the connection ends. What the client sends by another connection overtakes the request.
func (l *Link) DelayNext(words string) <-chan DelayedRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delayed, l.late = []byte(words), make(chan DelayedRequest, 1)
	return l.late
}

// Deliver sends the request to the server, and returns when the server has answered.
func (l DelayedRequest) Deliver() error {
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

// ConnectionCount returns how many connections were made.
func (l *Link) ConnectionCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made
}

// Redirect makes the link lead to another address, and ends all connections.
func (l *Link) Redirect(addr string) {
	l.RedirectNew(addr)
	l.Reset()
}

// RedirectNew makes the link lead to another address for new connections. Existing ones remain, as they do when a
// host name gets another address.
func (l *Link) RedirectNew(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = addr
}

// Reset ends all connections.
func (l *Link) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
	clear(l.conns)
}

// Close closes the link and its connections, and waits for its goroutines.
func (l *Link) Close() {
	l.listen.Close()
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	l.Reset()
	l.work.Wait()
}
