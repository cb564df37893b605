package postgres

import (
	"context"
	"flag"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// prove runs the long counts, which take minutes.
var prove = flag.Bool("prove", false, "run the long counts")

// startShared is the server of all tests that do it no harm.
var startShared = sync.OnceValues(func() (*pgtest.Server, error) { return pgtest.Start("max_connections=300") })

func TestMain(m *testing.M) {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue {
		_ = p.Value.Set("6") // the tests wait more than they work
	}
	code := m.Run()
	if s, err := startShared(); err == nil {
		s.Stop()
	}
	os.Exit(code)
}

func sharedServer(t testing.TB) *pgtest.Server {
	t.Helper()
	s, err := startShared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func startServer(t testing.TB, settings ...string) *pgtest.Server {
	t.Helper()
	s, err := pgtest.Start(settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

var tableNumber atomic.Int64

// freshURL returns a URL with a table that no other test uses.
func freshURL(t testing.TB, s *pgtest.Server, options ...string) string {
	name := "t" + strconv.FormatInt(tableNumber.Add(1),
		36) + strings.ToLower(strings.NewReplacer("/", "_", "-", "_").Replace(t.Name()))
	return s.URL("test") + "?" + strings.Join(append([]string{"sslmode=disable", "create=true", "schema=tests",
		"table=" + name[:min(len(name), maxTableName)]}, options...), "&")
}

// parseURL reads a URL.
func parseURL(t testing.TB, raw string) (*pgxpool.Config, *Options) {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	config, opts, err := readURL(u)
	if err != nil {
		t.Fatal(err)
	}
	return config, opts
}

// newHarness makes a harness for stores of a URL that reach their server through links which can be cut.
func newHarness(t *testing.T, url string) drivertest.Harness {
	return storetest.Harness(func(ctx context.Context) (driver.Store, storetest.Connection, error) {
		via := &servertest.Net{}
		t.Cleanup(via.Close)
		config, opts := parseURL(t, url)
		config.ConnConfig.DialFunc = func(_ context.Context, _, addr string) (net.Conn, error) { return via.Dial(addr) }
		s, err := openConfig(ctx, config, opts)
		return s, via, err
	})
}

// TestConformance: the store keeps every promise of the contract. The suites do not run at the same time as other
// tests, because each keeps the machine busy.
func TestConformance(t *testing.T) {
	s := startServer(t, "max_connections=300")
	h := newHarness(t, freshURL(t, s))
	h.Restart = func(context.Context) error {
		s.Kill()
		return s.StartAgain()
	}
	conform(t, h, drivertest.Options{})
}

// TestConformanceShedLock: ShedLock's layout keeps the promises for the plain mutex, and refuses everything else.
// The columns of this table are wider than ShedLock's own, because the suite uses long names.
func TestConformanceShedLock(t *testing.T) {
	s := sharedServer(t)
	if err := s.Exec(`create schema wide; create table wide.shedlock (name varchar(512) primary key, lock_until timestamp not null,
		locked_at timestamp(3) not null, locked_by text not null)`); err != nil {
		t.Fatal(err)
	}
	conform(t, newHarness(t, s.URL("test")+"?sslmode=disable&layout=shedlock&schema=wide"), drivertest.Options{})
}
