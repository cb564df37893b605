package mysql

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/shedlock"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/mysql/mysqltest"
)

// shedlockClient does what ShedLock's JDBC provider does on MySQL and MariaDB with the database's time.
type shedlockClient struct {
	pool *sql.DB
	name string
}

func (p shedlockClient) run(ctx context.Context, text string, args ...any) (bool, error) {
	result, err := p.pool.ExecContext(ctx, text, args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

func (p shedlockClient) Lock(ctx context.Context, name string, atMost time.Duration) (bool, error) {
	made, err := p.run(ctx, `INSERT IGNORE INTO shedlock(name, lock_until, locked_at, locked_by)
		VALUES(?, TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)), UTC_TIMESTAMP(3), ?)`, name, atMost.Microseconds(), p.name)
	if made || err != nil {
		return made, err
	}
	return p.run(ctx, `UPDATE shedlock SET lock_until = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)),
		locked_at = UTC_TIMESTAMP(3), locked_by = ? WHERE name = ? AND lock_until <= UTC_TIMESTAMP(3)`,
		atMost.Microseconds(), p.name, name)
}

func (p shedlockClient) Extend(ctx context.Context, name string, atMost time.Duration) (bool, error) {
	return p.run(ctx, `UPDATE shedlock SET lock_until = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3))
		WHERE name = ? AND locked_by = ? AND lock_until > UTC_TIMESTAMP(3)`, atMost.Microseconds(), name, p.name)
}

func (p shedlockClient) Unlock(ctx context.Context, name string, atLeast time.Duration) (bool, error) {
	least := "TIMESTAMPADD(MICROSECOND, ?, locked_at)"
	return p.run(ctx, `UPDATE shedlock SET lock_until = IF(`+least+` > UTC_TIMESTAMP(3), `+least+`, UTC_TIMESTAMP(3))
		WHERE name = ? AND locked_by = ?`, atLeast.Microseconds(), atLeast.Microseconds(), name, p.name)
}

// startShedLockServer starts a server whose time zone is not UTC, and which sets a row's first TIMESTAMP by itself in
// an update that does not.
var startShedLockServer = sync.OnceValues(func() (*mysqltest.Server, error) {
	return mysqltest.Start("default-time-zone=+13:00", "explicit-defaults-for-timestamp=OFF",
		"character-set-server=utf8mb4")
})

// manualTable is the table of ShedLock's manual.
const manualTable = `CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL,
	locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))`

// shedlockPlace is a database with ShedLock's own table, of one test.
type shedlockPlace struct {
	server *mysqltest.Server
	name   string
	pool   *sql.DB // counts rows as JDBC does: those found, even if they do not change
	url    string
}

func newShedlockPlace(t testing.TB, table string) shedlockPlace {
	t.Helper()
	s, err := startShedLockServer()
	if err != nil {
		t.Fatal(err)
	}
	p := shedlockPlace{server: s, name: fmt.Sprintf("d%d", tableNumber.Add(1))}
	if err := s.Exec("create database " + p.name); err != nil {
		t.Fatal(err)
	}
	if p.pool, err = sql.Open("mysql", "root@tcp("+s.Endpoint+")/"+p.name+"?clientFoundRows=true"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.pool.Close() })
	p.exec(t, table)
	p.url = strings.TrimSuffix(s.URL(), mysqltest.Database) + p.name + "?layout=shedlock"
	return p
}

func (p shedlockPlace) exec(t testing.TB, text string, args ...any) {
	t.Helper()
	if _, err := p.pool.ExecContext(t.Context(), text, args...); err != nil {
		t.Fatal(err)
	}
}

// openShedLock opens a store on the table of ShedLock's manual, and makes two clients of ShedLock.
func openShedLock(t *testing.T) (shedlockPlace, driver.Store, []storetest.ShedLockClient) {
	t.Helper()
	p := newShedlockPlace(t, manualTable)
	return p, mustOpen(t, p.url), []storetest.ShedLockClient{shedlockClient{p.pool, "host-0"},
		shedlockClient{p.pool, "host-1"}}
}

// TestConformanceShedLock: ShedLock's layout keeps the promises for the plain mutex, and refuses everything else. The
// columns of this table are wider than ShedLock's own, and tell all names apart, because the suite uses such names.
func TestConformanceShedLock(t *testing.T) {
	p := newShedlockPlace(t, `create table shedlock (name varchar(512) character set utf8mb4 collate utf8mb4_nopad_bin
		primary key, lock_until datetime(3) not null, locked_at datetime(3) not null,
		locked_by text character set utf8mb4 not null)`)
	storetest.Conform(t, newHarness(t, p.url), drivertest.Options{Effort: 0.5})
}

// TestShedLock: our client and ShedLock's each respect a lock that the other holds, for as long as it is held. Neither
// releases or extends the other's lock.
func TestShedLock(t *testing.T) {
	t.Parallel()
	_, s, peers := openShedLock(t)
	storetest.MeetShedLock(t, s, peers)
}

// TestShedLockRounds: our clients and ShedLock's contend for one lock. There are never two holders, and both kinds get
// the lock.
func TestShedLockRounds(t *testing.T) {
	t.Parallel()
	_, s, peers := openShedLock(t)
	storetest.ContendWithShedLock(t, s, peers, 50)
}

// maven runs the test with the real ShedLock. CI has no Maven.
var maven = flag.Bool("maven", false, "test with the real ShedLock, which Maven fetches")

// TestShedLockItself: the real ShedLock, in a process of its own, and our clients exclude each other, and both make
// progress, through the JDBC drivers of MySQL and of MariaDB.
func TestShedLockItself(t *testing.T) {
	if !*maven {
		t.Skip("run it with -maven, where Maven is")
	}
	for _, scheme := range []string{"mysql", "mariadb"} {
		p, s, _ := openShedLock(t)
		storetest.ContendWithShedLockItself(t, s, 50, "testdata/pom.xml",
			"jdbc:"+scheme+"://"+p.server.Endpoint+"/"+p.name+"?user=root")
	}
}

// TestShedLockForOperators: a row that an operator has locked forever is held, and one that an operator has freed is
// free.
func TestShedLockForOperators(t *testing.T) {
	t.Parallel()
	p := newShedlockPlace(t, strings.ReplaceAll(manualTable, "TIMESTAMP(3) NOT", "DATETIME(3) NOT"))
	s := mustOpen(t, p.url)
	p.exec(t, `insert into shedlock values ('ever', '9999-12-31 23:59:59', utc_timestamp(3), 'operator'),
		('freed', '1970-01-02', utc_timestamp(3), 'operator')`)
	if l, err := s.Inspect(t.Context(), "ever"); err != nil || len(l.Holders) != 1 || l.Holders[0].Owner != "operator" {
		t.Errorf("%+v %v", l, err)
	}
	if _, err := s.Acquire(t.Context(), mutexClaim("ever", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Error(err)
	}
	acquire(t, s, mutexClaim("freed", time.Minute))
}

// TestShedLockFlags: a request to release and a graceful break reach the holder, and change neither the end of its lock
// nor its token, although the server sets the time of a row by itself.
func TestShedLockFlags(t *testing.T) {
	t.Parallel()
	_, s, _ := openShedLock(t)
	g := acquire(t, s, mutexClaim("m", time.Hour))
	if err := s.Break(t.Context(), "m", g.Ref, driver.Break{Mode: driver.BreakRequestRelease}); err != nil {
		t.Fatal(err)
	}
	l, err := s.Inspect(t.Context(), "m")
	if err != nil || len(l.Holders) != 1 || l.Holders[0].Token != g.Token || l.Holders[0].Remaining < 30*time.Minute ||
		l.Holders[0].Remaining > time.Hour+time.Second {
		t.Errorf("after a request to release: %+v %v", l, err)
	}
	if r := renew(t, s, g); r.Err != nil || !r.ReleaseRequested {
		t.Errorf("%+v", r)
	}
	if err := s.Break(t.Context(), "m", g.Ref, driver.Break{Mode: driver.BreakGraceful}); err != nil {
		t.Fatal(err)
	}
	if r := renew(t, s, g); storetest.LossOf(r.Err) != driver.LossBroken {
		t.Errorf("%+v", r)
	}
	release(t, s, g.Claim)
	for _, ref := range []string{shedlock.ForeignRefPrefix + "31.12.2026", shedlock.ForeignRefPrefix + "infinity"} {
		if err := s.Break(t.Context(), "m", ref, driver.Break{Mode: driver.BreakForce}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

// TestShedLockNames: a name that the table takes for another one is refused, and the row of that one is left as it
// is. A table that Create has made takes no name for another one.
func TestShedLockNames(t *testing.T) {
	t.Parallel()
	p := newShedlockPlace(t, manualTable+" character set utf8mb4 collate utf8mb4_general_ci")
	manual, made := mustOpen(t, p.url), mustOpen(t, p.url+"&table=made&create=true")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for name, other := range map[string]string{"a": "a ", "b": "B", "e": "é", "😀": "🍎"} {
		for _, s := range []driver.Store{manual, made} {
			release(t, s, acquire(t, s, mutexClaim(name, time.Minute)).Claim)
		}
		if g, err := manual.Acquire(ctx, mutexClaim(other, time.Minute)); !errors.Is(err, driver.ErrInvalid) ||
			!strings.Contains(err.Error(), "for one name") {
			t.Errorf("%q, next to %q: %+v %v", other, name, g, err)
		}
		if _, err := manual.Inspect(t.Context(), other); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("the state of %q, next to %q: %v", other, name, err)
		}
		held := acquire(t, made, mutexClaim(name, time.Minute))
		release(t, made, acquire(t, made, mutexClaim(other, time.Minute)).Claim)
		release(t, made, held.Claim)
	}
}

// TestShedLockLateRenewal: a renewal that arrives after its claim was detached changes nothing.
func TestShedLockLateRenewal(t *testing.T) {
	t.Parallel()
	_, s, _ := openShedLock(t)
	storetest.RenewDetachedShedLock(t, s)
}

// TestShedLockOlderStatement: a take or a renewal that began before a newer renewal, and got the row after it, does not
// lower the end that the holder trusts. A connection whose time is an hour behind stands for the wait.
func TestShedLockOlderStatement(t *testing.T) {
	t.Parallel()
	p, s, _ := openShedLock(t)
	pool, err := sql.Open("mysql", fmt.Sprintf("root@tcp(%s)/%s?sql_mode=%%27STRICT_ALL_TABLES%%27&timestamp=%d",
		p.server.Endpoint, p.name, time.Now().Add(-time.Hour).Unix()))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	older, err := New(t.Context(), pool, &Options{Layout: LayoutShedLock})
	if err != nil {
		t.Fatal(err)
	}
	defer older.Close()
	g := acquire(t, s, mutexClaim("m", 2*time.Hour))
	end := func() (text string) {
		if err := p.pool.QueryRow("select lock_until from shedlock where name = 'm'").Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := end()
	if again := acquire(t, older, g.Claim); again.Token != g.Token || end() != before {
		t.Errorf("an older take of token %d changes the end from %s to %s", again.Token, before, end())
	}
	if err := renew(t, older, g).Err; err != nil || end() != before {
		t.Errorf("an older renewal changes the end from %s to %s: %v", before, end(), err)
	}
}

// TestShedLockReleaseAfterLostReply: a release whose first reply was lost tells what became of the claim if the row
// says so, and that it does not know if several others have held the lock since.
func TestShedLockReleaseAfterLostReply(t *testing.T) {
	t.Parallel()
	p, s, peers := openShedLock(t)
	link, err := servertest.NewLink(p.server.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	st := mustOpen(t, strings.Replace(p.url, p.server.Endpoint, link.Addr, 1)+"&max-conns=1")
	force := func(name, ref string) {
		if err := s.Break(t.Context(), name, ref, driver.Break{Mode: driver.BreakForce}); err != nil {
			t.Fatal(err)
		}
	}
	ours := func(name string) { acquire(t, s, mutexClaim(name, time.Minute)) }
	for name, c := range map[string]struct {
		before func(name, ref string)
		want   func(error) bool
	}{
		"ended by itself": {func(string, string) {}, func(err error) bool { return err == nil }},
		"broken":          {force, func(err error) bool { return storetest.LossOf(err) == driver.LossBroken }},
		"broken, and one other": {func(name, ref string) { force(name, ref); ours(name) },
			func(err error) bool { return storetest.LossOf(err) == driver.LossBroken }},
		"broken, and a retried other": {func(name, ref string) {
			force(name, ref)
			c := mutexClaim(name, time.Minute)
			acquire(t, s, c)
			acquire(t, s, c)
		}, func(err error) bool { return storetest.LossOf(err) == driver.LossBroken }},
		"broken, and two others": {func(name, ref string) {
			force(name, ref)
			c := mutexClaim(name, time.Minute)
			acquire(t, s, c)
			release(t, s, c)
			ours(name)
		}, func(err error) bool { return errors.Is(err, driver.ErrUncertain) }},
		"broken, and a foreign one": {func(name, ref string) {
			force(name, ref)
			if ok, err := peers[0].Lock(t.Context(), name, time.Minute); !ok || err != nil {
				t.Error(ok, err)
			}
		}, func(err error) bool { return errors.Is(err, driver.ErrUncertain) }},
	} {
		g := acquire(t, st, mutexClaim(name, time.Minute))
		c.before(name, g.Ref)
		link.LoseReplies(1)
		if err := st.Release(t.Context(), g.Claim, ""); !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestShedLockLateTake: a release waits for a take of its claim that the server has not answered yet, so that the lock
// is free after it.
func TestShedLockLateTake(t *testing.T) {
	t.Parallel()
	p, s, _ := openShedLock(t)
	release(t, s, acquire(t, s, mutexClaim("m", time.Minute)).Claim) // so that there is a row
	tx, err := p.pool.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec("select * from shedlock for update"); err != nil {
		t.Fatal(err)
	}
	c := mutexClaim("m", time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { _, err := s.Acquire(ctx, c); over <- err }()
	storetest.Eventually(t, "a take that waits", func() bool {
		var n int
		err := p.pool.QueryRow(`select count(*) from information_schema.processlist
			where db = ? and info like 'update%locked_at%'`, p.name).Scan(&n)
		return err == nil && n > 0
	})
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrUncertain) {
		t.Errorf("a take that was given up: %v", err)
	}
	go func() { over <- s.Release(t.Context(), c, "") }()
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err != nil && !errors.Is(err, driver.ErrLost) {
		t.Errorf("the release: %v", err)
	}
	if l, err := s.Inspect(t.Context(), "m"); err != nil || len(l.Holders) > 0 {
		t.Errorf("%+v %v", l, err)
	}
}

// TestShedLockLocalTime: a ShedLock client that writes local time is recognized by the rows that it leaves, and so is a
// session of another time zone than the server's, and a summer time. Other rows are not mistaken for such.
func TestShedLockLocalTime(t *testing.T) {
	t.Parallel()
	p, s, peers := openShedLock(t)
	const told = "usingDbTime()"
	if ok, err := peers[0].Lock(t.Context(), "right", time.Minute); !ok || err != nil {
		t.Fatal(ok, err)
	}
	release(t, s, acquire(t, s, mutexClaim("ours", time.Minute)).Claim)
	g := acquire(t, s, mutexClaim("west", time.Hour))
	expectFindings(t, "nothing is odd", s, "mysql-flush")

	p.exec(t, `insert into shedlock values ('east', utc_timestamp(3) + interval 541 minute,
		utc_timestamp(3) + interval 9 hour, 'tokyo')`)
	_, err := s.Acquire(t.Context(), mutexClaim("east", time.Minute))
	if !errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), told) || !strings.Contains(err.Error(), "9h0m") {
		t.Error(err)
	}
	// like a client that unlocks without asking who holds the lock
	p.exec(t, `update shedlock set lock_until = utc_timestamp(3) - interval 5 hour where name = 'west'`)
	if r := renew(t, s, g); !errors.Is(r.Err, driver.ErrLost) || !strings.Contains(r.Err.Error(), told) {
		t.Error(r.Err)
	}
	expectFindings(t, "rows in local time", s, "mysql-flush", "mysql-shedlock-time", "mysql-shedlock-time")

	elsewhere := newShedlockPlace(t, manualTable)
	elsewhere.addZoneWithSummerTime(t, "Test/Summer")
	for zone, codes := range map[string][]string{
		"+02:00":      {"mysql-flush", "mysql-lock-wait", "mysql-shedlock-zone"},
		"Test/Summer": {"mysql-flush", "mysql-lock-wait", "mysql-shedlock-zone", "mysql-shedlock-summer"},
		"+13:00":      {"mysql-flush", "mysql-lock-wait"},
	} {
		pool, err := sql.Open("mysql", "root@tcp("+p.server.Endpoint+")/"+elsewhere.name+
			"?sql_mode=%27STRICT_ALL_TABLES%27&time_zone="+url.QueryEscape("'"+zone+"'"))
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		own, err := New(t.Context(), pool, &Options{Layout: LayoutShedLock})
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		expectFindings(t, "a pool in "+zone, own, codes...)
	}
}

// addZoneWithSummerTime adds a time zone to those that the server knows: an hour ahead of UTC, and two from April to
// September of this year.
func (p shedlockPlace) addZoneWithSummerTime(t *testing.T, name string) {
	t.Helper()
	const id = 7001
	year := time.Now().UTC().Year()
	begin := func(month time.Month) int64 { return time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).Unix() }
	p.exec(t, fmt.Sprintf("insert into mysql.time_zone (time_zone_id) values (%d)", id))
	p.exec(t, fmt.Sprintf("insert into mysql.time_zone_name values ('%s', %d)", name, id))
	p.exec(t, fmt.Sprintf(`insert into mysql.time_zone_transition_type values
		(%[1]d, 0, 3600, 0, 'CET'), (%[1]d, 1, 7200, 1, 'CEST')`, id))
	p.exec(t, fmt.Sprintf("insert into mysql.time_zone_transition values (%[1]d, 0, 0), (%[1]d, %[2]d, 1), (%[1]d, %[3]d, 0)",
		id, begin(time.April), begin(time.October)))
}

// TestShedLockTables: Create makes a table that works, and tables on which the layout cannot be sound are refused with
// what to do.
func TestShedLockTables(t *testing.T) {
	t.Parallel()
	p := newShedlockPlace(t, `create table no_key (name varchar(64), lock_until datetime(3), locked_at datetime(3),
		locked_by varchar(255), key (name))`)
	made := mustOpen(t, p.url+"&create=true")
	release(t, made, acquire(t, made, mutexClaim("m", time.Minute)).Claim)
	const columns = `(name varchar(64) primary key, lock_until datetime(3), locked_at DATETIME, locked_by varchar(LENGTH))`
	p.exec(t, `create table seconds `+strings.NewReplacer("DATETIME", "datetime", "LENGTH", "255").Replace(columns))
	p.exec(t, `create table short `+strings.NewReplacer("DATETIME", "datetime(3)", "LENGTH", "64").Replace(columns))
	p.exec(t, `create table numbered (id bigint auto_increment primary key, name varchar(64) not null unique,
		lock_until datetime(3) not null, locked_at datetime(3) not null, locked_by varchar(255) not null)`)
	p.exec(t, `create table latin `+strings.NewReplacer("DATETIME", "datetime(3)", "LENGTH", "255").Replace(columns)+
		` character set latin1`)
	for table, says := range map[string]string{"absent": "create=true", "no_key": "ADD PRIMARY KEY",
		"seconds": "DATETIME(3)", "short": "VARCHAR(255)", "numbered": "AUTO_INCREMENT"} {
		if store, err := driver.Open(t.Context(), p.url+"&table="+table); err == nil || !driverutil.IsFinal(err) ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v %v", table, store, err)
		}
	}
	latin := mustOpen(t, p.url+"&table=latin")
	release(t, latin, acquire(t, latin, mutexClaim("größe", time.Minute)).Claim)
	if _, err := latin.Acquire(t.Context(), mutexClaim("🔒", time.Minute)); !errors.Is(err, driver.ErrInvalid) ||
		!strings.Contains(err.Error(), "character set") {
		t.Errorf("a name that the table cannot have: %v", err)
	}
	lax, err := sql.Open("mysql", "root@tcp("+p.server.Endpoint+")/"+p.name+"?sql_mode=%27%27")
	if err != nil {
		t.Fatal(err)
	}
	defer lax.Close()
	if _, err := New(t.Context(), lax, &Options{Layout: LayoutShedLock}); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a pool whose server cuts texts: %v", err)
	}
	latinPool, err := sql.Open("mysql", "root@tcp("+p.server.Endpoint+")/"+p.name+"?charset=latin1&sql_mode=%27STRICT_ALL_TABLES%27")
	if err != nil {
		t.Fatal(err)
	}
	defer latinPool.Close()
	if _, err := New(t.Context(), latinPool, &Options{Layout: LayoutShedLock}); !errors.Is(err, driver.ErrUnsupported) ||
		!strings.Contains(err.Error(), "charset=utf8mb4") {
		t.Errorf("a pool whose names are other ones to ShedLock: %v", err)
	}
	if _, err := NewTable(t.Context(), p.pool, &Options{Layout: LayoutShedLock}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("records in ShedLock's layout: %v", err)
	}
}
