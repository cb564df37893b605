package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/shedlock"
	"github.com/holdfast-go/holdfast/internal/storetest"
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

func (p shedlockClient) Lock(ctx context.Context, name string, atMost time.Duration) (bool, error) {
	return p.run(ctx, `INSERT INTO shedlock(name, lock_until, locked_at, locked_by)
		VALUES(@name, timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => @atMost), timezone('utc', CURRENT_TIMESTAMP), @lockedBy)
		ON CONFLICT (name) DO UPDATE SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => @atMost),
		locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = @lockedBy
		WHERE shedlock.name = @name AND shedlock.lock_until <= timezone('utc', CURRENT_TIMESTAMP)`, pgx.NamedArgs{"name": name, "atMost": atMost.Seconds()})
}

func (p shedlockClient) Extend(ctx context.Context, name string, atMost time.Duration) (bool, error) {
	return p.run(ctx, `UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => @atMost)
		WHERE name = @name AND locked_by = @lockedBy AND lock_until > timezone('utc', CURRENT_TIMESTAMP)`, pgx.NamedArgs{"name": name, "atMost": atMost.Seconds()})
}

func (p shedlockClient) Unlock(ctx context.Context, name string, atLeast time.Duration) (bool, error) {
	return p.run(ctx, `UPDATE shedlock SET lock_until = CASE WHEN locked_at + make_interval(secs => @atLeast) > timezone('utc', CURRENT_TIMESTAMP)
		THEN locked_at + make_interval(secs => @atLeast) ELSE timezone('utc', CURRENT_TIMESTAMP) END
		WHERE name = @name AND locked_by = @lockedBy`, pgx.NamedArgs{"name": name, "atLeast": atLeast.Seconds()})
}

// startShedLock opens a store on ShedLock's own table, as in ShedLock's manual, and makes clients of ShedLock. The
// server's time zone is not UTC.
func startShedLock(t *testing.T, n int) (*pgtest.Server, driver.Store, []storetest.ShedLockClient) {
	t.Helper()
	s := startServer(t, "timezone=Pacific/Kiritimati")
	execSQL(t, s, `CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL,
		locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))`)
	pool, err := pgxpool.New(t.Context(), s.URL("test")+"?sslmode=disable&pool_max_conns=8")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var peers []storetest.ShedLockClient
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
	storetest.MeetShedLock(t, s, peers)
}

// TestShedLockLateRenewal: a renewal that arrives after its claim was detached changes nothing.
func TestShedLockLateRenewal(t *testing.T) {
	t.Parallel()
	_, s, _ := startShedLock(t, 0)
	storetest.RenewDetachedShedLock(t, s)
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
	storetest.ContendWithShedLock(t, s, peers, rounds)
}

// TestShedLockLockedForever: a row that an operator has locked forever, in either of the usual ways, is held: it
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

// openShedlockTable opens a store, and returns its table too.
func openShedlockTable(t *testing.T, url string) (*shedlockTable, driver.Store) {
	t.Helper()
	config, opts := parseURL(t, url)
	table, err := newTable(t.Context(), newPool(t, config), opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	st := newShedlock(table)
	t.Cleanup(func() { _ = st.Close() })
	return newShedlockTable(table), st
}

// TestShedLockLateTake: a take whose caller has gone is pending until the server has answered it, and its claim's
// release waits for that, so that the lock is free after it.
func TestShedLockLateTake(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	url := freshURL(t, s, "layout=shedlock", "timeout=10s", "application_name=late_take")
	table, st := openShedlockTable(t, url)
	_, opts := parseURL(t, url)
	c := mutexClaim("m", time.Minute)
	released := make(chan error, 1)
	var pending <-chan struct{}
	lockTableDuring(t, s, opts, func() {
		ctx, cancel := context.WithCancel(t.Context())
		taken := make(chan shedlock.TakeResult, 1)
		go func() {
			sign := shedlock.Signature{Prefix: shedlock.SignaturePrefix("x"), Head: "holdfast/x", Rest: " "}
			taken <- table.TakeRow(ctx, "x", sign, time.Minute)
		}()
		over := make(chan error, 1)
		go func() { _, err := st.Acquire(ctx, c); over <- err }()
		eventually(t, "two takes that wait", func() bool {
			n, err := s.QueryValue(`select count(*) from pg_stat_activity where application_name = 'late_take' and wait_event_type = 'Lock'`)
			return err == nil && n == "2"
		})
		cancel()
		checkError(t, <-over, driver.ErrUncertain)
		if pending = (<-taken).Pending; pending == nil {
			t.Fatal("a take that the server may still make is not pending")
		}
		select {
		case <-pending:
			t.Error("a take is not pending while it waits on the server")
		default:
		}
		go func() { released <- st.Release(t.Context(), c, "") }()
	})
	<-pending
	if err := <-released; err != nil && !errors.Is(err, driver.ErrLost) {
		t.Errorf("the release: %v", err)
	}
	if l, err := st.Inspect(t.Context(), "m"); err != nil || len(l.Holders) > 0 {
		t.Errorf("%+v %v", l, err)
	}
}
