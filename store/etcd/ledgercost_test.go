package etcd

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestLedgerCost: each step of a run is one transaction, and so is the question for a key that has succeeded. A client
// that begins or renews runs also grants a lease for each third of a TTL.
func TestLedgerCost(t *testing.T) {
	open := func() storetest.CountedLedger {
		s, _, c := benchStore(t)
		return storetest.CountedLedger{
			Ledger: storetest.OpenLedger(t, s), Take: func() string { return fmt.Sprint(c.take()) },
		}
	}
	const one = "map[Txn:1]"
	storetest.CheckLedgerCosts(t, open(), open(), storetest.LedgerCosts{Begin: one, Renew: one, Succeed: one, Ask: []string{one}})
}
