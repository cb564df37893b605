package etcd

import (
	"context"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// writes sends what claims add and remove. A few requests of a session are under way at a time, each as its caller's own
// transaction; what comes meanwhile gathers, and goes together as one transaction of transactions, on which the members
// agree once. The requests of different sessions never go together, so that one that is over fails none but its own.
type writes struct {
	kv   clientv3.KV
	life context.Context
	work sync.WaitGroup

	mu    sync.Mutex
	lanes map[string]*lane // by session
}

type lane struct {
	flying int
	queue  []*write
	due    bool        // what has gathered goes as soon as it can
	timer  *time.Timer // makes it due
}

const (
	// abreast is how many requests of a session are under way at a time.
	abreast = 4
	// together is how many writes go in one request; a server takes 128 unless it is told otherwise.
	together = 64
	// linger is how long a patient write waits for another one to go with. On a lock that is passed on at once the next
	// release is nearly always there by then, and so half of all requests are saved.
	linger = time.Millisecond
	// bound is that of a request that many wait for.
	bound = 2 * time.Second
)

// write is one transaction on a lock, and what came of it.
type write struct {
	lock            string
	adds            bool // a claim; else it removes one
	patient         bool // it may wait for another to go with
	when            []clientv3.Cmp
	then, otherwise []clientv3.Op

	done  chan struct{} // closed when the rest is there
	reply *pb.TxnResponse
	err   error
}

// do gives the answer to a write. A caller that gives up takes it back if it has not been sent.
func (ws *writes) do(ctx context.Context, session string, w *write) (*pb.TxnResponse, error) {
	ws.mu.Lock()
	l := ws.lanes[session]
	if l == nil {
		l = &lane{}
		ws.lanes[session] = l
	}
	if !w.patient && l.flying < abreast && len(l.queue) == 0 {
		l.flying++
		ws.mu.Unlock()
		defer ws.landed(session, l)
		return ws.alone(ctx, w)
	}
	w.done = make(chan struct{})
	l.queue = append(l.queue, w)
	l.due = l.due || !w.patient
	switch {
	case l.due:
		ws.departLocked(session, l)
	case l.timer == nil:
		l.timer = time.AfterFunc(linger, func() { ws.depart(session, l) })
	case len(l.queue) == 1:
		l.timer.Reset(linger)
	}
	ws.mu.Unlock()
	select {
	case <-w.done:
		return w.reply, w.err
	case <-ctx.Done():
		ws.mu.Lock()
		defer ws.mu.Unlock()
		l.queue = slices.DeleteFunc(l.queue, func(o *write) bool { return o == w })
		ws.dropLocked(session, l)
		return nil, ctx.Err()
	}
}

// depart sends what has gathered for long enough.
func (ws *writes) depart(session string, l *lane) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	l.due = len(l.queue) > 0
	ws.departLocked(session, l)
}

// departLocked sends what is due if there is room.
func (ws *writes) departLocked(session string, l *lane) {
	if !l.due || l.flying >= abreast || len(l.queue) == 0 || ws.life.Err() != nil {
		return
	}
	l.flying++
	some := l.gather()
	l.due = len(l.queue) > 0
	ws.work.Go(func() {
		defer ws.landed(session, l)
		ws.carry(some)
	})
}

// landed has what is due follow a request that is over.
func (ws *writes) landed(session string, l *lane) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	l.flying--
	ws.departLocked(session, l)
	ws.dropLocked(session, l)
}

// dropLocked forgets a lane in which nothing is any more.
func (ws *writes) dropLocked(session string, l *lane) {
	if l.flying == 0 && len(l.queue) == 0 {
		delete(ws.lanes, session)
	}
}

func (ws *writes) alone(ctx context.Context, w *write) (*pb.TxnResponse, error) {
	r, err := ws.kv.Txn(ctx).If(w.when...).Then(w.then...).Else(w.otherwise...).Commit()
	return (*pb.TxnResponse)(r), err
}

// gather takes from the queue what can go together. All that is put in one transaction has the same revision, so no lock
// gets two claims; and a claim comes last, so that what it sees of its lock is how the lock stands at that revision.
func (l *lane) gather() []*write {
	var removes, adds, rest []*write
	for _, w := range l.queue {
		switch {
		case len(removes)+len(adds) >= together || w.adds && slices.ContainsFunc(adds, func(o *write) bool { return o.lock == w.lock }):
			rest = append(rest, w)
		case w.adds:
			adds = append(adds, w)
		default:
			removes = append(removes, w)
		}
	}
	l.queue = rest
	return append(removes, adds...)
}

// carry sends writes together and hands out the answers. If the servers refuse them, each is sent again by itself: the
// fault may be one's, and none has been done.
func (ws *writes) carry(some []*write) {
	ctx, cancel := context.WithTimeout(ws.life, bound)
	defer cancel()
	ops := make([]clientv3.Op, len(some))
	for i, w := range some {
		ops[i] = clientv3.OpTxn(w.when, w.then, w.otherwise)
	}
	r, err := ws.kv.Txn(ctx).Then(ops...).Commit()
	for i, w := range some {
		switch {
		case err == nil:
			w.reply = r.Responses[i].GetResponseTxn()
			w.reply.Header = r.Header
		case refused(err):
			w.reply, w.err = ws.alone(ctx, w)
		default:
			w.err = err
		}
		close(w.done)
	}
}
