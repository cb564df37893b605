package postgres

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// listener receives notifications of changes on a connection of its own, which is open while a caller
// waits and for a while after.
//
// Notifications make commits wait for each other on the server, because it delivers them in the order of
// the commits (PostgreSQL manual, "NOTIFY"), and wake those that listen. So each of them has a channel for those
// whom it concerns, and writers send none when there is nobody:
//
//   - A client that watches a name looks at each change of it. Names are hashed into buckets, each with a channel
//     and an advisory lock (manual, "Advisory Locks"), which such a client holds as a shared one. A writer tries to
//     take that lock exclusively, and notifies if it cannot. This does not miss a change: a writer that had the
//     bucket to itself has committed before the client got the shared lock, and the read that the client does next
//     sees the new row.
//   - A client that waits for notices has a channel that is called as its session is. Writers get the sessions from
//     the record.
//   - The table has a channel on which all listen. A client behind a pooler notifies there, because it does not
//     know whom its changes concern, and so did the versions before. They look at another lock of the bucket, which
//     all hold that wait for anything.
//
// The server forgets a session's LISTEN and its advisory locks when the connection ends, and what was
// notified meanwhile is lost. So when the connection breaks, all waiters read again. A connection can also
// die in silence; it is tested now and then, and the engine polls besides.
//
// A notification is a text, a slash, and the name. The text is the row that was written, if that is short enough, so that
// the one that waits need not read it. On the table's channel it is the sessions of the clients that the change concerns,
// or that it concerns all.
type listener struct {
	batcher  *batcher
	location *location
	session  string
	life     *driverutil.Lifetime

	mu           sync.Mutex
	interests    map[wanted]*bucketInterest
	interrupt    context.CancelFunc // ends the wait for notifications; nil while nothing waits for them
	isRunning    bool               // the goroutine runs
	connIdleTime time.Duration      // how long the connection is kept after the last bucket is given up
}

// wanted is what a client may wait for: changes in a bucket, or notices in it that name this client.
type wanted struct {
	bucket  int32
	notices bool
}

// bucketInterest is what this client knows of a bucket from which it wants something.
type bucketInterest struct {
	waiters   int
	idleSince time.Time                // when the last waiter left
	locked    chan struct{}            // closed when the advisory locks of the bucket are held, and it listens
	names     map[string]*nameInterest // those that have waiters, or had some not long ago
}

func (b *bucketInterest) isLocked() bool {
	select {
	case <-b.locked:
		return true
	default:
		return false
	}
}

// nameInterest is what this client wants to know of a name, and what it has learned.
type nameInterest struct {
	subscriptions map[*subscription]bool
	changes       int          // how many notifications have come, and how often some may have been missed
	known         knownVersion // a waiter that knows this version needs no read if nothing has changed since
	row           record.Row   // with that version, if a notification has brought it
}

// knownVersion is what the last notification has brought, or what the last request has found or written that was sent
// while changes were notified.
type knownVersion struct {
	valid   bool
	version string
	changes int // when it was sent
}

// subscription is one waiter.
type subscription struct {
	notified chan struct{} // closed when the lock has changed, or may have
	once     sync.Once
}

// notify wakes the waiter. It may be called more than once.
func (s *subscription) notify() { s.once.Do(func() { close(s.notified) }) }

const (
	bucketIdleTime      = 5 * time.Second  // how long a bucket's lock is kept after its last waiter has left
	maxIdleNames        = 64               // of how many names of a bucket it is kept what is known
	defaultConnIdleTime = time.Minute      // how long the connection is kept after the last bucket is given up
	probeInterval       = 10 * time.Second // how often a connection without notifications is tested
)

func newListener(l *batcher, p *location) *listener {
	n := &listener{batcher: l, location: p, session: p.channel + "_" + record.NewSession(),
		interests:    map[wanted]*bucketInterest{},
		connIdleTime: defaultConnIdleTime, life: driverutil.NewLifetime()}
	return n
}

// Watcher listens, unless the client is behind a pooler.
func (t *table) Watcher() record.Watcher {
	if t.behindPooler {
		return nil
	}
	return t
}

// Session is the channel of this client.
func (t *table) Session() string { return t.listener.session }

// Watch implements record.Watcher.
func (t *table) Watch(name string) record.Watch { return &rowNotices{table: t, name: name} }

// rowNotices is a record.Watch. What it has subscribed to is kept for a while after each Wait: see unsubscribe.
type rowNotices struct {
	record.PlainWatch
	table *table
	name  string
}

// Wait subscribes first, so that a change between that and the read is not missed: the manual's advice for LISTEN. If
// this client has neither read nor written the version while changes were notified, it returns at once, so that it is
// read.
func (r *rowNotices) Wait(ctx context.Context, version string, place record.Place) (record.Row, error) {
	n, w := r.table.listener, wanted{bucketOf(r.name), place == record.InQueue}
	s, live := n.subscribe(w, r.name)
	if s == nil {
		return record.Row{}, driver.ErrClosed
	}
	defer n.unsubscribe(w, r.name, s)
	err := n.await(ctx, live, s.notified)
	if err == nil && n.isCurrent(w, r.name, version) {
		err = n.await(ctx, s.notified, nil)
	}
	if err != nil {
		return record.Row{}, err
	}
	return n.noticedRow(w, r.name), nil
}

// await returns nil when one of two channels is closed.
func (ln *listener) await(ctx context.Context, one, other <-chan struct{}) error {
	select {
	case <-one:
	case <-other:
	case <-ctx.Done():
		return ctx.Err()
	case <-ln.life.Done():
		return driver.ErrClosed
	}
	return nil
}

// noteRequest is called before a read or a write, and returns a function that is called with the version of the row
// after it.
func (ln *listener) noteRequest(name string) (found func(version string)) {
	type at struct {
		of      *nameInterest
		changes int
	}
	var sent []at
	ln.mu.Lock()
	defer ln.mu.Unlock()
	for _, notices := range []bool{false, true} {
		b := ln.interests[wanted{bucketOf(name), notices}]
		if b != nil && b.names[name] != nil && b.isLocked() {
			sent = append(sent, at{b.names[name], b.names[name].changes})
		}
	}
	if sent == nil {
		return func(string) {}
	}
	return func(version string) {
		ln.mu.Lock()
		defer ln.mu.Unlock()
		for _, s := range sent {
			if s.changes == s.of.changes { // else a notification has come since, which may be news
				s.of.known = knownVersion{true, version, s.changes}
			}
		}
	}
}

// isCurrent reports whether a version was read or written while changes were notified, and none has been since.
func (ln *listener) isCurrent(what wanted, name, version string) bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	of := ln.interests[what].names[name]
	return of.known == knownVersion{true, version, of.changes}
}

// noticedRow returns the row that the last notification has brought, unless there may be a later one.
func (ln *listener) noticedRow(what wanted, name string) record.Row {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	of := ln.interests[what].names[name]
	if of.known != (knownVersion{true, of.row.Version, of.changes}) {
		return record.Row{}
	}
	return of.row
}

// subscribe registers a waiter. The channel is closed when the advisory locks of the name's bucket are held:
// a read after that sees every change of which the waiter is not notified. It returns nil if the listener
// is closed.
func (ln *listener) subscribe(what wanted, name string) (*subscription, <-chan struct{}) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.life.Err() != nil {
		return nil, nil
	}
	s := &subscription{notified: make(chan struct{})}
	w := ln.interests[what]
	if w == nil {
		w = &bucketInterest{locked: make(chan struct{}), names: map[string]*nameInterest{}}
		ln.interests[what] = w
		if ln.interrupt != nil {
			ln.interrupt()
		}
	}
	if w.names[name] == nil {
		w.names[name] = &nameInterest{subscriptions: map[*subscription]bool{}}
	}
	w.names[name].subscriptions[s] = true
	w.waiters++
	if !ln.isRunning {
		ln.isRunning = true
		ln.life.Go(ln.run)
	}
	return s, w.locked
}

// unsubscribe removes a waiter. The bucket's locks are kept for a while, because the next waiter for the same
// name often follows soon, and then needs no statement for it. Meanwhile writers notify although no client
// waits.
func (ln *listener) unsubscribe(what wanted, name string, s *subscription) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	w := ln.interests[what]
	delete(w.names[name].subscriptions, s)
	w.waiters--
	w.idleSince = time.Now()
	if len(w.names) > maxIdleNames {
		maps.DeleteFunc(w.names, func(_ string, of *nameInterest) bool { return len(of.subscriptions) == 0 })
	}
}

// close ends the goroutine and waits for it.
func (ln *listener) close() {
	ln.life.End()
	ln.life.Wait()
}

// run keeps a connection open while there are waiters, and makes a new one when it breaks. It is not one of
// the pool's: LISTEN and the advisory locks belong to one connection, and it is in use all the time.
func (ln *listener) run() {
	for tries := 0; ; tries++ {
		heard := ln.serveConnection()
		ln.mu.Lock()
		for b, w := range ln.interests {
			for _, of := range w.names {
				of.changed(record.Row{}) // a notification may have been missed meanwhile
			}
			if w.waiters == 0 {
				delete(ln.interests, b)
			} else { // the advisory locks ended with the connection, and the next one must take them again
				w.locked = make(chan struct{})
			}
		}
		if ln.life.Err() != nil || len(ln.interests) == 0 {
			ln.isRunning = false
			ln.mu.Unlock()
			return
		}
		ln.mu.Unlock()
		if heard {
			tries = 0
		}
		select {
		case <-time.After(rand.N(50 * time.Millisecond << min(tries, 6))):
		case <-ln.life.Done():
		}
	}
}

// serveConnection connects, and passes notifications on until an error occurs or there was no waiter for
// connIdleTime. It reports whether it listened at all; run pauses between attempts that did not.
func (ln *listener) serveConnection() (heard bool) {
	config := ln.batcher.pool.Config()
	config.ConnConfig.OnNotification = nil // the user's handler must not get our notifications
	// Each of several servers gets its time: an earlier one may not answer.
	ctx, cancel := context.WithTimeout(ln.life, ln.batcher.timeout*time.Duration(1+len(config.ConnConfig.Fallbacks)))
	if c := config.ConnConfig; c.ConnectTimeout == 0 || c.ConnectTimeout > ln.batcher.timeout {
		c.ConnectTimeout = ln.batcher.timeout
	}
	var c *pgx.Conn
	var err error
	if config.BeforeConnect != nil {
		err = config.BeforeConnect(ctx, config.ConnConfig)
	}
	if err == nil {
		c, err = pgx.ConnectConfig(ctx, config.ConnConfig)
	}
	if err == nil {
		_, err = c.Exec(ctx, fmt.Sprintf("listen %q; listen %q", ln.location.channel, ln.session))
	}
	cancel()
	if c != nil {
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), ln.batcher.timeout/10)
			defer cancel()
			_ = c.Close(ctx)
		}()
	}
	if err != nil {
		return false
	}
	wanted := time.Now() // when a bucket was last needed
	for last := time.Now(); ln.updateBucketLocks(c) == nil; {
		heard = true
		if ln.isUnused() {
			if time.Since(wanted) > ln.connIdleTime {
				break
			}
		} else {
			wanted = time.Now()
		}
		notified, err := ln.awaitNotification(c)
		if err != nil {
			break
		}
		if notified {
			last = time.Now()
		} else if time.Since(last) > probeInterval {
			if ln.execStatements(c, "select 1") != nil {
				break
			}
			last = time.Now()
		}
	}
	return heard
}

// isUnused reports whether no bucket is needed, nor was during the last bucketIdleTime.
func (ln *listener) isUnused() bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return len(ln.interests) == 0
}

// execStatements runs statements on the listening connection, in one request and one transaction.
func (ln *listener) execStatements(c *pgx.Conn, text string) error {
	ctx, cancel := context.WithTimeout(ln.life, ln.batcher.timeout)
	defer cancel()
	_, err := c.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
	return err
}

// updateBucketLocks takes the advisory locks of buckets that have new waiters, and gives back those of
// buckets that had no waiter for bucketIdleTime. With them it begins to listen, and ends that.
func (ln *listener) updateBucketLocks(c *pgx.Conn) error {
	var text strings.Builder
	var live []chan struct{}
	ln.mu.Lock()
	for what, w := range ln.interests {
		switch {
		case !w.isLocked():
			ln.location.writeStatements(&text, what, "listen", "pg_advisory_lock_shared")
			live = append(live, w.locked)
		case w.waiters == 0 && time.Since(w.idleSince) > bucketIdleTime:
			ln.location.writeStatements(&text, what, "unlisten", "pg_advisory_unlock_shared")
			delete(ln.interests, what)
		}
	}
	ln.mu.Unlock()
	if text.Len() == 0 {
		return nil
	}
	if err := ln.execStatements(c, text.String()); err != nil {
		return err
	}
	for _, l := range live {
		close(l)
	}
	return nil
}

// writeStatements writes what takes the advisory locks of a bucket, or gives them back, and how the client listens.
func (p *location) writeStatements(to *strings.Builder, what wanted, listen, lock string) {
	fmt.Fprintf(to, "select %s(%d, %d);", lock, p.lockClass, what.bucket)
	if !what.notices {
		fmt.Fprintf(to, "select %s(%d, %d); %s %q;", lock, p.watchClass, what.bucket, listen, p.bucketChannel(what.bucket))
	}
}

// awaitNotification waits for one notification and passes it on. It reports false if there was none: a
// bucket has a first waiter, or bucketIdleTime has passed.
func (ln *listener) awaitNotification(c *pgx.Conn) (notified bool, err error) {
	ctx, cancel := context.WithTimeout(ln.life, bucketIdleTime)
	defer cancel()
	// A subscriber that comes from here on ends this wait by interrupt. One that came before, after the last
	// look at the buckets, is found by the loop.
	ln.mu.Lock()
	ln.interrupt = cancel
	for _, w := range ln.interests {
		if !w.isLocked() {
			cancel()
		}
	}
	ln.mu.Unlock()
	m, err := c.WaitForNotification(ctx)
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.interrupt = nil
	if m != nil {
		ln.passOn(m.Channel, m.Payload)
		return true, nil
	}
	// A wait that its context has ended leaves the connection as it was.
	if c.IsClosed() || ln.life.Err() != nil {
		return false, err
	}
	return false, nil
}

// passOn passes a notification on. It is called with mu held.
func (ln *listener) passOn(channel, payload string) {
	text, name, _ := strings.Cut(payload, "/")
	if channel != ln.session {
		ln.wake(wanted{bucket: bucketOf(name)}, name, text)
	}
	if channel == ln.session || channel == ln.location.channel && record.NamesSession(text, ln.session) {
		ln.wake(wanted{bucketOf(name), true}, name, text)
	}
}

// parseNoticedRow reads a row as rowText writes it. It returns none if the text is anything else.
func parseNoticedRow(text, name string) (none record.Row) {
	written, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(text, "_", "/"))
	if err != nil || len(written) < idSize {
		return none
	}
	id, data := written[:idSize], written[idSize:]
	return record.Row{Name: name, Version: rowVersion(id, data), Data: data}
}

// wake counts a change of what is wanted, and notifies those that wait for it. A bucket has notifications for many
// names, of which few are wanted, so a row is read only here. It is called with mu held.
func (ln *listener) wake(what wanted, name, text string) {
	if w := ln.interests[what]; w != nil && w.names[name] != nil {
		w.names[name].changed(parseNoticedRow(text, name))
	}
}

// changed counts a change, which may be this client's own, and notifies the waiters. It is called with the listener's mu
// held.
func (of *nameInterest) changed(row record.Row) {
	of.changes++
	of.row, of.known = row, knownVersion{row.Version != "", row.Version, of.changes}
	for s := range of.subscriptions {
		s.notify()
	}
}
