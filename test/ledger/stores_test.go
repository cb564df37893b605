package ledger

import (
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// server is a store that is running.
type server struct {
	// at is where the servers listen. Each worker reaches them through links of its own.
	at []string
	// urlAt returns the store's URL for a client that reaches the servers at other addresses.
	urlAt func(at []string) string
}

// stores are the stores on which the events are handled, and how to start each.
var stores = map[string]func(t testing.TB) server{
	"file": func(t testing.TB) server {
		dir := t.TempDir()
		return server{urlAt: func([]string) string { return "file://" + dir }}
	},
	"redis": func(t testing.TB) server {
		s, err := redistest.Start()
		failOn(t, err)
		t.Cleanup(s.Stop)
		return server{[]string{s.Addr}, func(at []string) string { return "redis://" + at[0] }}
	},
	"postgres": func(t testing.TB) server {
		s, err := pgtest.Start("max_connections=500")
		failOn(t, err)
		t.Cleanup(s.Stop)
		return server{[]string{s.Addr}, func(at []string) string {
			return strings.Replace(s.URL("test"), s.Addr, at[0], 1) + "?create=true"
		}}
	},
	"etcd": func(t testing.TB) server {
		c, err := etcdtest.Start(t.Context(), etcdtest.Options{Direct: true})
		failOn(t, err)
		t.Cleanup(c.Close)
		return server{c.Endpoints(), func(at []string) string { return "etcd://" + strings.Join(at, ",") }}
	},
	"zookeeper": func(t testing.TB) server {
		e, err := zktest.Start(t.Context(), zktest.Options{Direct: true})
		failOn(t, err)
		t.Cleanup(e.Close)
		return server{e.Endpoints(), func(at []string) string { return "zookeeper://" + strings.Join(at, ",") }}
	},
	"dynamodb":        func(t testing.TB) server { return startDynamoDB(t, "") },
	"dynamodb-ledger": func(t testing.TB) server { return startDynamoDB(t, "&layout=ledger") },
}

// startDynamoDB starts an emulator with a table in a layout.
func startDynamoDB(t testing.TB, options string) server {
	s, err := dynamodbtest.Start(t.Context())
	failOn(t, err)
	t.Cleanup(func() { s.Stop() })
	os.Setenv("AWS_ACCESS_KEY_ID", "test") // for the workers, too
	os.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	endpoint, err := url.Parse(s.Endpoint)
	failOn(t, err)
	return server{[]string{endpoint.Host}, func(at []string) string {
		return "dynamodb://events?region=eu-central-1&create=true" + options + "&endpoint=" +
			url.QueryEscape("http://"+at[0])
	}}
}

// linkTo makes a worker's links to the servers, and returns the store's URL through them.
func (s server) linkTo(t *testing.T) (*servertest.Net, string) {
	links := &servertest.Net{}
	t.Cleanup(links.Close)
	var at []string
	for _, addr := range s.at {
		link, err := links.Link(addr)
		failOn(t, err)
		at = append(at, link.Addr)
	}
	return links, s.urlAt(at)
}

func failOn(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
