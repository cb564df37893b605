package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestPromiseLowered: a store keeps a session for less time than it promised. The next keep-alive notifies the holders,
// so that no holder that is cut off later trusts the old promise while the next claim is granted by the new one.
func TestPromiseLowered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl, less = 20 * time.Second, 4 * time.Second
		server := memtree.New()
		var cut atomic.Bool
		holder := sequence.New(&memtree.Link{Server: server,
			Transport: func(ctx context.Context, _ string, do func() any) (any, error) {
				if cut.Load() {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return do(), nil
			}})
		defer holder.Close()
		next := sequence.New(&memtree.Link{Server: server})
		defer next.Close()
		g, err := holder.Acquire(t.Context(), mutex("m", ttl))
		if err != nil {
			t.Fatal(err)
		}
		server.LowerSessionTTLs(less)
		time.Sleep(ttl/3 + time.Second) // a keep-alive is answered
		cut.Store(true)
		notified, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var loss *driver.LossError
		end, err := holder.NextEnding(notified)
		if err != nil || end.ID != g.ID || !errors.As(end.Err, &loss) || loss.Cause != driver.LossSessionExpired {
			t.Errorf("after the session was shortened NextEnding returned %v, %v", end, err)
		}
		in, done := context.WithTimeout(t.Context(), less+time.Second)
		defer done()
		if _, err := next.Acquire(in, waiting(mutex("m", less))); err != nil {
			t.Errorf("the next claim: %v", err)
		}
		cut.Store(false)
		if r := storetest.Renew(t, holder, g); !errors.Is(r.Err, driver.ErrLost) {
			t.Errorf("the holder's renewal returned %+v", r)
		}
	})
}

// privateSessions is a link whose sessions no other client can keep alive.
type privateSessions struct {
	memtree.Link
	own string
}

func (p *privateSessions) OpenSession(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	s, err := p.Link.OpenSession(ctx, ttl)
	p.own = s.ID
	return s, err
}

func (p *privateSessions) KeepAlive(ctx context.Context, session string) (time.Duration, error) {
	if session != p.own {
		return 0, fmt.Errorf("%w: another's session", driver.ErrUnsupported)
	}
	return p.Link.KeepAlive(ctx, session)
}

// TestRenewalOfOthersClaim: where only its own client can keep a session alive, a renewal by another process is not
// confirmed. That client may be alive, but it may also be cut off.
func TestRenewalOfOthersClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder, other := &privateSessions{Link: memtree.Link{Server: server}}, &privateSessions{Link: memtree.Link{Server: server}}
		a, b := sequence.New(holder), sequence.New(other)
		defer a.Close()
		defer b.Close()
		g, err := a.Acquire(t.Context(), mutex("m", 6*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if r := storetest.Renew(t, b, g); !errors.Is(r.Err, driver.ErrUnsupported) {
			t.Errorf("another client's renewal returned %+v", r)
		}
		if r := storetest.Renew(t, a, g); r.Err != nil {
			t.Errorf("the holder's renewal returned %v", r.Err)
		}
	})
}
