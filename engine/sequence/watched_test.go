package sequence_test

import (
	"cmp"
	"context"
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

// watchedTTL is so long that a keep-alive which is a second old still counts.
const watchedTTL = 30 * time.Second

// TestWatchedRenewal: holding costs nothing per lock. While their nodes are watched, claims are renewed by one
// keep-alive and one confirmation of the watches, and none is read.
func TestWatchedRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder := sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		var grants []driver.Grant
		for i := range 250 {
			g, err := holder.Acquire(t.Context(), mutex(fmt.Sprint(i), watchedTTL))
			if err != nil {
				t.Fatal(err)
			}
			grants = append(grants, g)
		}
		time.Sleep(time.Second)
		server.TakeRequestCounts()
		start := time.Now()
		for range 6 {
			time.Sleep(watchedTTL / 3)
			holder.Renew(t.Context(), grants, func(i int, r driver.Renewal) {
				if r.Err != nil || r.GrantedTTL != watchedTTL {
					t.Fatalf("%+v", r)
				}
			})
		}
		if n := server.TakeRequestCounts(); n["read"] != 0 || n["list"] != 0 || n["beat"] > 7 || n["confirm"] > 6 {
			t.Errorf("in %v, 250 claims were renewed by %v", time.Since(start), n)
		}
	})
}

// TestBreakOfWatchedClaim: the renewal of a watched claim that was broken reports that, although the store's
// notification is lost or late.
func TestBreakOfWatchedClaim(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(holder *memtree.Link)
	}{
		{"lost", func(l *memtree.Link) {
			l.DropNotification = func() bool { return true }
		}},
		{"lost, and the watches cannot be confirmed", func(l *memtree.Link) {
			l.DropNotification = func() bool { return true }
			l.Transport = func(ctx context.Context, what string, do func() any) (any, error) {
				if what == "confirm" {
					return nil, errNoAnswer
				}
				return do(), nil
			}
		}},
		{"late", func(l *memtree.Link) {
			l.DelayNotification = func() { time.Sleep(time.Second) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memtree.New()
				link := &memtree.Link{Server: server}
				c.prepare(link)
				holder, operator := sequence.New(link), sequence.New(&memtree.Link{Server: server})
				defer holder.Close()
				defer operator.Close()
				g, err := holder.Acquire(t.Context(), mutex("m", watchedTTL))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // it is watched
				if err := operator.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
					t.Fatal(err)
				}
				if err := storetest.Renew(t, holder, g).Err; storetest.LossOf(err) != driver.LossBroken {
					t.Errorf("the renewal returned %v", err)
				}
			})
		})
	}
}

// TestReadBeforeBreak: a watched claim is broken while its node is being read, and the next reads fail. The first read
// says nothing about the break, so the renewal reads once more.
func TestReadBeforeBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var reads atomic.Int64
		var answers atomic.Bool
		holder := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				r := do()
				if what == "read" {
					if reads.Add(1) == 1 {
						time.Sleep(500 * time.Millisecond)
					} else if !answers.Load() {
						return nil, errNoAnswer
					}
				}
				return r, nil
			}})
		operator := sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		defer operator.Close()
		g, err := holder.Acquire(t.Context(), mutex("m", watchedTTL))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // it is watched
		for _, mode := range []driver.BreakMode{driver.BreakRequestRelease, driver.BreakForce} {
			if err := operator.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: mode}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		if n := reads.Load(); n < 2 {
			t.Fatalf("%d reads", n)
		}
		answers.Store(true)
		if err := storetest.Renew(t, holder, g).Err; storetest.LossOf(err) != driver.LossBroken {
			t.Errorf("the renewal returned %v", err)
		}
	})
}

// TestShortWaitHasOneWatch: a claim that waits has a watch of the claim ahead, and of its own node only if it waits for
// long.
func TestShortWaitHasOneWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder, waiter := sequence.New(&memtree.Link{Server: server}), sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		defer waiter.Close()
		held := storetest.Acquire(t, holder, mutex("m", watchedTTL))
		time.Sleep(time.Second) // the holder's node is watched
		server.TakeRequestCounts()
		granted := make(chan error, 1)
		go func() {
			_, err := waiter.Acquire(t.Context(), storetest.Waiting(mutex("m", watchedTTL)))
			granted <- err
		}()
		watches := 0
		for _, want := range []struct {
			after   time.Duration
			watches int
		}{{900 * time.Millisecond, 1}, {400 * time.Millisecond, 2}} {
			time.Sleep(want.after)
			if watches += server.TakeRequestCounts()["watch"]; watches != want.watches {
				t.Errorf("%v later there were %d watches, want %d", want.after, watches, want.watches)
			}
		}
		storetest.Release(t, holder, held.Claim)
		if err := <-granted; err != nil {
			t.Error(err)
		}
	})
}

// TestCheckIsRepeated: a claim is broken, and the first reads that should find that out fail. They are repeated soon: a
// waiting claim has no renewals, and a holder's next one may be far away.
func TestCheckIsRepeated(t *testing.T) {
	for _, waiting := range []bool{false, true} {
		t.Run(map[bool]string{false: "held", true: "waiting"}[waiting], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memtree.New()
				var reads atomic.Int64
				client := sequence.New(&memtree.Link{Server: server,
					Transport: func(_ context.Context, what string, do func() any) (any, error) {
						if what == "read" && reads.Add(1) <= 2 {
							return nil, errNoAnswer
						}
						return do(), nil
					}})
				operator := sequence.New(&memtree.Link{Server: server})
				defer client.Close()
				defer operator.Close()
				c := mutex("m", watchedTTL)
				if waiting {
					storetest.Acquire(t, operator, mutex("m", watchedTTL))
					c.Wait = true
				}
				ended := make(chan error, 1)
				go func() {
					_, err := client.Acquire(t.Context(), c)
					if !waiting && err == nil {
						var end driver.Ending
						end, err = client.NextEnding(t.Context())
						err = cmp.Or(err, end.Err)
					}
					ended <- err
				}()
				time.Sleep(1500 * time.Millisecond) // it is watched
				l, err := operator.Inspect(t.Context(), c.Name)
				if err != nil {
					t.Fatal(err)
				}
				victim := append(l.Waiters, l.Holders...)[0]
				if err := operator.Break(t.Context(), c.Name, victim.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				err = <-ended
				if took := time.Since(began); storetest.LossOf(err) != driver.LossBroken || took > time.Second {
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}
