package postgres

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// TestCreateTables: a missing table is named, and made if create is set. A table that is not Holdfast's, or of
// another version, is not changed. Several clients may make the tables at once.
func TestCreateTables(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	url := s.URL("test") + "?sslmode=disable&schema=made&table=Odd%20%22name"
	open := func(url string) error {
		st, err := driver.Open(t.Context(), url)
		if err == nil {
			err = st.Close()
		}
		return err
	}
	checkError(t, open(url), driver.ErrInvalid, "create=true", `"made"."Odd ""name"`)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for _, url := range []string{url, fmt.Sprint(url, i)} { // the same table, and others in the same schema
				if err := open(url + "&create=true"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := open(url); err != nil {
		t.Fatal(err)
	}
	execSQL(t, s, `create table made.other (name text, data bytea)`)
	checkError(t, open(s.URL("test")+"?sslmode=disable&schema=made&table=other&create=true"), driver.ErrInvalid,
		"made", "left as it is")
	execSQL(t, s, `comment on table made.other is 'Holdfast locks, version 2'`)
	checkError(t, open(s.URL("test")+"?sslmode=disable&schema=made&table=other&create=true"), driver.ErrInvalid,
		"version 2", "version 1")
	checkError(t, open(s.URL("test")+"?sslmode=disable&schema=made&table=other&layout=shedlock"),
		driver.ErrInvalid, "lock_until")
	checkError(t, open("postgres://test@"+s.Addr+"/nowhere?sslmode=disable"), driver.ErrInvalid, "nowhere")

	st := mustOpen(t, url)
	g := acquire(t, st, mutexClaim("m", time.Minute))
	execSQL(t, s, `drop table made."Odd ""name"`)
	_, err := st.Acquire(t.Context(), mutexClaim("n", time.Minute))
	checkError(t, err, driver.ErrInvalid, "create=true")
	if r := renew(t, st, g); r.Err == nil || lossOf(r.Err) != "" {
		t.Errorf("a renewal in a table that is gone: %v", r.Err)
	}
}

// TestPermissions: an error names the permission that the user lacks, both when the store is opened and when the
// permission is revoked later.
func TestPermissions(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	execSQL(t, s, `create role clerk login; create schema office`)
	clerk := s.URL("clerk") + "?sslmode=disable&schema=office"
	_, err := driver.Open(t.Context(), clerk+"&create=true")
	checkError(t, err, driver.ErrDenied, "office")
	execSQL(t, s, `grant usage on schema office to clerk`)
	for _, schema := range []string{"office", "public", "missing"} {
		_, err = driver.Open(t.Context(), s.URL("clerk")+"?sslmode=disable&create=true&schema="+schema)
		checkError(t, err, driver.ErrDenied, schema, "needs CREATE")
	}
	execSQL(t, s, `revoke usage on schema office from clerk`)
	mustOpen(t, s.URL("test")+"?sslmode=disable&schema=office&create=true")
	_, err = driver.Open(t.Context(), clerk)
	checkError(t, err, driver.ErrDenied, "USAGE")
	execSQL(t, s, `grant usage on schema office to clerk; grant select, insert on office.holdfast to clerk`)
	_, err = driver.Open(t.Context(), clerk)
	checkError(t, err, driver.ErrDenied, `GRANT UPDATE, DELETE ON "office"."holdfast" TO "clerk"`)
	execSQL(t, s, `grant update, delete on office.holdfast to clerk`)
	st := mustOpen(t, clerk)
	g := acquire(t, st, mutexClaim("m", time.Minute))
	execSQL(t, s, `revoke update on office.holdfast from clerk`)
	checkError(t, renew(t, st, g).Err, driver.ErrDenied, "UPDATE")
	checkError(t, st.Release(t.Context(), g.Claim, g.Ref), driver.ErrDenied, "UPDATE")
	execSQL(t, s, `grant update on office.holdfast to clerk`)
	if r := renew(t, st, g); r.Err != nil {
		t.Errorf("after the permission came back: %v", r.Err)
	}
}

// TestPassword: an unknown user and a wrong password are reported at once. The error says what to do, and does not
// show the password. A password that an operator changes while a lock is held may be replaced in the file, too, so that
// it is not taken for final.
func TestPassword(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	execSQL(t, s, `create role cashier login password 'r1ght'`)
	execSQL(t, s, `grant create on database postgres to cashier`)
	execSQL(t, s, `do $$ begin execute format('copy (values (''host all cashier 127.0.0.1/32 scram-sha-256''), (''host all all 127.0.0.1/32 trust'')) to %L',
		current_setting('hba_file')); end $$`)
	execSQL(t, s, `select pg_reload_conf()`)
	const place = "?sslmode=disable&create=true&schema=till"
	var err error
	for until := time.Now().Add(testTimeout); err == nil &&
		time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		var st driver.Store
		if st, err = driver.Open(t.Context(), s.URL("cashier:wr0ng")+place); err == nil {
			st.Close() // the server has not read its rules yet
		}
	}
	denied := func(err error, user string) {
		t.Helper()
		checkError(t, err, driver.ErrDenied, user, "check the user and the password")
		if strings.Contains(err.Error(), "wr0ng") || strings.Contains(err.Error(), "r1ght") {
			t.Errorf("it tells the password: %v", err)
		}
	}
	denied(err, "cashier")
	_, err = driver.Open(t.Context(), s.URL("nobody:wr0ng")+place)
	denied(err, "nobody")
	st := mustOpen(t, s.URL("cashier:r1ght")+place)
	g := acquire(t, st, mutexClaim("m", time.Minute))
	execSQL(t, s, `alter role cashier password 'an0ther'; select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'cashier'`)
	for range 10 { // the first may use a connection that has broken
		if err = renew(t, st, g).Err; err != nil && strings.Contains(err.Error(), "check the user and the password") {
			break
		}
	}
	if err == nil || driverutil.IsFinal(err) || !strings.Contains(err.Error(), "check the user and the password") {
		t.Errorf("with a password that the server does not take any more: %v", err)
	}
	execSQL(t, s, `alter role cashier password 'r1ght'`)
	if r := renew(t, st, g); r.Err != nil {
		t.Errorf("with the old password again: %v", r.Err)
	}
}

// TestOddRefusals: an error code of any length is handled.
func TestOddRefusals(t *testing.T) {
	t.Parallel()
	p := mustLocate(t, nil)
	for _, code := range []string{"", "X", "28", "28000"} {
		err := p.explainError(&pgconn.PgError{Code: code, Message: "hello"})
		if driverutil.IsFinal(err) != strings.HasPrefix(code, "28") || !strings.Contains(err.Error(), "hello") {
			t.Errorf("%q: %v", code, err)
		}
	}
}

// TestRefusalCodes: a code that says that the transaction was rolled back counts as a conflict, and a full disk as a
// refusal. If the same error ends the session, or the code says that somebody has ended it, the outcome is unknown: the
// commit may have taken effect.
func TestRefusalCodes(t *testing.T) {
	t.Parallel()
	p := mustLocate(t, nil)
	for _, c := range []struct {
		code, severity      string
		isConflict, isFinal bool
	}{
		{code: "40001", severity: "ERROR", isConflict: true}, {code: "40P01", severity: "ERROR", isConflict: true},
		{code: "53100", severity: "ERROR", isFinal: true},
		{code: "53100", severity: "PANIC"}, {code: "40001", severity: "FATAL"}, {code: "40003", severity: "ERROR"},
		{code: "57P01", severity: "FATAL"}, {code: "57P02", severity: "FATAL"}, {code: "57014", severity: "ERROR"},
		{code: "25P02", severity: "ERROR"}, {code: "08006", severity: "FATAL"}, {code: "53200", severity: "ERROR"},
	} {
		for _, e := range []*pgconn.PgError{{Code: c.code, Severity: c.severity},
			{Code: c.code, Severity: "another language", SeverityUnlocalized: c.severity}} {
			err := p.explainError(e)
			if errors.Is(err, record.ErrConflict) != c.isConflict || driverutil.IsFinal(err) != c.isFinal ||
				errors.Is(err, record.ErrUnsent) {
				t.Errorf("%s %s: %v", c.severity, c.code, err)
			}
		}
	}
}
