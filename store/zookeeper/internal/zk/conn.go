package zk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// ErrSessionExpired is returned when the session has ended. The servers have deleted its ephemeral nodes, or will
// do so.
var ErrSessionExpired = errors.New("the session has expired")

// ErrLinkBroken is returned for a request whose link broke before its answer came. Its outcome is not known.
var ErrLinkBroken = errors.New("the connection to the server broke")

// Conn is one session, over one link to one server at a time.
//
// A request is sent at most once, on the link that exists: if the link breaks first, its outcome is not known. The
// servers take the requests of one session in the order in which they were sent, across links too: the leader
// refuses a server from which the session has moved away. So an answer proves that all that was sent before has
// taken effect or never will. This rests on ZooKeeper's promise of sequential consistency for one client
// (Programmer's Guide, "Consistency Guarantees"), and is what makes the outcome of every lost request knowable.
//
// A Conn does not keep its session alive, unless it was made with autoPing: the owner of the session sends
// something often enough.
type Conn struct {
	ensemble *Ensemble
	asked    time.Duration
	autoPing bool
	batcher  *driverutil.Batcher[*Write]

	life context.Context // ends with the session, and with the ensemble
	stop context.CancelFunc

	mu          sync.Mutex
	id          int64
	secret      []byte
	granted     time.Duration
	lastSeen    int64         // the last transaction seen
	link        *link         // nil while there is none
	linkChanged chan struct{} // closed at the next change of link or endedBy
	endedBy     error         // why there is no session any more
	watchPoints watchPoints
	rewatchFrom int64 // the transaction up to which the watches had missed nothing when they were set again last
	rewatching  int   // how many of the requests for that have no answer
}

// NewConn makes a connection whose session is to have a TTL. [Conn.Run] opens it.
//
// Without autoPing, the owner keeps the session alive, relies on its TTL, and never gets less than it asked for: a
// server that grants less is passed by, and the session ends if all do. With autoPing, the connection pings the
// server itself, and takes what it gets. Servers grant between minSessionTimeout and maxSessionTimeout of their own
// configuration, by default 2 and 20 ticks (Administrator's Guide), which need not be the same on all of them.
func (e *Ensemble) NewConn(ttl time.Duration, autoPing bool) *Conn {
	c := &Conn{
		ensemble: e, asked: ttl, autoPing: autoPing,
		linkChanged: make(chan struct{}), watchPoints: newWatchPoints(),
	}
	c.life, c.stop = context.WithCancel(e.life)
	c.batcher = c.newBatcher()
	return c
}

// AskedTTL returns the TTL that NewConn was given.
func (c *Conn) AskedTTL() time.Duration { return c.asked }

// GrantedTTL returns the session's TTL as the servers have granted it, 0 before there is a session.
func (c *Conn) GrantedTTL() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.granted
}

// ID returns the session's id, 0 before there is a session.
func (c *Conn) ID() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// HasLink reports whether the session exists and has a link.
func (c *Conn) HasLink() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endedBy == nil && c.link != nil
}

// Ended is closed when the session has ended.
func (c *Conn) Ended() <-chan struct{} { return c.life.Done() }

// Stop makes Run return. It leaves the session to expire.
func (c *Conn) Stop() { c.stop() }

// Close ends the session at the servers, and makes Run return. If the servers do not answer, the session expires there.
// On this side it has ended in either case, since nothing keeps it alive any more.
func (c *Conn) Close(ctx context.Context) error {
	err := c.closeAtServers(ctx)
	c.end(ErrSessionExpired)
	return err
}

// closeAtServers asks until a server has answered, or the session must have expired by itself. A server that leaves the
// request without an answer may have lost it, so another one is asked then.
func (c *Conn) closeAtServers(ctx context.Context) error {
	for began, tries := time.Now(), 0; ; tries++ {
		attempt, cancel := context.WithTimeout(ctx, 2*c.maxSilence())
		closing := &Call{op: OpCloseSession}
		err := c.Do(attempt, closing)
		cancel()
		if err == nil {
			err = closing.Err // a server that has too much to do refuses it
		}
		switch {
		case errors.Is(err, ErrSessionExpired) && tries > 0: // an earlier request has ended it
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != ErrLinkBroken && !errors.Is(err, context.DeadlineExceeded), time.Since(began) > c.GrantedTTL():
			return err
		}
	}
}

// Run opens the session and keeps it linked to a server. It returns when the session has ended, or with the ensemble.
func (c *Conn) Run() {
	r := reconnector{c: c, servers: c.ensemble.lookUpServers(c.life)}
	r.next = rand.N(len(r.servers)) // so that clients spread over the servers
	for c.life.Err() == nil {
		l, err := c.connect(r.servers[r.next], r.round)
		if err = r.noteConnect(err); err == nil {
			err = r.serve(l)
		}
		if err, final := r.judge(err); final {
			c.end(err)
			return
		}
		r.pause()
		r.moveOn()
	}
	c.end(driver.ErrClosed)
}

// reconnector chooses the servers that a Conn tries, and decides when to give up.
type reconnector struct {
	c            *Conn
	servers      []server
	next         int       // the server to try
	tried, round int       // servers tried in this round, and rounds, since a link lasted
	hungUpSince  time.Time // since when servers hang up and none takes the session; zero: they do not
	refusals     int       // servers in a row that have refused us, grant too little, or cannot be trusted
}

// noteConnect takes in the outcome of a try to connect. A server that cannot be reached says nothing about the session;
// one that accepts the connection and then hangs up may have forgotten it: see isForgotten.
func (r *reconnector) noteConnect(err error) error {
	switch {
	case err == nil:
		r.hungUpSince = time.Time{}
	case errors.Is(err, errHungUp) && r.hungUpSince.IsZero():
		r.hungUpSince = time.Now()
	case errors.Is(err, errHungUp) && r.c.isForgotten(r.hungUpSince):
		return ErrSessionExpired
	}
	return err
}

// serve uses a link until it breaks. One that broke at once counts as a failed try.
func (r *reconnector) serve(l *link) error {
	began := time.Now()
	err := r.c.serveLink(l)
	// Otherwise a server that accepts sessions and drops them at once would be tried again and again without a pause.
	if time.Since(began) > time.Second {
		r.tried, r.round = 0, 0
	}
	return err
}

// judge reports whether an error ends the session, and with which error. A refusal by one server alone does not: its
// configuration, its certificate or its list of users may be the only wrong one.
func (r *reconnector) judge(err error) (_ error, final bool) {
	var short *shortTTLError
	if r.refusals++; !errors.Is(err, driver.ErrDenied) && !errors.As(err, &short) {
		r.refusals = 0
	}
	if short != nil && r.c.ID() != 0 && r.refusals >= len(r.servers) {
		err = ErrSessionExpired // no server keeps it for its TTL, so it cannot be renewed: its owner learns that now
	}
	return err, errors.Is(err, ErrSessionExpired) || r.refusals >= len(r.servers)
}

// pause waits a little once all servers were tried.
func (r *reconnector) pause() {
	if r.round == 0 {
		return
	}
	timer := time.NewTimer(rand.N(20 * time.Millisecond << min(r.round, 4)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.c.life.Done():
	}
}

// moveOn chooses the next server. After each round the names are looked up again, so that servers which were replaced
// by others under the same names are found.
func (r *reconnector) moveOn() {
	if r.tried++; r.tried >= len(r.servers) {
		r.tried, r.round = 0, r.round+1
		r.servers = r.c.ensemble.lookUpServers(r.c.life)
	}
	r.next = (r.next + 1) % len(r.servers)
}

// isForgotten reports whether servers have hung up on the session for so long that it counts as expired. Servers
// without a leader hang up for a moment. They hang up for good, without saying that the session has ended, on a
// session that has seen more transactions than they know: they were restored from a backup, or have lost their
// data. After the session's TTL its owner relies on nothing that was done under it, and the servers end whatever
// is left of it.
func (c *Conn) isForgotten(since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id != 0 && time.Since(since) > c.granted
}

// serveLink logs in, sets the watches again, and reads from a link until it breaks. Credentials belong to a link and
// not to the session, so each link begins with them. Their answers are not waited for, because the server handles the
// requests of a link in order: what follows is done under these credentials, or the server closes the link.
func (c *Conn) serveLink(l *link) error {
	var denied error
	for _, a := range c.ensemble.config.Auth {
		login := newLogin(a)
		login.done = func() {
			if login.Err == CodeAuthFailed {
				denied = fmt.Errorf("%w: the ZooKeeper server rejects the %s credentials", driver.ErrDenied,
					a.Scheme)
			}
		}
		l.post(login)
	}
	var pingInterval time.Duration
	if c.autoPing {
		pingInterval = c.GrantedTTL() / 3
	}
	// The link is not visible to callers before the watches are posted: a change that follows a caller's read is then
	// always reported.
	var writing sync.WaitGroup
	writing.Go(func() { l.runWriter(pingInterval) })
	c.mu.Lock()
	if again := c.rewatchLocked(); len(again) > 0 {
		l.post(again...)
	}
	c.setLinkLocked(l)
	c.mu.Unlock()

	err := c.readAnswers(l)
	l.breakOff()
	writing.Wait()
	c.mu.Lock()
	c.setLinkLocked(nil)
	c.clearRequestedLocked()
	c.mu.Unlock()
	l.failPending() // only now: a caller that learns of a broken request finds the link gone
	if denied != nil {
		return denied
	}
	return err
}

func newLogin(a Auth) *Call {
	login := &Call{op: OpAuth, xid: xidAuth}
	login.body.putInt(0)
	login.body.putString(a.Scheme)
	login.body.putString(a.Credential)
	return login
}

// readAnswers hands out what comes from the server until the link breaks.
func (c *Conn) readAnswers(l *link) error {
	in := bufio.NewReaderSize(l.nc, 16<<10)
	for {
		frame, err := readFrame(in)
		if err != nil {
			return err
		}
		d := decoder{b: frame}
		xid, zxid, code := d.readInt(), d.readLong(), Code(d.readInt())
		if d.err != nil {
			return d.err
		}
		l.noteHeard() // also by an event or a ping: the server lives
		switch xid {
		case xidPing:
			continue
		case XidEvent:
			kind := d.readInt()
			d.readInt() // the state of the session
			c.handleEvent(int(kind), d.readString())
			continue
		}
		// The protocol answers in order. An answer to anything else cannot be assigned to a caller: the link is
		// given up, and the outcome of all that waits on it is not known.
		call := l.takeAnswered(xid)
		if call == nil {
			return fmt.Errorf("the server answers request %d out of order", xid)
		}
		c.noteSeen(zxid)
		call.Zxid, call.reply = zxid, d
		if code == CodeOK && call.hasRefusedStep(CodeSessionExpired) {
			code = CodeSessionExpired
		}
		if code != CodeOK {
			call.Err = code
		}
		// Before the link is given up below: this answer counts, whatever it says.
		if call.done != nil {
			call.done()
		}
		switch code {
		case CodeSessionExpired:
			return ErrSessionExpired
		case CodeSessionMoved, CodeAuthFailed: // this server will carry out nothing of what was sent to it
			return code
		}
		// The watches in it were not set. The next link sets them again, from the same transaction on.
		if call.op == OpSetWatches && code != CodeOK {
			return code
		}
	}
}

func (c *Conn) noteSeen(zxid int64) {
	if zxid <= 0 {
		return
	}
	c.mu.Lock()
	c.lastSeen = max(c.lastSeen, zxid)
	c.mu.Unlock()
	c.ensemble.noteSeen(zxid)
}

// setLinkLocked replaces the link, and wakes the calls that wait for one. Calls that wait for an answer on the last
// link are not moved to this one: they fail, and their callers decide whether to repeat them.
func (c *Conn) setLinkLocked(l *link) {
	c.link = l
	c.notifyLinkLocked()
}

func (c *Conn) notifyLinkLocked() {
	close(c.linkChanged)
	c.linkChanged = make(chan struct{})
}

// end ends the session on our side, and notifies its watchers. Only the first call has an effect. The owner is notified
// before the watchers, so that a watcher that looks for another session is not given this one.
func (c *Conn) end(why error) {
	c.mu.Lock()
	if c.endedBy != nil {
		c.mu.Unlock()
		return
	}
	c.endedBy = why
	c.notifyLinkLocked()
	watchers := c.takeWatchersLocked()
	c.mu.Unlock()
	c.stop()
	if c.ensemble.config.SessionEnded != nil {
		c.ensemble.config.SessionEnded(c)
	}
	for w := range watchers {
		w.Owner.Lost()
	}
}

// WaitForLink waits until the session exists and has a link. Its error is why the session has ended, or the end of
// ctx, with the reason why the last server could not be used.
func (c *Conn) WaitForLink(ctx context.Context) error {
	_, err := c.waitForLink(ctx)
	return err
}

// waitForLink waits until there is a connection to a server, or the session has ended.
func (c *Conn) waitForLink(ctx context.Context) (*link, error) {
	for {
		c.mu.Lock()
		l, endedBy, changed := c.link, c.endedBy, c.linkChanged
		c.mu.Unlock()
		switch {
		case endedBy != nil:
			return nil, endedBy
		case l != nil:
			return l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, c.ensemble.notSentError(ctx)
		}
	}
}

// BreakLink breaks the link as a fault of the network would, and returns when the session has another one or has
// ended. It is for tests.
func (c *Conn) BreakLink(ctx context.Context) error {
	l, err := c.waitForLink(ctx)
	if err != nil {
		return err
	}
	l.breakOff()
	for now := l; now == l && err == nil; time.Sleep(time.Millisecond) {
		now, err = c.waitForLink(ctx)
	}
	return err
}

// Do sends calls without others between them, and waits for the answers. Its error says that not all of them have
// an answer; a refusal by the server is in the Err of its call. Calls for which ctx ended before they were sent
// are never sent.
func (c *Conn) Do(ctx context.Context, calls ...*Call) error {
	l, err := c.waitForLink(ctx)
	if err != nil {
		return err
	}
	answered := make(chan struct{})
	last := calls[len(calls)-1]
	// The answers come in order, so with the last one there are all. If the link breaks, all of them fail, the last one
	// last.
	then := last.done
	last.done = func() {
		if then != nil {
			then()
		}
		close(answered)
	}
	// Nothing was sent if the link is broken already, but the caller need not tell this from a lost answer.
	if !l.post(calls...) {
		return ErrLinkBroken
	}
	select {
	case <-answered:
	case <-ctx.Done():
		// A server that has failed without closing the connection is noticed here, by the callers that give up:
		// there is no ping whose answer anybody waits for.
		if l.silentFor() > c.maxSilence() {
			l.breakOff()
		}
		return ctx.Err()
	}
	return missingAnswer(calls)
}

// maxSilence is how long a server may leave a request without an answer, while nothing else comes from it, before
// another server is asked.
func (c *Conn) maxSilence() time.Duration {
	// A sixth of the TTL leaves time to reach another server and renew there. The limits are for very short and
	// very long TTLs: a busy server may take a few hundred milliseconds, and nobody wants to wait for a dead one
	// much longer.
	return max(450*time.Millisecond, min(c.GrantedTTL()/6, 1500*time.Millisecond))
}

// missingAnswer returns why not all calls have an answer, nil if they have.
func missingAnswer(calls []*Call) error {
	for _, call := range calls {
		switch call.Err {
		case CodeSessionExpired:
			return ErrSessionExpired
		case CodeSessionMoved, ErrLinkBroken: // moved: another server has taken up the session, over a later link
			return ErrLinkBroken
		}
	}
	return nil
}

// Retry is Do for requests that may be carried out twice. If the link breaks, it sends new ones, made by
// makeCalls, over the next.
func (c *Conn) Retry(ctx context.Context, makeCalls func() []*Call) ([]*Call, error) {
	for {
		calls := makeCalls()
		err := c.Do(ctx, calls...)
		if err != ErrLinkBroken {
			return calls, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}
