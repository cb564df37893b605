package mysql

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/mysql/mysqltest"
)

// startShared is the server of all tests that do it no harm.
var startShared = sync.OnceValues(func() (*mysqltest.Server, error) { return mysqltest.Start() })

func TestMain(m *testing.M) {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue {
		_ = p.Value.Set("6") // the tests wait more than they work
	}
	_ = mysql.SetLogger(&mysql.NopLogger{})
	code := m.Run()
	for _, start := range []func() (*mysqltest.Server, error){startShared, startShedLockServer} {
		if s, err := start(); err == nil {
			s.Close()
		}
	}
	os.Exit(code)
}

func sharedServer(t testing.TB) *mysqltest.Server {
	t.Helper()
	s, err := startShared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func startServer(t testing.TB, settings ...string) *mysqltest.Server {
	t.Helper()
	s, err := mysqltest.Start(settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

var tableNumber atomic.Int64

// freshURL returns a URL with a table that no other test uses.
func freshURL(s *mysqltest.Server, options ...string) string {
	return s.URL() + "?" + strings.Join(append(options, "create=true", fmt.Sprintf("table=t%d", tableNumber.Add(1))),
		"&")
}

// parseURL reads a URL.
func parseURL(t testing.TB, raw string) *storeURL {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	s, err := readURL(u)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openPool opens a pool for the user root.
func openPool(t testing.TB, s *mysqltest.Server) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// newHarness makes a harness for stores of a URL that reach their server through links which can be cut.
func newHarness(t *testing.T, raw string) drivertest.Harness {
	h := storetest.Harness(func(ctx context.Context) (driver.Store, storetest.Connection, error) {
		via := &servertest.Net{}
		t.Cleanup(via.Close)
		u := parseURL(t, raw)
		u.config.DialFunc = func(_ context.Context, _, addr string) (net.Conn, error) { return via.Dial(addr) }
		s, err := u.open(ctx)
		return s, via, err
	})
	h.Slack = storetest.PollSlack
	return h
}

// TestConformance: the store keeps every promise of the contract, even when the server is killed and comes back. The
// suite runs before the other tests, because it keeps the machine busy. The store has a prefix; the other suite's has
// none.
func TestConformance(t *testing.T) {
	s := startServer(t)
	h := newHarness(t, freshURL(s, "prefix=team/"))
	h.Restart = func(context.Context) error {
		s.Kill()
		return s.StartAgain()
	}
	storetest.Conform(t, h, drivertest.Options{})
}

// lossyTable loses replies, and has requests refused, as the suite says.
type lossyTable struct {
	*table
	fate func() drivertest.Fate
}

func (l *lossyTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	return drivertest.Carry(l.fate(), func() (record.Row, error) { return l.table.Swap(ctx, row) })
}

func (l *lossyTable) Delete(ctx context.Context, row record.Row) error {
	_, err := drivertest.Carry(l.fate(), func() (struct{}, error) { return struct{}{}, l.table.Delete(ctx, row) })
	return err
}

// TestConformanceLossy: all promises hold while two of a hundred writes lose their replies, and two are refused.
func TestConformanceLossy(t *testing.T) {
	s := sharedServer(t)
	var h drivertest.Harness
	pool, name := openPool(t, s), fmt.Sprintf("t%d", tableNumber.Add(1))
	h.Open = func(ctx context.Context) (driver.Store, error) {
		return New(ctx, pool,
			&Options{Table: name, Create: true})
	}
	h.Lossy = func(ctx context.Context, fate func() drivertest.Fate) (driver.Store, error) {
		inner, err := newTable(ctx, pool, &Options{Table: name, Create: true}, nil)
		if err != nil {
			return nil, err
		}
		return record.New(&lossyTable{inner, fate}), nil
	}
	storetest.Conform(t, h, drivertest.Options{LostReplies: 2, Refusals: 2, Effort: 0.3})
}

// TestTableContract: the table keeps the contract of record.Table.
func TestTableContract(t *testing.T) {
	t.Parallel()
	pool := openPool(t, sharedServer(t))
	pool.SetMaxOpenConns(4)
	storetest.ConformTable(t, tabletest.Harness{Open: func(ctx context.Context) (record.Table, error) {
		return NewTable(ctx, pool, &Options{Table: "tabletest_rows", Create: true})
	}})
}

// TestPrefix: stores with prefixes share a table and its ledger, and do not see each other. The row of a lock has the
// prefix, which operators read in the table.
func TestPrefix(t *testing.T) {
	t.Parallel()
	server := sharedServer(t)
	raw := freshURL(server)
	open := func(options string) driver.Store {
		s, err := driver.Open(t.Context(), raw+options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	one := open("&prefix=a%20b/")
	storetest.CheckPrefixes(t, one, open("&prefix=b/"), open(""))
	table := strings.TrimPrefix(raw[strings.Index(raw, "table="):], "table=")
	if got, want := one.Explain(storetest.Mutex("m", time.Minute)).Keys, fmt.Sprintf("`%s`: name = %q", table, "a b/m"); !slices.Contains(got, want) {
		t.Errorf("it explains %q, want %q", got, want)
	}
	for _, options := range []string{"&layout=shedlock&prefix=a/", "&prefix=" + strings.Repeat("a", 256), "&prefix=%00"} {
		if _, err := driver.Open(t.Context(), raw+options); !errors.Is(err, driver.ErrInvalid) ||
			!strings.Contains(err.Error(), "prefix") {
			t.Errorf("%.30s: %v", options, err)
		}
	}
}
