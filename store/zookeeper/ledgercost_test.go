package zookeeper

import (
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// TestLedgerCost: each step of a run is one transaction. The question for a key that has succeeded takes a read more,
// since a refused transaction does not show the record. A client that begins or renews runs also opens a session for
// each third of a TTL.
func TestLedgerCost(t *testing.T) {
	names := map[int32]string{zk.OpMulti: "multi", zk.OpGetData: "read"}
	open := func() storetest.CountedLedger {
		s, c := newCountedStore(t)
		return storetest.CountedLedger{
			Ledger: storetest.OpenLedger(t, s),
			Take: func() string {
				var all []string
				for op, n := range c.takeCounts() {
					if op != zk.OpPing {
						all = append(all, fmt.Sprintf("%d %s", n, names[op]))
					}
				}
				slices.Sort(all)
				return fmt.Sprint(all)
			},
		}
	}
	const one = "[1 multi]"
	storetest.CheckLedgerCosts(t, open(), open(), storetest.LedgerCosts{
		Begin: one, Renew: one, Succeed: one, Ask: []string{"[1 read 2 multi]"}}) // one of them is a barrier
}
