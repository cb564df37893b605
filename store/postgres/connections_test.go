package postgres

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestNoMoreConnections: when a server accepts no more connections, a store keeps those that it has, and a holder
// keeps its lock.
func TestNoMoreConnections(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	mustOpen(t, s.URL("test")+"?sslmode=disable&schema=square&create=true")
	execSQL(t, s, `create role crowd login; grant usage on schema square to crowd; grant select, insert, update, delete on square.holdfast to crowd`)
	st := mustOpen(t, s.URL("crowd")+"?sslmode=disable&schema=square")
	g := acquire(t, st, mutexClaim("m", time.Minute))
	execSQL(t, s, `alter role crowd connection limit 0`)
	for range 3 {
		var all sync.WaitGroup
		for range 8 {
			// those for whom no connection is free are refused one
			all.Go(func() { _, _ = st.Inspect(t.Context(), "m") })
		}
		all.Wait()
		if r := renew(t, st, g); r.Err != nil {
			t.Fatalf("on the connection that exists: %v", r.Err)
		}
	}
}

// TestDistrustKeepsConnections: when one side does not trust the certificate of the other at a new connection, those
// that exist are used on. First it is the client that does not trust, and then the server.
func TestDistrustKeepsConnections(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	files, other := storetest.NewSecretFiles(t, "client"), storetest.NewSecretFiles(t, "client")
	at := storetest.TLSProxy(t, files, func() (net.Conn, error) { return net.Dial("tcp", s.Addr) })
	path := func(name string) string { return filepath.Join(files.Client, name) }
	config, opts := parseURL(t, "postgres://test@"+at+"/postgres?layout=shedlock&create=true&schema=distrust&sslnegotiation=direct"+
		"&sslmode=verify-full&sslrootcert="+path("ca.pem")+"&sslcert="+path("cert.pem")+"&sslkey="+path("key.pem"))
	pool := newPool(t, config)
	table, err := newTable(t.Context(), pool, opts, func() {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close() })
	read := newShedlockTable(table).readStmt
	copyFiles := func(names ...string) {
		t.Helper()
		for _, name := range names {
			content, err := os.ReadFile(filepath.Join(other.Client, name))
			if err == nil {
				err = os.WriteFile(path(name), content, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, distrust := range []struct {
		of    string
		begin func()
	}{
		{"the client", func() { copyFiles("ca.pem") }},
		{"the server", func() { files.Replace(); copyFiles("cert.pem", "key.pem") }},
	} {
		distrust.begin()
		idle := pool.AcquireAllIdle(t.Context())
		err := table.batcher.runStatement(t.Context(), read, []byte("m")).err
		for _, c := range idle {
			c.Release()
		}
		if len(idle) == 0 || err == nil || !strings.Contains(err.Error(), "tls: ") {
			t.Errorf("distrust of %s: %d connections; on a new one: %v", distrust.of, len(idle), err)
		}
		if err := table.batcher.runStatement(t.Context(), read, []byte("m")).err; err != nil {
			t.Errorf("distrust of %s: on a connection that exists: %v", distrust.of, err)
		}
	}
}

// TestOnlyConnectionIsBusy: when a server accepts no more connections and the only one of the pool is in use, a renewal
// waits for it.
func TestOnlyConnectionIsBusy(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	mustOpen(t, s.URL("test")+"?sslmode=disable&schema=onlyone&create=true")
	execSQL(t, s, `create role onlyone login; grant usage on schema onlyone to onlyone; grant select, insert, update, delete on onlyone.holdfast to onlyone`)
	config, opts := parseURL(t, s.URL("onlyone")+"?sslmode=disable&schema=onlyone")
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	st, err := New(t.Context(), pool, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	g := acquire(t, st, mutexClaim("m", time.Minute))
	execSQL(t, s, `alter role onlyone connection limit 0`)
	conns := pool.AcquireAllIdle(t.Context())
	time.AfterFunc(200*time.Millisecond, func() {
		for _, c := range conns {
			c.Release()
		}
	})
	if r := renew(t, st, g); r.Err != nil {
		t.Fatalf("while the only connection was in use: %v", r.Err)
	}
}

// TestStuckStatements: statements that wait on the server, because an operator has locked the table, end there
// when the client gives them up. They do not accumulate until the server has no connection left.
func TestStuckStatements(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	url := freshURL(t, s, "application_name=stuck", "timeout=1s", "pool_max_conns=2")
	st := mustOpen(t, url)
	_, opts := parseURL(t, url)
	lockTableDuring(t, s, opts, func() {
		told := 0 // a server that is busy may say it too late
		for i := range 3 {
			_, err := st.Acquire(t.Context(), mutexClaim(fmt.Sprint("m", i), 3*time.Second))
			if err == nil || driverutil.IsFinal(err) {
				t.Errorf("on a table that is locked: %v", err)
			} else if strings.Contains(err.Error(), "locked the table") {
				told++
			}
		}
		if told == 0 {
			t.Error("no error says that the table is locked")
		}
		eventually(t, "the end of statements that were given up", func() bool {
			n, err := s.QueryValue("select count(*) from pg_stat_activity where application_name = 'stuck'")
			left, _ := strconv.Atoi(n)
			return err == nil && left <= 4
		})
	})
	acquire(t, st, mutexClaim("m", time.Minute))
}

// TestCloseEndsRequests: Close ends a request that waits on the server, also one whose context does not end, long
// before the request's own deadline.
func TestCloseEndsRequests(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	url := freshURL(t, s, "application_name=closed_requests", "timeout=1m", "layout=shedlock")
	table, st := openShedlockTable(t, url)
	_, opts := parseURL(t, url)
	lockTableDuring(t, s, opts, func() {
		result := make(chan result, 1)
		go func() { result <- table.batcher.runStatement(context.Background(), table.readStmt, []byte("m")) }()
		eventually(t, "a read that waits", func() bool {
			n, err := s.QueryValue(`select count(*) from pg_stat_activity where application_name = 'closed_requests' and wait_event_type = 'Lock'`)
			return err == nil && n != "0"
		})
		began := time.Now()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
		checkError(t, (<-result).err, driver.ErrClosed)
		if passed := time.Since(began); passed > 30*time.Second {
			t.Errorf("Close took %v", passed)
		}
	})
}
