package sequence_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
)

// endedTree is a tree that knows when its sessions are over before it is asked.
type endedTree struct {
	*memtree.Link
	ended chan struct{}
}

func (t endedTree) Open(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	s, err := t.Link.Open(ctx, ttl)
	s.Ended = t.ended
	return s, err
}

// TestSessionEnded: what a tree knows of the end of a session is told at once, however far away the next beat is, and though the
// nodes still stand.
func TestSessionEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := endedTree{&memtree.Link{Server: memtree.New()}, make(chan struct{})}
		e := sequence.New(tree)
		defer e.Close()
		held := mutex("m", 24*time.Hour)
		if _, err := e.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		close(tree.ended)
		at := time.Now()
		end, err := e.NextEnding(t.Context())
		var loss *driver.LossError
		if err != nil || end.ID != held.ID || !errors.As(end.Err, &loss) || loss.Loss != driver.LossSession || time.Since(at) > 0 {
			t.Errorf("told of %+v after %v, %v", end, time.Since(at), err)
		}
	})
}
