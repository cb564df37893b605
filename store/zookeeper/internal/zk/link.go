package zk

import (
	"io"
	"net"
	"sync"
	"time"
)

// link is one connection to a server. Requests are answered in the order in which they were sent.
//
// Callers only append to out. One goroutine writes it, so that requests that come while a write is under way go
// with the next one, at once, and no caller waits for the network.
type link struct {
	nc       net.Conn
	unhook   func() bool   // stops nc from being closed with the Conn
	hasWrite chan struct{} // buffered: there is something to write

	mu        sync.Mutex
	out       []byte
	pending   []*Call // without an answer, in order
	lastXid   int32
	lastHeard time.Time // when anything came last, or when the first of the pending requests was sent
	broken    bool
}

// post queues calls to be written without others between them, and reports whether the link existed.
func (l *link) post(calls ...*Call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return false
	}
	for _, c := range calls {
		c.sent = true
		if c.xid == 0 {
			l.lastXid = l.lastXid%(1<<30) + 1 // never 0, and never one of the negative ids
			c.xid = l.lastXid
		}
		l.out = appendRequest(l.out, c.xid, c.op, c.body)
		// While nothing is pending the server has no reason to send anything, and its silence says nothing.
		if len(l.pending) == 0 {
			l.lastHeard = time.Now()
		}
		l.pending = append(l.pending, c)
	}
	l.signalWrite()
	return true
}

func (l *link) signalWrite() {
	select {
	case l.hasWrite <- struct{}{}:
	default:
	}
}

// runWriter writes what is queued until the link breaks. It sends a ping at each interval, unless that is 0. A ping has
// a fixed id and no caller, and any server answers it from memory: it keeps the session, but proves nothing to anybody.
func (l *link) runWriter(pingInterval time.Duration) {
	var ping <-chan time.Time
	if pingInterval > 0 {
		ticker := time.NewTicker(pingInterval)
		defer ticker.Stop()
		ping = ticker.C
	}
	for {
		select {
		case <-l.hasWrite:
		case <-ping:
			l.mu.Lock()
			l.out = appendRequest(l.out, xidPing, OpPing, nil)
			l.mu.Unlock()
		}
		l.mu.Lock()
		out, broken := l.out, l.broken
		l.out = nil
		l.mu.Unlock()
		if broken {
			return
		}
		if _, err := l.nc.Write(out); err != nil {
			l.breakOff()
			return
		}
	}
}

func (l *link) noteHeard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastHeard = time.Now()
}

// silentFor returns how long nothing has come from the server while a request waited for its answer.
func (l *link) silentFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return 0
	}
	return time.Since(l.lastHeard)
}

// takeAnswered removes and returns the request that an answer belongs to, nil if that is not the next one. The protocol
// has request ids but answers in order, so an id that is not the next one means that the two sides disagree on what was
// sent.
func (l *link) takeAnswered(xid int32) *Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 || l.pending[0].xid != xid {
		return nil
	}
	c := l.pending[0]
	l.pending[0] = nil
	l.pending = l.pending[1:]
	return c
}

// breakOff ends a link: nothing more is sent on it.
func (l *link) breakOff() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return
	}
	l.broken = true
	l.unhook()
	l.nc.Close()
	l.signalWrite()
}

// failPending gives ErrLinkBroken to all calls without an answer. Those that were not written yet get it as well: how
// much of them had left the machine when the link broke cannot be known.
func (l *link) failPending() {
	l.mu.Lock()
	pending := l.pending
	l.pending = nil
	l.mu.Unlock()
	for _, c := range pending {
		c.Err = ErrLinkBroken
		if c.done != nil {
			c.done()
		}
	}
}

// closeSession ends the session that was opened on a link, and the link. It does not wait for an answer: if the
// request is lost, the session expires. It is for sessions on which nothing was done.
func (l *link) closeSession() {
	_, _ = l.nc.Write(appendRequest(nil, 1, OpCloseSession, nil))
	l.breakOff()
}

// hangUpTime is how long awaitSessionEnd waits.
const hangUpTime = time.Second

// awaitSessionEnd ends the session of a link, and waits until the server hangs up, as it does then. A server may drop a
// request if the connection is closed while it still sends something, and then the session's locks would remain for its
// TTL.
func (l *link) awaitSessionEnd() {
	_ = l.nc.SetDeadline(time.Now().Add(hangUpTime))
	if _, err := l.nc.Write(appendRequest(nil, 1, OpCloseSession, nil)); err == nil {
		_, _ = io.Copy(io.Discard, l.nc)
	}
}
