package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestTableSilence: who waits for a lock that is kept in records is told when his patience with a silent cluster is over.
func TestTableSilence(t *testing.T) {
	t.Parallel()
	p, err := open(rig.Shared(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := record.New(p.Table())
	defer s.Close()
	c := storetest.Mutex("silence", 3*time.Second)
	g, err := s.Acquire(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), g.Claim, ""); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c = storetest.Waiting(storetest.Mutex("silence", 3*time.Second))
	start := time.Now()
	if _, err := s.Acquire(ctx, c); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}
