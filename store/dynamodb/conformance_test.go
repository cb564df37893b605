package dynamodb

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// conform runs the suite against a store, each client behind a proxy of its own, and counts.
func conform(t *testing.T, s *dynamodbtest.Server, more string, opts drivertest.Options) {
	t.Helper()
	var proxies sync.Map // by store
	of := func(s driver.Store) *dynamodbtest.Proxy {
		p, _ := proxies.Load(s)
		return p.(*dynamodbtest.Proxy)
	}
	table := tableName()
	h := drivertest.Harness{
		Secrets: []string{"hunter2secret"},
		Slack:   2 * time.Second, // a single thread of JavaScript serves all
		Open: func(ctx context.Context) (driver.Store, error) {
			p, err := dynamodbtest.NewProxy(s.Direct)
			if err != nil {
				return nil, err
			}
			t.Cleanup(p.Close)
			store, err := driver.Open(ctx, storeURL(table, p.Endpoint, more))
			if err == nil {
				proxies.Store(store, p)
			}
			return store, err
		},
		Kill:    func(s driver.Store) error { of(s).Close(); return s.Close() },
		Cut:     func(s driver.Store) error { of(s).Cut(); return nil },
		Heal:    func(s driver.Store) error { of(s).Heal(); return nil },
		Restart: s.Restart,
	}
	opts.Log = func(line string) { t.Log(line) }
	var passed, refused, skipped int
	for _, r := range drivertest.Run(t.Context(), h, &opts) {
		if r.Took > 5*time.Second {
			t.Logf("%s took %v", r.Case.Name, r.Took.Round(time.Millisecond))
		}
		switch {
		case r.Err != nil:
			t.Errorf("%s: %v\npromised: %s", r.Case.Name, r.Err, r.Case.Promise)
		case r.Skipped != "":
			skipped++
			t.Logf("%s: skipped: %s", r.Case.Name, r.Skipped)
		case r.Refused:
			refused++
		default:
			passed++
		}
	}
	t.Logf("conformance: %d passed, %d refused as Info says, %d skipped", passed, refused, skipped)
}

// own starts an emulator for a test that stops it.
func own(t *testing.T) *dynamodbtest.Server {
	t.Helper()
	s, err := dynamodbtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if said := s.Stop(); said != "" {
			t.Error("the emulator had ended by itself:", said)
		}
	})
	return s
}

// parallel is how many cases the emulator bears at a time.
func parallel() int {
	if os.Getenv(dynamodbtest.LocalVariable) != "" {
		return 4
	}
	return 12
}

// TestConformanceAWSLock: what the layout of the AWS lock client carries it carries as promised, and the rest it refuses.
func TestConformanceAWSLock(t *testing.T) {
	conform(t, own(t), "&layout=awslock", drivertest.Options{Parallel: parallel(), Effort: 0.3})
}

// TestConformance: the store keeps every promise of the contract.
func TestConformance(t *testing.T) {
	conform(t, own(t), "", drivertest.Options{Parallel: parallel(), Effort: 0.6})
}
