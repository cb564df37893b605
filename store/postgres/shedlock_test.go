package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// shedlockClient does what ShedLock's JDBC provider does on PostgreSQL with the database's time. Each has a name
// of its own, like a process on another host.
type shedlockClient struct {
	pool *pgxpool.Pool
	name string
}

func (p shedlockClient) run(ctx context.Context, text string, args pgx.NamedArgs) (bool, error) {
	args["lockedBy"] = p.name
	tag, err := p.pool.Exec(ctx, text, args)
	return tag.RowsAffected() == 1, err
}

func (p shedlockClient) lock(ctx context.Context, name string, atMost time.Duration) (bool, error) {
	return p.run(ctx, `INSERT INTO shedlock(name, lock_until, locked_at, locked_by)
		VALUES(@name, timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => @atMost), timezone('utc', CURRENT_TIMESTAMP), @lockedBy)
		ON CONFLICT (name) DO UPDATE SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => @atMost),
		locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = @lockedBy
		WHERE shedlock.name = @name AND shedlock.lock_until <= timezone('utc', CURRENT_TIMESTAMP)`, pgx.NamedArgs{"name": name, "atMost": atMost.Seconds()})
}

func (p shedlockClient) extend(ctx context.Context, name string, atMost time.Duration) (bool, error) {
	return p.run(ctx, `UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => @atMost)
		WHERE name = @name AND locked_by = @lockedBy AND lock_until > timezone('utc', CURRENT_TIMESTAMP)`, pgx.NamedArgs{"name": name, "atMost": atMost.Seconds()})
}

func (p shedlockClient) unlock(ctx context.Context, name string, atLeast time.Duration) (bool, error) {
	return p.run(ctx, `UPDATE shedlock SET lock_until = CASE WHEN locked_at + make_interval(secs => @atLeast) > timezone('utc', CURRENT_TIMESTAMP)
		THEN locked_at + make_interval(secs => @atLeast) ELSE timezone('utc', CURRENT_TIMESTAMP) END
		WHERE name = @name AND locked_by = @lockedBy`, pgx.NamedArgs{"name": name, "atLeast": atLeast.Seconds()})
}

// startShedLock opens a store on ShedLock's own table, as in ShedLock's manual, and makes clients of ShedLock. The
// server's time zone is not UTC.
func startShedLock(t *testing.T, n int) (*pgtest.Server, driver.Store, []shedlockClient) {
	t.Helper()
	s := startServer(t, "timezone=Pacific/Kiritimati")
	execSQL(t, s, `CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL,
		locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))`)
	pool, err := pgxpool.New(t.Context(), s.URL("test")+"?sslmode=disable&pool_max_conns=8")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var peers []shedlockClient
	for i := range n {
		peers = append(peers, shedlockClient{pool, fmt.Sprint("host-", i)})
	}
	return s, mustOpen(t, s.URL("test")+"?sslmode=disable&layout=shedlock"), peers
}

// TestShedLock: our client and ShedLock's each respect a lock that the other holds, for as long as it is held.
// Neither releases or extends the other's lock.
func TestShedLock(t *testing.T) {
	t.Parallel()
	_, s, peers := startShedLock(t, 2)
	ctx := t.Context()
	says := func(want bool) func(bool, error) {
		return func(got bool, err error) {
			t.Helper()
			if err != nil || got != want {
				t.Fatalf("ShedLock's client got %v %v, want %v", got, err, want)
			}
		}
	}
	c := mutexClaim("job", time.Minute)
	c.Owner = strings.Repeat("o🔒", 50)
	g := acquire(t, s, c)
	says(false)(peers[0].lock(ctx, "job", time.Minute))
	says(false)(peers[0].extend(ctx, "job", time.Minute))
	says(false)(peers[0].unlock(ctx, "job", 0))
	if r := renew(t, s, g); r.Err != nil {
		t.Fatal(r.Err)
	}
	if err := s.Release(ctx, c, ""); err != nil {
		t.Fatal(err)
	}

	says(true)(peers[0].lock(ctx, "job", 5*time.Minute))
	_, err := s.Acquire(ctx, mutexClaim("job", time.Minute))
	checkError(t, err, driver.ErrHeld, "host-0")
	l, err := s.Inspect(ctx, "job")
	if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign || l.Holders[0].Remaining < time.Second {
		t.Fatalf("%+v %v", l, err)
	}
	for _, mode := range []driver.BreakMode{driver.BreakGraceful, driver.BreakRequestRelease} {
		checkError(t, s.Break(ctx, "job", l.Holders[0].Ref, mode), driver.ErrUnsupported)
	}
	checkError(t, s.Release(ctx, c, g.Ref), driver.ErrLost)
	if l := lossOf(renew(t, s, g).Err); l != driver.LossTaken {
		t.Errorf("our former holder is told %q", l)
	}
	checkError(t, s.Break(ctx, "job", g.Ref, driver.BreakForce), driver.ErrLost)
	var machine pace.Pace
	defer machine.Watch()()
	start := time.Now()
	says(true)(peers[0].extend(ctx, "job", 3*time.Second)) // which ends it sooner
	extended := time.Now()
	w := waitingClaim(mutexClaim("job", time.Minute))
	next := acquire(t, s, w) // when the lock of ShedLock's holder has expired
	if after := time.Since(start); after < 2900*time.Millisecond ||
		time.Since(extended) > 5*time.Second+machine.Lost(start) {
		t.Errorf("a silent holder of ShedLock's was replaced after %v of 3 s", after)
	}
	if next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
	says(false)(peers[0].unlock(ctx, "job", 0)) // it wakes up late
	if r := renew(t, s, next); r.Err != nil {
		t.Error(r.Err)
	}
	if err := s.Release(ctx, w, ""); err != nil {
		t.Fatal(err)
	}

	says(true)(peers[1].lock(ctx, "least", time.Minute))
	says(true)(peers[1].unlock(ctx, "least", time.Minute))
	_, err = s.Acquire(ctx, mutexClaim("least", time.Minute))
	checkError(t, err, driver.ErrHeld)

	says(true)(peers[1].lock(ctx, "forced", time.Minute))
	l, err = s.Inspect(ctx, "forced")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Break(ctx, "forced", l.Holders[0].Ref, driver.BreakForce); err != nil {
		t.Fatal(err)
	}
	acquire(t, s, mutexClaim("forced", time.Minute))
	_, err = s.Acquire(ctx, mutexClaim(strings.Repeat("n", 65), time.Minute))
	checkError(t, err, driver.ErrInvalid, "64")
}

// TestShedLockRounds: our clients and ShedLock's contend for one lock. There are never two holders, and both kinds
// get the lock.
func TestShedLockRounds(t *testing.T) {
	t.Parallel()
	rounds := int64(50)
	if *prove {
		rounds = 1000
	}
	_, s, peers := startShedLock(t, 2)
	var inside, ours, theirs, token atomic.Int64
	work := func() {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d holders", n)
		}
		time.Sleep(rand.N(500 * time.Microsecond))
		inside.Add(-1)
	}
	over := func() bool {
		return ours.Load() >= rounds && theirs.Load() >= rounds || t.Failed() || t.Context().Err() != nil
	}
	var all sync.WaitGroup
	for _, p := range peers {
		all.Go(func() {
			for !over() {
				got, err := p.lock(t.Context(), "m", time.Minute)
				if got {
					work()
					theirs.Add(1)
					_, err = p.unlock(t.Context(), "m", 0)
				}
				if err != nil {
					t.Error(err)
				}
				time.Sleep(rand.N(2 * time.Millisecond))
			}
		})
	}
	for i := range 2 {
		all.Go(func() {
			for !over() {
				c := mutexClaim("m", time.Minute)
				c.Wait = i == 0
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				g, err := s.Acquire(ctx, c)
				cancel()
				switch {
				case err == nil:
					work()
					ours.Add(1)
					if before := token.Swap(g.Token); before >= g.Token {
						t.Errorf("token %d after %d", g.Token, before)
					}
				case !errors.Is(err, driver.ErrHeld) && !errors.Is(err, context.DeadlineExceeded):
					t.Error(err)
				}
				if rerr := s.Release(t.Context(), c, ""); rerr != nil && err == nil {
					t.Error(rerr)
				}
				time.Sleep(rand.N(2 * time.Millisecond))
			}
		})
	}
	all.Wait()
	t.Logf("%d grants to us and %d to ShedLock's clients, never two at a time", ours.Load(), theirs.Load())
}

// TestShedLockLockedForever: a row that an operator has locked for ever, in either of the usual ways, is held: it
// is shown so, refuses callers that try, and is polled slowly by waiters. A row whose lock_until is before all
// time is free.
func TestShedLockLockedForever(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	config, opts := parseURL(t, freshURL(t, s, "layout=shedlock"))
	st, pool := openOnPool(t, config, opts)
	locks := mustLocate(t, opts).locksTable
	for _, until := range []string{"9999-12-31 23:59:59", "infinity"} {
		execSQL(t, s, `insert into `+locks+` values ('`+until+`', '`+until+`', now(), 'operator')`)
		if l, err := st.Inspect(t.Context(), until); err != nil || len(l.Holders) != 1 ||
			l.Holders[0].Owner != "operator" {
			t.Errorf("%s: %+v %v", until, l, err)
		}
		_, err := st.Acquire(t.Context(), mutexClaim(until, time.Minute))
		checkError(t, err, driver.ErrHeld, "operator")
		c := waitingClaim(mutexClaim(until, time.Minute))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		before := pool.Stat().AcquireCount()
		_, err = st.Acquire(ctx, c)
		checkError(t, err, context.DeadlineExceeded, "operator")
		cancel()
		if n := pool.Stat().AcquireCount() - before; n > 150 {
			t.Errorf("%s: %d statements in 3 s", until, n)
		}
	}
	execSQL(t, s, `insert into `+locks+` values ('free', '-infinity', now(), 'operator')`)
	if l, err := st.Inspect(t.Context(), "free"); err != nil || len(l.Holders) > 0 {
		t.Errorf("%+v %v", l, err)
	}
	acquire(t, st, mutexClaim("free", time.Minute))
}
