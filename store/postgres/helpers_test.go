package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// Helpers that the tests of all stores share.
var (
	mustOpen     = storetest.Open
	shiftedClock = storetest.ShiftedClock
	mutexClaim   = storetest.Mutex
	waitingClaim = storetest.Waiting
	acquire      = storetest.Acquire
	renew        = storetest.Renew
	release      = storetest.Release
	lossOf       = storetest.LossOf
	eventually   = storetest.Eventually
	conform      = storetest.Conform
	examine      = storetest.Examine

	expectFindings = storetest.ExpectFindings
)

func execSQL(t testing.TB, s *pgtest.Server, text string) {
	t.Helper()
	if err := s.Exec(text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// testTimeout limits what has no time limit of its own.
const testTimeout = time.Minute

// renewUntilKnown renews like a client, which tries again while the outcome is not known. It returns an error if
// the claim is
// lost, or its state stays unknown.
func renewUntilKnown(t testing.TB, s driver.Store, g driver.Grant) (err error) {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; {
		if err = renew(t, s, g).Err; err == nil || lossOf(err) != "" || time.Now().After(end) {
			return err
		}
	}
}

// checkError fails unless the error Is target and contains these words.
func checkError(t testing.TB, err, target error, words ...string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v, want %v", err, target)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func mustLocate(t testing.TB, o *Options) *location {
	p, err := o.resolveLocation()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newPool makes a pool that ends with the test.
func newPool(t testing.TB, config *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// openOnPool opens a store on a pool of the user's own. Both end with the test.
func openOnPool(t testing.TB, config *pgxpool.Config, opts *Options) (driver.Store, *pgxpool.Pool) {
	t.Helper()
	pool := newPool(t, config)
	st, err := New(t.Context(), pool, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st, pool
}

// lockTableDuring keeps the locks' table locked while f runs, as an operator may.
func lockTableDuring(t testing.TB, s *pgtest.Server, opts *Options, f func()) {
	t.Helper()
	blocker, err := pgx.Connect(t.Context(), s.URL("test")+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer blocker.Close(context.Background())
	err = pgx.BeginFunc(t.Context(), blocker, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "lock table "+mustLocate(t, opts).locksTable+" in access exclusive mode")
		if err == nil {
			f()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// isListening reports whether a client with that application_name is notified of changes to a lock that it waits for.
func isListening(t testing.TB, s *pgtest.Server, application string) bool {
	t.Helper()
	n, err := s.QueryValue(`select count(*) from pg_stat_activity where ` + listeningSQL(application))
	return err == nil && n != "0"
}

// listeningSQL is the condition for rows of pg_stat_activity that are connections on which a client listens.
func listeningSQL(application string) string {
	return `application_name = '` + application + `' and pid in (select pid from pg_locks
		where locktype = 'advisory' and mode = 'ShareLock' and granted)`
}

// startWaiter calls wait in a goroutine, and returns when its client listens for changes. The channel gets its error.
func startWaiter(t testing.TB, s *pgtest.Server, application string, wait func() error) <-chan error {
	t.Helper()
	returned := make(chan error, 1)
	go func() { returned <- wait() }()
	eventually(t, "a waiter that listens", func() bool { return isListening(t, s, application) })
	return returned
}

// watchServer measures, until the test ends, by how much the machine or a server is late: the processes of the server
// may have to wait while this one is on time.
func watchServer(t testing.TB, s *pgtest.Server) *pace.Pace {
	t.Helper()
	c, err := pgx.Connect(t.Context(), s.URL("test")+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	const every = 10 * time.Millisecond
	var p pace.Pace
	stop := p.WatchTask(every, func(<-chan struct{}) {
		time.Sleep(every)
		_, _ = c.Exec(context.Background(), "select 1")
	})
	t.Cleanup(func() { stop(); _ = c.Close(context.Background()) })
	return &p
}
