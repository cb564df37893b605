// Package memtree is a sequence.NodeStore in memory, on which the sequence engine is tested without a server. Its links
// can be cut, and can lose, delay and repeat requests.
package memtree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// Server is the store. It uses the clock of package time, so it can run in a synctest bubble.
type Server struct {
	mu            sync.Mutex
	revision      int64
	sessions      map[string]*session
	locks         map[string][]*sequence.Node
	withdrawnAdds map[string]bool      // by key: adds that must not take effect any more
	breakNotes    map[string]breakNote // by claim ID
	watches       map[*watch]struct{}
	requests      map[string]int
}

type session struct {
	link  *Link
	ttl   time.Duration
	timer *time.Timer
}

// watch is a sequence.Subscription. It stays live when a notification is lost, as on a connection that has broken
// without notice: ConfirmWatches finds that out.
type watch struct {
	name, key string
	changed   func()
	link      *Link
	missed    bool // a notification was lost
}

// New makes an empty server.
func New() *Server {
	return &Server{
		sessions: map[string]*session{}, locks: map[string][]*sequence.Node{},
		withdrawnAdds: map[string]bool{}, breakNotes: map[string]breakNote{},
		watches: map[*watch]struct{}{}, requests: map[string]int{},
	}
}

// LowerSessionTTLs has the server keep each existing session for no longer than ttl, from its next keep-alive on.
func (s *Server) LowerSessionTTLs(ttl time.Duration) { s.lowerSessionTTLs(ttl, nil) }

// LowerSessionTTLs does so with the sessions that were opened over this link.
func (l *Link) LowerSessionTTLs(ttl time.Duration) { l.Server.lowerSessionTTLs(ttl, l) }

func (s *Server) lowerSessionTTLs(ttl time.Duration, of *Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		if of == nil || session.link == of {
			session.ttl = min(session.ttl, ttl)
		}
	}
}

// Nodes returns the nodes of a lock.
func (s *Server) Nodes(name string) []sequence.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readLock(name).Nodes
}

// LockNames returns the names of the locks that have nodes.
func (s *Server) LockNames() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.locks {
		names = append(names, name)
	}
	return names
}

// TakeRequestCounts returns how many requests of each kind came since the last call.
func (s *Server) TakeRequestCounts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.requests
	s.requests = map[string]int{}
	return r
}

// ExpireSession ends a session as if its client had stopped; with an empty id, all sessions.
func (s *Server) ExpireSession(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.sessions {
		if id == "" || k == id {
			s.expireSession(k)
		}
	}
}

func (s *Server) expireSession(id string) {
	session := s.sessions[id]
	if session == nil {
		return
	}
	session.timer.Stop()
	delete(s.sessions, id)
	for name, nodes := range s.locks {
		for _, n := range slices.Clone(nodes) {
			if n.Session == id {
				s.removeNode(name, n)
			}
		}
	}
}

func (s *Server) removeNode(name string, n *sequence.Node) {
	s.revision++
	s.locks[name] = slices.DeleteFunc(s.locks[name], func(o *sequence.Node) bool { return o == n })
	if len(s.locks[name]) == 0 {
		delete(s.locks, name)
	}
	s.notifyWatches(name, n.Key, true)
}

func (s *Server) notifyWatches(name, key string, gone bool) {
	for w := range s.watches {
		if w.name == name && (w.key == key || w.key == sequence.WatchChanges || w.key == sequence.WatchRemovals &&
			gone) {
			w.notify()
		}
	}
}

func (w *watch) notify() { w.missed = !w.link.notifyLater(w.changed, true) || w.missed }

func (s *Server) readLock(name string) sequence.Snapshot {
	l := sequence.Snapshot{Name: name, Revision: s.revision, Full: true}
	for _, n := range s.locks[name] {
		l.Nodes = append(l.Nodes, *n)
	}
	return l
}

func (s *Server) findNode(name, key string) *sequence.Node {
	for _, n := range s.locks[name] {
		if n.Key == key {
			return n
		}
	}
	return nil
}

// Link is one client's connection to the server: a sequence.NodeStore.
type Link struct {
	sequence.Unsupported

	Server *Server
	Clock  driver.Clock
	// Transport, if set, carries a request: it runs do at the server and returns its result. It may lose, delay and
	// repeat the request, and may give up before it has arrived.
	Transport func(ctx context.Context, what string, do func() any) (any, error)
	// DelayNotification, if set, is called before each notification of a watch, and may take its time. If
	// DropNotification returns true, the notification is lost.
	DelayNotification func()
	DropNotification  func() bool

	mu          sync.Mutex
	closed      bool
	undelivered map[chan struct{}]struct{} // of each notification under way; closed when it was delivered
	deliveries  sync.WaitGroup
}

var errClosed = fmt.Errorf("%w: the link", driver.ErrClosed)

// notifyLater reports whether the notification was not lost.
func (l *Link) notifyLater(f func(), mayLose bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || mayLose && l.DropNotification != nil && l.DropNotification() {
		return false
	}
	delivered := make(chan struct{})
	if l.undelivered == nil {
		l.undelivered = map[chan struct{}]struct{}{}
	}
	l.undelivered[delivered] = struct{}{}
	l.deliveries.Go(func() {
		if l.DelayNotification != nil {
			l.DelayNotification()
		}
		f()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.undelivered, delivered)
		close(delivered)
	})
	return true
}

// request sends one request: f runs at the server, in one atomic step.
func request[T any](ctx context.Context, l *Link, what string, f func(s *Server) T) (result T, err error) {
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return result, errClosed
	}
	if ctx.Err() != nil {
		return result, ctx.Err()
	}
	step := func() any {
		l.Server.mu.Lock()
		defer l.Server.mu.Unlock()
		l.Server.requests[what]++
		return f(l.Server)
	}
	if l.Transport == nil {
		return step().(T), nil
	}
	got, err := l.Transport(ctx, what, step)
	if err != nil {
		return result, err
	}
	return got.(T), nil
}

// Info returns what memory can promise.
func (l *Link) Info() driver.Info {
	clock := l.Clock
	if clock.Monotonic == nil {
		clock = driver.SystemClock
	}
	return driver.Info{Store: "memtree", Clock: clock, Tier: driver.TierFenceSafe}
}

// OpenSession begins a session.
func (l *Link) OpenSession(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	return request(ctx, l, "open", func(s *Server) sequence.Session {
		s.revision++
		id := fmt.Sprintf("%x", s.revision)
		s.sessions[id] = &session{link: l, ttl: ttl, timer: time.AfterFunc(ttl, func() { s.ExpireSession(id) })}
		return sequence.Session{ID: id, TTL: ttl}
	})
}

// requireSession turns the answer of a server that may not know the session into an error.
func requireSession(ok bool, err error) error {
	if err == nil && !ok {
		return sequence.ErrSessionExpired
	}
	return err
}

// KeepAlive restarts the session's timer. If the timer has fired already, the session has expired, although the call
// that removes it may still wait for the lock.
func (l *Link) KeepAlive(ctx context.Context, id string) (promise time.Duration, err error) {
	promise, err = request(ctx, l, "beat", func(s *Server) time.Duration {
		session := s.sessions[id]
		if session == nil || !session.timer.Stop() {
			s.expireSession(id)
			return 0
		}
		session.timer.Reset(session.ttl)
		return session.ttl
	})
	return promise, requireSession(promise > 0, err)
}

// EndSession ends a session.
func (l *Link) EndSession(ctx context.Context, id string) error {
	return requireSession(request(ctx, l, "end", func(s *Server) bool {
		ok := s.sessions[id] != nil
		s.expireSession(id)
		return ok
	}))
}

func nodeKey(s sequence.Session, number int64) string { return fmt.Sprintf("%s.%d", s.ID, number) }

// addResult is the answer to an Add.
type addResult struct {
	snapshot sequence.Snapshot
	err      error
}

// Add adds a node.
func (l *Link) Add(
	ctx context.Context, name string, session sequence.Session, number int64, payload sequence.Payload, condition sequence.AddCondition,
) (sequence.Snapshot, error) {
	got, err := request(ctx, l, "add", func(s *Server) addResult {
		key := nodeKey(session, number)
		switch nodes := s.locks[name]; {
		case s.sessions[session.ID] == nil:
			return addResult{err: sequence.ErrSessionExpired}
		case s.withdrawnAdds[key]:
			return addResult{err: errors.New("withdrawn")}
		case s.findNode(name, key) != nil:
		case condition == sequence.AddIfAlone && len(nodes) > 0:
		case condition > 0 && slices.ContainsFunc(nodes,
			func(n *sequence.Node) bool { return n.Token > int64(condition) }):
		default:
			s.revision++
			s.locks[name] = append(nodes, &sequence.Node{Key: key, Token: s.revision, Version: s.revision,
				Session: session.ID, Payload: payload})
			s.notifyWatches(name, key, false)
		}
		return addResult{snapshot: s.readLock(name)}
	})
	return got.snapshot, cmp.Or(err, got.err)
}

// Traits has all of them.
func (l *Link) Traits() sequence.Traits {
	return sequence.Traits{Moves: true, ComparesNodes: true, ReadsNext: true, LeavesNotes: true, ReportsTokens: true,
		ReusesNumbers: true}
}

// Withdraw removes a node, and refuses a delayed add of it.
func (l *Link) Withdraw(
	ctx context.Context, name string, session sequence.Session, number int64, _ string,
) (bool, error) {
	return request(ctx, l, "withdraw", func(s *Server) bool {
		key := nodeKey(session, number)
		n := s.findNode(name, key)
		if n != nil {
			s.removeNode(name, n)
		}
		s.withdrawnAdds[key] = true
		return n != nil
	})
}

// List lists, always in full.
func (l *Link) List(ctx context.Context, name string, _ bool) (sequence.Snapshot, error) {
	return request(ctx, l, "list", func(s *Server) sequence.Snapshot { return s.readLock(name) })
}

// Read reads single nodes.
func (l *Link) Read(ctx context.Context, at []sequence.NodeRef) ([]sequence.Node, error) {
	return request(ctx, l, "read", func(s *Server) []sequence.Node {
		nodes := make([]sequence.Node, len(at))
		for i, p := range at {
			if n := s.findNode(p.Name, p.Key); n != nil {
				nodes[i] = *n
			}
		}
		return nodes
	})
}

// changeResult is the answer to a Change or a Move.
type changeResult struct {
	now         sequence.Node
	ok          bool
	sessionGone bool // the session that a node was to be bound to
}

// Change replaces a node's payload.
func (l *Link) Change(
	ctx context.Context, name string, n sequence.Node, payload sequence.Payload, among sequence.Among,
) (sequence.Node, bool, error) {
	return l.changeNode(ctx, "change", name, n, n.Session, payload, func(s *Server) bool {
		for _, a := range among.Nodes {
			if at := s.findNode(name, a.Key); at == nil || at.Version != a.Version {
				return false
			}
		}
		return len(among.Nodes) == 0 ||
			!slices.ContainsFunc(s.locks[name], func(o *sequence.Node) bool { return o.Token > among.Revision })
	})
}

// Move binds a node to another session, and refuses a delayed add of it.
func (l *Link) Move(
	ctx context.Context, name string, n sequence.Node, to sequence.Session, payload sequence.Payload,
) (sequence.Node, bool, error) {
	return l.changeNode(ctx, "move", name, n, to.ID, payload)
}

func (l *Link) changeNode(
	ctx context.Context, what, name string, n sequence.Node, to string, payload sequence.Payload, when ...func(s *Server) bool,
) (sequence.Node, bool, error) {
	got, err := request(ctx, l, what, func(s *Server) changeResult {
		if len(when) > 0 && !when[0](s) {
			return changeResult{}
		}
		at := s.findNode(name, n.Key)
		if at == nil || at.Version != n.Version {
			return changeResult{}
		}
		if s.sessions[to] == nil {
			return changeResult{sessionGone: true}
		}
		s.revision++
		s.withdrawnAdds[n.Key] = s.withdrawnAdds[n.Key] || at.Session != to
		at.Version, at.Payload, at.Session = s.revision, payload, to
		s.notifyWatches(name, n.Key, false)
		return changeResult{now: *at, ok: true}
	})
	return got.now, got.ok, requireSession(!got.sessionGone, err)
}

// removeResult is the answer to a Remove.
type removeResult struct {
	existed bool
	left    sequence.Snapshot
}

// Remove removes a node.
func (l *Link) Remove(
	ctx context.Context, name string, n sequence.Node, then sequence.Then,
) (bool, sequence.Snapshot, error) {
	got, err := request(ctx, l, "remove", func(s *Server) (r removeResult) {
		at := s.findNode(name, n.Key)
		if at != nil && at.Token == n.Token && (n.Version == 0 || at.Version == n.Version) {
			r.existed = true
			s.removeNode(name, at)
		}
		switch {
		case then.Next != "" && r.existed:
			r.left = sequence.Snapshot{Name: name, Revision: s.revision, Full: true}
			if at := s.findNode(name, then.Next); at != nil {
				r.left.Nodes = []sequence.Node{*at}
			}
		case then.List:
			r.left = s.readLock(name)
		}
		return r
	})
	return got.existed, got.left, err
}

// BreakNode removes a node and leaves a note of that.
func (l *Link) BreakNode(ctx context.Context, name string, n sequence.Node, reason string) (bool, error) {
	return request(ctx, l, "break", func(s *Server) bool {
		at := s.findNode(name, n.Key)
		if at == nil || at.Token != n.Token {
			return false
		}
		s.removeNode(name, at)
		now := time.Now()
		maps.DeleteFunc(s.breakNotes, func(_ string, note breakNote) bool { return now.After(note.until) })
		s.breakNotes[n.ID] = breakNote{until: now.Add(sequence.BreakNoteTime(n.TTL)), reason: reason}
		return true
	})
}

// breakNote is what is kept of a node that was broken.
type breakNote struct {
	until  time.Time
	reason string
}

// ReadBreakNote finds such a note.
func (l *Link) ReadBreakNote(ctx context.Context, _ string, n sequence.Node) (bool, string, error) {
	note, err := request(ctx, l, "broken", func(s *Server) breakNote { return s.breakNotes[n.ID] })
	found := time.Now().Before(note.until)
	if err != nil || !found {
		return false, "", err
	}
	return true, note.reason, nil
}

// ReadLastToken returns the newest revision: a token is the revision in which a node was added.
func (l *Link) ReadLastToken(ctx context.Context) (int64, func(int64) string, error) {
	last, err := request(ctx, l, "list", func(s *Server) int64 { return s.revision })
	return last, adviseRaise, err
}

// adviseRaise says that nothing can be done.
func adviseRaise(int64) string { return "a tree in memory counts its changes" }

// Watch notifies of changes, from goroutines of the link.
func (l *Link) Watch(name, key string, revision int64, changed func()) sequence.Subscription {
	s := l.Server
	w := &watch{name: name, key: key, changed: changed, link: l}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests["watch"]++
	s.watches[w] = struct{}{}
	n := s.findNode(name, key)
	if unchanged := n != nil && n.Version <= revision; !unchanged && revision != s.revision {
		w.notify()
	}
	return w
}

// Stop ends the watch.
func (w *watch) Stop() {
	go func() { // it may be called from changed
		w.link.Server.mu.Lock()
		defer w.link.Server.mu.Unlock()
		delete(w.link.Server.watches, w)
	}()
}

// IsLive returns true.
func (w *watch) IsLive() bool { return true }

// ConfirmWatches makes up for lost notifications, and waits until all have been delivered.
func (l *Link) ConfirmWatches(ctx context.Context, _ string) error {
	undelivered, err := request(ctx, l, "confirm", func(s *Server) []chan struct{} {
		for w := range s.watches {
			if w.link == l && w.missed {
				w.missed = !l.notifyLater(w.changed, false)
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.Collect(maps.Keys(l.undelivered))
	})
	for _, delivered := range undelivered {
		select {
		case <-delivered:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// Walk lists all locks.
func (l *Link) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Snapshot, error] {
	return func(yield func(sequence.Snapshot, error) bool) {
		snapshots, err := request(ctx, l, "walk", func(s *Server) (snapshots []sequence.Snapshot) {
			for name := range s.locks {
				if strings.HasPrefix(name, prefix) {
					snapshots = append(snapshots, s.readLock(name))
				}
			}
			return snapshots
		})
		if err != nil {
			yield(sequence.Snapshot{}, err)
			return
		}
		for _, snapshot := range snapshots {
			if !yield(snapshot, nil) {
				return
			}
		}
	}
}

// Close ends the link's watches. It does not end the sessions.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.Server.mu.Lock()
	for w := range l.Server.watches {
		if w.link == l {
			delete(l.Server.watches, w)
		}
	}
	l.Server.mu.Unlock()
	l.deliveries.Wait()
	return nil
}
