// Package memtree is a tree of ordered children in memory, with links that can be cut and lose what travels on them: what
// the sequence engine is tested on without a server.
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

// Server is the store itself. Its clock is the one of package time.
type Server struct {
	mu            sync.Mutex
	revision      int64
	sessions      map[string]*session
	locks         map[string][]*sequence.Node
	withdrawnAdds map[string]bool      // adds that were withdrawn
	breakNotes    map[string]time.Time // claims that were removed by force: until when that is known
	watches       map[*watch]struct{}
	requests      map[string]int
}

type session struct {
	link  *Link
	ttl   time.Duration
	timer *time.Timer
}

type watch struct {
	name, key string
	changed   func()
	link      *Link
}

// New makes an empty server.
func New() *Server {
	return &Server{sessions: map[string]*session{}, locks: map[string][]*sequence.Node{}, withdrawnAdds: map[string]bool{}, breakNotes: map[string]time.Time{},
		watches: map[*watch]struct{}{}, requests: map[string]int{}}
}

// LowerSessionTTLs has the server keep each session that stands for no longer than ttl, from its next beat on.
func (s *Server) LowerSessionTTLs(ttl time.Duration) { s.lowerSessionTTLs(ttl, nil) }

// LowerSessionTTLs does so with the sessions that were opened by this way.
func (l *Link) LowerSessionTTLs(ttl time.Duration) { l.Server.lowerSessionTTLs(ttl, l) }

func (s *Server) lowerSessionTTLs(ttl time.Duration, of *Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.sessions {
		if of == nil || ses.link == of {
			ses.ttl = min(ses.ttl, ttl)
		}
	}
}

// Nodes is what stands on a lock.
func (s *Server) Nodes(name string) []sequence.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readLock(name).Nodes
}

// LockNames is what stands at the end: the names of locks that are not idle.
func (s *Server) LockNames() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.locks {
		names = append(names, name)
	}
	return names
}

// TakeRequestCounts counts what was asked since the last call.
func (s *Server) TakeRequestCounts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.requests
	s.requests = map[string]int{}
	return r
}

// ExpireSession ends a session as if its client had fallen silent; with an empty id, all.
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
	ses := s.sessions[id]
	if ses == nil {
		return
	}
	ses.timer.Stop()
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
		if w.name == name && (w.key == key || w.key == sequence.WatchChanges || w.key == sequence.WatchRemovals && gone) {
			w.link.notifyLater(w.changed)
		}
	}
}

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

// Link is one client's way to the server: a Tree.
type Link struct {
	Server *Server
	Clock  driver.Clock
	// Transport, if set, carries a request: it runs do at the server and gives back what that returns. It may lose, delay and
	// double it, and give up before it has arrived.
	Transport func(ctx context.Context, what string, do func() any) (any, error)
	// DelayNotification, if set, is called before a watch tells anything, and may take its time; Deaf loses it.
	DelayNotification func()
	DropNotification  func() bool

	mu            sync.Mutex
	closed        bool
	notifications sync.WaitGroup
}

var errClosed = fmt.Errorf("%w: the link", driver.ErrClosed)

func (l *Link) notifyLater(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.DropNotification != nil && l.DropNotification() {
		return
	}
	l.notifications.Go(func() {
		if l.DelayNotification != nil {
			l.DelayNotification()
		}
		f()
	})
}

// request is one request: f runs at the server, in one atomic step.
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

// Info promises what memory can.
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

// KeepAlive restarts the session's timer.
func (l *Link) KeepAlive(ctx context.Context, id string) (promise time.Duration, err error) {
	promise, err = request(ctx, l, "beat", func(s *Server) time.Duration {
		ses := s.sessions[id]
		if ses == nil {
			return 0
		}
		ses.timer.Reset(ses.ttl)
		return ses.ttl
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
	look sequence.Snapshot
	err  error
}

// Add adds a node.
func (l *Link) Add(
	ctx context.Context, name string, ses sequence.Session, number int64, note sequence.Payload, guard sequence.AddCondition,
) (sequence.Snapshot, error) {
	got, err := request(ctx, l, "add", func(s *Server) addResult {
		key := nodeKey(ses, number)
		switch nodes := s.locks[name]; {
		case s.sessions[ses.ID] == nil:
			return addResult{err: sequence.ErrSessionExpired}
		case s.withdrawnAdds[key]:
			return addResult{err: errors.New("withdrawn")}
		case s.findNode(name, key) != nil:
		case guard == sequence.AddIfAlone && len(nodes) > 0:
		case guard > 0 && slices.ContainsFunc(nodes, func(n *sequence.Node) bool { return n.Token > int64(guard) }):
		default:
			s.revision++
			s.locks[name] = append(nodes, &sequence.Node{Key: key, Token: s.revision, Version: s.revision, Session: ses.ID, Payload: note})
			s.notifyWatches(name, key, false)
		}
		return addResult{look: s.readLock(name)}
	})
	return got.look, cmp.Or(err, got.err)
}

// Withdraw bars an add.
func (l *Link) Withdraw(ctx context.Context, name string, ses sequence.Session, number int64, _ string) (bool, error) {
	return request(ctx, l, "withdraw", func(s *Server) bool {
		key := nodeKey(ses, number)
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

// Change replaces a note.
func (l *Link) Change(
	ctx context.Context, name string, n sequence.Node, note sequence.Payload,
) (sequence.Node, bool, error) {
	return l.changeNode(ctx, "change", name, n, n.Session, note)
}

// Move binds a node to another session, and bars its add.
func (l *Link) Move(
	ctx context.Context, name string, n sequence.Node, to sequence.Session, note sequence.Payload,
) (sequence.Node, bool, error) {
	return l.changeNode(ctx, "move", name, n, to.ID, note)
}

// ChangeAmong replaces a note if others stand as they did.
func (l *Link) ChangeAmong(
	ctx context.Context, name string, n sequence.Node, note sequence.Payload, among []sequence.Node, revision int64,
) (sequence.Node, bool, error) {
	return l.changeNode(ctx, "change", name, n, n.Session, note, func(s *Server) bool {
		for _, a := range among {
			if at := s.findNode(name, a.Key); at == nil || at.Version != a.Version {
				return false
			}
		}
		return !slices.ContainsFunc(s.locks[name], func(o *sequence.Node) bool { return o.Token > revision })
	})
}

func (l *Link) changeNode(
	ctx context.Context, what, name string, n sequence.Node, to string, note sequence.Payload, when ...func(s *Server) bool,
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
		at.Version, at.Payload, at.Session = s.revision, note, to
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
func (l *Link) Remove(ctx context.Context, name string, n sequence.Node, look bool) (bool, sequence.Snapshot, error) {
	got, err := request(ctx, l, "remove", func(s *Server) (r removeResult) {
		at := s.findNode(name, n.Key)
		if at != nil && at.Token == n.Token && (n.Version == 0 || at.Version == n.Version) {
			r.existed = true
			s.removeNode(name, at)
		}
		if look {
			r.left = s.readLock(name)
		}
		return r
	})
	return got.existed, got.left, err
}

// BreakNode removes a node and leaves a note of that.
func (l *Link) BreakNode(ctx context.Context, name string, n sequence.Node) (bool, error) {
	return request(ctx, l, "break", func(s *Server) bool {
		at := s.findNode(name, n.Key)
		if at == nil || at.Token != n.Token {
			return false
		}
		s.removeNode(name, at)
		now := time.Now()
		maps.DeleteFunc(s.breakNotes, func(_ string, until time.Time) bool { return now.After(until) })
		s.breakNotes[n.ID] = now.Add(sequence.BreakNoteTime(n.TTL))
		return true
	})
}

// WasBroken finds such a note.
func (l *Link) WasBroken(ctx context.Context, _ string, n sequence.Node) (bool, error) {
	return request(ctx, l, "broken", func(s *Server) bool { return time.Now().Before(s.breakNotes[n.ID]) })
}

// RemoveAndReadNext removes a node, and looks at another one.
func (l *Link) RemoveAndReadNext(
	ctx context.Context, name string, n sequence.Node, next string,
) (bool, sequence.Snapshot, error) {
	got, err := request(ctx, l, "remove", func(s *Server) (r removeResult) {
		at := s.findNode(name, n.Key)
		if at == nil || at.Token != n.Token {
			return r
		}
		s.removeNode(name, at)
		left := sequence.Snapshot{Name: name, Revision: s.revision, Full: true}
		if at := s.findNode(name, next); at != nil {
			left.Nodes = []sequence.Node{*at}
		}
		return removeResult{existed: true, left: left}
	})
	return got.existed, got.left, err
}

// Watch tells of changes, from goroutines of its own.
func (l *Link) Watch(name, key string, revision int64, changed func()) (stop func()) {
	s := l.Server
	w := &watch{name: name, key: key, changed: changed, link: l}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests["watch"]++
	s.watches[w] = struct{}{}
	if revision != s.revision {
		l.notifyLater(changed)
	}
	return func() {
		go func() { // it may be called from changed
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.watches, w)
		}()
	}
}

// Walk lists all locks.
func (l *Link) Walk(ctx context.Context, prefix string) iter.Seq2[sequence.Snapshot, error] {
	return func(yield func(sequence.Snapshot, error) bool) {
		looks, err := request(ctx, l, "walk", func(s *Server) (looks []sequence.Snapshot) {
			for name := range s.locks {
				if strings.HasPrefix(name, prefix) {
					looks = append(looks, s.readLock(name))
				}
			}
			return looks
		})
		if err != nil {
			yield(sequence.Snapshot{}, err)
			return
		}
		for _, look := range looks {
			if !yield(look, nil) {
				return
			}
		}
	}
}

// Close leaves the sessions to themselves.
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
	l.notifications.Wait()
	return nil
}
