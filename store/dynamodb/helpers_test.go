package dynamodb

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"crypto/rand"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// prove runs the long counts, which take minutes.
var prove = flag.Bool("prove", false, "run the long counts")

var started bool

// shared is the emulator of all tests but those that stop it. It is probed first.
var shared = sync.OnceValues(func() (*dynamodbtest.Server, error) {
	s, err := dynamodbtest.Start(context.Background())
	if err != nil {
		return nil, err
	}
	started = true
	return s, dynamodbtest.Probe(context.Background(), s.Endpoint)
})

func TestMain(m *testing.M) {
	flag.Parse()
	os.Setenv("AWS_ACCESS_KEY_ID", "test")
	os.Setenv("AWS_SECRET_ACCESS_KEY", "hunter2secret")
	os.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	code := m.Run()
	if started {
		s, _ := shared()
		s.Stop()
	}
	os.Exit(code)
}

func server(t testing.TB) *dynamodbtest.Server {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func proxy(t testing.TB, to string) *dynamodbtest.Proxy {
	t.Helper()
	p, err := dynamodbtest.NewProxy(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// tableName is a name that no other test has.
func tableName() string { return "t-" + strings.ToLower(rand.Text()[:12]) }

func storeURL(table, endpoint, more string) string {
	return fmt.Sprintf("dynamodb://%s?region=eu-central-1&create=true&endpoint=%s%s", table, url.QueryEscape(endpoint), more)
}

func open(t testing.TB, raw string) driver.Store {
	t.Helper()
	s, err := driver.Open(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
