package zookeeper

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/gather"
)

// conn is one session, over one link to one server at a time. A request is sent once at the most, on the link that
// stands: what is not answered when a link breaks has an unknown outcome. Of one session the servers take requests in the
// order in which they were sent, across links, too: a server that the session has moved away from is refused by the leader.
// So whatever an answer has come for bars all that was sent before.
//
// It keeps nothing alive by itself: who holds a session beats it.
type conn struct {
	t       *tree
	asked   time.Duration
	pinging bool // nobody beats it
	lane    *gather.Lane[*write]

	life context.Context // ends with the session, and with the tree
	stop context.CancelFunc

	mu      sync.Mutex
	id      int64
	secret  []byte
	granted time.Duration
	zxid    int64 // the last transaction seen
	link    *link // nil while there is none
	turn    chan struct{}
	over    error // why there is no session any more
	spots   map[spotKey]*spot
}

// errBroken says that the link broke before there was an answer.
var errBroken = errors.New("the connection to the server broke")

// silence is how long a server may leave a request unanswered, while it says nothing else, before another is asked.
func (c *conn) silence() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(450*time.Millisecond, min(c.granted/6, 1500*time.Millisecond))
}

// begun reports whether there is, or was, a session.
func (c *conn) begun() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id != 0
}

func (t *tree) newConn(asked time.Duration, pinging bool) *conn {
	c := &conn{t: t, asked: asked, pinging: pinging, turn: make(chan struct{}), spots: map[spotKey]*spot{}}
	c.life, c.stop = context.WithCancel(t.life)
	c.lane = c.newLane()
	return c
}

// run keeps a link standing until the session is over.
func (c *conn) run() {
	servers := c.t.servers(c.life)
	at := rand.N(len(servers)) // the server to try
	tried, round := 0, 0       // how many in this round, since a link stood, and rounds
	var shunned time.Time      // since when servers hang up and none takes the session; zero: they do not
	denied := 0                // servers in a row that have refused us, grant too little, or are not to be trusted: one alone ends no session
	for c.life.Err() == nil {
		l, err := c.connect(servers[at], round)
		switch {
		case err == nil:
			shunned = time.Time{}
		case errors.Is(err, errHungUp) && shunned.IsZero():
			shunned = time.Now()
		case errors.Is(err, errHungUp) && c.forgotten(shunned):
			err = sequence.ErrSessionExpired
		}
		if err == nil {
			began := time.Now()
			err = c.serve(l)
			if time.Since(began) > time.Second {
				tried, round = 0, 0
			}
		}
		var brief *errBrief
		if denied++; !errors.Is(err, driver.ErrDenied) && !errors.As(err, &brief) {
			denied = 0
		}
		if brief != nil && c.begun() && denied >= len(servers) {
			err = sequence.ErrSessionExpired // none keeps it for its time: it cannot be renewed, and all is told now
		}
		if errors.Is(err, sequence.ErrSessionExpired) || denied >= len(servers) {
			c.finish(err)
			return
		}
		if round > 0 {
			timer := time.NewTimer(rand.N(20 * time.Millisecond << min(round, 4)))
			select {
			case <-timer.C:
			case <-c.life.Done():
			}
			timer.Stop()
		}
		if tried++; tried >= len(servers) {
			tried, round = 0, round+1
			servers = c.t.servers(c.life)
		}
		at = (at + 1) % len(servers)
	}
	c.finish(driver.ErrClosed)
}

// errHungUp says that a server was reached, and ended the connection instead of taking the session. It never says why.
var errHungUp = errors.New("the server hung up: it has no leader, or as many connections from this host as it takes (maxClientCnxns), or has lost data")

// forgotten reports whether servers have hung up on the session for so long that it is taken for over. They do that, for a
// moment, where they have no leader; and for good, without saying that it is over, to a session that has seen more than they
// know: they were restored from a backup, or have lost their data. After its time nobody believes in anything under it, and
// what may stand under it still is ended by the servers.
func (c *conn) forgotten(since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id != 0 && time.Since(since) > c.granted
}

// errBrief says that a server would end a session sooner than it was opened for.
type errBrief struct{ wanted, granted time.Duration }

func (e *errBrief) Error() string {
	return fmt.Sprintf("%v: a TTL of %v was asked for, and the ZooKeeper servers grant %v; ask for less, or raise maxSessionTimeout there", driver.ErrInvalid, e.wanted, e.granted)
}

func (e *errBrief) Unwrap() error { return driver.ErrInvalid }

// terms are what a session is opened with: its id, what it is known by, and its time.
type terms struct {
	id     int64
	secret []byte
	time   time.Duration
}

// connect opens a link and has the server make a session, or take up the one that there is.
//
// A server that takes a session up grants it a time anew, as it is set now, and from then on the ensemble counts by that, whether
// the answer arrives or not. So a server is first asked for a new session, which nobody uses: if that gets less time, ours is
// never shown to that server.
func (c *conn) connect(s server, round int) (*link, error) {
	c.mu.Lock()
	ours := terms{c.id, c.secret, c.granted}
	c.mu.Unlock()
	patience := max(500*time.Millisecond, min(c.asked/6, 2*time.Second)) << min(round, 2)
	if ours.id == 0 { // nothing is held yet that hurry could save
		ours.time, patience = c.asked, max(patience, 1500*time.Millisecond)
	}
	if ours.id != 0 && !c.pinging {
		l, _, err := c.greet(s, patience, terms{time: ours.time})
		if err != nil {
			return nil, err
		}
		l.quit()
	}
	l, got, err := c.greet(s, patience, ours)
	var brief *errBrief
	if errors.As(err, &brief) && ours.id != 0 { // it was set so in between
		return nil, sequence.ErrSessionExpired
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.id, c.secret, c.granted = got.id, got.secret, got.time
	if ours.id != 0 && !c.pinging { // more than that is nothing to rely on
		c.granted = ours.time
	}
	c.mu.Unlock()
	return l, nil
}

// greet opens a link and asks the server for a session: for a new one, if the id is 0. One that is given less time than is wanted
// is ended at once.
func (c *conn) greet(s server, patience time.Duration, want terms) (_ *link, got terms, err error) {
	defer func() {
		if err != nil {
			c.t.trouble(s.name, err)
		}
	}()
	ctx, cancel := context.WithTimeout(c.life, patience)
	defer cancel()
	nc, err := c.t.opts.dial(ctx, s)
	var distrust *tls.CertificateVerificationError
	if errors.As(err, &distrust) {
		err = fmt.Errorf("%w: the certificate of ZooKeeper server %s: %w", driver.ErrDenied, s.name, distrust)
	}
	if err != nil {
		return nil, got, err
	}
	l := &link{nc: nc, unhook: context.AfterFunc(c.life, func() { nc.Close() }), more: make(chan struct{}, 1)}
	_ = nc.SetDeadline(time.Now().Add(patience))
	got, err = c.hello(nc, want)
	if err != nil {
		l.fail()
		return nil, got, err
	}
	if got.time < want.time && !c.pinging {
		l.quit()
		return nil, got, &errBrief{want.time, got.time}
	}
	_ = nc.SetDeadline(time.Time{})
	l.heard = time.Now()
	return l, got, nil
}

// hello sends the first request of a link, and takes its answer apart.
func (c *conn) hello(nc net.Conn, want terms) (got terms, err error) {
	if want.secret == nil {
		want.secret = make([]byte, 16)
	}
	var w writer
	c.mu.Lock()
	seen := c.zxid
	c.mu.Unlock()
	w.int(0)
	w.long(seen)
	w.int(int32(want.time / time.Millisecond))
	w.long(want.id)
	w.bytes(want.secret)
	w.bool(false) // a server without a leader is of no use
	if _, err := nc.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(w))), w...)); err != nil {
		return got, err
	}
	frame, err := readFrame(nc)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %v", errHungUp, err)
	}
	if err != nil {
		return got, err
	}
	r := reader{b: frame}
	r.int()
	got.time, got.id = time.Duration(r.int())*time.Millisecond, r.long()
	got.secret = append([]byte(nil), r.bytes()...)
	switch {
	case r.err != nil:
		return got, r.err
	case got.time <= 0 || got.id == 0:
		return got, sequence.ErrSessionExpired
	}
	return got, nil
}

// quit ends a session that was opened on a link, and the link. It does not wait: what does not arrive its own time ends.
func (l *link) quit() {
	frame := binary.BigEndian.AppendUint32(nil, 8)
	frame = binary.BigEndian.AppendUint32(frame, 1)
	closing := int32(opClose)
	frame = binary.BigEndian.AppendUint32(frame, uint32(closing))
	_, _ = l.nc.Write(frame)
	l.fail()
}

// serve logs in, makes the watches again, and hears a link until it breaks.
func (c *conn) serve(l *link) error {
	var denied error
	for _, a := range c.t.opts.Auth {
		login := &call{op: opAuth, xid: xidAuth}
		login.body.int(0)
		login.body.text(a.Scheme)
		login.body.text(a.Credential)
		login.done = func() {
			if login.err == codeAuthFailed {
				denied = fmt.Errorf("%w: the ZooKeeper server does not take the %s credentials", driver.ErrDenied, a.Scheme)
			}
		}
		l.post(login)
	}
	var writing sync.WaitGroup
	writing.Go(func() { l.write(c) })
	c.mu.Lock()
	again := c.rewatchLocked()
	if len(again) > 0 {
		l.post(again...)
	}
	c.link = l
	c.turnLocked()
	c.mu.Unlock()

	err := c.hear(l)
	l.fail()
	writing.Wait()
	c.mu.Lock()
	c.link = nil
	c.turnLocked()
	c.restLocked()
	c.mu.Unlock()
	l.drop() // only now: whoever hears of a broken call finds the link gone
	if denied != nil {
		return denied
	}
	return err
}

func (c *conn) hear(l *link) error {
	in := bufio.NewReaderSize(l.nc, 16<<10)
	for {
		frame, err := readFrame(in)
		if err != nil {
			return err
		}
		r := reader{b: frame}
		xid, zxid, answer := r.int(), r.long(), code(r.int())
		if r.err != nil {
			return r.err
		}
		l.mark()
		switch xid {
		case xidPing:
			continue
		case xidEvent:
			kind := r.int()
			r.int()
			c.event(int(kind), r.text())
			continue
		}
		call := l.answered(xid)
		if call == nil {
			return fmt.Errorf("the server answers request %d out of order", xid)
		}
		c.saw(zxid)
		call.zxid, call.rest = zxid, r
		if answer != codeOK {
			call.err = answer
		}
		if call.done != nil {
			call.done()
		}
		switch answer {
		case codeSessionExpired:
			return sequence.ErrSessionExpired
		case codeSessionMoved, codeAuthFailed:
			return answer
		}
	}
}

func (c *conn) saw(zxid int64) {
	if zxid <= 0 {
		return
	}
	c.mu.Lock()
	c.zxid = max(c.zxid, zxid)
	c.mu.Unlock()
	c.t.saw(zxid)
}

// turnLocked wakes those who wait for a link.
func (c *conn) turnLocked() {
	close(c.turn)
	c.turn = make(chan struct{})
}

// finish ends the session on our side. Those who watched by it are told.
func (c *conn) finish(why error) {
	c.mu.Lock()
	if c.over != nil {
		c.mu.Unlock()
		return
	}
	c.over = why
	c.turnLocked()
	spots := c.spots
	c.spots = map[spotKey]*spot{}
	c.mu.Unlock()
	c.stop()
	c.t.gone(c, spots)
}

// state is whether the session is over, and whether a link stands.
func (c *conn) state() (over error, up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over, c.link != nil
}

// up waits for a link.
func (c *conn) up(ctx context.Context) (*link, error) {
	for {
		c.mu.Lock()
		l, over, turn := c.link, c.over, c.turn
		c.mu.Unlock()
		switch {
		case over != nil:
			return nil, over
		case l != nil:
			return l, nil
		}
		select {
		case <-turn:
		case <-ctx.Done():
			return nil, c.t.unreached(ctx)
		}
	}
}

// do sends requests in one piece, with no other in between, and waits for the answers. Its error says that there are none,
// or not all; what a server has refused is in the calls. Requests for which ctx ended before they were sent are never sent.
func (c *conn) do(ctx context.Context, calls ...*call) error {
	l, err := c.up(ctx)
	if err != nil {
		return err
	}
	answered := make(chan struct{})
	last := calls[len(calls)-1]
	then := last.done
	last.done = func() {
		if then != nil {
			then()
		}
		close(answered)
	}
	if !l.post(calls...) {
		return errBroken
	}
	select {
	case <-answered:
	case <-ctx.Done():
		if l.silent() > c.silence() {
			l.fail()
		}
		return ctx.Err()
	}
	return outcome(calls)
}

// outcome is why there are no answers to calls, or not all.
func outcome(calls []*call) error {
	for _, call := range calls {
		switch call.err {
		case codeSessionExpired:
			return sequence.ErrSessionExpired
		case codeSessionMoved, errBroken:
			return errBroken
		}
	}
	return nil
}

// ask is do for requests that may be sent again: it goes on over another link when one breaks.
func (c *conn) ask(ctx context.Context, make func() []*call) ([]*call, error) {
	for {
		calls := make()
		err := c.do(ctx, calls...)
		if err != errBroken {
			return calls, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// link is one connection to a server.
type link struct {
	nc     net.Conn
	unhook func() bool
	more   chan struct{} // buffered: there is something to write

	mu     sync.Mutex
	out    []byte
	sent   []*call // unanswered, in order
	xid    int32
	heard  time.Time // when anything came last, or began to be waited for
	broken bool
}

// post queues calls to be written, and reports whether the link stood.
func (l *link) post(calls ...*call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return false
	}
	for _, c := range calls {
		c.sent = true
		if c.xid == 0 {
			l.xid = l.xid%(1<<30) + 1
			c.xid = l.xid
		}
		l.out = binary.BigEndian.AppendUint32(l.out, uint32(8+len(c.body)))
		l.out = binary.BigEndian.AppendUint32(l.out, uint32(c.xid))
		l.out = binary.BigEndian.AppendUint32(l.out, uint32(c.op))
		l.out = append(l.out, c.body...)
		if len(l.sent) == 0 {
			l.heard = time.Now() // from here on an answer is owed
		}
		l.sent = append(l.sent, c)
	}
	select {
	case l.more <- struct{}{}:
	default:
	}
	return true
}

// write writes what is queued, and pings if that is wanted, until the link breaks.
func (l *link) write(c *conn) {
	var tick <-chan time.Time
	if c.pinging {
		c.mu.Lock()
		every := c.granted / 3
		c.mu.Unlock()
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-l.more:
		case <-tick:
			l.mu.Lock()
			l.out = binary.BigEndian.AppendUint32(l.out, 8)
			l.out = binary.BigEndian.AppendUint32(l.out, ^uint32(0)-1) // xidPing
			l.out = binary.BigEndian.AppendUint32(l.out, opPing)
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
			l.fail()
			return
		}
	}
}

func (l *link) mark() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = time.Now()
}

// silent is how long the server has said nothing while a request waited for its answer.
func (l *link) silent() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) == 0 {
		return 0
	}
	return time.Since(l.heard)
}

// answered takes the request that an answer is for.
func (l *link) answered(xid int32) *call {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) == 0 || l.sent[0].xid != xid {
		return nil
	}
	c := l.sent[0]
	l.sent[0] = nil
	l.sent = l.sent[1:]
	return c
}

// fail ends a link: nothing is sent on it any more.
func (l *link) fail() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return
	}
	l.broken = true
	l.unhook()
	l.nc.Close()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// drop tells those who wait for answers that there will be none.
func (l *link) drop() {
	l.mu.Lock()
	sent := l.sent
	l.sent = nil
	l.mu.Unlock()
	for _, c := range sent {
		c.err = errBroken
		if c.done != nil {
			c.done()
		}
	}
}

// maxFrame is the largest answer that is believed in: more than any server is set to send.
const maxFrame = 64 << 20

func readFrame(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head)
	if n > maxFrame {
		return nil, errShort
	}
	frame := make([]byte, n)
	_, err := io.ReadFull(r, frame)
	return frame, err
}
