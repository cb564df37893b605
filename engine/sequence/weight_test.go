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

func rwClaim(name string, weight int64) driver.Claim {
	c := waiting(mutex(name, 10*time.Second))
	c.Kind, c.Limit, c.Weight = driver.KindRW, driver.RWLimit, weight
	return c
}

// TestUpgradeRaces: a reader finds itself alone. If another reader joins before its upgrade is written, or is granted
// because a waiting writer between them gives up, the upgrade fails, reads again, and is refused.
func TestUpgradeRaces(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, e *sequence.Engine) (meanwhile func()){
		"a newcomer": func(t *testing.T, e *sequence.Engine) func() {
			return func() {
				if _, err := e.Acquire(t.Context(), rwClaim("rw", 1)); err != nil {
					t.Error(err)
				}
			}
		},
		"a waiter that leaves": func(t *testing.T, e *sequence.Engine) func() {
			writer := rwClaim("rw", driver.RWLimit)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _, _ = e.Acquire(ctx, writer) }()
			synctest.Wait()
			in := make(chan error, 1)
			go func() { _, err := e.Acquire(t.Context(), rwClaim("rw", 1)); in <- err }()
			synctest.Wait()
			return func() {
				cancel()
				synctest.Wait()
				if err := e.Release(t.Context(), writer, ""); err != nil {
					t.Error(err)
				}
				if err := <-in; err != nil {
					t.Error(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memtree.New()
				var then func()
				a := sequence.New(&memtree.Link{Server: server,
					Transport: func(_ context.Context, what string, do func() any) (any, error) {
						r := do()
						if f := then; what == "list" && f != nil {
							then = nil
							f()
						}
						return r, nil
					}})
				defer a.Close()
				b := sequence.New(&memtree.Link{Server: server})
				defer b.Close()
				g, err := a.Acquire(t.Context(), rwClaim("rw", 1))
				if err != nil {
					t.Fatal(err)
				}
				then = prepare(t, b)
				if err := a.SetWeight(t.Context(), g, driver.RWLimit); !errors.Is(err, driver.ErrHeld) {
					t.Errorf("a reader became a writer next to another reader: %v", err)
				}
			})
		})
	}
}

// TestDelayedUpgrade: an upgrade without a reply cannot take effect after a later downgrade has succeeded. It would
// block readers without reason.
func TestDelayedUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var late func() any
		lost := true
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what == "change" && lost {
					late = do
					return nil, driver.ErrUncertain
				}
				return do(), nil
			}})
		defer e.Close()
		g, err := e.Acquire(t.Context(), rwClaim("rw", 1))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.SetWeight(ctx, g, driver.RWLimit); !errors.Is(err, driver.ErrUncertain) {
			t.Errorf("without a reply: %v", err)
		}
		lost = false
		if err := e.SetWeight(t.Context(), g, 1); err != nil {
			t.Error(err)
		}
		late()
		if _, err := e.Acquire(t.Context(),
			func() driver.Claim { c := rwClaim("rw", 1); c.Wait = false; return c }()); err != nil {
			t.Errorf("a reader next to one whose upgrade was undone: %v", err)
		}
	})
}
