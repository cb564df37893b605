package sequence_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
)

// slowEnding is a tree that begins to end a session when it has had no keep-alive for twice the TTL, and has ended it
// endTime later. Until then it answers keep-alives, which change nothing any more.
type slowEnding struct {
	*memtree.Link
	mu   sync.Mutex
	ends map[string]time.Time // by session: when the store begins to end it
}

const endTime = 5 * time.Second

func (t *slowEnding) OpenSession(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	s, err := t.Link.OpenSession(ctx, 2*ttl+endTime)
	s.TTL, s.KeepAliveWithin = ttl, ttl
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ends[s.ID] = time.Now().Add(2 * ttl)
	return s, err
}

func (t *slowEnding) KeepAlive(ctx context.Context, session string) (time.Duration, error) {
	t.mu.Lock()
	ending := time.Now().After(t.ends[session])
	t.mu.Unlock()
	if ending { // no more than a read, so that it fails when the link is cut, or the session has gone
		nodes, err := t.Link.List(ctx, "m", true)
		if err == nil && len(nodes.Nodes) == 0 {
			err = sequence.ErrSessionExpired
		}
		return 0, err
	}
	promise, err := t.Link.KeepAlive(ctx, session)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ends[session] = time.Now().Add(promise - endTime)
	return promise, err
}

// TestKeepAliveOfEndingSession: nobody is granted a lock while its holder still trusts its lease, although the store
// was ending the holder's session when it answered a keep-alive. The client was cut off for so long that it trusts no
// such answer: it ends the session, and takes locks under another one.
func TestKeepAliveOfEndingSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		server := memtree.New()
		var cut atomic.Bool
		link := &memtree.Link{Server: server, Transport: func(ctx context.Context, _ string, do func() any) (any, error) {
			if cut.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return do(), nil
		}}
		holder := sequence.New(&slowEnding{Link: link, ends: map[string]time.Time{}})
		defer holder.Close()
		other := sequence.New(&memtree.Link{Server: server})
		defer other.Close()
		if _, err := holder.Acquire(t.Context(), mutex("m", ttl)); err != nil {
			t.Fatal(err)
		}
		cut.Store(true)
		time.Sleep(2*ttl + time.Second)
		cut.Store(false)
		g, err := holder.Acquire(t.Context(), mutex("n", ttl))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if nodes := server.Nodes("m"); len(nodes) > 0 {
			t.Errorf("the session from before the cut has %+v", nodes)
		}
		cut.Store(true)
		if _, err := other.Acquire(t.Context(), waiting(mutex("n", ttl))); err != nil {
			t.Fatal(err)
		}
		if trusted := driver.SystemClock.Since(g.Since); trusted < ttl {
			t.Errorf("the next claim is granted when the holder has trusted its lease for %v", trusted)
		}
	})
}
