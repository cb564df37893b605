package consul

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// A watch is a blocking query, and needs a connection of its own. An agent takes 200 from one address
// (http_max_conns_per_client). All processes of a machine that use its agent share these, and one that gets none cannot
// renew its locks. So a client has at most this many watches at a time, for waiters and for holders' own keys. The
// others wait for a place. Until then, waiters poll as they do anyway, and holders learn of a break by their renewals.
const (
	maxWaiterWatches = 24
	maxHolderWatches = 8
)

// maxIdleConns is how many connections a client keeps open between its requests, for a minute.
const maxIdleConns = 8

// maxConns is how many connections a client keeps. While requests are under way, each needs one, too.
const maxConns = maxWaiterWatches + maxHolderWatches + maxIdleConns

// blockFor is how long one blocking query lasts. The agent adds up to a sixteenth of that.
const blockFor = time.Minute

// Watch follows one key, or all keys of a lock. The keys of this client's own claims have the places of
// holders, so that those of waiters are left for the claims of others.
func (t *nodeStore) Watch(name, key string, revision int64, changed func()) sequence.Subscription {
	places := &t.waiterWatches
	if session, _, _ := strings.Cut(key, "."); t.isOwnSession(session) {
		places = &t.holderWatches
	}
	return places.start(func(ctx context.Context) { t.follow(ctx, t.lookAt(name, key, revision), changed) })
}

// lookFunc reads something as it is after an index. It returns the index of what it has read, and whether that is new.
type lookFunc func(ctx context.Context, o *api.QueryOptions) (isNew bool, index uint64, err error)

// lookAt returns a function that reads what a Watch is for.
func (t *nodeStore) lookAt(name, key string, revision int64) lookFunc {
	if key == sequence.WatchRemovals || key == sequence.WatchChanges {
		return t.lookAtLock(t.lockDir(name), key == sequence.WatchRemovals)
	}
	gone := false
	return func(ctx context.Context, o *api.QueryOptions) (bool, uint64, error) {
		kv, meta, err := t.client.KV().Get(t.lockDir(name)+key, o.WithContext(ctx))
		if err != nil {
			return false, 0, err
		}
		// The key comes back with another claim, and a leader that has just been elected may not know it yet.
		if kv == nil {
			isNew := !gone
			gone = true
			return isNew, meta.LastIndex, nil
		}
		isNew := gone || int64(kv.ModifyIndex) > revision
		gone, revision = false, int64(kv.ModifyIndex)
		return isNew, meta.LastIndex, nil
	}
}

// ConfirmWatches has nothing to confirm.
func (t *nodeStore) ConfirmWatches(context.Context, string) error { return nil }

// lookAtLock returns a function that reads the claims of a lock, and reports whether they have changed since its last
// call, or whether some have gone. At the first call they may have. A claim that has gone may have left its key to
// another one, with another create index, so the keys alone are not enough.
func (t *nodeStore) lookAtLock(dir string, removalsOnly bool) lookFunc {
	var seen api.KVPairs
	first := true
	return func(ctx context.Context, o *api.QueryOptions) (bool, uint64, error) {
		now, meta, err := t.client.KV().List(dir, o.WithContext(ctx))
		if err != nil {
			return false, 0, err
		}
		gone := slices.ContainsFunc(seen, func(kv *api.KVPair) bool {
			return findPair(now, kv.Key).CreateIndex != kv.CreateIndex
		})
		isNew := first || gone || !removalsOnly && meta.LastIndex != o.WaitIndex
		seen, first = now, false
		return isNew, meta.LastIndex, nil
	}
}

// follow calls look again and again until ctx ends, each time for what came after the index that it has returned, and
// changed when it says that something is new. After errors something may be. An agent never answers without an index;
// without one the next query would return at once, so that counts as an error.
func (t *nodeStore) follow(ctx context.Context, look lookFunc, changed func()) {
	var index uint64
	for fails := 0; ctx.Err() == nil; {
		query, cancel := context.WithTimeout(ctx, blockFor*17/16+requestTimeout)
		isNew, now, err := look(query, &api.QueryOptions{WaitIndex: index, WaitTime: blockFor})
		cancel()
		switch {
		case ctx.Err() != nil:
		case err != nil, now == 0:
			index, fails = 0, fails+1
			_ = t.life.Sleep(ctx, rand.N(50*time.Millisecond<<min(fails, 6)))
		default:
			if isNew || fails > 0 {
				changed()
			}
			if now < index { // the servers were restored, or have forgotten keys that are gone
				now = 0
			}
			index, fails = now, 0
		}
	}
}

// watchForWaiter begins a watch for one caller that waits. changed gets an element when something is new, or may be.
// The caller ends the watch with stop.
func (t *nodeStore) watchForWaiter(look lookFunc) (changed <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	w := t.waiterWatches.start(func(ctx context.Context) {
		t.follow(ctx, look, func() {
			select {
			case c <- struct{}{}:
			default:
			}
		})
	})
	return c, w.Stop
}

// watchPlaces are the places for a client's watches of one kind. A watch runs in a goroutine. One that waits for a
// place needs none: each lease that a client holds has a watch, and most of them never get a place. So the queue is in
// the watches, and what a watch needs is made when it runs.
type watchPlaces struct {
	life *driverutil.Lifetime

	mu          sync.Mutex
	free        int
	first, last *watch // of the queue, in the order in which they get places
}

// watch is in the queue, or runs, or has ended. It is a sequence.Subscription that never counts as live, because Consul
// does not tell how far a blocking query has come. So the engine reads the nodes at each renewal.
type watch struct {
	places *watchPlaces
	run    func(context.Context)

	// Guarded by the mutex of the places.
	queued       bool
	before, next *watch             // in the queue
	cancel       context.CancelFunc // ends run; nil before it runs
}

func (*watch) IsLive() bool { return false }

// start has run called when there is a place. Its context ends when the watch is stopped or the store is closed.
func (p *watchPlaces) start(run func(context.Context)) *watch {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &watch{places: p, run: run}
	p.enqueue(w)
	p.fill()
	return w
}

// Stop ends the watch. It may be called twice, and from run.
func (w *watch) Stop() {
	p := w.places
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case w.queued:
		p.dequeue(w)
	case w.cancel != nil:
		w.cancel()
	}
}

// enqueue adds a watch to the end of the queue. It is called with mu held.
func (p *watchPlaces) enqueue(w *watch) {
	w.queued, w.before = true, p.last
	if p.last == nil {
		p.first = w
	} else {
		p.last.next = w
	}
	p.last = w
}

// dequeue takes a watch out of the queue. It is called with mu held.
func (p *watchPlaces) dequeue(w *watch) {
	if w.before == nil {
		p.first = w.next
	} else {
		w.before.next = w.next
	}
	if w.next == nil {
		p.last = w.before
	} else {
		w.next.before = w.before
	}
	w.queued, w.before, w.next = false, nil, nil
}

// fill gives the free places to the watches that have waited the longest. It is called with mu held.
func (p *watchPlaces) fill() {
	for p.free > 0 && p.first != nil {
		w := p.first
		p.dequeue(w)
		ctx, cancel := context.WithCancel(p.life)
		w.cancel = cancel
		p.free--
		started := p.life.Go(func() {
			w.run(ctx)
			cancel()
			p.leave()
		})
		if !started { // the store is closed
			cancel()
			return
		}
	}
}

// leave gives back the place of a watch that has ended.
func (p *watchPlaces) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free++
	p.fill()
}

// count is how many watches run, of so many places.
func (p *watchPlaces) count(places int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return places - p.free
}
