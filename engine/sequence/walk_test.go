package sequence

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// slowWalker is a tree that only implements Walk.
type slowWalker struct {
	NodeStore
	every time.Duration // time between two replies of the store
	steps int           // replies until it finds a lock
	then  int           // how many locks there are
}

func (*slowWalker) Traits() Traits      { return Traits{} }
func (w *slowWalker) Info() driver.Info { return driver.Info{Store: "walker:"} }
func (w *slowWalker) Close() error      { return nil }

func (w *slowWalker) Walk(ctx context.Context, _ string) iter.Seq2[Snapshot, error] {
	return func(yield func(Snapshot, error) bool) {
		for i := range w.steps + w.then {
			select {
			case <-time.After(w.every):
			case <-ctx.Done():
				yield(Snapshot{}, ctx.Err())
				return
			}
			look := Snapshot{}
			if i >= w.steps {
				look.Nodes = []Node{{Key: "a", Token: 1}}
			}
			if !yield(look, nil) {
				return
			}
		}
	}
}

// TestLongList: a listing ends when the store has not answered for long. It does not end because there is much to list,
// or because its reader is slow.
func TestLongList(t *testing.T) {
	for what, c := range map[string]struct {
		slowWalker
		reads time.Duration
		found int
		fails bool
	}{
		"much to go through": {slowWalker{every: time.Second, steps: 60, then: 2}, 0, 2, false},
		"read by and by":     {slowWalker{every: time.Second, then: 3}, time.Minute, 3, false},
		"a silent store":     {slowWalker{every: time.Minute, then: 3}, 0, 0, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := New(&c.slowWalker)
				defer e.Close()
				found := 0
				var fault error
				for _, err := range e.List(t.Context(), "") {
					if err != nil {
						fault = err
						continue
					}
					found++
					time.Sleep(c.reads)
				}
				if found != c.found || (fault != nil) != c.fails || errors.Is(fault, context.Canceled) {
					t.Errorf("%d locks, %v", found, fault)
				}
			})
		})
	}
}
