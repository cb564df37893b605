package etcd

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
)

// TestTable: the table keeps what the record engine needs, so that locks kept in it keep all promises, too.
func TestTable(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	var peers sync.Map
	defer peers.Range(func(_, p any) bool { p.(*peer).Close(); return true })
	results := drivertest.Run(t.Context(), drivertest.Harness{
		Open: func(context.Context) (driver.Store, error) {
			p, err := open(c)
			if err != nil {
				return nil, err
			}
			s := record.New(p.Table())
			peers.Store(s, p)
			return s, nil
		},
		Kill: func(s driver.Store) error {
			p, _ := peers.Load(s)
			p.(*peer).link.Cut()
			return nil
		},
		Slack: 2 * time.Second, // a row is moved by many conflicting swaps, beside all the other tests
	}, &drivertest.Options{Parallel: 8, Effort: 0.3, Match: func(c drivertest.Case) bool { return c.Name != "close-stops" }}) // the store under it goes on
	passed := 0
	for _, r := range results {
		switch {
		case r.Err != nil:
			t.Errorf("%s: %v", r.Case.Name, r.Err)
		case r.Skipped == "":
			passed++
		}
	}
	t.Logf("%d of %d cases passed", passed, len(results))
}
