package gcs_test

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestOddDate promises that a service or a proxy whose clock is ahead ends no living holder's claim for clients
// that have seen earlier replies: neither by some replies, nor when it stays ahead. Some such replies have no
// lasting effect: a dead holder is replaced in the usual time, also by a caller that only tries.
func TestOddDate(t *testing.T) {
	t.Parallel()
	const ahead, ttl = 25 * time.Second, 4 * time.Second
	for _, layout := range layouts {
		for what, stays := range map[string]bool{"some replies": false, "all replies": true} {
			t.Run(string(layout)+", "+what, func(t *testing.T) {
				t.Parallel()
				s := startServer(t)
				holder, _ := mustOpen(t, s, quickLayoutOptions(layout))
				other, _ := mustOpen(t, s, quickLayoutOptions(layout))
				release(t, other, acquire(t, other, mutexClaim("before", time.Minute)).Claim)
				g := acquire(t, holder, mutexClaim("m", ttl))
				believes := func() bool { return holder.Info().Clock.Since(g.Since) < ttl-driver.Margin(ttl) }
				s.Shift(ahead)
				for n := range 6 {
					if _, err := other.Acquire(t.Context(), mutexClaim("m", ttl)); !errors.Is(err, driver.ErrHeld) &&
						believes() {
						t.Fatalf("next to a living holder: %v", err)
					}
					if n == 2 && !stays {
						s.Shift(0)
					}
				}
				next := acquire(t, other, storetest.Waiting(mutexClaim("m", ttl)))
				if believes() || next.Token <= g.Token {
					t.Errorf("let in %v after the start of a grant of %v, with token %d after %d",
						holder.Info().Clock.Since(g.Since), ttl, next.Token, g.Token)
				}
				release(t, other, next.Claim)
				if stays {
					return
				}
				g = acquire(t, holder, mutexClaim("m", ttl))
				for {
					if _, err := other.Acquire(t.Context(), mutexClaim("m", ttl)); err == nil {
						break
						// 1 s is promised; the machine may be slow
					} else if late := holder.Info().Clock.Since(g.Since) - ttl; late > 5*time.Second {
						t.Fatalf("a dead holder stands %v after its TTL: %v", late, err)
					}
					time.Sleep(50 * time.Millisecond)
				}
				if believes() {
					t.Errorf("one who tries was let in %v after the start of a grant of %v",
						holder.Info().Clock.Since(g.Since), ttl)
				}
			})
		}
	}
}
