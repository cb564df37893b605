package nats

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/nats/natstest"
)

// startShared is the server of all tests that do it no harm.
var startShared = sync.OnceValues(func() (*natstest.Cluster, error) {
	return natstest.Start(context.Background(), natstest.Options{})
})

func TestMain(m *testing.M) {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue {
		_ = p.Value.Set("6") // the tests wait more than they work
	}
	code := m.Run()
	if s, err := startShared(); err == nil {
		s.Close()
	}
	os.Exit(code)
}

func sharedServer(t testing.TB) *natstest.Cluster {
	t.Helper()
	s, err := startShared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func startServers(t testing.TB, o natstest.Options) *natstest.Cluster {
	t.Helper()
	s, err := natstest.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

var bucketNumber atomic.Int64

func freshBucket() string { return fmt.Sprintf("b%d", bucketNumber.Add(1)) }

// freshURL returns a URL with a bucket that no other test uses.
func freshURL(s *natstest.Cluster, options ...string) string {
	return s.URL(freshBucket()) + "?" + strings.Join(append(options, "create=true"), "&")
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

// connect connects to servers.
func connect(t testing.TB, s *natstest.Cluster, to ...*servertest.Server) jetstream.JetStream {
	t.Helper()
	conn, err := s.Connect(to...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// openTable opens a table on a connection of a test.
func openTable(t testing.TB, js jetstream.JetStream, bucket string, o Options) *table {
	t.Helper()
	inner, err := newTable(t.Context(), js, bucket, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	return inner
}

// throughLinks makes connections through links.
type throughLinks struct{ *servertest.Net }

func (n throughLinks) Dial(_, address string) (net.Conn, error) { return n.Net.Dial(address) }

// newHarness makes a harness for stores of a URL that reach their servers through links which can be cut.
func newHarness(t *testing.T, raw string) drivertest.Harness {
	return storetest.Harness(func(ctx context.Context) (driver.Store, storetest.Connection, error) {
		via := &servertest.Net{}
		t.Cleanup(via.Close)
		u := parseURL(t, raw)
		u.config.CustomDialer = throughLinks{via}
		s, err := u.open(ctx)
		return s, via, err
	})
}

// TestConformance: the store keeps every promise of the contract, even when the server is killed and comes back. The
// suite runs before the other tests, because it keeps the machine busy.
func TestConformance(t *testing.T) {
	s := startServers(t, natstest.Options{})
	h := newHarness(t, freshURL(s))
	h.Restart = func(ctx context.Context) error {
		s.Members[0].Kill()
		return s.Restart(ctx, s.Members[0])
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

func (l *lossyTable) Load(ctx context.Context, name string) (record.Row, error) {
	return drivertest.Carry(l.fate(), func() (record.Row, error) { return l.table.Load(ctx, name) })
}

func (l *lossyTable) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		names, err := drivertest.Carry(l.fate(), func() ([]string, error) { return l.listNames(ctx, prefix, "") })
		if err != nil {
			yield(record.Row{}, err)
			return
		}
		l.loadAll(ctx, names, yield)
	}
}

// TestConformanceLossy: all promises hold while two of a hundred writes lose their replies, and two are refused.
func TestConformanceLossy(t *testing.T) {
	js, bucket := connect(t, sharedServer(t)), freshBucket()
	var h drivertest.Harness
	h.Open = func(ctx context.Context) (driver.Store, error) { return New(ctx, js, bucket, &Options{Create: true}) }
	h.Lossy = func(ctx context.Context, fate func() drivertest.Fate) (driver.Store, error) {
		inner, err := newTable(ctx, js, bucket, &Options{Create: true})
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
	js, bucket := connect(t, sharedServer(t)), freshBucket()
	storetest.ConformTable(t, tabletest.Harness{
		Open: func(ctx context.Context) (record.Table, error) {
			return NewTable(ctx, js, bucket, &Options{Create: true})
		},
		Lossy: func(ctx context.Context, fate func() drivertest.Fate) (record.Table, error) {
			inner, err := newTable(ctx, js, bucket, &Options{Create: true})
			return &lossyTable{inner, fate}, err
		},
	})
}
