package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/shedlock"
	"github.com/holdfast-go/holdfast/store/mysql/mysqltest"
)

// readOnlyTest has a server on which root may write although it is read-only.
type readOnlyTest struct {
	*testing.T
	server *mysqltest.Server
	pool   *sql.DB
}

func newReadOnlyTest(t *testing.T) readOnlyTest {
	t.Helper()
	s := startServer(t)
	pool, err := sql.Open("mysql", s.DSN()+"?sql_mode=%27STRICT_ALL_TABLES%27&charset=utf8mb4")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	return readOnlyTest{t, s, pool}
}

func (t readOnlyTest) set(readOnly int) {
	t.Helper()
	if err := t.server.Exec(fmt.Sprint("set global read_only = ", readOnly)); err != nil {
		t.Fatal(err)
	}
}

// expectRefused runs a statement while the server is read-only, when it must change nothing, and then when it takes
// writes.
func (t readOnlyTest) expectRefused(what, table string, write func() (changed bool, err error)) {
	t.Helper()
	sum := func() (n sql.NullInt64) {
		t.Helper()
		var name string
		if err := t.pool.QueryRow("checksum table "+table).Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := sum()
	t.set(1)
	if changed, err := write(); changed || err != nil || sum() != before {
		t.Errorf("%s on a read-only server: %v %v; the table has changed: %v", what, changed, err, sum() != before)
	}
	t.set(0)
	if changed, err := write(); !changed || err != nil || sum() == before {
		t.Errorf("%s on a server that takes writes: %v %v; the table has changed: %v", what, changed, err, sum() != before)
	}
}

// TestReadOnlyIsCheckedByWrites: each statement that writes changes nothing on a server with read_only, even if its
// user may write there.
func TestReadOnlyIsCheckedByWrites(t *testing.T) {
	t.Parallel()
	r := newReadOnlyTest(t)
	opened, err := NewTable(t.Context(), r.pool, &Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	row := record.Row{Name: "m", Data: []byte("1")}
	swap := func() (bool, error) {
		next, err := opened.Swap(t.Context(), row)
		if errors.Is(err, record.ErrConflict) {
			return false, nil
		}
		row = next
		return err == nil, err
	}
	r.expectRefused("an insert", "holdfast", swap)
	row.Data = []byte("2")
	r.expectRefused("an update", "holdfast", swap)
	id, hash, err := splitVersion(row.Version)
	if err != nil {
		t.Fatal(err)
	}
	bare := opened.(*table)
	r.expectRefused("a delete", "holdfast",
		func() (bool, error) { return bare.writeRow(t.Context(), bare.deleteStmt, []byte("m"), id, hash) })
}

// TestReadOnlyIsCheckedByShedLock: so does each statement of ShedLock's layout.
func TestReadOnlyIsCheckedByShedLock(t *testing.T) {
	t.Parallel()
	r := newReadOnlyTest(t)
	bare, err := newTable(t.Context(), r.pool, &Options{Layout: LayoutShedLock, Create: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := prepareShedlock(t.Context(), bare)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	prefix := shedlock.SignaturePrefix(strings.Repeat("a", 26))
	head, other := prefix+"/---/60000/0", shedlock.SignaturePrefix(strings.Repeat("b", 26))
	var token int64
	write := func(statement **sql.Stmt, args ...any) func() (bool, error) {
		return func() (bool, error) {
			result, err := s.runWrite(t.Context(), *statement, args...)
			if statement == &s.takeStmt {
				token = result
			}
			return result != 0, err
		}
	}
	change := func(f func(context.Context) (shedlock.Row, bool, error)) func() (bool, error) {
		return func() (bool, error) {
			_, done, err := f(t.Context())
			if errors.Is(err, errReadOnly) { // by the read that follows
				return done, nil
			}
			return done, err
		}
	}
	r.expectRefused("an insert", "shedlock", write(&s.insertStmt, "m", int64(0), head+" "))
	if err := r.server.Exec("do sleep(0.01)"); err != nil { // until the new row is free
		t.Fatal(err)
	}
	r.expectRefused("a take", "shedlock",
		write(&s.takeStmt, other, other+"/---/60000/0", other, " ", int64(60000), "m", []byte("m"), other))
	lockedAt := shedlock.FormatTimestamp(token)
	r.expectRefused("a renewal", "shedlock", change(func(ctx context.Context) (shedlock.Row, bool, error) {
		return s.RenewRow(ctx, "m", other, lockedAt, time.Hour, false)
	}))
	r.expectRefused("a request to release", "shedlock", change(func(ctx context.Context) (shedlock.Row, bool, error) {
		return s.FlagRow(ctx, "m", other, 39, "a")
	}))
	r.expectRefused("a release", "shedlock", change(func(ctx context.Context) (shedlock.Row, bool, error) {
		return s.ReleaseRow(ctx, "m", other)
	}))
	third := shedlock.SignaturePrefix(strings.Repeat("c", 26))
	if taken, err := write(&s.insertStmt, "n", int64(60000), third+"/---/60000/0 ")(); !taken || err != nil {
		t.Fatal(taken, err)
	}
	r.expectRefused("a forced break", "shedlock", change(func(ctx context.Context) (shedlock.Row, bool, error) {
		return s.ForceRow(ctx, "n", third, "")
	}))
}

// TestReadOnlyForAdmins: a server that becomes read-only refuses the claims and renewals of a user who may write there,
// in both layouts, with an error that may pass. They go on when it takes writes again.
func TestReadOnlyForAdmins(t *testing.T) {
	t.Parallel()
	r := newReadOnlyTest(t)
	for _, options := range []string{"?create=true", "?create=true&layout=shedlock"} {
		s := mustOpen(t, r.server.URL()+options)
		g := acquire(t, s, mutexClaim("held", time.Minute))
		release(t, s, acquire(t, s, mutexClaim("free", time.Minute)).Claim)
		r.set(1)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		for _, name := range []string{"free", "new"} {
			c := mutexClaim(name, time.Minute)
			c.ID = strings.Repeat("r", 26)
			if _, err := s.Acquire(ctx, c); err == nil || driverutil.IsFinal(err) {
				t.Errorf("%s: the lock %s on a read-only server: %v", options, name, err)
			}
		}
		cancel()
		if err := renew(t, s, g).Err; err == nil || driverutil.IsFinal(err) {
			t.Errorf("%s: a renewal on a read-only server: %v", options, err)
		}
		r.set(0)
		for _, name := range []string{"free", "new"} {
			acquire(t, s, mutexClaim(name, time.Minute))
		}
		if err := renew(t, s, g).Err; err != nil {
			t.Errorf("%s: a renewal after that: %v", options, err)
		}
	}
}

// TestInnoDBReadOnly: a server that was started with innodb_read_only is refused as one that is read-only.
func TestInnoDBReadOnly(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	mustOpen(t, s.URL()+"?create=true")
	s.Terminate() // in order, since InnoDB cannot recover then
	s.Args = append(s.Args, "--innodb-read-only=1")
	if err := s.StartAgain(); err != nil {
		t.Fatal(err)
	}
	if _, err := driver.Open(t.Context(), s.URL()); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), "read-only") {
		t.Errorf("opening it: %v", err)
	}
}

// TestRefusalCodes: the codes of a server that takes no writes lead to another connection. A code that says that
// nothing was changed counts as a conflict; one that says that a group has rolled back a transaction at its commit
// does not, because other members may apply it.
func TestRefusalCodes(t *testing.T) {
	var bare table
	for code, want := range map[uint16]struct{ isReadOnly, isConflict bool }{
		1036: {isReadOnly: true}, 1290: {isReadOnly: true}, 1792: {isReadOnly: true}, 1836: {isReadOnly: true},
		1062: {isConflict: true}, 1213: {isConflict: true}, 1020: {isConflict: true},
		3100: {}, 3101: {}, 1180: {}, 1047: {}, 1205: {}, 1317: {}, 1053: {},
	} {
		err := bare.explainError(t.Context(), &mysql.MySQLError{Number: code})
		if errors.Is(err, errReadOnly) != want.isReadOnly || errors.Is(err, record.ErrConflict) != want.isConflict ||
			errors.Is(err, record.ErrUnsent) || driverutil.IsFinal(err) {
			t.Errorf("%d: %v", code, err)
		}
	}
}

// TestBinlogFormat: a server that logs statements is refused, because its replicas would run them with their own
// read_only. With MIXED, the server logs the rows.
func TestBinlogFormat(t *testing.T) {
	t.Parallel()
	s := startServer(t, "log-bin=binlog", "server-id=1", "binlog-format=STATEMENT", "innodb-flush-log-at-trx-commit=1",
		"sync-binlog=1")
	for _, options := range []string{"?create=true", "?create=true&layout=shedlock"} {
		if _, err := driver.Open(t.Context(), s.URL()+options); !errors.Is(err, driver.ErrUnsupported) ||
			!strings.Contains(err.Error(), "binlog_format") {
			t.Errorf("%s: a server that logs statements: %v", options, err)
		}
	}
	if err := s.Exec("set global binlog_format = 'MIXED'"); err != nil {
		t.Fatal(err)
	}
	for _, options := range []string{"", "?layout=shedlock"} {
		store := mustOpen(t, s.URL()+options)
		release(t, store, acquire(t, store, mutexClaim("m", time.Minute)).Claim)
	}
	rows, err := openPool(t, s).Query("show binlog events")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	logged := 0
	for rows.Next() {
		var log, kind, info string
		var at, server, end int64
		if err := rows.Scan(&log, &at, &kind, &server, &end, &info); err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.HasPrefix(kind, "Write_rows"), strings.HasPrefix(kind, "Update_rows"):
			logged++
		case kind == "Query" && strings.Contains(info, "read_only"):
			t.Errorf("logged as a statement: %s", info)
		}
	}
	if err := rows.Err(); err != nil || logged < 4 {
		t.Errorf("%d changes of rows are logged: %v", logged, err)
	}
}
