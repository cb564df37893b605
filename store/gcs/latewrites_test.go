package gcs_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/gcs"
	"github.com/holdfast-go/holdfast/store/gcs/gcstest"
)

// TestLateWrites: where nothing remains of a free lock, it is not released while a write may still come that would take
// it again, and whose reply did not say so. If that write takes effect while the release waits, its object is removed.
func TestLateWrites(t *testing.T) {
	t.Parallel()
	for _, layout := range []gcs.Layout{gcs.LayoutGCSLock, gcs.LayoutVault} {
		object := string(layout) + "/m"
		t.Run(string(layout)+", granted by the next write", func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			late, handled := make(chan struct{}), make(chan struct{})
			var writes atomic.Int64
			var removed atomic.Pointer[time.Time]
			s.Decide = func(r gcstest.Request) (f gcstest.Fate) {
				switch now := time.Now(); {
				case r.Kind == gcstest.Delete:
					removed.Store(&now)
				case r.Kind == gcstest.Insert && writes.Add(1) == 1:
					f = gcstest.Fate{RefuseStatus: 500, Late: late, Handled: func() { close(handled) }}
				}
				return f
			}
			store, _ := mustOpen(t, s, quickLayoutOptions(layout))
			began := time.Now()
			g := acquire(t, store, mutexClaim("m", time.Minute))
			close(late)
			<-handled // and was refused
			release(t, store, g.Claim)
			if d := removed.Load().Sub(began); d < maxLateness {
				t.Errorf("the lock was released %v after a write that can come for %v", d, maxLateness)
			}
		})
		t.Run(string(layout)+", the caller gives up", func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			late, handled := make(chan struct{}), make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			var writes, reads atomic.Int64
			s.Decide = func(r gcstest.Request) (f gcstest.Fate) {
				switch {
				case r.Kind == gcstest.Insert && writes.Add(1) == 1:
					cancel()
					f = gcstest.Fate{RefuseStatus: 500, Late: late, Handled: func() { close(handled) }}
				case r.Kind == gcstest.Read && r.Object == object && reads.Add(1) == 1: // the release finds nothing
					f.Handled = func() {
						close(late)
						<-handled
					}
				}
				return f
			}
			store, _ := mustOpen(t, s, quickLayoutOptions(layout))
			c := mutexClaim("m", time.Minute)
			if _, err := store.Acquire(ctx, c); !errors.Is(err, driver.ErrUncertain) {
				t.Errorf("a claim that was canceled: %v", err)
			}
			err := store.Release(t.Context(), c, "")
			if n := len(s.Writes(object)); n != 2 { // it was made, and removed
				t.Errorf("the lock was released (%v) after %d writes", err, n)
			}
			<-handled
		})
	}
}

// TestFreeLooksAgain: a record without a claim does not take the place of no object while there is one. The row with no
// object may have been read before a creation took effect whose caller has gone.
func TestFreeLooksAgain(t *testing.T) {
	t.Parallel()
	for _, layout := range []gcs.Layout{gcs.LayoutGCSLock, gcs.LayoutVault} {
		client, _ := newLink(t)
		table, err := gcs.NewForeignTable(t.Context(), client, bucket, at(startServer(t), quickLayoutOptions(layout)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { table.Close() })
		storetest.FreeLooksAgain(t, table)
	}
}
