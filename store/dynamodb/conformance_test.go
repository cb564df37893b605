package dynamodb

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// runConformance runs the suite. Each client has a proxy of its own.
func runConformance(t *testing.T, s *dynamodbtest.Server, more string, opts drivertest.Options) {
	t.Helper()
	table := newTableName()
	h := storetest.Harness(func(ctx context.Context) (driver.Store, storetest.Connection, error) {
		p, err := dynamodbtest.NewProxy(s.Direct)
		if err != nil {
			return nil, nil, err
		}
		t.Cleanup(p.Close)
		store, err := driver.Open(ctx, urlOf(table, p.Endpoint, more))
		return store, p, err
	})
	h.Secrets = []string{"hunter2secret"}
	h.Slack = 4 * time.Second // a single thread of JavaScript serves all
	h.Restart = s.Restart
	if strings.Contains(more, "layout=ledger") {
		h.Prefix = suiteLedger + "/"
		opts.Match = func(c drivertest.Case) bool { return strings.HasPrefix(c.Name, "ledger-") }
	}
	storetest.Conform(t, h, opts)
}

// startServer starts an emulator for a test that stops it.
func startServer(t *testing.T) *dynamodbtest.Server {
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

// caseParallelism is how many cases the emulator can serve at a time.
func caseParallelism() int {
	if os.Getenv(dynamodbtest.LocalVariable) != "" {
		return 4
	}
	return 8
}

// TestConformanceAWSLock: the layout of the AWS lock client keeps the promises for what it supports, and refuses
// everything else.
func TestConformanceAWSLock(t *testing.T) {
	runConformance(t, startServer(t), "&layout=awslock", drivertest.Options{Parallel: caseParallelism(), Effort: 0.3})
}

// suiteLedger is the name of the ledger that the suite's keys belong to.
const suiteLedger = "suite"

// TestConformanceLedger: the layout of plain workers keeps the promises of a ledger. It has no locks: see
// TestLedgerStoreHasNoLocks.
func TestConformanceLedger(t *testing.T) {
	runConformance(t, startServer(t), "&layout=ledger&ledger-name="+suiteLedger,
		drivertest.Options{Parallel: caseParallelism()})
}

// TestConformance: the store keeps every promise of the contract.
func TestConformance(t *testing.T) {
	runConformance(t, startServer(t), "", drivertest.Options{Parallel: caseParallelism(), Effort: 0.6})
}
