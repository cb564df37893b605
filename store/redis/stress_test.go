package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// holdChecker records which claims trusted that they held a lock, and when.
type holdChecker struct {
	mu              sync.Mutex
	inside          map[string]driver.Instant // by claim id: until when the claim trusts its grant
	largest         int64
	largestAt       driver.Instant // when largest was recorded
	seen            map[int64]bool
	clock           driver.Clock
	grants, fell    int
	repeated, twice int
}

// addHold counts a grant, and the claims that trust that they hold the lock at the same time. A grant that came too
// late to be valid counts for no overlap.
func (r *holdChecker) addHold(g driver.Grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, ends := r.clock.Now(), g.Since.Add(g.GrantedTTL-driver.Margin(g.GrantedTTL))
	r.grants++
	if r.seen[g.Token] {
		r.repeated++
	}
	r.seen[g.Token] = true
	if g.Token > r.largest {
		r.largest, r.largestAt = g.Token, now
	} else if g.Since.Monotonic > r.largestAt.Monotonic { // replies to concurrent requests may arrive in any order
		r.fell++
	}
	if ends.Monotonic <= now.Monotonic {
		return
	}
	for _, until := range r.inside {
		if until.Monotonic > now.Monotonic {
			r.twice++
		}
	}
	r.inside[g.ID] = ends
}

// grantCount is the number of grants.
func (r *holdChecker) grantCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.grants
}

func (r *holdChecker) removeHold(g driver.Grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.inside, g.ID)
}

func newHoldChecker() *holdChecker {
	return &holdChecker{seen: map[int64]bool{}, inside: map[string]driver.Instant{}, clock: driver.SystemClock}
}

// run has eight workers acquire and release one lock until ctx ends.
func (r *holdChecker) run(ctx context.Context, stores []driver.Store, name string) {
	var wg sync.WaitGroup
	for i := range 8 {
		s := stores[i%len(stores)]
		wg.Go(func() {
			for ctx.Err() == nil {
				c := waiting(mutex(name, 3*time.Second))
				c.Fair = i%2 == 0 && s.Info().Order != driver.OrderNone
				try, cancel := context.WithTimeout(ctx, 5*time.Second)
				g, err := s.Acquire(try, c)
				cancel()
				if err == nil {
					r.addHold(g)
					time.Sleep(3 * time.Millisecond)
					r.removeHold(g)
				}
				bounded, cancel := context.WithTimeout(context.Background(), time.Second)
				_ = s.Release(bounded, c, "")
				cancel()
			}
		})
	}
	wg.Wait()
}

// TestTokensThroughFailovers: the primary is killed again and again, and returns as a primary of its own until the
// Sentinels make it a replica. Tokens never repeat or fall. Redis allows two holders then; they are counted.
func TestTokensThroughFailovers(t *testing.T) {
	if !*prove {
		t.Skip("takes minutes: -prove")
	}
	g := mustStart(t)(redistest.Replicated(t.Context()))
	if err := g.DetectFailuresFast(); err != nil {
		t.Fatal(err)
	}
	a := g.SentinelAddrs()
	for _, replicas := range []int{0, 1} {
		var stores []driver.Store
		for range 4 {
			stores = append(stores, openForTest(t,
				fmt.Sprintf("redis+sentinel://%s/%s?addrs=%s,%s&replicas=%d", a[0], redistest.MasterName, a[1], a[2],
					replicas)))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		kills := 0
		var killer sync.WaitGroup
		killer.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(4 * time.Second)
				for _, s := range g.Servers {
					if info, err := s.Do("INFO", "replication"); err == nil && strings.Contains(info, "role:master") &&
						strings.Contains(info, "connected_slaves:2") {
						s.Kill()
						kills++
						time.Sleep(4 * time.Second)
						_ = s.Restart()
						break
					}
				}
			}
		})
		r := newHoldChecker()
		r.run(ctx, stores, fmt.Sprint("storm", replicas))
		cancel()
		killer.Wait()
		t.Logf("replicas=%d: %d failovers, %d grants; tokens repeated %d times and fell %d times; two held at a time %d times", replicas, kills, r.grants, r.repeated, r.fell, r.twice)
		if r.repeated+r.fell > 0 {
			t.Error("tokens must rise")
		}
		time.Sleep(15 * time.Second) // until all are replicas of one primary
	}
}

// TestTokensThroughEvictions: tokens never repeat or fall while the server evicts keys.
func TestTokensThroughEvictions(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--maxmemory", "3mb", "--maxmemory-policy", "allkeys-random")
	s := openForTest(t, "redis://"+server.Addr)
	span := 2 * time.Second
	if *prove {
		span = 30 * time.Second
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var beside sync.WaitGroup
	beside.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_, _ = server.Do("SET", fmt.Sprint("filler", i), strings.Repeat("x", 5000))
		}
	})
	evicted := func() int {
		_, text, _ := strings.Cut(sendCommand(t, server, "INFO", "stats"), "evicted_keys:")
		text, _, _ = strings.Cut(text, "\r")
		n, _ := strconv.Atoi(text)
		return n
	}
	r := newHoldChecker()
	beside.Go(func() { r.run(ctx, []driver.Store{s}, "m") })
	time.Sleep(span)
	err := redistest.Until(t.Context(), func() bool { return evicted() > 500 && r.grantCount() > 50 })
	cancel()
	beside.Wait()
	if err != nil {
		t.Error("not enough keys were evicted: ", err)
	}
	t.Logf("%d keys evicted, %d grants; tokens repeated %d times and fell %d times; two held at a time %d times",
		evicted(), r.grants, r.repeated, r.fell, r.twice)
	if r.repeated+r.fell > 0 {
		t.Error("tokens must rise")
	}
}
