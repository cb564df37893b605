package consul

import (
	"container/list"
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
	gone := false
	look := func(ctx context.Context, o *api.QueryOptions) (bool, uint64, error) {
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
	if key == sequence.WatchRemovals || key == sequence.WatchChanges {
		look = t.lookAtLock(t.lockDir(name), key == sequence.WatchRemovals)
	}
	return subscription{t.follow(places, look, changed)}
}

// subscription is a Watch. It never counts as live, because Consul does not tell how far a blocking query has come. So
// the engine reads the nodes at each renewal.
type subscription struct{ stop func() }

func (subscription) IsLive() bool { return false }
func (s subscription) Stop()      { s.stop() }

// ConfirmWatches has nothing to confirm.
func (t *nodeStore) ConfirmWatches(context.Context, string) error { return nil }

// lookAtLock returns a function that reads the claims of a lock, and reports whether they have changed since its last
// call, or whether some have gone. At the first call they may have. A claim that has gone may have left its key to
// another one, with another create index, so the keys alone are not enough.
func (t *nodeStore) lookAtLock(
	dir string, removalsOnly bool,
) func(context.Context, *api.QueryOptions) (bool, uint64, error) {
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

// follow calls look again and again, each time for what came after the index that it has returned, and changed when it
// says that something is new. After errors something may be. It begins when there is a place, and ends when stop is
// called. An agent never answers without an index; without one the next query would return at once, so that counts as
// an error.
func (t *nodeStore) follow(
	places *watchPlaces, look func(context.Context, *api.QueryOptions) (isNew bool, index uint64, err error),
	changed func(),
) (stop func()) {
	w := places.start(func(ctx context.Context) {
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
	})
	return func() { places.stop(w) }
}

// watchPlaces are the places for a client's watches of one kind. A watch runs in a goroutine. One that waits for a place
// needs none: each lease that a client holds has a watch, and most of them never get a place.
type watchPlaces struct {
	life *driverutil.Lifetime

	mu      sync.Mutex
	free    int
	waiting list.List // of *watch, in the order in which they get places
}

// watch is in the queue, or runs, or has ended.
type watch struct {
	run    func(context.Context)
	queued *list.Element      // nil when it has left the queue
	cancel context.CancelFunc // ends run; nil before it runs
}

// start has run called when there is a place. Its context ends when the watch is stopped or the store is closed.
func (p *watchPlaces) start(run func(context.Context)) *watch {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &watch{run: run}
	w.queued = p.waiting.PushBack(w)
	p.fill()
	return w
}

// stop ends a watch. It may be called twice, and from run.
func (p *watchPlaces) stop(w *watch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case w.queued != nil:
		p.waiting.Remove(w.queued)
		w.queued = nil
	case w.cancel != nil:
		w.cancel()
	}
}

// fill gives the free places to the watches that have waited the longest. The caller has locked mu.
func (p *watchPlaces) fill() {
	for p.free > 0 && p.waiting.Len() > 0 {
		w := p.waiting.Remove(p.waiting.Front()).(*watch)
		ctx, cancel := context.WithCancel(p.life)
		w.queued, w.cancel = nil, cancel
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
