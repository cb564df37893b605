package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/mysql/mysqltest"
)

var (
	mustOpen       = storetest.Open
	mutexClaim     = storetest.Mutex
	acquire        = storetest.Acquire
	renew          = storetest.Renew
	release        = storetest.Release
	expectFindings = storetest.ExpectFindings
)

// TestURL: each option of the URL has its effect. Errors about a URL do not show its secrets.
func TestURL(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := parseURL(t, "mysql://u@h:7/db?table=t&create=true&timeout=2s&max-conns=9&clock-skew=2s&replica=true&tls=true&password-file="+file)
	c := s.config
	if s.opts.Table != "t" || !s.opts.Create || s.opts.Timeout != 2*time.Second || s.maxConns != 9 ||
		s.opts.ClockSkew != 2*time.Second || !s.opts.Replica {
		t.Errorf("%+v", s)
	}
	if c.Addr != "h:7" || c.DBName != "db" || c.User != "u" || c.Passwd != "s3cret" || c.TLS.ServerName != "h" {
		t.Errorf("%+v", c)
	}
	if c := parseURL(t, "mariadb://u:p%40ss@h/db").config; c.Addr != "h:3306" || c.Passwd != "p@ss" || c.TLS != nil {
		t.Errorf("%+v", c)
	}
	if c := parseURL(t, "mysql://u@/db?socket=/run/s").config; c.Net != "unix" || c.Addr != "/run/s" {
		t.Errorf("%+v", c)
	}
	for _, raw := range []string{
		"mysql://u:s3cret@h/db?nope=1", "mysql://u:s3cret@h/db?create=perhaps", "mysql://u:s3cret@h/db?timeout=1",
		"mysql://u:s3cret@h/db?timeout=1ms", "mysql://u:s3cret@h", "mysql://u:s3cret@h/", "mysql://u:s3cret@/db",
		"mysql://u:s3cret@h/a/b", "mysql://u:s3cret@h/db?table=" + strings.Repeat("t", maxTableName+1),
		"mysql://u:s3cret@h/db?max-conns=0", "mysql://u:s3cret@h/db?clock-skew=0s",
		"mysql://u:s3cret@h/db?clock-skew=1s&layout=shedlock", "mysql://u:s3cret@h/db?socket=/run/s", "mysql://u@h/db?password-file=/does/not/exist",
		"mysql://u:s3cret@h/db?tls-ca=/does/not/exist", "mysql://u:s3cret@h/db?tls-cert=/a",
	} {
		if _, err := driver.Open(t.Context(), raw); !errors.Is(err, driver.ErrInvalid) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	storetest.OpenWithoutServer(t, "mysql://u:s3cret@127.0.0.1:1/db")
}

// TestOpeningASilentServer: opening does not wait forever for a server that accepts connections and never answers.
func TestOpeningASilentServer(t *testing.T) {
	t.Parallel()
	storetest.OpenSilentServer(t, "mysql://u:s3cret@HOST/db?timeout=100ms")
}

// TestClockSkew: a claim that was made on one server is not taken for expired by the clock of another one, which is
// ahead by no more than the clock skew.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	options := Options{Table: fmt.Sprintf("t%d", tableNumber.Add(1)), Create: true, ClockSkew: 2 * time.Minute}
	open := func(pool *sql.DB) driver.Store {
		store, err := New(t.Context(), pool, &options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		return store
	}
	acquire(t, open(openPool(t, s)), mutexClaim("m", time.Minute))
	ahead, err := sql.Open("mysql", fmt.Sprintf("%s?timestamp=%d", s.DSN(), time.Now().Add(90*time.Second).Unix()))
	if err != nil {
		t.Fatal(err)
	}
	defer ahead.Close()
	other := mutexClaim("m", time.Minute)
	other.ID = "other"
	if g, err := open(ahead).Acquire(t.Context(), other); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("another server grants the lock: %+v %v", g, err)
	}
}

// TestServersThatShareWrites: a member of a group with several primaries counts as one of several servers, and any
// other server does not. It is refused until its reads wait for the writes of the others. The settings are those of
// MySQL 8, which was not tried.
func TestServersThatShareWrites(t *testing.T) {
	for singlePrimary, want := range map[string]bool{"OFF": true, "ON": false} {
		s := &serverState{settings: map[string]string{"group_replication_group_name": "g",
			"group_replication_single_primary_mode": singlePrimary}}
		if s.isOneOfSeveral() != want {
			t.Errorf("group_replication_single_primary_mode is %s", singlePrimary)
		}
	}
	if s := (&serverState{settings: map[string]string{"group_replication_group_name": "",
		"group_replication_single_primary_mode": "OFF"}}); s.isOneOfSeveral() {
		t.Error("a server that is in no group")
	}
	for consistency, want := range map[string]error{"EVENTUAL": driver.ErrUnsupported, "BEFORE": nil,
		"BEFORE_ON_PRIMARY_FAILOVER": driver.ErrUnsupported, "BEFORE_AND_AFTER": nil, "AFTER": nil} {
		s := &serverState{database: "d", tableExists: true, tableComment: tableComment, tableEngine: "InnoDB",
			autocommit: true, maxPacket: minPacket, settings: map[string]string{"group_replication_group_name": "g",
				"group_replication_single_primary_mode": "OFF", "group_replication_consistency": consistency}}
		if err := (&table{}).checkServerState(s); !errors.Is(err, want) {
			t.Errorf("group_replication_consistency is %s: %v", consistency, err)
		}
	}
}

// TestGalera: a member of a Galera cluster is refused until its reads wait for the writes of the others. It allows for
// the clocks of the other members, and ShedLock's layout, which cannot, is refused.
func TestGalera(t *testing.T) {
	t.Parallel()
	port, err := servertest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	// Debian's mariadb-server needs the package galera-4, which has the provider.
	s := startServer(t, "wsrep-on=ON", "wsrep-provider=/usr/lib/galera/libgalera_smm.so",
		"wsrep-cluster-address=gcomm://", "wsrep-node-address=127.0.0.1:"+port,
		"wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:"+port, "binlog-format=ROW")
	store, err := driver.Open(t.Context(), s.URL()+"?create=true")
	if err == nil {
		_ = store.Close()
	}
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "SET GLOBAL wsrep_sync_wait = 1") {
		t.Errorf("a member whose reads do not wait: %v", err)
	}
	if err := s.Exec("set global wsrep_sync_wait = 1"); err != nil {
		t.Fatal(err)
	}
	member := mustOpen(t, s.URL()+"?create=true")
	acquire(t, member, mutexClaim("m", time.Minute))
	if gap := member.Info().TokenGap; gap != time.Minute+2*defaultClockSkew {
		t.Errorf("tokens allow for clocks that are %v apart", gap)
	}
	if store, err := driver.Open(t.Context(), s.URL()+"?layout=shedlock&create=true"); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("ShedLock's layout on a member: %v %v", store, err)
	}
}

// TestAutocommitOff: a pool of the user's own that commits nothing is refused.
func TestAutocommitOff(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	mustOpen(t, s.URL()+"?create=true")
	pool, err := sql.Open("mysql", s.DSN()+"?autocommit=0")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	_, err = New(t.Context(), pool, nil)
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "autocommit=true") {
		t.Errorf("a pool without autocommit: %v", err)
	}
}

// TestRefusedServers: what makes locks impossible is reported when the store is opened, with what to do.
func TestRefusedServers(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	exec := func(text string) {
		t.Helper()
		if err := s.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	mustOpen(t, s.URL()+"?create=true")
	exec("create table shop.other (id int primary key)")
	exec("create table shop.slow (name varbinary(512) primary key, version binary(16), data mediumblob) engine=MyISAM " +
		"comment='" + tableComment + "'")
	exec("create user reader")
	exec("grant select on shop.* to reader")
	exec("create user nobody identified by 's3cret'")
	exec("create user maker")
	exec("grant select, insert, update, delete on shop.* to maker")
	for what, c := range map[string]struct {
		url  string
		is   error
		says string
	}{
		"no such table":    {s.URL() + "?table=absent", driver.ErrInvalid, "create=true"},
		"another's table":  {s.URL() + "?table=other", driver.ErrInvalid, "left as it is"},
		"another engine":   {s.URL() + "?table=slow", driver.ErrUnsupported, "ENGINE=InnoDB"},
		"no such database": {strings.Replace(s.URL(), "/shop", "/absent", 1), driver.ErrInvalid, "absent"},
		"a wrong password": {strings.Replace(s.URL(), "root@", "nobody:hunter2@", 1), driver.ErrDenied, "password"},
		"a right to read":  {strings.Replace(s.URL(), "root@", "reader@", 1), driver.ErrDenied, "GRANT"},
		"no right to create": {strings.Replace(s.URL(), "root@", "maker@", 1) + "?table=absent&create=true",
			driver.ErrDenied, "CREATE"},
		"no TLS there": {s.URL() + "?tls=true", driver.ErrInvalid, "TLS"},
	} {
		store, err := driver.Open(t.Context(), c.url)
		if err == nil {
			_ = store.Close()
		}
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := New(t.Context(), nil, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a nil pool: %v", err)
	}
	if err := Migrate(t.Context(), openPool(t, s), &Options{Table: "other"}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("Migrate over another's table: %v", err)
	}
	if text, err := Schema(&Options{Table: "a`b"}); err != nil || !strings.Contains(text, "CREATE TABLE `a``b`") {
		t.Errorf("Schema: %v %s", err, text)
	}
}

// TestReadOnlyServer: a server that takes no writes refuses claims with what to do, and one that took writes before may
// take them again.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	url := strings.Replace(s.URL(), "root@", "worker@", 1)
	for _, text := range []string{"create user worker", "grant all on shop.* to worker", "set global read_only = 0"} {
		if err := s.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	used := mustOpen(t, url+"?create=true")
	g := acquire(t, used, mutexClaim("m", time.Minute))
	if err := s.Exec("set global read_only = 1"); err != nil {
		t.Fatal(err)
	}
	if _, err := driver.Open(t.Context(), url); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), "primary") {
		t.Errorf("opening a replica: %v", err)
	}
	if err := renew(t, used, g).Err; err == nil || driverutil.IsFinal(err) {
		t.Errorf("a renewal while the server is read-only: %v", err)
	}
	if err := s.Exec("set global read_only = 0"); err != nil {
		t.Fatal(err)
	}
	if err := renew(t, used, g).Err; err != nil {
		t.Errorf("a renewal after that: %v", err)
	}
	release(t, used, g.Claim)
}

// TestSwitchover: when another server has taken over the name of this one, which is read-only since, reads and claims
// reach the new one at once, though there are connections to the old one. This holds for a pool of the store's own and
// for one of the user's.
func TestSwitchover(t *testing.T) {
	t.Parallel()
	former, next := startServer(t), startServer(t)
	var endpoint atomic.Value
	endpoint.Store(former.Endpoint)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", endpoint.Load().(string))
	}
	for _, s := range []*mysqltest.Server{former, next} {
		for _, text := range []string{"create user worker", "grant all on shop.* to worker"} {
			if err := s.Exec(text); err != nil {
				t.Fatal(err)
			}
		}
		mustOpen(t, s.URL()+"?create=true")
		mustOpen(t, s.URL()+"?create=true&layout=shedlock")
	}
	stores := map[string]driver.Store{}
	for name, options := range map[string]string{"own": "", "shedlock": "?layout=shedlock"} {
		u := parseURL(t, strings.Replace(former.URL(), "root@", "worker@", 1)+options)
		u.config.DialFunc = dial
		s, err := u.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stores[name] = s
	}
	config := mysql.NewConfig()
	config.User, config.Net, config.Addr, config.DBName, config.DialFunc = "worker", "tcp", "db", "shop", dial
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(connector)
	defer pool.Close()
	pool.SetMaxIdleConns(8)
	if stores["user's"], err = New(t.Context(), pool, nil); err != nil {
		t.Fatal(err)
	}
	for name, s := range stores {
		defer s.Close()
		var all sync.WaitGroup
		for i := range 8 { // for several connections
			all.Go(func() { acquire(t, s, mutexClaim(fmt.Sprint(name, i), time.Minute)) })
		}
		all.Wait()
	}
	if err := former.Exec("set global read_only = 1"); err != nil {
		t.Fatal(err)
	}
	endpoint.Store(next.Endpoint)
	for name, s := range stores {
		if _, err := s.Inspect(t.Context(), name); err != nil {
			t.Errorf("%s: a read after the switchover: %v", name, err)
		}
		acquire(t, s, mutexClaim(name, time.Minute))
	}
}

// TestSafeUpdates: a server that refuses statements without a key in their conditions (sql_safe_updates) is as good as
// any other one.
func TestSafeUpdates(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	for _, layout := range layouts {
		pool, err := sql.Open("mysql", s.DSN()+"?sql_safe_updates=1&sql_mode=%27STRICT_ALL_TABLES%27")
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		name := fmt.Sprintf("t%d", tableNumber.Add(1))
		store, err := New(t.Context(), pool, &Options{Table: name, Create: true, Layout: layout})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		g := acquire(t, store, mutexClaim("m", time.Minute))
		if err := renew(t, store, g).Err; err != nil {
			t.Error(err)
		}
		release(t, store, g.Claim)
	}
}

// TestEditedRow: a row that an operator has edited by hand is not overwritten.
func TestEditedRow(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	name := fmt.Sprintf("t%d", tableNumber.Add(1))
	table, err := NewTable(t.Context(), openPool(t, s), &Options{Table: name, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	row, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("ours")})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Exec("update shop." + name + " set data = 'theirs'"); err != nil {
		t.Fatal(err)
	}
	row.Data = []byte("ours again")
	if _, err := table.Swap(t.Context(), row); !errors.Is(err, record.ErrConflict) {
		t.Errorf("Swap: %v", err)
	}
	if err := table.Delete(t.Context(), row); !errors.Is(err, record.ErrConflict) {
		t.Errorf("Delete: %v", err)
	}
}

// TestForeignLock: while another session has locked the table, or rows of it, no statement is left on the server for
// longer than the time that the store waits for its answer, and claims are made again afterwards.
func TestForeignLock(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store := mustOpen(t, s.URL()+"?create=true&timeout=2s")
	g := acquire(t, store, mutexClaim("m", time.Minute))
	db := openPool(t, s)
	session, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	exec := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			if _, err := session.ExecContext(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
	}
	for what, c := range map[string]struct{ lock, unlock []string }{
		"rows":  {[]string{"begin", "select * from holdfast for update"}, []string{"rollback"}},
		"table": {[]string{"lock tables holdfast write"}, []string{"unlock tables"}},
	} {
		exec(c.lock...)
		if err := renew(t, store, g).Err; err == nil || driverutil.IsFinal(err) {
			t.Errorf("%s: a renewal meanwhile: %v", what, err)
		}
		storetest.Eventually(t, "no statement waits on the server", func() bool {
			var n int
			if err := db.QueryRow("select count(*) from information_schema.processlist where info like 'update%holdfast%'").
				Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n == 0
		})
		exec(c.unlock...)
		if err := renew(t, store, g).Err; err != nil {
			t.Errorf("%s: a renewal after that: %v", what, err)
		}
	}
}

// TestSmallPackets: where the server accepts small statements only, records stay below that, and a claim that does not
// fit is refused before it is sent.
func TestSmallPackets(t *testing.T) {
	t.Parallel()
	s := startServer(t, "max-allowed-packet=65536")
	store := mustOpen(t, s.URL()+"?create=true")
	c := mutexClaim("m", time.Minute)
	c.Kind, c.Limit, c.Weight = driver.KindSemaphore, 256, 1
	var refused error
	for n := 0; n < 256 && refused == nil; n++ {
		c.ID, c.Meta = fmt.Sprint("claim", n), strings.Repeat("m", store.Info().MaxMeta)
		_, refused = store.Acquire(t.Context(), c)
	}
	if !errors.Is(refused, driver.ErrQueueFull) {
		t.Errorf("a record that is full: %v", refused)
	}
}

// TestTLS: the connection is encrypted, and the server's certificate is checked.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, both := storetest.WriteCertificate(t, filepath.Join(dir, "server"))
	for path := dir; len(path) > len(os.TempDir()); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil { // the server is another user
			t.Fatal(err)
		}
	}
	for _, path := range []string{cert, both} {
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := startServer(t, "ssl-cert="+cert, "ssl-key="+both)
	if err := s.Exec("create user strict require ssl"); err != nil {
		t.Fatal(err)
	}
	if err := s.Exec("grant all on shop.* to strict"); err != nil {
		t.Fatal(err)
	}
	url := strings.Replace(s.URL(), "root@", "strict@", 1) + "?create=true"
	release(t, mustOpen(t, url+"&tls-ca="+cert),
		acquire(t, mustOpen(t, url+"&tls-ca="+cert), mutexClaim("m", time.Minute)).Claim)
	for what, more := range map[string]string{"no TLS": "", "an unknown authority": "&tls=true",
		"another name": "&tls-name=other&tls-ca=" + cert} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if store, err := driver.Open(ctx, url+more); err == nil {
			t.Errorf("%s is accepted", what)
			_ = store.Close()
		}
		cancel()
	}
}

// TestExamine: each setting of the server and the table that makes locks less safe is found, and nothing else.
func TestExamine(t *testing.T) {
	t.Parallel()
	expectFindings(t, "a server that does not flush", mustOpen(t, freshURL(sharedServer(t))), "mysql-flush")
	if i := mustOpen(t, freshURL(sharedServer(t))).Info(); i.Tier != driver.TierSettings || i.Survives.PowerCut ||
		i.TokenRegression == "" {
		t.Errorf("a server that does not flush promises %+v", i)
	}
	s := startServer(t, "innodb-flush-log-at-trx-commit=1", "log-bin=binlog", "sync-binlog=1", "server-id=1")
	store := mustOpen(t, s.URL()+"?create=true")
	acquire(t, store, mutexClaim("held", time.Minute))
	expectFindings(t, "a sound server in use", store)
	if i := store.Info(); i.Tier != driver.TierFenceSafe || !i.Survives.PowerCut {
		t.Errorf("a sound server promises %+v", i)
	}
	for _, c := range []struct{ plant, undo, found string }{
		{"set global innodb_flush_log_at_trx_commit = 2", "set global innodb_flush_log_at_trx_commit = 1",
			"mysql-flush"},
		{"set global sync_binlog = 0", "set global sync_binlog = 1", "mysql-sync-binlog"},
		{"set global max_statement_time = 0.2", "set global max_statement_time = 0", "mysql-statement-time"},
		{"create trigger shop.odd before insert on shop.holdfast for each row set new.data = new.data",
			"drop trigger shop.odd",
			"mysql-trigger"},
	} {
		if err := s.Exec(c.plant); err != nil {
			t.Fatal(err)
		}
		expectFindings(t, c.plant, mustOpen(t, s.URL()), c.found)
		if err := s.Exec(c.undo); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Exec("set global innodb_flush_log_at_trx_commit = 3"); err != nil {
		t.Fatal(err)
	}
	expectFindings(t, "a server that flushes twice", mustOpen(t, s.URL()))
	if err := s.Exec("set global innodb_flush_log_at_trx_commit = 0"); err != nil {
		t.Fatal(err)
	}
	if i := mustOpen(t, s.URL()).Info(); i.Survives.Restart {
		t.Errorf("a server that keeps its writes to itself for a second promises %+v", i)
	}
	if err := s.Exec("set global innodb_flush_log_at_trx_commit = 1"); err != nil {
		t.Fatal(err)
	}
	far := parseURL(t, strings.Replace(s.URL(), s.Endpoint, "db.example", 1))
	far.config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.Endpoint)
	}
	remote, err := far.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	expectFindings(t, "a server on another machine", remote, "mysql-plain")
	torn := mustOpen(t, freshURL(startServer(t, "innodb-flush-log-at-trx-commit=1", "innodb-doublewrite=OFF")))
	expectFindings(t, "torn pages", torn, "mysql-doublewrite")
	if torn.Info().Survives.PowerCut {
		t.Error("a server whose pages can be torn promises to survive a power cut")
	}
	own, err := New(t.Context(), openPool(t, s), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	expectFindings(t, "a pool that waits for long", own, "mysql-lock-wait")
}

// TestPowerCutBinlog: a server that does not sync its binary log can forget a grant in a power cut, although InnoDB has
// flushed its own log, and does not promise to survive one. With sync_binlog = 1 it does.
func TestPowerCutBinlog(t *testing.T) {
	t.Parallel()
	s := startServer(t, "innodb-flush-log-at-trx-commit=1", "log-bin=binlog", "sync-binlog=0", "server-id=1")
	store := mustOpen(t, s.URL()+"?create=true")
	info := store.Info()
	if info.Survives.PowerCut || info.Tier != driver.TierSettings || !strings.Contains(info.TokenRegression, "sync_binlog") {
		t.Errorf("a server that does not sync its binary log promises %+v", info)
	}
	logs, err := filepath.Glob(filepath.Join(s.DataDir(), "binlog.0*"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	last := logs[len(logs)-1]
	before, err := os.Stat(last)
	if err != nil {
		t.Fatal(err)
	}
	acquire(t, store, mutexClaim("m", time.Hour))
	s.Kill()
	if err := os.Truncate(last, before.Size()); err != nil { // as if the disk had never received the rest
		t.Fatal(err)
	}
	if err := s.StartAgain(); err != nil {
		t.Fatal(err)
	}
	other := mutexClaim("m", time.Hour)
	other.ID = "other"
	acquire(t, mustOpen(t, s.URL()), other)
	if err := s.Exec("set global sync_binlog = 1"); err != nil {
		t.Fatal(err)
	}
	if info := mustOpen(t, s.URL()).Info(); !info.Survives.PowerCut || info.Tier != driver.TierFenceSafe {
		t.Errorf("a server that syncs its binary log promises %+v", info)
	}
}

// TestExamineReplicas: a replica is found while it follows the server, also by a user with no more permissions than
// locks need. A replica that takes writes is refused to every user, unless the URL says otherwise, and is found then.
func TestExamineReplicas(t *testing.T) {
	t.Parallel()
	settings := []string{"innodb-flush-log-at-trx-commit=1", "log-bin=binlog", "sync-binlog=1"}
	primary := startServer(t, append(settings, "server-id=1")...)
	replica := startServer(t, append(settings, "server-id=2")...)
	store := mustOpen(t, primary.URL()+"?create=true")
	expectFindings(t, "a server without replicas", store)
	host, port, err := net.SplitHostPort(primary.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	const user = "create user worker"
	const rights = "grant select, insert, update, delete on shop.* to worker"
	for _, text := range []string{user, rights} {
		if err := primary.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	asWorker := func(s *mysqltest.Server) string { return strings.Replace(s.URL(), "root@", "worker@", 1) }
	for _, text := range []string{
		"drop database shop", // which the primary's log makes again
		fmt.Sprintf("change master to master_host='%s', master_port=%s, master_user='root', master_ssl=0", host, port),
		"start slave",
	} {
		if err := replica.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	storetest.Eventually(t, "the replica is found", func() bool {
		return slices.Contains(storetest.Examine(t, store), "mysql-replicas")
	})
	expectFindings(t, "a primary", mustOpen(t, asWorker(primary)), "mysql-replicas")
	expectFindings(t, "a primary whose user may write when it is demoted", store, "mysql-read-only-user", "mysql-replicas")
	accepted := "?replica=true"
	storetest.Eventually(t, "the replica has everything", func() bool {
		s, err := driver.Open(t.Context(), asWorker(replica)+accepted)
		if err == nil {
			_ = s.Close()
		}
		return err == nil
	})
	for _, url := range []string{replica.URL(), asWorker(replica)} {
		if s, err := driver.Open(t.Context(), url); !errors.Is(err, driver.ErrDenied) ||
			!strings.Contains(err.Error(), "open the primary") {
			t.Errorf("a replica is opened: %s: %v %v", url, s, err)
		}
	}
	expectFindings(t, "a replica", mustOpen(t, asWorker(replica)+accepted), "mysql-replica")
	if err := replica.Exec("stop slave"); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, asWorker(replica))
}

// TestReplicationStatus: a server is a replica while a thread of its replication runs, and what a user may not see of
// replication is found. These are the replies of MySQL 8, which was not tried.
func TestReplicationStatus(t *testing.T) {
	for _, c := range []struct {
		io, sql, channel string
		want             int
	}{{"Yes", "Yes", "", 1}, {"Connecting", "No", "", 1}, {"No", "Yes", "", 1}, {"No", "No", "", 0},
		{"Yes", "Yes", "group_replication_applier", 0}} {
		rows := []map[string]string{{"Replica_IO_Running": c.io, "Replica_SQL_Running": c.sql, "Channel_Name": c.channel}}
		if n := countRunning(rows); n != c.want {
			t.Errorf("%+v: %d sources", c, n)
		}
	}
	for part, want := range map[replication][]string{{0, 0}: nil, {unseen, 0}: {"mysql-unseen"},
		{0, unseen}: {"mysql-unseen"}, {2, 3}: {"mysql-replica", "mysql-replicas"}} {
		var codes []string
		for _, f := range part.findings() {
			codes = append(codes, f.Code)
		}
		if !slices.Equal(codes, want) {
			t.Errorf("%+v: %q, want %q", part, codes, want)
		}
	}
}

// TestStatementsPerOperation: a take of a free lock, a renewal and a release are one statement each, by the server's
// own count. With layout=shedlock the first take of a name is three. A caller that is alone uses one connection, on
// which the store has prepared its statements.
func TestStatementsPerOperation(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		s := startServer(t)
		store := mustOpen(t, s.URL()+"?create=true&layout="+string(layout))
		db := openPool(t, s)
		db.SetMaxOpenConns(1)
		read := func(status string) (n int) {
			t.Helper()
			var name string
			if err := db.QueryRow("show global status like '"+status+"'").Scan(&name, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		expect := func(what string, want int, do func()) {
			t.Helper()
			before := read("Com_stmt_execute")
			do()
			if got := read("Com_stmt_execute") - before; got != want {
				t.Errorf("%s%s took %d statements, want %d", layout, what, got, want)
			}
		}
		firstTake, prepared := 1, 5
		if layout == LayoutShedLock {
			firstTake, prepared = 3, 9
		}
		var g driver.Grant
		expect("the first take", firstTake, func() { g = acquire(t, store, mutexClaim("m", time.Minute)) })
		expect("a renewal", 1, func() {
			if err := renew(t, store, g).Err; err != nil {
				t.Fatal(err)
			}
		})
		expect("a release", 1, func() { release(t, store, g.Claim) })
		next := mutexClaim("m", time.Minute)
		next.ID = strings.Repeat("n", len(g.ID))
		expect("the next take", 1, func() { acquire(t, store, next) })
		if n := read("Prepared_stmt_count"); n != prepared {
			t.Errorf("%s: %d prepared statements, want %d", layout, n, prepared)
		}
		if n := read("Threads_connected"); n != 2 { // the test itself has the other one
			t.Errorf("%s: %d connections, want 1 and that of the test", layout, n)
		}
	}
}
