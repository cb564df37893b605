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
	mu       sync.Mutex
	revision int64
	sessions map[string]*session
	locks    map[string][]*sequence.Node
	barred   map[string]bool      // adds that were withdrawn
	broken   map[string]time.Time // claims that were removed by force: until when that is known
	watches  map[*watch]struct{}
	requests map[string]int
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
	return &Server{sessions: map[string]*session{}, locks: map[string][]*sequence.Node{}, barred: map[string]bool{}, broken: map[string]time.Time{},
		watches: map[*watch]struct{}{}, requests: map[string]int{}}
}

// LowerSessionTTLs has the server keep each session that stands for no longer than ttl, from its next beat on.
func (s *Server) LowerSessionTTLs(ttl time.Duration) { s.lower(ttl, nil) }

// LowerSessionTTLs does so with the sessions that were opened by this way.
func (l *Link) LowerSessionTTLs(ttl time.Duration) { l.Server.lower(ttl, l) }

func (s *Server) lower(ttl time.Duration, of *Link) {
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
	return s.look(name).Nodes
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
			s.expire(k)
		}
	}
}

func (s *Server) expire(id string) {
	ses := s.sessions[id]
	if ses == nil {
		return
	}
	ses.timer.Stop()
	delete(s.sessions, id)
	for name, nodes := range s.locks {
		for _, n := range slices.Clone(nodes) {
			if n.Session == id {
				s.remove(name, n)
			}
		}
	}
}

func (s *Server) remove(name string, n *sequence.Node) {
	s.revision++
	s.locks[name] = slices.DeleteFunc(s.locks[name], func(o *sequence.Node) bool { return o == n })
	if len(s.locks[name]) == 0 {
		delete(s.locks, name)
	}
	s.notify(name, n.Key, true)
}

func (s *Server) notify(name, key string, gone bool) {
	for w := range s.watches {
		if w.name == name && (w.key == key || w.key == sequence.WatchChanges || w.key == sequence.WatchRemovals && gone) {
			w.link.later(w.changed)
		}
	}
}

func (s *Server) look(name string) sequence.Snapshot {
	l := sequence.Snapshot{Name: name, Revision: s.revision, Full: true}
	for _, n := range s.locks[name] {
		l.Nodes = append(l.Nodes, *n)
	}
	return l
}

func (s *Server) find(name, key string) *sequence.Node {
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

	mu     sync.Mutex
	closed bool
	inAir  sync.WaitGroup
}

var errClosed = fmt.Errorf("%w: the link", driver.ErrClosed)

func (l *Link) later(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.DropNotification != nil && l.DropNotification() {
		return
	}
	l.inAir.Go(func() {
		if l.DelayNotification != nil {
			l.DelayNotification()
		}
		f()
	})
}

// do is one request: f runs at the server, in one atomic step.
func do[T any](ctx context.Context, l *Link, what string, f func(s *Server) T) (result T, err error) {
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
	return do(ctx, l, "open", func(s *Server) sequence.Session {
		s.revision++
		id := fmt.Sprintf("%x", s.revision)
		s.sessions[id] = &session{link: l, ttl: ttl, timer: time.AfterFunc(ttl, func() { s.ExpireSession(id) })}
		return sequence.Session{ID: id, TTL: ttl}
	})
}

// known turns the answer of a server that may not know the session into an error.
func known(ok bool, err error) error {
	if err == nil && !ok {
		return sequence.ErrSessionExpired
	}
	return err
}

// KeepAlive restarts the session's timer.
func (l *Link) KeepAlive(ctx context.Context, id string) (promise time.Duration, err error) {
	promise, err = do(ctx, l, "beat", func(s *Server) time.Duration {
		ses := s.sessions[id]
		if ses == nil {
			return 0
		}
		ses.timer.Reset(ses.ttl)
		return ses.ttl
	})
	return promise, known(promise > 0, err)
}

// EndSession ends a session.
func (l *Link) EndSession(ctx context.Context, id string) error {
	return known(do(ctx, l, "end", func(s *Server) bool {
		ok := s.sessions[id] != nil
		s.expire(id)
		return ok
	}))
}

func keyOf(s sequence.Session, number int64) string { return fmt.Sprintf("%s.%d", s.ID, number) }

// added is the answer to an Add.
type added struct {
	look sequence.Snapshot
	err  error
}

// Add adds a node.
func (l *Link) Add(ctx context.Context, name string, ses sequence.Session, number int64, note sequence.Payload, guard sequence.AddCondition) (sequence.Snapshot, error) {
	got, err := do(ctx, l, "add", func(s *Server) added {
		key := keyOf(ses, number)
		switch nodes := s.locks[name]; {
		case s.sessions[ses.ID] == nil:
			return added{err: sequence.ErrSessionExpired}
		case s.barred[key]:
			return added{err: errors.New("withdrawn")}
		case s.find(name, key) != nil:
		case guard == sequence.AddIfAlone && len(nodes) > 0:
		case guard > 0 && slices.ContainsFunc(nodes, func(n *sequence.Node) bool { return n.Token > int64(guard) }):
		default:
			s.revision++
			s.locks[name] = append(nodes, &sequence.Node{Key: key, Token: s.revision, Version: s.revision, Session: ses.ID, Payload: note})
			s.notify(name, key, false)
		}
		return added{look: s.look(name)}
	})
	return got.look, cmp.Or(err, got.err)
}

// Withdraw bars an add.
func (l *Link) Withdraw(ctx context.Context, name string, ses sequence.Session, number int64, _ string) (bool, error) {
	return do(ctx, l, "withdraw", func(s *Server) bool {
		key := keyOf(ses, number)
		n := s.find(name, key)
		if n != nil {
			s.remove(name, n)
		}
		s.barred[key] = true
		return n != nil
	})
}

// List lists, always in full.
func (l *Link) List(ctx context.Context, name string, _ bool) (sequence.Snapshot, error) {
	return do(ctx, l, "list", func(s *Server) sequence.Snapshot { return s.look(name) })
}

// Read reads single nodes.
func (l *Link) Read(ctx context.Context, at []sequence.NodeRef) ([]sequence.Node, error) {
	return do(ctx, l, "read", func(s *Server) []sequence.Node {
		nodes := make([]sequence.Node, len(at))
		for i, p := range at {
			if n := s.find(p.Name, p.Key); n != nil {
				nodes[i] = *n
			}
		}
		return nodes
	})
}

// changed is the answer to a Change or a Move.
type changed struct {
	now  sequence.Node
	ok   bool
	over bool // the session that a node was to be bound to
}

// Change replaces a note.
func (l *Link) Change(ctx context.Context, name string, n sequence.Node, note sequence.Payload) (sequence.Node, bool, error) {
	return l.change(ctx, "change", name, n, n.Session, note)
}

// Move binds a node to another session, and bars its add.
func (l *Link) Move(ctx context.Context, name string, n sequence.Node, to sequence.Session, note sequence.Payload) (sequence.Node, bool, error) {
	return l.change(ctx, "move", name, n, to.ID, note)
}

// ChangeAmong replaces a note if others stand as they did.
func (l *Link) ChangeAmong(ctx context.Context, name string, n sequence.Node, note sequence.Payload, among []sequence.Node, revision int64) (sequence.Node, bool, error) {
	return l.change(ctx, "change", name, n, n.Session, note, func(s *Server) bool {
		for _, a := range among {
			if at := s.find(name, a.Key); at == nil || at.Version != a.Version {
				return false
			}
		}
		return !slices.ContainsFunc(s.locks[name], func(o *sequence.Node) bool { return o.Token > revision })
	})
}

func (l *Link) change(ctx context.Context, what, name string, n sequence.Node, to string, note sequence.Payload, when ...func(s *Server) bool) (sequence.Node, bool, error) {
	got, err := do(ctx, l, what, func(s *Server) changed {
		if len(when) > 0 && !when[0](s) {
			return changed{}
		}
		at := s.find(name, n.Key)
		if at == nil || at.Version != n.Version {
			return changed{}
		}
		if s.sessions[to] == nil {
			return changed{over: true}
		}
		s.revision++
		s.barred[n.Key] = s.barred[n.Key] || at.Session != to
		at.Version, at.Payload, at.Session = s.revision, note, to
		s.notify(name, n.Key, false)
		return changed{now: *at, ok: true}
	})
	return got.now, got.ok, known(!got.over, err)
}

// removed is the answer to a Remove.
type removed struct {
	stood bool
	left  sequence.Snapshot
}

// Remove removes a node.
func (l *Link) Remove(ctx context.Context, name string, n sequence.Node, look bool) (bool, sequence.Snapshot, error) {
	got, err := do(ctx, l, "remove", func(s *Server) (r removed) {
		at := s.find(name, n.Key)
		if at != nil && at.Token == n.Token && (n.Version == 0 || at.Version == n.Version) {
			r.stood = true
			s.remove(name, at)
		}
		if look {
			r.left = s.look(name)
		}
		return r
	})
	return got.stood, got.left, err
}

// BreakNode removes a node and leaves a note of that.
func (l *Link) BreakNode(ctx context.Context, name string, n sequence.Node) (bool, error) {
	return do(ctx, l, "break", func(s *Server) bool {
		at := s.find(name, n.Key)
		if at == nil || at.Token != n.Token {
			return false
		}
		s.remove(name, at)
		now := time.Now()
		maps.DeleteFunc(s.broken, func(_ string, until time.Time) bool { return now.After(until) })
		s.broken[n.ID] = now.Add(sequence.BreakNoteTime(n.TTL))
		return true
	})
}

// WasBroken finds such a note.
func (l *Link) WasBroken(ctx context.Context, _ string, n sequence.Node) (bool, error) {
	return do(ctx, l, "broken", func(s *Server) bool { return time.Now().Before(s.broken[n.ID]) })
}

// RemoveAndReadNext removes a node, and looks at another one.
func (l *Link) RemoveAndReadNext(ctx context.Context, name string, n sequence.Node, next string) (bool, sequence.Snapshot, error) {
	got, err := do(ctx, l, "remove", func(s *Server) (r removed) {
		at := s.find(name, n.Key)
		if at == nil || at.Token != n.Token {
			return r
		}
		s.remove(name, at)
		left := sequence.Snapshot{Name: name, Revision: s.revision, Full: true}
		if at := s.find(name, next); at != nil {
			left.Nodes = []sequence.Node{*at}
		}
		return removed{stood: true, left: left}
	})
	return got.stood, got.left, err
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
		l.later(changed)
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
		looks, err := do(ctx, l, "walk", func(s *Server) (looks []sequence.Snapshot) {
			for name := range s.locks {
				if strings.HasPrefix(name, prefix) {
					looks = append(looks, s.look(name))
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
	l.inAir.Wait()
	return nil
}
