package sequence_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// cuttableLink is a link that can be cut. While it is cut, every second write takes effect, but its reply is lost.
type cuttableLink struct {
	memtree.Link
	down   atomic.Bool
	writes atomic.Int64
}

var errNoAnswer = errors.New("no answer")

func newCuttableLink(s *memtree.Server) *cuttableLink {
	l := &cuttableLink{}
	l.Server = s
	l.Transport = func(ctx context.Context, what string, do func() any) (any, error) {
		if !l.down.Load() {
			return do(), nil
		}
		if what != "beat" && l.writes.Add(1)%2 == 0 {
			do()
		}
		select {
		case <-time.After(30 * time.Millisecond):
			return nil, errNoAnswer
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	l.DropNotification = l.down.Load
	return l
}

// TestConformance: the engine passes the conformance suite on a correct tree.
func TestConformance(t *testing.T) {
	t.Parallel()
	server := memtree.New()
	var links sync.Map
	link := func(s driver.Store) *cuttableLink { l, _ := links.Load(s); return l.(*cuttableLink) }
	storetest.Conform(t, drivertest.Harness{
		Open: func(context.Context) (driver.Store, error) {
			l := newCuttableLink(server)
			s := sequence.New(l)
			links.Store(s, l)
			return s, nil
		},
		Cut:     func(s driver.Store) error { link(s).down.Store(true); return nil },
		Heal:    func(s driver.Store) error { link(s).down.Store(false); return nil },
		Kill:    func(s driver.Store) error { return link(s).Close() },
		Lower:   func(s driver.Store, ttl time.Duration) error { link(s).LowerSessionTTLs(ttl); return nil },
		Restart: func(context.Context) error { return nil }, // there is nothing to restart
	}, drivertest.Options{})
}
