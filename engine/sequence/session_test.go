package sequence_test

import (
	"context"
	"errors"
	"fmt"
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

// Short names for what the tests say often.
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
// unreachable. The waiter goes on waiting, behind those that came meanwhile.
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
				t.Errorf("%s is told: %v", who, err)
			}
			in <- who
			if err := e.Release(t.Context(), c, ""); err != nil {
				t.Errorf("%s has given back: %v", who, err)
			}
		}
		all.Go(func() { wait("the one that was away", waiter) })
		synctest.Wait()
		server.ExpireSession(server.Nodes("m")[1].Session)
		all.Go(func() { wait("the other", other) })
		time.Sleep(10 * time.Second) // it has beaten, and knows
		if line := server.Nodes("m"); len(line) != 3 {
			t.Errorf("there stand %+v", line)
		}
		if err := holder.Release(t.Context(), held, ""); err != nil {
			t.Fatal(err)
		}
		if first, second := <-in, <-in; first != "the other" {
			t.Errorf("%s was let in before %s", first, second)
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
			away := newLink(server)
			waiter := sequence.New(away)
			defer waiter.Close()
			held := mutex("m", time.Hour)
			if _, err := holder.Acquire(t.Context(), held); err != nil {
				t.Fatal(err)
			}
			told := make(chan error, 1)
			go func() { _, err := waiter.Acquire(t.Context(), waiting(mutex("m", ttl))); told <- err }()
			time.Sleep(ttl/3 - time.Second) // its next beat is due in a second
			away.down.Store(true)
			if long {
				if err := <-told; !errors.Is(err, driver.ErrUncertain) || errors.Is(err, driver.ErrLost) {
					t.Errorf("when its patience is over the waiter is told: %v", err)
				}
				return
			}
			time.Sleep(ttl)
			if line := server.Nodes("m"); len(line) != 1 {
				t.Errorf("there stand %+v", line)
			}
			away.down.Store(false)
			time.Sleep(ttl)
			if err := holder.Release(t.Context(), held, ""); err != nil {
				t.Fatal(err)
			}
			if err := <-told; err != nil {
				t.Errorf("the waiter is told: %v", err)
			}
		})
	}
}

// TestCancelWhileSessionEnds: a wait whose context ends together with its session returns the error of the context,
// with the holders, and no loss. So the client releases what may be left of the claim.
func TestCancelWhileSessionEnds(t *testing.T) {
	for range 20 { // which of the two is seen first is not certain
		synctest.Test(t, func(t *testing.T) {
			server := memtree.New()
			holder := sequence.New(&memtree.Link{Server: server})
			defer holder.Close()
			ctx, giveUp := context.WithCancel(t.Context())
			var over atomic.Bool
			waiter := sequence.New(&memtree.Link{Server: server,
				Transport: func(_ context.Context, what string, do func() any) (any, error) {
					r := do()
					if what == "beat" && over.Load() {
						giveUp()
					}
					return r, nil
				}})
			defer waiter.Close()
			if _, err := holder.Acquire(t.Context(), mutex("m", time.Hour)); err != nil {
				t.Fatal(err)
			}
			told := make(chan error, 1)
			go func() { _, err := waiter.Acquire(ctx, waiting(mutex("m", 9*time.Second))); told <- err }()
			synctest.Wait()
			server.ExpireSession(server.Nodes("m")[1].Session)
			over.Store(true)
			err := <-told
			var held *driver.HeldError
			if !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrLost) || !errors.As(err, &held) {
				t.Errorf("the waiter is told: %v", err)
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
		var silent atomic.Int64
		waiter := sequence.New(&memtree.Link{Server: server,
			Transport: func(ctx context.Context, what string, do func() any) (any, error) {
				if what == "read" {
					silent.Add(1)
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
			// nobody renews it: it is read, to be removed
			t.Fatal(err)
		}
		told := make(chan error, 1)
		go func() { _, err := waiter.Acquire(t.Context(), waiting(mutex("m", ttl))); told <- err }()
		time.Sleep(10 * time.Second)
		if silent.Load() == 0 {
			t.Error("nothing was read")
		}
		if err := holder.Release(t.Context(), held, ""); err != nil {
			t.Fatal(err)
		}
		if err := <-told; err != nil {
			t.Errorf("the waiter is told: %v", err)
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
		var refused, asked atomic.Int64
		waiter := sequence.New(&memtree.Link{Server: server,
			Transport: func(ctx context.Context, what string, do func() any) (any, error) {
				if what == "list" && asked.Add(1)%3 == 1 {
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
		told := make(chan error, 1)
		go func() { _, err := waiter.Acquire(t.Context(), waiting(mutex("m", time.Second))); told <- err }()
		time.Sleep(30 * time.Second)
		if refused.Load() == 0 {
			t.Error("nothing was refused")
		}
		if err := holder.Release(t.Context(), held, ""); err != nil {
			t.Fatal(err)
		}
		if err := <-told; err != nil {
			t.Errorf("the waiter is told: %v", err)
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
			"a break":   func() error { return other.Break(t.Context(), "m", g.Ref, driver.BreakForce) },
		} {
			start := time.Now()
			if err := do(); !errors.Is(err, driver.ErrUncertain) || refused == 0 {
				t.Errorf("%s is told %v, after %d writes", what, err, refused)
			}
			if took := time.Since(start); took > 11*time.Second {
				t.Errorf("%s went on for %v", what, took)
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
				t.Errorf("it is told %v", r.Err)
			}
		})
	})
}

// TestGrantedTogether: limit 2, a holder of 2, and two waiters of 1 in two clients. A release grants both at once,
// although only the first of them watches the holder.
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
		if took := time.Since(start); took > 0 { // no poll, no timer: notifications alone
			t.Errorf("that took %v", took)
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

// TestAddReplyDuringCheck: a claim is given up while its add is under way, just after its first session expired. When
// the reply to the add comes, the claim is not taken for removed. So it is removed, even if the first try of that is
// lost.
func TestAddReplyDuringCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memtree.New()
		var adds, removes atomic.Int64
		land, read := make(chan struct{}), make(chan struct{})
		e := sequence.New(&memtree.Link{Server: server,
			Transport: func(_ context.Context, what string, do func() any) (any, error) {
				switch {
				case what == "add" && adds.Add(1) == 3:
					<-land
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
		given := make(chan error, 1)
		go func() { _, err := e.Acquire(ctx, c); given <- err }()
		synctest.Wait() // its second add is on its way
		cancel()
		if err := <-given; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		released := make(chan error, 1)
		go func() { released <- e.Release(t.Context(), c, "") }()
		synctest.Wait()
		close(land)
		synctest.Wait()
		close(read)
		if err := <-released; err != nil {
			t.Error(err)
		}
		if left := server.LockNames(); len(left) > 0 {
			t.Errorf("released, and something stands on %v", left)
		}
	})
}

// TestRefusedClaimWakesWaiter: a claim is refused and removed because the line is full. The waiter of the same client
// behind it wakes up at once.
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
		synctest.Wait() // it stands, is of another kind, and is being taken back
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
			t.Errorf("of another kind: %v", err)
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
			t.Errorf("with nothing to do it asked %v", r)
		}
	})
}

// TestAbandonedClaims: a claim that its client does not renew ends after its TTL, and not sooner, although its session
// goes on.
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
		stands := func(name string) bool {
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
			if want := i < 2; i != 2 && stands(lost.Name) != want {
				t.Errorf("after %d s it stands: %v", 2*(i+1), !want)
			}
		}
		if !stands(kept.Name) {
			t.Error("the one that was renewed is gone")
		}
		end, err := e.NextEnding(t.Context())
		if err != nil || end.ID != lost.ID || !errors.Is(end.Err, driver.ErrLost) {
			t.Errorf("%+v, %v", end, err)
		}
	})
}

// delayedConfirmation is a tree on which a beat is sure only some time after it.
type delayedConfirmation struct {
	*memtree.Link
	lag time.Duration
}

func (l delayedConfirmation) OpenSession(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	s, err := l.Link.OpenSession(ctx, ttl)
	s.ConfirmDelay = l.lag
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
				t.Errorf("%s: counted from %v ago", when, age)
			}
		}
		if _, err := e.Acquire(t.Context(), mutex("first", ttl)); err != nil { // it counts from the opening
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

// delayedAdd is a tree on which one look, when a node is added, shows a holder that has gone.
type delayedAdd struct {
	*memtree.Link
	told atomic.Bool
}

func (l *delayedAdd) Add(
	ctx context.Context, name string, s sequence.Session, number int64, note sequence.Payload, guard sequence.AddCondition,
) (sequence.Snapshot, error) {
	if guard == sequence.AddIfAlone && !l.told.Swap(true) {
		gone := sequence.Node{Key: "gone", Token: 1, Session: "another", Payload: note}
		gone.ID = "gone"
		return sequence.Snapshot{Name: name, Nodes: []sequence.Node{gone}, Revision: 1}, nil
	}
	return l.Link.Add(ctx, name, s, number, note, guard)
}

// TestHeldByNobody: a claim that does not wait is not refused if its refusal could name no holder.
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
		const ttl, trip = 10 * time.Second, 1200 * time.Millisecond
		e := sequence.New(delayedConfirmation{&memtree.Link{Server: memtree.New(),
			Transport: func(_ context.Context, _ string, do func() any) (any, error) {
				time.Sleep(trip / 2)
				defer time.Sleep(trip / 2)
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
			t.Errorf("the next was let in %v after the start of the renewal", passed)
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
			t.Errorf("the next after %v: %v", time.Since(start), err)
		}
	})
}
