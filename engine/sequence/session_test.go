package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/memtree"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// Short names of functions that the tests use often.
var (
	mutex   = storetest.Mutex
	waiting = storetest.Waiting
)

func semaphoreClaim(name string, limit, weight int64) driver.Claim {
	c := waiting(mutex(name, 10*time.Second))
	c.Kind, c.Limit, c.Weight = driver.KindSemaphore, limit, weight
	return c
}

// TestExpiredWaiter: the store has ended a waiter's session, because its process was stopped or the store was
// unreachable. The waiter continues to wait, behind those that came meanwhile.
func TestExpiredWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder, waiter, other := sequence.New(&memtree.Link{Server: server}), sequence.New(&memtree.Link{Server: server}), sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		defer waiter.Close()
		defer other.Close()
		held := mutex("m", time.Hour)
		if _, err := holder.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		in := make(chan string, 2)
		var all sync.WaitGroup
		wait := func(who string, e *sequence.Engine) {
			c := waiting(mutex("m", 9*time.Second))
			if _, err := e.Acquire(t.Context(), c); err != nil {
				t.Errorf("Acquire of %s returned %v", who, err)
			}
			in <- who
			if err := e.Release(t.Context(), c, ""); err != nil {
				t.Errorf("Release of %s returned %v", who, err)
			}
		}
		all.Go(func() { wait("the expired waiter", waiter) })
		synctest.Wait()
		server.ExpireSession(server.Nodes("m")[1].Session)
		all.Go(func() { wait("the other waiter", other) })
		time.Sleep(10 * time.Second) // its keep-alive has reported the end
		if line := server.Nodes("m"); len(line) != 3 {
			t.Errorf("the nodes are %+v", line)
		}
		if err := holder.Release(t.Context(), held, ""); err != nil {
			t.Fatal(err)
		}
		if first, second := <-in, <-in; first != "the other waiter" {
			t.Errorf("%s was granted before %s", first, second)
		}
		all.Wait()
	})
}

// TestUnreachableStore: a store that is unreachable for less than the timeout ends no wait, even if it has ended the
// session meanwhile. One that is unreachable for longer ends the wait with an error that says so.
func TestUnreachableStore(t *testing.T) {
	for _, long := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const ttl = 8 * time.Second
			server := memtree.New()
			holder := sequence.New(&memtree.Link{Server: server})
			defer holder.Close()
			link := newCuttableLink(server)
			waiter := sequence.New(link)
			defer waiter.Close()
			held := mutex("m", time.Hour)
			if _, err := holder.Acquire(t.Context(), held); err != nil {
				t.Fatal(err)
			}
			returned := make(chan error, 1)
			go func() { _, err := waiter.Acquire(t.Context(), waiting(mutex("m", ttl))); returned <- err }()
			time.Sleep(ttl/3 - time.Second) // its next keep-alive is due in a second
			link.down.Store(true)
			if long {
				if err := <-returned; !errors.Is(err, driver.ErrUncertain) || errors.Is(err, driver.ErrLost) {
					t.Errorf("after the unreachable timeout the wait returned %v", err)
				}
				return
			}
			time.Sleep(ttl)
			if line := server.Nodes("m"); len(line) != 1 {
				t.Errorf("the nodes are %+v", line)
			}
			link.down.Store(false)
			time.Sleep(ttl)
			if err := holder.Release(t.Context(), held, ""); err != nil {
				t.Fatal(err)
			}
			if err := <-returned; err != nil {
				t.Errorf("the wait returned %v", err)
			}
		})
	}
}

// TestCancelWhileSessionEnds: a wait whose context ends together with its session returns the error of the context,
// with the holders, and no loss. So the client releases what may be left of the claim.
func TestCancelWhileSessionEnds(t *testing.T) {
	for range 20 { // either of the two may be noticed first
		synctest.Test(t, func(t *testing.T) {
			server := memtree.New()
			holder := sequence.New(&memtree.Link{Server: server})
			defer holder.Close()
			ctx, giveUp := context.WithCancel(t.Context())
			var expired atomic.Bool
			waiter := sequence.New(&memtree.Link{Server: server,
				Transport: func(_ context.Context, what string, do func() any) (any, error) {
					r := do()
					if what == "beat" && expired.Load() {
						giveUp()
					}
					return r, nil
				}})
			defer waiter.Close()
			if _, err := holder.Acquire(t.Context(), mutex("m", time.Hour)); err != nil {
				t.Fatal(err)
			}
			returned := make(chan error, 1)
			go func() { _, err := waiter.Acquire(ctx, waiting(mutex("m", 9*time.Second))); returned <- err }()
			synctest.Wait()
			server.ExpireSession(server.Nodes("m")[1].Session)
			expired.Store(true)
			err := <-returned
			var held *driver.HeldError
			if !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrLost) || !errors.As(err, &held) {
				t.Errorf("the wait returned %v", err)
			}
		})
	}
}

// TestHangingRead: a read that gets no reply does not stop the keep-alives of a session that has only a waiter, for
// which nothing else sends any.
func TestHangingRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder := sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		var hangingReads atomic.Int64
		waiter := sequence.New(&memtree.Link{Server: server,
			Transport: func(ctx context.Context, what string, do func() any) (any, error) {
				if what == "read" {
					hangingReads.Add(1)
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return do(), nil
			}})
		defer waiter.Close()
		const ttl = time.Second
		held := mutex("m", time.Hour)
		if _, err := holder.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		if _, err := waiter.Acquire(t.Context(), mutex("swept", ttl)); err != nil {
			// it is not renewed, so it is read and removed
			t.Fatal(err)
		}
		returned := make(chan error, 1)
		go func() { _, err := waiter.Acquire(t.Context(), waiting(mutex("m", ttl))); returned <- err }()
		time.Sleep(10 * time.Second)
		if hangingReads.Load() == 0 {
			t.Error("nothing was read")
		}
		if err := holder.Release(t.Context(), held, ""); err != nil {
			t.Fatal(err)
		}
		if err := <-returned; err != nil {
			t.Errorf("the wait returned %v", err)
		}
	})
}

// TestLateFailure: a request that fails after a long wait is tried again, even if the store's last reply is older than
// the timeout. The timeout counts from the first failure.
func TestLateFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder := sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		var refused, lists atomic.Int64
		waiter := sequence.New(&memtree.Link{Server: server,
			Transport: func(ctx context.Context, what string, do func() any) (any, error) {
				if what == "list" && lists.Add(1)%3 == 1 {
					refused.Add(1)
					return nil, errors.New("connection refused")
				}
				return do(), nil
			}})
		defer waiter.Close()
		held := mutex("m", time.Hour)
		if _, err := holder.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		returned := make(chan error, 1)
		go func() { _, err := waiter.Acquire(t.Context(), waiting(mutex("m", time.Second))); returned <- err }()
		time.Sleep(30 * time.Second)
		if refused.Load() == 0 {
			t.Error("nothing was refused")
		}
		if err := holder.Release(t.Context(), held, ""); err != nil {
			t.Fatal(err)
		}
		if err := <-returned; err != nil {
			t.Errorf("the wait returned %v", err)
		}
	})
}

// TestStoreAnswersReadsOnly: calls that must write to a store that answers only reads give up after the timeout.
func TestStoreAnswersReadsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder := sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		refused := 0
		other := sequence.New(&memtree.Link{Server: server,
			Transport: func(ctx context.Context, what string, do func() any) (any, error) {
				if what == "remove" || what == "break" || what == "change" {
					refused++
					return nil, errors.New("no leader")
				}
				return do(), nil
			}})
		defer other.Close()
		g, err := holder.Acquire(t.Context(), mutex("m", time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		for what, do := range map[string]func() error{
			"a release": func() error { return other.Release(t.Context(), g.Claim, g.Ref) },
			"a break":   func() error { return other.Break(t.Context(), "m", g.Ref, driver.Break{Mode: driver.BreakForce}) },
		} {
			start := time.Now()
			if err := do(); !errors.Is(err, driver.ErrUncertain) || refused == 0 {
				t.Errorf("%s returned %v, after %d writes", what, err, refused)
			}
			if took := time.Since(start); took > 11*time.Second {
				t.Errorf("%s took %v", what, took)
			}
			refused = 0
		}
	})
}

// TestUnansweredRenewalElsewhere: a renewal of another client's claim that gets no reply is an unknown outcome. It does
// not look like the end of the caller's context.
func TestUnansweredRenewalElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holder := sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		other := sequence.New(&memtree.Link{Server: server,
			Transport: func(ctx context.Context, what string, do func() any) (any, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}})
		defer other.Close()
		g, err := holder.Acquire(t.Context(), mutex("m", time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		other.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
			if !errors.Is(r.Err, driver.ErrUncertain) || errors.Is(r.Err, context.DeadlineExceeded) {
				t.Errorf("the renewal returned %v", r.Err)
			}
		})
	})
}

// TestGrantedTogether: limit 2, a holder of weight 2, and two waiters of weight 1 in two clients. A release grants both
// at once, although only the first of them watches the holder.
func TestGrantedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		client := func() *sequence.Engine {
			e := sequence.New(&memtree.Link{Server: server})
			t.Cleanup(func() { e.Close() })
			return e
		}
		holder := client()
		c := semaphoreClaim("s", 2, 2)
		if _, err := holder.Acquire(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		in := make(chan error, 2)
		for range 2 {
			e := client()
			go func() { _, err := e.Acquire(t.Context(), semaphoreClaim("s", 2, 1)); in <- err }()
			synctest.Wait()
		}
		start := time.Now()
		if err := holder.Release(t.Context(), c, ""); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-in; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took > 0 { // notified, without polls and timers
			t.Errorf("the grants took %v", took)
		}
	})
}

// TestWithoutWatches: if all notifications are lost, waiters still get their turn, by polling.
func TestWithoutWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		client := func() *sequence.Engine {
			e := sequence.New(&memtree.Link{Server: server, DropNotification: func() bool { return true }})
			t.Cleanup(func() { e.Close() })
			return e
		}
		a, b := client(), client()
		c := mutex("m", 10*time.Second)
		if _, err := a.Acquire(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		in := make(chan error, 1)
		go func() { _, err := b.Acquire(t.Context(), waiting(mutex("m", 10*time.Second))); in <- err }()
		synctest.Wait()
		start := time.Now()
		if err := a.Release(t.Context(), c, ""); err != nil {
			t.Fatal(err)
		}
		if err := <-in; err != nil || time.Since(start) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// TestDelayedAddOfDetachedClaim: a delayed add cannot take effect after the claim was detached and has ended. Nothing
// would remove that node while its session lives.
func TestDelayedAddOfDetachedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var adds atomic.Int64
		late := make(chan struct{})
		link := &memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what == "add" && adds.Add(1) == 1 {
					go func() { time.Sleep(6 * time.Second); do(); close(late) }()
					return nil, errors.New("no answer")
				}
				return do(), nil
			}}
		e := sequence.New(link)
		defer e.Close()
		g, err := e.Acquire(t.Context(), waiting(mutex("m", 10*time.Second)))
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Detach(t.Context(), g, 2*time.Second); err != nil {
			t.Fatal(err)
		}
		<-late
		if left := server.LockNames(); len(left) > 0 {
			t.Errorf("the late add has left a node on %v", left)
		}
	})
}

// TestAddReplyDuringCheck: a claim is canceled while its add is in flight, just after its first session expired. When
// the reply to the add comes, the claim does not count as removed. So it is removed, even if the first try of that is
// lost.
func TestAddReplyDuringCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var adds, removes atomic.Int64
		addArrives, read := make(chan struct{}), make(chan struct{})
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				switch {
				case what == "add" && adds.Add(1) == 3:
					<-addArrives
				case what == "read":
					r := do()
					<-read
					return r, nil
				case what == "remove" && removes.Add(1) == 1:
					<-read
					time.Sleep(time.Second)
					return nil, errors.New("lost")
				}
				return do(), nil
			}})
		defer e.Close()
		if _, err := e.Acquire(t.Context(), waiting(mutex("before", 10*time.Second))); err != nil {
			t.Fatal(err)
		}
		server.ExpireSession("")
		ctx, cancel := context.WithCancel(t.Context())
		c := waiting(mutex("m", 10*time.Second))
		returned := make(chan error, 1)
		go func() { _, err := e.Acquire(ctx, c); returned <- err }()
		synctest.Wait() // its second add is in flight
		cancel()
		if err := <-returned; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		released := make(chan error, 1)
		go func() { released <- e.Release(t.Context(), c, "") }()
		synctest.Wait()
		close(addArrives)
		synctest.Wait()
		close(read)
		if err := <-released; err != nil {
			t.Error(err)
		}
		if left := server.LockNames(); len(left) > 0 {
			t.Errorf("after the release, claims are left on %v", left)
		}
	})
}

// TestRefusedClaimWakesWaiter: a claim is refused and removed because it is of another kind. The waiter of the same
// client behind it is notified at once.
func TestRefusedClaimWakesWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		holding := make(chan struct{})
		var slow atomic.Bool
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				if what == "remove" && slow.Load() {
					<-holding
				}
				return do(), nil
			}})
		other := sequence.New(&memtree.Link{Server: server})
		defer e.Close()
		defer other.Close()
		first := semaphoreClaim("m", 2, 2)
		if _, err := other.Acquire(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		slow.Store(true)
		refused := make(chan error, 1)
		go func() { _, err := e.Acquire(t.Context(), waiting(mutex("m", 10*time.Second))); refused <- err }()
		synctest.Wait() // its node exists, is of another kind, and is being removed
		in := make(chan error, 1)
		go func() { _, err := e.Acquire(t.Context(), semaphoreClaim("m", 2, 2)); in <- err }()
		synctest.Wait()
		if err := other.Release(t.Context(), first, ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		close(holding)
		if err := <-refused; !errors.Is(err, driver.ErrMismatch) {
			t.Errorf("a claim of another kind: %v", err)
		}
		if err := <-in; err != nil || time.Since(start) > 0 { // no poll, no timer
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// TestIdleSession: a session without claims is ended after its TTL, and no goroutine is left.
func TestIdleSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		e := sequence.New(&memtree.Link{Server: server})
		defer e.Close()
		c := mutex("m", 3*time.Second)
		if _, err := e.Acquire(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if err := e.Release(t.Context(), c, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if n := server.TakeRequestCounts()["end"]; n != 1 {
			t.Errorf("the session was ended %d times", n)
		}
		time.Sleep(time.Minute)
		if r := server.TakeRequestCounts(); len(r) > 0 {
			t.Errorf("an idle client sent %v", r)
		}
	})
}

// TestIdleSessions: of the sessions of many TTLs a few are kept when their claims have gone, those that were used
// last, and they are ended after their TTL. The others are ended at once.
func TestIdleSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		e := sequence.New(&memtree.Link{Server: server})
		defer e.Close()
		const ttls, kept = 50, 8
		cycle := func(i int) {
			t.Helper()
			c := mutex("m", time.Hour+time.Duration(i)*time.Second)
			if _, err := e.Acquire(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if err := e.Release(t.Context(), c, ""); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		expect := func(what string, opened, ended int) {
			t.Helper()
			if r := server.TakeRequestCounts(); r["open"] != opened || r["end"] != ended {
				t.Errorf("%s: %v, want %d sessions opened and %d ended", what, r, opened, ended)
			}
		}
		before := runtime.NumGoroutine()
		for i := range ttls {
			cycle(i)
		}
		expect("many TTLs", ttls, ttls-kept)
		if n := runtime.NumGoroutine() - before; n > 3*kept {
			t.Errorf("%d sessions without claims have %d goroutines", kept, n)
		}
		cycle(ttls - kept) // the oldest of those that are kept
		expect("one that is kept", 0, 0)
		cycle(0)
		expect("one that is not", 1, 1)
		cycle(ttls - kept)
		expect("the one that was used last but one", 0, 0)
		held := mutex("held", time.Hour)
		if _, err := e.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		for i := range ttls {
			cycle(i + 1)
		}
		l, err := e.Inspect(t.Context(), "held")
		if err != nil || len(l.Holders) != 1 {
			t.Errorf("a lock under the longest used session: %+v, %v", l, err)
		}
		server.TakeRequestCounts()
		if err := e.Release(t.Context(), held, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		expect("after their TTL", 0, kept+1)
	})
}

// TestAbandonedClaims: a claim that its client does not renew ends after its TTL, and not sooner, although its session
// is kept alive.
func TestAbandonedClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		e := sequence.New(&memtree.Link{Server: server})
		defer e.Close()
		kept, err := e.Acquire(t.Context(), mutex("kept", 6*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		lost, err := e.Acquire(t.Context(), mutex("lost", 6*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		isHeld := func(name string) bool {
			l, err := e.Inspect(context.Background(), name)
			return err == nil && len(l.Holders) == 1
		}
		for i := range 5 {
			time.Sleep(2 * time.Second)
			e.Renew(t.Context(), []driver.Grant{kept}, func(_ int, r driver.Renewal) {
				if r.Err != nil {
					t.Error(r.Err)
				}
			})
			if want := i < 2; i != 2 && isHeld(lost.Name) != want {
				t.Errorf("after %d s it is held: %v", 2*(i+1), !want)
			}
		}
		if !isHeld(kept.Name) {
			t.Error("the renewed claim has ended")
		}
		end, err := e.NextEnding(t.Context())
		if err != nil || end.ID != lost.ID || !errors.Is(end.Err, driver.ErrLost) {
			t.Errorf("%+v, %v", end, err)
		}
	})
}

// delayedConfirmation is a tree whose sessions have a ConfirmDelay.
type delayedConfirmation struct {
	*memtree.Link
	delay time.Duration
}

func (l delayedConfirmation) OpenSession(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	s, err := l.Link.OpenSession(ctx, ttl)
	s.ConfirmDelay = l.delay
	return s, err
}

// TestConfirmDelay: with a ConfirmDelay, no grant or renewal counts from a keep-alive before another one has followed
// it after that delay, and none counts from one that is older than a sixth of the TTL.
func TestConfirmDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl, lag = 30 * time.Second, 2 * time.Second
		e := sequence.New(delayedConfirmation{&memtree.Link{Server: memtree.New()}, lag})
		defer e.Close()
		clock := e.Info().Clock
		check := func(when string, since driver.Instant) {
			t.Helper()
			if age := clock.SinceAtLeast(since); age < lag || age > ttl/6 {
				t.Errorf("%s: counts from %v ago", when, age)
			}
		}
		if _, err := e.Acquire(t.Context(), mutex("first", ttl)); err != nil {
			// it counts from the opening of the session
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		g, err := e.Acquire(t.Context(), mutex("m", ttl))
		if err != nil {
			t.Fatal(err)
		}
		check("granted", g.Since)
		for _, pause := range []time.Duration{time.Second, 10 * time.Second, 300 * time.Millisecond, 7 * time.Second} {
			time.Sleep(pause)
			e.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
				if r.Err != nil {
					t.Error(r.Err)
				}
				check("renewed", r.Since)
			})
		}
	})
}

// delayedAdd is a tree whose first conditional add returns a holder that does not exist any more.
type delayedAdd struct {
	*memtree.Link
	done atomic.Bool
}

func (l *delayedAdd) Add(
	ctx context.Context, name string, s sequence.Session, number int64, note sequence.Payload, guard sequence.AddCondition,
) (sequence.Snapshot, error) {
	if guard == sequence.AddIfAlone && !l.done.Swap(true) {
		gone := sequence.Node{Key: "gone", Token: 1, Session: "another", Payload: note}
		gone.ID = "gone"
		return sequence.Snapshot{Name: name, Nodes: []sequence.Node{gone}, Revision: 1}, nil
	}
	return l.Link.Add(ctx, name, s, number, note, guard)
}

// TestHeldByNobody: a try is not refused because of a holder that does not exist any more.
func TestHeldByNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := sequence.New(&delayedAdd{Link: &memtree.Link{Server: memtree.New()}})
		defer e.Close()
		if _, err := e.Acquire(t.Context(), mutex("m", 10*time.Second)); err != nil {
			t.Error(err)
		}
	})
}

// TestConfirmDelayOnSlowStore: with a ConfirmDelay, a store that answers each keep-alive only just in time still grants
// and renews claims. What it confirms counts from the start of the call, or later.
func TestConfirmDelayOnSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl, roundTrip = 10 * time.Second, 1200 * time.Millisecond
		e := sequence.New(delayedConfirmation{&memtree.Link{Server: memtree.New(),
			Transport: func(_ context.Context, _ string, do func() any) (any, error) {
				time.Sleep(roundTrip / 2)
				defer time.Sleep(roundTrip / 2)
				return do(), nil
			}}, ttl / 15})
		defer e.Close()
		clock := e.Info().Clock
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var g driver.Grant
		for i := range 5 {
			start := clock.Now()
			var err error
			if g, err = e.Acquire(ctx, mutex(fmt.Sprint("m", i), ttl)); err != nil {
				t.Fatalf("claim %d, after %v: %v", i, clock.Since(start), err)
			}
			if early := start.Since(g.Since); early > ttl/6 {
				t.Errorf("claim %d counts from %v before", i, early)
			}
			time.Sleep(time.Second)
		}
		for i := range 5 {
			ctx, cancel := context.WithTimeout(ctx, ttl/3)
			start := clock.Now()
			e.Renew(ctx, []driver.Grant{g}, func(_ int, r driver.Renewal) {
				if r.Err != nil {
					t.Errorf("renewal %d, after %v: %v", i, clock.Since(start), r.Err)
				} else if early := start.Since(r.Since); early > ttl/6 {
					t.Errorf("renewal %d counts from %v before", i, early)
				}
			})
			cancel()
			time.Sleep(ttl / 3)
		}
	})
}

// TestSlowRenewal: a claim whose renewal was answered late lasts for its TTL from the request that confirmed it, and
// not only from when the renewal was requested.
func TestSlowRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl, cut = 9 * time.Second, 2500 * time.Millisecond
		server := memtree.New()
		var down atomic.Bool
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, _ string, do func() any) (any, error) {
				if down.Load() {
					return nil, errors.New("connection refused")
				}
				return do(), nil
			}})
		next := sequence.New(&memtree.Link{Server: server})
		defer e.Close()
		defer next.Close()
		g, err := e.Acquire(t.Context(), mutex("m", ttl))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl / 3)
		down.Store(true)
		time.AfterFunc(cut, func() { down.Store(false) })
		e.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
			if g.Since = r.Since; r.Err != nil {
				t.Error(r.Err)
			}
		})
		if _, err := next.Acquire(t.Context(), waiting(mutex("m", ttl))); err != nil {
			t.Fatal(err)
		}
		if passed := e.Info().Clock.SinceAtLeast(g.Since); passed < ttl || passed > 4*ttl/3 {
			t.Errorf("the next claim was granted %v after the start of the renewal", passed)
		}
	})
}

// TestDetachedWaiter: a claim that is to be detached when granted can wait for longer than its TTL. Once granted, it
// ends after its TTL.
func TestDetachedWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl, held = 5 * time.Second, time.Minute
		server := memtree.New()
		holder, waiter := sequence.New(&memtree.Link{Server: server}), sequence.New(&memtree.Link{Server: server})
		defer holder.Close()
		defer waiter.Close()
		g, err := holder.Acquire(t.Context(), mutex("m", time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(held, func() {
			if err := holder.Release(t.Context(), g.Claim, ""); err != nil {
				t.Error(err)
			}
		})
		c := waiting(mutex("m", ttl))
		c.Detached = true
		start := time.Now()
		if _, err := waiter.Acquire(t.Context(), c); err != nil || time.Since(start) > held+time.Second {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		start = time.Now()
		if _, err := holder.Acquire(t.Context(), waiting(mutex("m", ttl))); err != nil || time.Since(start) > 4*ttl/3 {
			t.Errorf("the next claim after %v: %v", time.Since(start), err)
		}
	})
}
