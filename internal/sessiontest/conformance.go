//go:build unix

package sessiontest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// caseLimit is the time limit of one case of the suite: many run at the same time, next to three servers.
const caseLimit = 4 * time.Minute

// Conformance runs the driver's suite on three servers, which are restarted during it unless they are shared.
func (h *Harness[C, P]) Conformance(t *testing.T) {
	var c C
	suite := drivertest.Harness{
		Open: func(context.Context) (driver.Store, error) { return h.Open(c) },
		Cut:  func(s driver.Store) error { s.(P).Cut(); return nil },
		Heal: func(s driver.Store) error { s.(P).Heal(); return nil },
		Kill: func(s driver.Store) error { s.(P).Cut(); go s.Close(); return nil },
	}
	if h.Share != nil {
		c = h.Share(t)
	} else {
		c = h.Own(t)
		suite.Restart = func(ctx context.Context) error {
			for _, m := range c.Servers() {
				m.Terminate()
			}
			for _, m := range c.Servers() {
				if err := m.Start(); err != nil {
					return err
				}
			}
			return c.Ready(ctx)
		}
	}
	storetest.Conform(t, suite, drivertest.Options{Parallel: 16, Limit: caseLimit})
}

// Table runs the suite on locks that the record engine keeps in the store's table.
func (h *Harness[C, P]) Table(t *testing.T) {
	c := h.Shared(t)
	var peers sync.Map
	defer peers.Range(func(_, p any) bool { p.(P).Close(); return true })
	storetest.Conform(t, drivertest.Harness{
		Open: func(context.Context) (driver.Store, error) {
			p, err := h.Open(c)
			if err != nil {
				return nil, err
			}
			s := record.New(p.Table())
			peers.Store(s, p)
			return s, nil
		},
		Kill: func(s driver.Store) error {
			p, _ := peers.Load(s)
			p.(P).Cut()
			return nil
		},
		Slack: 2 * time.Second, // many swaps of a row conflict, next to all the other tests
	}, drivertest.Options{Parallel: 8, Limit: caseLimit, Effort: 0.3,
		Match: func(c drivertest.Case) bool { return c.Name != "close-stops" }}) // the store under it goes on
}

// TableSilence: a client that waits for a lock in a table gets an error when the servers have not answered for as
// long as it retries.
func (h *Harness[C, P]) TableSilence(t *testing.T) {
	p, err := h.Open(h.Shared(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := record.New(p.Table())
	defer s.Close()
	c := storetest.Mutex("silence", time.Hour)
	g, err := s.Acquire(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), g.Claim, ""); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c = storetest.Waiting(storetest.Mutex("silence", 3*time.Second))
	start := time.Now()
	if _, err := s.Acquire(ctx, c); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}
