package gcs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/canceltest"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/store/gcs"
	"github.com/holdfast-go/holdfast/store/gcs/gcstest"
)

// countFor is how often a step is repeated.
func countFor(few, all int) int {
	if *prove {
		return all
	}
	return few
}

// TestLostReplies: a write whose reply is lost, or replaced by an error after its effect, is settled by a read.
// There is one claim, it keeps its token, and is gone after its release. Where nothing remains of a free lock, the
// release may say that it does not know who ended the claim.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]gcstest.Fate{
		"the reply is lost":                {DropReply: true},
		"an error comes after the effect":  {ReplaceStatus: http.StatusServiceUnavailable},
		"the request is refused, not done": {RefuseStatus: http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, layout := range layouts {
				s := startServer(t)
				var next atomic.Pointer[gcstest.Fate] // of one write
				s.Decide = func(r gcstest.Request) gcstest.Fate {
					if r.Kind == gcstest.Insert || r.Kind == gcstest.Delete {
						if f := next.Swap(nil); f != nil {
							return *f
						}
					}
					return gcstest.Fate{}
				}
				store, _ := mustOpen(t, s, quickLayoutOptions(layout))
				other, _ := mustOpen(t, s, quickLayoutOptions(layout))
				forgets := layout != gcs.LayoutRecord // and it cannot be known who removed an object
				var last int64
				for range countFor(20, 1000) {
					next.Store(&fate)
					g, err := store.Acquire(t.Context(), mutexClaim("m", time.Minute))
					if err != nil || g.Token <= last || next.Load() != nil {
						t.Fatalf("%s: acquiring: token %d after %d, %v", layout, g.Token, last, err)
					}
					last = g.Token
					next.Store(&fate)
					if err := renew(t, store, g).Err; errors.Is(err, driver.ErrLost) {
						t.Fatalf("%s: renewing: %v", layout, err)
					}
					if err := renew(t, store, g).Err; err != nil {
						t.Fatalf("%s: renewing again: %v", layout, err)
					}
					l, err := other.Inspect(t.Context(), "m")
					if err != nil || len(l.Holders) != 1 || l.Holders[0].Token != g.Token {
						t.Fatalf("%s: one claim should stand, but %+v, %v", layout, l, err)
					}
					next.Store(&fate)
					if err := store.Release(t.Context(), g.Claim, ""); err != nil &&
						!(forgets && errors.Is(err, driver.ErrUncertain)) || next.Load() != nil {
						t.Fatalf("%s: releasing: %v", layout, err)
					}
					if l, err = other.Inspect(t.Context(), "m"); err != nil || len(l.Holders) != 0 {
						t.Fatalf("%s: nothing should stand, but %+v, %v", layout, l, err)
					}
				}
				t.Logf("%s, layout %s: %d acquires, renewals and releases settled", name, layout, countFor(20, 1000))
			}
		})
	}
}

// TestCancels: claims that are canceled at any moment are gone a second after their release.
func TestCancels(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			s.Decide = func(gcstest.Request) gcstest.Fate { return gcstest.Fate{ReplyDelay: 2 * time.Millisecond} }
			opened := make([]driver.Store, 4)
			for i := range opened {
				opened[i], _ = mustOpen(t, s, quickLayoutOptions(layout))
			}
			began := time.Now()
			g, err := opened[0].Acquire(t.Context(), mutexClaim("m", time.Minute))
			if err := errors.Join(err, opened[0].Release(t.Context(), g.Claim, "")); err != nil {
				t.Fatal(err)
			}
			spread := time.Since(began)
			canceltest.Run(t, opened, int64(countFor(200, 10000)), spread, func(worker int) driver.Claim {
				c := mutexClaim(fmt.Sprint("m", worker), time.Minute)
				c.Wait = rand.N(2) == 0
				return c
			}, *prove)
		})
	}
}

// TestClocks: a process that tries once, and has not watched before, replaces a dead holder within a second after
// its TTL, and not before. The clients' clocks are an hour apart. On a machine that runs late it may have to try
// longer: the error of its estimate of the store's clock is as large as the round trips are long.
func TestClocks(t *testing.T) {
	t.Parallel()
	var machine pace.Pace
	t.Cleanup(machine.Watch())
	for name, shift := range map[string]time.Duration{"right": 0, "an hour slow": time.Hour,
		"an hour fast": -time.Hour} {
		for _, layout := range layouts {
			t.Run(string(layout)+", clients' clocks "+name, func(t *testing.T) {
				t.Parallel()
				s := startServer(t)
				s.Shift(shift)
				const ttl = 3 * time.Second
				fast, slow := quickLayoutOptions(layout), quickLayoutOptions(layout)
				fast.Clock, slow.Clock = shiftedClock(time.Hour), shiftedClock(-time.Hour)
				var both sync.WaitGroup
				both.Go(func() { // one that tries all the time
					early, _ := mustOpen(t, s, fast)
					g, since, silent := leaveDeadHolder(t, s, layout, "early", ttl)
					for tried := true; tried; time.Sleep(50 * time.Millisecond) {
						late := time.Since(silent) >= ttl+time.Second+10*machine.Worst(silent)
						next, err := early.Acquire(t.Context(), mutexClaim("early", time.Minute))
						at := time.Since(since)
						tried = errors.Is(err, driver.ErrHeld) && !late
						switch {
						case tried:
						case err != nil || at < ttl || next.Token <= g.Token:
							t.Errorf("%v after the start of a grant of %v: token %d after %d, %v", at, ttl, next.Token,
								g.Token, err)
						default:
							t.Logf("one that tries all the time was let in %v after the end of the TTL", at-ttl)
						}
					}
				})
				both.Go(func() { // and one that comes once, and has watched nothing
					g, _, silent := leaveDeadHolder(t, s, layout, "once", ttl)
					time.Sleep(time.Until(silent.Add(ttl + time.Second)))
					came := time.Now()
					cron, _ := mustOpen(t, s, slow)
					next, err := cron.Acquire(t.Context(), mutexClaim("once", time.Minute))
					for errors.Is(err, driver.ErrHeld) && time.Since(came) < 10*machine.Worst(silent) {
						next, err = cron.Acquire(t.Context(), mutexClaim("once", time.Minute))
					}
					if err != nil || next.Token <= g.Token {
						t.Errorf("one who came a second after the end of the TTL: token %d after %d, %v", next.Token,
							g.Token, err)
					}
				})
				both.Wait()
			})
		}
	}
}

// leaveDeadHolder makes a client take a lock and die. It returns the grant, when the client began to ask, and when
// it died.
func leaveDeadHolder(t *testing.T, s *gcstest.Server, layout gcs.Layout, name string,
	ttl time.Duration) (g driver.Grant, since, silent time.Time) {
	store, link := mustOpen(t, s, quickLayoutOptions(layout))
	since = time.Now()
	g, err := store.Acquire(t.Context(), mutexClaim(name, ttl))
	silent = time.Now()
	if err != nil {
		t.Error(err)
	}
	link.Cut()
	return g, since, silent
}

// TestWriteInterval: however many clients want a lock, it is written at most once per second on average, and its
// holder does not wait to release it.
func TestWriteInterval(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(countFor(12, 60))*time.Second)
	defer cancel()
	var slowest atomic.Int64 // without the delays of the machine
	var machine pace.Pace
	defer machine.Watch()()
	done := make(chan int)
	const clients = 4
	for range clients {
		store, _ := mustOpen(t, s, &gcs.Options{Prefix: "locks/"})
		if store.Info().WriteInterval == 0 {
			t.Error("the pace is not declared")
		}
		go func() {
			held := 0
			for {
				c := mutexClaim("m", time.Minute)
				c.Wait = true
				if _, err := store.Acquire(ctx, c); err != nil {
					_ = store.Release(context.Background(), c, "")
					done <- held
					return
				}
				held++
				from := time.Now()
				if err := store.Release(context.Background(), c, ""); err != nil {
					t.Error(err)
				}
				slowest.Store(max(slowest.Load(), int64(time.Since(from)-machine.Lost(from))))
			}
		}()
	}
	held := 0
	for range clients {
		held += <-done
	}
	writes := s.Writes("locks/m")
	span := writes[len(writes)-1].Sub(writes[0])
	t.Logf("%d times held, %d writes in %v; a release took %v at most",
		held, len(writes), span, time.Duration(slowest.Load()))
	if most := int(span/time.Second) + 2; len(writes) > most || held < 2 {
		t.Errorf("%d writes in %v, %d are in order", len(writes), span, most)
	}
	if d := time.Duration(slowest.Load()); d > 1800*time.Millisecond {
		t.Errorf("a release took %v: it must not wait", d)
	}
}

// TestNoTimeOfDay: no code of the store uses the time of day of this machine, so it does not matter what it is.
func TestNoTimeOfDay(t *testing.T) {
	sources, err := filepath.Glob("*.go")
	if err != nil || len(sources) == 0 {
		t.Fatal(err)
	}
	for _, name := range sources {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "_test.go") && strings.Contains(string(text), "time.Now(") {
			t.Errorf("%s reads the wall clock", name)
		}
	}
}
