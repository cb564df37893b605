package record_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// openCounted opens a store whose requests take 50 ms, and are counted.
func openCounted() (driver.Store, *countingTable) {
	table := fakeMemory().Table()
	counted := &countingTable{Table: distantTable{Table: table}}
	return record.New(notifyingTable{counted, table.Watcher(), 0}), counted
}

// crowdClaim is a claim of one of the goroutines that want one lock.
func crowdClaim(kind driver.Kind, limit, weight int64, worker, turn int) driver.Claim {
	return driver.Claim{
		Name: "m", ID: fmt.Sprintf("worker %d turn %d", worker, turn), Kind: kind, Limit: limit, Weight: weight,
		TTL: time.Hour, Fair: true, Wait: true,
	}
}

// TestGroupedSteps: 64 goroutines of one client that want one lock do not refuse each other. A turn takes one swap,
// which releases the lock, grants the next claim and lets others join the queue, and less than one load, since the
// client knows what it has written. They take turns in order, and nobody finds the queue full.
func TestGroupedSteps(t *testing.T) {
	for _, k := range []struct {
		kind          driver.Kind
		limit, weight int64
	}{{driver.KindMutex, 1, 1}, {driver.KindRW, 1 << 20, 1 << 20}, {driver.KindSemaphore, 3, 1}} {
		t.Run(string(k.kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runGoroutines(t, func(worker, turn int) driver.Claim {
					return crowdClaim(k.kind, k.limit, k.weight, worker, turn)
				})
			})
		})
	}
}

func runGoroutines(t *testing.T, claim func(worker, turn int) driver.Claim) {
	const workers, turns = 64, 4
	s, table := openCounted()
	defer s.Close()
	var all sync.WaitGroup
	var mu sync.Mutex
	var order []int // the workers, as they got the lock
	began := time.Now()
	for n := range workers {
		all.Go(func() {
			for turn := range turns {
				g, err := s.Acquire(t.Context(), claim(n, turn))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, n)
				mu.Unlock()
				if err := s.Release(t.Context(), g.Claim, g.Ref); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	swaps, loads := float64(table.swaps.Load())/workers/turns, float64(table.loads.Load())/workers/turns
	t.Logf("%.2f swaps and %.2f loads per turn, of %v each", swaps, loads, time.Since(began)/workers/turns)
	if swaps > 1.2 || loads > 0.8 {
		t.Errorf("a turn took %.2f swaps and %.2f loads", swaps, loads)
	}
	for n := range workers {
		if at := slices.Index(order[workers:], n); at > workers+workers/2 {
			t.Errorf("worker %d waited for %d turns of others", n, at)
		}
	}
}

// hangingTable is a table whose next swap hangs until its context ends, if hang is set.
type hangingTable struct {
	record.Table
	mu   sync.Mutex
	hang bool
	hung chan struct{} // closed when a swap hangs
}

func (*hangingTable) Watcher() record.Watcher { return nil }

func (t *hangingTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.mu.Lock()
	hang := t.hang
	t.hang = false
	t.mu.Unlock()
	if hang {
		close(t.hung)
		<-ctx.Done()
		return record.Row{}, ctx.Err()
	}
	return t.Table.Swap(ctx, row)
}

// TestHangingSwap: a renewal does not wait for another call's swap that hangs, and neither does a claim whose caller
// has given up.
func TestHangingSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &hangingTable{Table: fakeMemory().Table(), hung: make(chan struct{})}
		s := record.New(table)
		defer s.Close()
		held, err := s.Acquire(t.Context(), crowdClaim(driver.KindSemaphore, 3, 1, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		table.mu.Lock()
		table.hang = true
		table.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		var others sync.WaitGroup
		others.Go(func() { s.Acquire(ctx, crowdClaim(driver.KindSemaphore, 3, 1, 1, 0)) })
		<-table.hung
		others.Go(func() {
			given, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			if _, err := s.Acquire(given, crowdClaim(driver.KindSemaphore, 3, 1, 2, 0)); !isPlainTimeout(err) {
				t.Errorf("a claim that was not sent: %v", err)
			}
		})
		from := time.Now()
		s.Renew(t.Context(), []driver.Grant{held}, func(_ int, r driver.Renewal) {
			if took := time.Since(from); r.Err != nil || took > 500*time.Millisecond {
				t.Errorf("a renewal next to a swap that hangs took %v: %v", took, r.Err)
			}
		})
		cancel()
		others.Wait()
	})
}

// isPlainTimeout reports whether a call ended in time, and nothing is left of it.
func isPlainTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, driver.ErrUncertain)
}

// TestWaiterLeavesWhileGranted: a claim whose caller gives up while another call's swap grants it has an outcome that
// is not known. Its Release makes sure that nothing is left, even if the swap arrives later.
func TestWaiterLeavesWhileGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &hangingTable{Table: fakeMemory().Table(), hung: make(chan struct{})}
		s := record.New(table)
		defer s.Close()
		held, err := s.Acquire(t.Context(), crowdClaim(driver.KindMutex, 1, 1, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		waiter := crowdClaim(driver.KindMutex, 1, 1, 1, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var others sync.WaitGroup
		others.Go(func() {
			if _, err := s.Acquire(ctx, waiter); !errors.Is(err, driver.ErrUncertain) {
				t.Errorf("a claim that may have been granted: %v", err)
			}
			if err := s.Release(t.Context(), waiter, ""); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait() // it waits in the queue
		table.mu.Lock()
		table.hang = true
		table.mu.Unlock()
		others.Go(func() {
			if err := s.Release(t.Context(), held.Claim, held.Ref); err != nil {
				t.Error(err)
			}
		})
		<-table.hung
		cancel()
		others.Wait()
		if l, err := s.Inspect(t.Context(), "m"); err != nil || len(l.Holders)+len(l.Waiters) > 0 {
			t.Errorf("%d holders, %d waiters are left (%v)", len(l.Holders), len(l.Waiters), err)
		}
	})
}

// gatedTable is a table whose swaps wait at a gate while it is shut, and whose clock can be moved on.
type gatedTable struct {
	record.Table
	mu      sync.Mutex
	gate    chan struct{} // nil if it is open
	waiting int           // swaps at the gate
	swaps   int           // swaps that have passed it
	gaveUp  int           // swaps whose context ended at the gate
	ahead   time.Duration // by how much the clock was moved on
	maxSize int           // of a record; 0: as usual
	noReply func(row record.Row) (takesEffect, lost bool)
}

func (*gatedTable) Watcher() record.Watcher { return nil }

func (t *gatedTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.mu.Lock()
	gate := t.gate
	t.waiting++
	t.mu.Unlock()
	var err error
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	t.mu.Lock()
	t.waiting--
	if t.swaps++; err != nil {
		t.gaveUp++
	}
	noReply := t.noReply
	t.mu.Unlock()
	if err != nil {
		return record.Row{}, err
	}
	if noReply != nil {
		if takesEffect, lost := noReply(row); lost {
			if takesEffect {
				t.Table.Swap(ctx, row)
			}
			return record.Row{}, errors.New("no reply")
		}
	}
	return t.Table.Swap(ctx, row)
}

func (t *gatedTable) TokenFloor() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Table.TokenFloor() + t.ahead.Microseconds()
}

func (t *gatedTable) Clock() record.Clock { return record.ExactClock(t.TokenFloor) }

func (t *gatedTable) Traits() record.Traits { return record.Traits{MaxRecord: t.maxSize} }

func (t *gatedTable) shut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gate = make(chan struct{})
}

// open lets the swaps through, and counts from 0 those that come then.
func (t *gatedTable) open() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.gate)
	t.gate, t.swaps = nil, -t.waiting
}

func (t *gatedTable) countSwaps() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.swaps
}

// gatedCrowd is a client with a claim that holds the lock, and the renewal of that claim at the shut gate. So the steps
// that are made next share a swap when the gate opens.
type gatedCrowd struct {
	*testing.T
	table *gatedTable
	store driver.Store
	held  driver.Grant
	calls sync.WaitGroup
}

func newGatedCrowd(t *testing.T, table *gatedTable) *gatedCrowd {
	table.Table = fakeMemory().Table()
	c := &gatedCrowd{T: t, table: table, store: record.New(table)}
	c.held = c.acquire(c.claim(0))
	return c
}

func (c *gatedCrowd) claim(n int) driver.Claim { return crowdClaim(driver.KindMutex, 1, 1, n, 0) }

func (c *gatedCrowd) acquire(claim driver.Claim) driver.Grant {
	g, err := c.store.Acquire(c.Context(), claim)
	if err != nil {
		c.Errorf("%s: %v", claim.ID, err)
	}
	return g
}

func (c *gatedCrowd) release(g driver.Grant) {
	if err := c.store.Release(c.Context(), g.Claim, g.Ref); err != nil {
		c.Errorf("releasing %s: %v", g.ID, err)
	}
}

// later makes a call in a goroutine, and returns when it waits for something.
func (c *gatedCrowd) later(call func()) {
	c.calls.Go(call)
	synctest.Wait()
}

func (c *gatedCrowd) renewAtGate() {
	c.table.shut()
	c.later(func() {
		c.store.Renew(c.Context(), []driver.Grant{c.held}, func(_ int, r driver.Renewal) {
			if r.Err != nil {
				c.Errorf("renewing: %v", r.Err)
			}
		})
	})
}

func (c *gatedCrowd) end() {
	c.calls.Wait()
	if l, err := c.store.Inspect(c.Context(), "m"); err != nil || len(l.Holders)+len(l.Waiters) > 0 {
		c.Errorf("%d holders and %d waiters are left (%v)", len(l.Holders), len(l.Waiters), err)
	}
	c.store.Close()
}

// TestReleaseGoesFirst: in a swap that several steps share, a release is made before the claims that came earlier. So
// the first of them is granted by that swap and not by another one.
func TestReleaseGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newGatedCrowd(t, &gatedTable{})
		c.renewAtGate()
		granted := make(chan driver.Grant, 1)
		c.later(func() { granted <- c.acquire(c.claim(1)) })
		c.later(func() { c.release(c.held) })
		c.table.open()
		next := <-granted
		if n := c.table.countSwaps(); n != 1 {
			t.Errorf("a release and a claim took %d swaps", n)
		}
		c.release(next)
		c.end()
	})
}

// TestSharedSwapWithoutRoom: if the record has no room for all claims of a swap, those that fit join the queue, and the
// others are refused.
func TestSharedSwapWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newGatedCrowd(t, &gatedTable{maxSize: 3000})
		c.renewAtGate()
		granted := make(chan driver.Grant, 1)
		big := func(n int) driver.Claim {
			claim := c.claim(n)
			claim.Meta = string(bytes.Repeat([]byte{'m'}, 1000))
			return claim
		}
		c.later(func() { granted <- c.acquire(big(1)) })
		c.later(func() {
			if _, err := c.store.Acquire(t.Context(), big(2)); !errors.Is(err, driver.ErrQueueFull) {
				t.Errorf("a claim for which there is no room: %v", err)
			}
		})
		c.table.open()
		time.Sleep(time.Second) // otherwise the release makes room
		c.release(c.held)
		c.release(<-granted)
		c.end()
	})
}

// TestLateWaiterSharesSwap: a waiter whose renewal is late keeps its place, although the step of another call, which is
// made before its own in the same swap, finds it expired.
func TestLateWaiterSharesSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newGatedCrowd(t, &gatedTable{})
		var order []int
		waiter := c.claim(1)
		waiter.TTL = 3 * time.Second
		turn := func(n int, claim driver.Claim) {
			g := c.acquire(claim)
			order = append(order, n)
			c.release(g)
		}
		c.later(func() { turn(1, waiter) })
		time.Sleep(waiter.TTL/3 - 10*time.Millisecond)
		c.renewAtGate()
		c.later(func() { turn(2, c.claim(2)) })
		time.Sleep(20 * time.Millisecond) // the waiter's renewal has come
		synctest.Wait()
		c.table.mu.Lock()
		c.table.ahead = time.Minute
		c.table.mu.Unlock()
		c.table.open()
		synctest.Wait()
		c.release(c.held)
		c.end()
		if !slices.Equal(order, []int{1, 2}) {
			t.Errorf("the order was %v", order)
		}
	})
}

// TestCallerLeavesSharedSwap: a caller that gives up while its step is in a swap with those of others delays none of
// them.
func TestCallerLeavesSharedSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newGatedCrowd(t, &gatedTable{})
		c.renewAtGate()
		ctx, cancel := context.WithCancel(t.Context())
		c.later(func() {
			if _, err := c.store.Acquire(ctx, c.claim(1)); !errors.Is(err, driver.ErrUncertain) {
				t.Errorf("a claim that may be in the queue: %v", err)
			}
			if err := c.store.Release(t.Context(), c.claim(1), ""); err != nil {
				t.Error(err)
			}
		})
		granted := make(chan driver.Grant, 1)
		c.later(func() { granted <- c.acquire(c.claim(2)) })
		first := c.table.gate
		c.table.shut() // for the shared swap
		close(first)
		synctest.Wait()
		cancel()
		synctest.Wait()
		c.table.open()
		synctest.Wait()
		if c.table.gaveUp > 0 {
			t.Errorf("a swap of others ended with one caller")
		}
		c.release(c.held)
		c.release(<-granted)
		c.end()
	})
}

// TestReleaseLeavesSharedSwap: a release whose context has ended leaves its step to the swap, which goes on, and
// looks at nothing that the step may be finding just then. The race detector sees it in some of the rounds.
func TestReleaseLeavesSharedSwap(t *testing.T) {
	t.Parallel()
	s := memory.New(nil).Open()
	defer s.Close()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for n := range 300 {
		held := storetest.Acquire(t, s, crowdClaim(driver.KindMutex, 1, 1, 0, n))
		next := make(chan driver.Grant)
		go func() { next <- storetest.Acquire(t, s, crowdClaim(driver.KindMutex, 1, 1, 1, n)) }()
		for {
			l, err := s.Inspect(t.Context(), held.Name)
			if err != nil {
				t.Fatal(err)
			}
			if len(l.Waiters) > 0 {
				break
			}
		}
		_ = s.Release(over, held.Claim, held.Ref) // it may have ended the claim, or not
		if err := s.Release(t.Context(), held.Claim, held.Ref); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Fatal(err)
		}
		storetest.Release(t, s, (<-next).Claim)
	}
}

// TestSharedSwapWithoutReply: if the reply to a shared swap is lost, each of its steps is resolved by its own call.
func TestSharedSwapWithoutReply(t *testing.T) {
	for _, takesEffect := range []bool{true, false} {
		t.Run(fmt.Sprintf("takes effect %v", takesEffect), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newGatedCrowd(t, &gatedTable{})
				c.renewAtGate()
				var mu sync.Mutex
				tokens := []int64{c.held.Token}
				for n := 1; n <= 3; n++ {
					c.later(func() {
						g := c.acquire(c.claim(n))
						mu.Lock()
						tokens = append(tokens, g.Token)
						mu.Unlock()
						c.release(g)
					})
				}
				c.later(func() { c.release(c.held) })
				swaps := 0
				c.table.noReply = func(record.Row) (bool, bool) {
					swaps++
					return takesEffect, swaps == 2 // the first is the renewal
				}
				c.table.open()
				c.end()
				if len(tokens) != 4 || !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != 4 {
					t.Errorf("the tokens are %v", tokens)
				}
			})
		})
	}
}

// TestExpiryDuringOwnWrites: a claim waits for one of its own client that expires, while the client renews other
// claims on the lock all the time.
func TestExpiryDuringOwnWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakeMemory().Open()
		defer s.Close()
		claim := func(n int, ttl time.Duration) driver.Claim {
			c := crowdClaim(driver.KindSemaphore, 2, 1, n, 0)
			c.TTL = ttl
			return c
		}
		storetest.Acquire(t, s, claim(0, 3*time.Second)) // nobody renews it
		renewed := storetest.Acquire(t, s, claim(1, time.Minute))
		from := time.Now()
		granted := acquireLater(t, s, claim(2, time.Minute))
		for {
			select {
			case at := <-granted:
				if took := at.Sub(from); took > 4*time.Second {
					t.Errorf("granted after %v", took)
				}
				return
			case <-time.After(10 * time.Millisecond):
				if time.Since(from) > time.Minute {
					t.Fatal("not granted")
				}
				s.Renew(t.Context(), []driver.Grant{renewed}, func(int, driver.Renewal) {})
			}
		}
	})
}

// TestOtherClientMakesRoom: a claim behind others of its own client, which expects that its client makes room for it,
// is granted soon if another client does. One behind a claim of another client is granted at once.
func TestOtherClientMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		own, other := m.Open(), m.Open()
		defer own.Close()
		defer other.Close()
		held := storetest.Acquire(t, own, crowdClaim(driver.KindMutex, 1, 1, 0, 0))
		waiter := crowdClaim(driver.KindMutex, 1, 1, 1, 0)
		granted := acquireLater(t, own, waiter)
		synctest.Wait()
		from := time.Now()
		if err := other.Break(t.Context(), "m", held.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
			t.Fatal(err)
		}
		if took := (<-granted).Sub(from); took > 100*time.Millisecond {
			t.Errorf("granted %v after another client had made room", took)
		}
		next := crowdClaim(driver.KindMutex, 1, 1, 2, 0)
		granted = acquireLater(t, other, next)
		synctest.Wait()
		from = time.Now()
		storetest.Release(t, own, waiter)
		if took := (<-granted).Sub(from); took > 10*time.Millisecond {
			t.Errorf("granted %v after another client's release", took)
		}
		storetest.Release(t, other, next)
	})
}

// bareTable is a table that can be told to refuse swaps, and may bring no row with a refusal.
type bareTable struct {
	record.Table
	bare    bool         // a refusal brings no row
	refuses atomic.Int64 // the next swaps
	loads   atomic.Int64
	refused atomic.Int64
	fails   atomic.Int64                  // the next loads
	hangs   atomic.Int64                  // the next loads
	gate    atomic.Pointer[chan struct{}] // the next swap waits for it
}

func (*bareTable) Watcher() record.Watcher { return nil }

func (t *bareTable) Load(ctx context.Context, name string) (record.Row, error) {
	t.loads.Add(1)
	if t.fails.Add(-1) >= 0 {
		return record.Row{}, errors.New("no answer")
	}
	if t.hangs.Add(-1) >= 0 {
		select {
		case <-ctx.Done():
			return record.Row{}, ctx.Err()
		case <-time.After(9 * time.Second): // a table limits its requests
			return record.Row{}, errors.New("no answer")
		}
	}
	return t.Table.Load(ctx, name)
}

// shut makes the next swap wait, and returns what lets it go on.
func (t *bareTable) shut() (open func()) {
	gate := make(chan struct{})
	t.gate.Store(&gate)
	return func() { close(gate) }
}

func (t *bareTable) Swap(ctx context.Context, row record.Row) (now record.Row, err error) {
	if gate := t.gate.Swap(nil); gate != nil {
		<-*gate
	}
	if t.refuses.Add(-1) >= 0 {
		now, err = t.Table.Load(ctx, row.Name)
		err = cmp.Or(err, record.ErrConflict)
	} else {
		now, err = t.Table.Swap(context.WithoutCancel(ctx), row) // it was sent
	}
	if errors.Is(err, record.ErrConflict) {
		t.refused.Add(1)
		if t.bare {
			now = record.Row{}
		}
	}
	return now, err
}

// awaitCrowd makes a client that holds a lock for which many claims of another client wait, and that knows the queue. Its
// next claim is refused twice: the first time a claim does not pause.
func awaitCrowd(t *testing.T) (table *bareTable, own, others driver.Store, held driver.Grant) {
	t.Helper()
	m := fakeMemory()
	table = &bareTable{Table: m.Table()}
	own, others = record.New(table), m.Open()
	var waits sync.WaitGroup
	t.Cleanup(func() { // the test's context has ended, and with it the waits
		waits.Wait()
		_ = own.Close()
		_ = others.Close()
	})
	held = storetest.Acquire(t, own, crowdClaim(driver.KindMutex, 1, 1, 0, 0))
	for n := range 16 {
		waits.Go(func() { others.Acquire(t.Context(), crowdClaim(driver.KindMutex, 1, 1, 1, n)) })
	}
	synctest.Wait()
	if _, err := own.Inspect(t.Context(), held.Name); err != nil {
		t.Fatal(err)
	}
	table.refuses.Store(2)
	return table, own, others, held
}

// TestRefusedClaimJoinsNextSwap: a claim that pauses among many, because its swap was refused, joins the queue by the next
// swap of its client.
func TestRefusedClaimJoinsNextSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, own, others, held := awaitCrowd(t)
		go own.Acquire(t.Context(), crowdClaim(driver.KindMutex, 1, 1, 2, 0))
		synctest.Wait()
		before := time.Now()
		storetest.Release(t, own, held.Claim)
		lock, err := others.Inspect(t.Context(), held.Name)
		if n := len(lock.Holders) + len(lock.Waiters); err != nil || n != 17 || !time.Now().Equal(before) {
			t.Errorf("%d claims after %v: %v", n, time.Since(before), err)
		}
	})
}

// TestSharedSwapKnowsTheRow: steps that waited for a swap which was refused without a row are not made on the row that
// it was refused for. They are made on a newer one that this client has read meanwhile, and otherwise it is read.
func TestSharedSwapKnowsTheRow(t *testing.T) {
	for _, isRead := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := fakeMemory()
			table := &bareTable{Table: m.Table(), bare: true}
			own, others := record.New(table), m.Open()
			defer others.Close()
			defer own.Close()
			var waits sync.WaitGroup
			claim := func(worker int) driver.Claim { return crowdClaim(driver.KindSemaphore, 9, 1, worker, 0) }
			held := storetest.Acquire(t, own, claim(0))
			open := table.shut()
			ctx, giveUp := context.WithCancel(t.Context())
			waits.Go(func() { own.Acquire(ctx, claim(1)) }) // its swap is under way
			synctest.Wait()
			giveUp()
			waits.Go(func() { storetest.Acquire(t, own, claim(2)) }) // it waits for that
			synctest.Wait()
			storetest.Acquire(t, others, claim(3))
			table.loads.Store(0)
			if isRead {
				if _, err := own.Inspect(t.Context(), held.Name); err != nil {
					t.Fatal(err)
				}
			}
			open()
			waits.Wait()
			if loads, refused := table.loads.Load(), table.refused.Load(); refused != 1 || loads != 1 {
				t.Errorf("read before: %v: %d loads, and %d swaps were refused", isRead, loads, refused)
			}
		})
	}
}

// TestFailedLoadOfSharedSwap: if a swap of several steps cannot load the row first, that is no outcome of the steps, also
// if they were part of a swap before.
func TestFailedLoadOfSharedSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := &bareTable{Table: m.Table(), bare: true}
		own, others := record.New(table), m.Open()
		defer others.Close()
		defer own.Close()
		claim := func(worker int) driver.Claim { return crowdClaim(driver.KindSemaphore, 9, 1, worker, 0) }
		storetest.Acquire(t, own, claim(0))
		open := table.shut()
		var waits sync.WaitGroup
		for worker := range 2 { // the swap of the first is under way, and the second waits for that
			waits.Go(func() { storetest.Acquire(t, own, claim(1+worker)) })
			synctest.Wait()
		}
		for turn := range 2 { // the other one's swap is under way next, after its load
			storetest.Acquire(t, others, claim(3+turn))
			openBefore := open
			open = table.shut()
			openBefore()
			synctest.Wait()
		}
		storetest.Acquire(t, others, claim(5))
		table.fails.Store(2)
		open()
		waits.Wait()
	})
}

// TestHungLoadDelaysNoRenewal: if the load that a swap of several steps begins with hangs, a renewal that is one of the
// steps does not wait for that longer than for a swap that hangs.
func TestHungLoadDelaysNoRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := &bareTable{Table: m.Table(), bare: true}
		own, others := record.New(table), m.Open()
		defer others.Close()
		defer own.Close()
		claim := func(worker int) driver.Claim { return crowdClaim(driver.KindSemaphore, 9, 1, worker, 0) }
		held := storetest.Acquire(t, own, claim(0))
		open := table.shut()
		var waits sync.WaitGroup
		waits.Go(func() { storetest.Acquire(t, own, claim(1)) }) // its swap is under way
		synctest.Wait()
		waits.Go(func() { // it waits for that
			began := time.Now()
			own.Renew(t.Context(), []driver.Grant{held}, func(_ int, r driver.Renewal) {
				if took := time.Since(began); r.Err != nil || took > 500*time.Millisecond {
					t.Errorf("renewed after %v: %v", took, r.Err)
				}
			})
		})
		synctest.Wait()
		storetest.Acquire(t, others, claim(2)) // so the first is refused
		table.hangs.Store(2)                   // of the first, and of the swap that the renewal is part of
		open()
		waits.Wait()
	})
}

// TestPausingClaimTellsSilence: the error of a claim that has gone with a swap without an answer says that the store is
// silent.
func TestPausingClaimTellsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, own, _, held := awaitCrowd(t)
		ended := make(chan error, 1)
		go func() {
			short, stop := context.WithTimeout(t.Context(), 5*time.Second)
			defer stop()
			_, err := own.Acquire(short, crowdClaim(driver.KindMutex, 1, 1, 2, 0))
			ended <- err
		}()
		synctest.Wait()
		open := table.shut()
		defer open()
		go own.Release(t.Context(), held.Claim, held.Ref)
		err := <-ended
		if silent, ok := errors.AsType[*driver.SilentError](err); !ok || silent.For < 4*time.Second {
			t.Errorf("%#v", err)
		}
	})
}

// TestOldFullRecordRefusesNobody: a claim is not refused because the record was full when this client read it last.
func TestOldFullRecordRefusesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := m.Table()
		small := func() driver.Store {
			return record.New(smallNotifyingTable{notifyingTable{Table: table, watcher: table.Watcher()}})
		}
		own, others := small(), small()
		defer own.Close()
		defer others.Close()
		held := storetest.Acquire(t, others, paceClaim(0, false))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waiting := paceClaim(1, true)
		waiting.Fair = true
		ended := make(chan error, 1)
		go func() { _, err := others.Acquire(ctx, waiting); ended <- err }()
		synctest.Wait()
		if lock, err := own.Inspect(t.Context(), held.Name); err != nil || len(lock.Waiters) != 1 {
			t.Fatal(lock, err)
		}
		cancel()
		<-ended
		for _, c := range []driver.Claim{waiting, held.Claim} {
			if err := others.Release(t.Context(), c, ""); err != nil {
				t.Fatal(err)
			}
		}
		mine := paceClaim(2, true)
		mine.Fair = true
		storetest.Acquire(t, own, mine)
	})
}
