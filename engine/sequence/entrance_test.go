package sequence_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
)

// slowAdds is a link on which each add and each listing takes a tenth of a second. It counts the adds.
type slowAdds struct {
	memtree.Link
	mu                  sync.Mutex
	adds, underWay, max int
	err                 error // what adds return in place of taking effect
	isReplyLost         bool  // adds take effect, and have no reply
}

func newSlowAdds(server *memtree.Server) *slowAdds {
	l := &slowAdds{}
	l.Server = server
	l.Transport = func(_ context.Context, what string, do func() any) (any, error) {
		switch what {
		case "list":
			time.Sleep(100 * time.Millisecond)
			return do(), nil
		case "add":
		default:
			return do(), nil
		}
		l.mu.Lock()
		l.adds++
		l.underWay++
		l.max = max(l.max, l.underWay)
		err, isReplyLost := l.err, l.isReplyLost
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.underWay--
		}()
		time.Sleep(100 * time.Millisecond)
		if err != nil {
			return nil, err
		}
		result := do()
		if isReplyLost {
			return nil, errNoAnswer
		}
		return result, nil
	}
	return l
}

func (l *slowAdds) takeCounts() (adds, max int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	adds, max = l.adds, l.max
	l.adds, l.max = 0, 0
	return adds, max
}

// crowd is Acquires under way, with the answer of each.
type crowd struct {
	e     *sequence.Engine
	began int
	all   sync.WaitGroup
	mu    sync.Mutex
	errs  map[int]error // of those that have ended
}

// join has n more claims join a lock, one after the other, and returns their numbers.
func (c *crowd) join(ctx context.Context, n int, claim func() driver.Claim) (numbers []int) {
	for range n {
		number := c.began
		c.began++
		numbers = append(numbers, number)
		c.all.Go(func() {
			_, err := c.e.Acquire(ctx, claim())
			c.mu.Lock()
			defer c.mu.Unlock()
			c.errs[number] = err
		})
		synctest.Wait()
	}
	return numbers
}

// count returns how many of these claims have ended with such an error.
func (c *crowd) count(numbers []int, target error) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, number := range numbers {
		if err, ended := c.errs[number]; ended && errors.Is(err, target) {
			n++
		}
	}
	return n
}

// startCrowd holds the lock "m" and opens another client with slow adds.
func startCrowd(t *testing.T) (*slowAdds, *crowd, *sequence.Engine) {
	server := memtree.New()
	holder := sequence.New(&memtree.Link{Server: server})
	t.Cleanup(func() { holder.Close() })
	if _, err := holder.Acquire(t.Context(), mutex("m", 10*time.Hour)); err != nil {
		t.Fatal(err)
	}
	link := newSlowAdds(server)
	e := sequence.New(link)
	t.Cleanup(func() { e.Close() })
	return link, &crowd{e: e, errs: map[int]error{}}, holder
}

func waitingMutex() driver.Claim { return waiting(mutex("m", time.Hour)) }

// TestFewJoinAtOnce: of a hundred claims that come to a lock at once, some are added at a time, in the order in which
// they came.
func TestFewJoinAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, c, holder := startCrowd(t)
		ctx, cancel := context.WithCancel(t.Context())
		var ids []string
		c.join(ctx, 100, func() driver.Claim {
			claim := waitingMutex()
			claim.Owner = claim.ID
			ids = append(ids, claim.ID)
			return claim
		})
		time.Sleep(time.Second)
		if adds, max := link.takeCounts(); adds != 100 || max != 16 {
			t.Errorf("%d claims were added, %d at once", adds, max)
		}
		l, err := holder.Inspect(t.Context(), "m")
		if err != nil || len(l.Waiters) != 100 {
			t.Fatalf("%d claims wait: %v", len(l.Waiters), err)
		}
		for i, id := range ids { // the order of those that are added at once is the store's
			if at := indexOfOwner(l.Waiters, id); at/16 != i/16 {
				t.Errorf("claim %d is at place %d", i, at)
			}
		}
		cancel()
		c.all.Wait()
	})
}

func indexOfOwner(claims []driver.ClaimInfo, owner string) int {
	for i, c := range claims {
		if c.Owner == owner {
			return i
		}
	}
	return -1
}

// TestRefusalIsShared: a claim that is not added because the queue is full speaks for those that had come before it was
// sent, and for no others.
func TestRefusalIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, c, _ := startCrowd(t)
		ctx, cancel := context.WithCancel(t.Context())
		c.join(ctx, 256, waitingMutex)
		time.Sleep(10 * time.Second)
		link.takeCounts()
		before := c.join(ctx, 500, waitingMutex)
		reader := c.join(ctx, 1, func() driver.Claim {
			claim := waitingMutex()
			claim.Kind, claim.Limit = driver.KindRW, driver.RWLimit
			return claim
		})
		time.Sleep(150 * time.Millisecond) // the first sixteen have been refused, and the next were sent
		if n := c.count(before, driver.ErrQueueFull); n != 16 {
			t.Errorf("%d claims were refused, but the others came after the first were sent", n)
		}
		after := c.join(ctx, 20, waitingMutex)
		time.Sleep(100 * time.Millisecond)
		if n := c.count(before, driver.ErrQueueFull); n != 500 {
			t.Errorf("%d of the 500 claims that came first were refused", n)
		}
		if n := c.count(after, driver.ErrQueueFull); n > 0 {
			t.Errorf("%d claims were refused that came after the refused ones were sent", n)
		}
		time.Sleep(time.Second)
		if n := c.count(after, driver.ErrQueueFull); n != 20 {
			t.Errorf("%d of the 20 claims that came later were refused", n)
		}
		if n := c.count(reader, driver.ErrMismatch); n != 1 {
			t.Error("a claim of another kind was refused for the same reason as the others")
		}
		if adds, _ := link.takeCounts(); adds > 17 {
			t.Errorf("%d claims were added to be refused", adds)
		}
		cancel()
		c.all.Wait()
	})
}

// TestGivenUpAtEntrance: a claim that is given up while it waits at the entrance keeps no other one out.
func TestGivenUpAtEntrance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, c, holder := startCrowd(t)
		ctx, cancel := context.WithCancel(t.Context())
		givenUp, giveUp := context.WithTimeout(ctx, 50*time.Millisecond) // before the first adds return
		c.join(ctx, 16, waitingMutex)
		ended := c.join(givenUp, 40, waitingMutex)
		c.join(ctx, 40, waitingMutex)
		time.Sleep(10 * time.Second)
		if n := c.count(ended, context.DeadlineExceeded); n != 40 {
			t.Errorf("%d of 40 waits have ended", n)
		}
		if l, err := holder.Inspect(t.Context(), "m"); err != nil || len(l.Waiters) != 56 {
			t.Errorf("%d claims wait: %v", len(l.Waiters), err)
		}
		if adds, _ := link.takeCounts(); adds != 56 {
			t.Errorf("%d claims were added", adds)
		}
		giveUp()
		cancel()
		c.all.Wait()
	})
}

// TestSilentStoreAtEntrance: when the store gives no answer, the claims at the entrance do not find that out sixteen at
// a time. One with a longer TTL goes on trying.
func TestSilentStoreAtEntrance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, c, _ := startCrowd(t)
		link.err = errNoAnswer
		ctx, cancel := context.WithCancel(t.Context())
		short := func() driver.Claim { return waiting(mutex("m", 3*time.Second)) }
		first := c.join(ctx, 16, short)
		others := c.join(ctx, 400, short)
		patient := c.join(ctx, 1, waitingMutex)
		time.Sleep(2 * driver.UnreachableTimeout(3*time.Second))
		if n := c.count(first, errNoAnswer); n != 16 {
			t.Errorf("%d of the first 16 waits have ended", n)
		}
		if n := c.count(others, errNoAnswer); n != 400 {
			t.Errorf("%d of 400 waits have ended", n)
		}
		link.mu.Lock()
		link.err = nil
		link.mu.Unlock()
		time.Sleep(time.Second)
		if n := c.count(patient, errNoAnswer); n != 0 {
			t.Error("a claim with a long TTL has given up with the others")
		}
		cancel()
		c.all.Wait()
	})
}

// TestAskedAgainAtEntrance: a claim may have a node from an earlier call whose add got no reply. Such a claim does not
// wait at the entrance, and does not share the refusal of those that do: its node may be in the queue.
func TestAskedAgainAtEntrance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, c, holder := startCrowd(t)
		loseReplies := func(lose bool) {
			link.mu.Lock()
			defer link.mu.Unlock()
			link.isReplyLost = lose
		}
		loseReplies(true)
		again := waitingMutex()
		given, giveUp := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer giveUp()
		if _, err := c.e.Acquire(given, again); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		loseReplies(false)
		ctx, cancel := context.WithCancel(t.Context())
		c.join(ctx, 255, waitingMutex)
		time.Sleep(10 * time.Second)
		if l, err := holder.Inspect(ctx, "m"); err != nil || len(l.Waiters) != 256 {
			t.Fatalf("%d claims wait: %v", len(l.Waiters), err)
		}
		refused := c.join(ctx, 40, waitingMutex)
		asked := c.join(ctx, 1, func() driver.Claim { return again })
		refused = append(refused, c.join(ctx, 20, waitingMutex)...)
		time.Sleep(10 * time.Second)
		if n := c.count(refused, driver.ErrQueueFull); n != 60 {
			t.Errorf("%d of 60 claims were refused", n)
		}
		if n := c.count(asked, nil) + c.count(asked, driver.ErrQueueFull); n != 0 {
			t.Error("a claim was refused whose node is in the queue")
		}
		cancel()
		c.all.Wait()
	})
}

// TestSessionsAtEntrance: a claim that waits at the entrance for longer than its TTL has no session that could end
// meanwhile. So a detached claim, whose own session nobody keeps alive, keeps its place there.
func TestSessionsAtEntrance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, c, holder := startCrowd(t)
		transport := link.Transport
		link.Transport = func(ctx context.Context, what string, do func() any) (any, error) {
			if what == "add" {
				time.Sleep(900 * time.Millisecond)
			}
			return transport(ctx, what, do)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var ids []string
		c.join(ctx, 100, func() driver.Claim {
			claim := waiting(mutex("m", 3*time.Second))
			claim.Owner, claim.Detached = claim.ID, true
			ids = append(ids, claim.ID)
			return claim
		})
		time.Sleep(8 * time.Second)
		if adds, _ := link.takeCounts(); adds != 100 {
			t.Errorf("%d claims were added", adds)
		}
		l, err := holder.Inspect(t.Context(), "m")
		if err != nil || len(l.Waiters) != 100 {
			t.Fatalf("%d claims wait: %v", len(l.Waiters), err)
		}
		for i, id := range ids {
			if at := indexOfOwner(l.Waiters, id); at/16 != i/16 {
				t.Errorf("claim %d is at place %d", i, at)
			}
		}
		cancel()
		c.all.Wait()
	})
}

// TestHoldersAtEntrance: a claim that is given up at the entrance names who held the lock when the last claim joined
// it.
func TestHoldersAtEntrance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := startCrowd(t)
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		numbers := c.join(ctx, 100, waitingMutex)
		c.all.Wait()
		if n := c.count(numbers, context.DeadlineExceeded); n != 100 {
			t.Errorf("%d of 100 waits have ended", n)
		}
		if n := c.count(numbers, driver.ErrHeld); n != 100 {
			t.Errorf("%d of 100 errors say who holds the lock", n)
		}
	})
}

// TestLateAtSilentEntrance: a claim that has waited for long, and came back to the entrance because its session had
// ended, has not waited there for as long as it has waited in all.
func TestLateAtSilentEntrance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, c, holder := startCrowd(t)
		ctx, cancel := context.WithCancel(t.Context())
		old := c.join(ctx, 1, waitingMutex)
		time.Sleep(time.Minute)
		nodes := link.Server.Nodes("m")
		if len(nodes) != 2 {
			t.Fatal(nodes)
		}
		setError := func(err error) {
			link.mu.Lock()
			defer link.mu.Unlock()
			link.err = err
		}
		setError(errNoAnswer)
		silent := c.join(ctx, 16, func() driver.Claim { return waiting(mutex("m", 2*time.Hour)) })
		time.Sleep(9 * time.Second)
		link.Server.ExpireSession(nodes[1].Session)
		time.Sleep(4 * time.Second)
		if n := c.count(silent, errNoAnswer); n != 16 {
			t.Errorf("%d of 16 waits have ended", n)
		}
		setError(nil)
		time.Sleep(2 * time.Second)
		if n := c.count(old, errNoAnswer); n != 0 {
			t.Error("a claim gave up that had come to the entrance a moment before")
		}
		if l, err := holder.Inspect(ctx, "m"); err != nil || len(l.Waiters) != 1 {
			t.Errorf("%d claims wait: %v", len(l.Waiters), err)
		}
		cancel()
		c.all.Wait()
	})
}

// TestPanicAtEntrance: claims whose callers recover from a panic of the store keep no other one out.
func TestPanicAtEntrance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, c, holder := startCrowd(t)
		transport := link.Transport
		link.Transport = func(ctx context.Context, what string, do func() any) (any, error) {
			if what == "remove" {
				panic("a fault of the store")
			}
			return transport(ctx, what, do)
		}
		reader := waitingMutex()
		reader.Kind, reader.Limit = driver.KindRW, driver.RWLimit
		for range 16 { // refused as a mismatch, and removed
			func() {
				defer func() { _ = recover() }()
				reader.ID = mutex("m", time.Hour).ID
				_, err := c.e.Acquire(t.Context(), reader)
				t.Errorf("an Acquire returned: %v", err)
			}()
		}
		ctx, cancel := context.WithCancel(t.Context())
		c.join(ctx, 1, waitingMutex)
		time.Sleep(time.Second)
		if l, err := holder.Inspect(ctx, "m"); err != nil || len(l.Waiters) != 17 {
			t.Errorf("%d claims wait: %v", len(l.Waiters), err)
		}
		cancel()
		c.all.Wait()
	})
}

// TestRoomIsAskedFor: a client that has found the queue full reads it before it adds a claim again, as long as it is
// full. When there is room, the next claim joins.
func TestRoomIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, c, holder := startCrowd(t)
		ctx, cancel := context.WithCancel(t.Context())
		c.join(ctx, 256, waitingMutex)
		time.Sleep(10 * time.Second)
		link.takeCounts()
		for range 5 {
			if n := c.count(c.join(ctx, 1, waitingMutex), nil); n > 0 {
				t.Error("a claim was granted")
			}
			time.Sleep(2 * time.Second)
		}
		if adds, _ := link.takeCounts(); adds != 1 {
			t.Errorf("%d claims were added to a queue that is full", adds)
		}
		if l, err := holder.Inspect(t.Context(), "m"); err != nil || len(l.Waiters) != 256 {
			t.Fatalf("%d claims wait: %v", len(l.Waiters), err)
		}
		// Another client's claim leaves, which this one is not told.
		l, _ := holder.Inspect(t.Context(), "m")
		if err := holder.Break(t.Context(), "m", l.Waiters[0].Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
			t.Fatal(err)
		}
		c.join(ctx, 1, waitingMutex)
		time.Sleep(time.Second)
		if l, err := holder.Inspect(t.Context(), "m"); err != nil || len(l.Waiters) != 256 {
			t.Errorf("%d claims wait: %v", len(l.Waiters), err)
		}
		cancel()
		c.all.Wait()
	})
}

// TestGrantedClaimsLetMoreJoin: readers that are granted at once do not wait for each other for long.
func TestGrantedClaimsLetMoreJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, c, _ := startCrowd(t)
		readers := c.join(t.Context(), 240, func() driver.Claim {
			claim := waiting(mutex("rw", time.Hour))
			claim.Kind, claim.Limit = driver.KindRW, driver.RWLimit
			return claim
		})
		time.Sleep(410 * time.Millisecond) // 16, 32, 64 and 128 have joined
		if n := c.count(readers, nil); n != 240 {
			t.Errorf("%d of 240 readers have the lock", n)
		}
		if _, max := link.takeCounts(); max > 128 {
			t.Errorf("%d were added at once", max)
		}
		c.all.Wait()
	})
}
