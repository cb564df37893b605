package record_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// smallTable is a table whose records must be small.
type smallTable struct{ record.Table }

func (smallTable) Watcher() record.Watcher { return nil }

func (smallTable) Traits() record.Traits { return record.Traits{MaxRecord: 40 << 10} }

// TestFullRecord: the claims of a full record can be renewed, asked to release, broken, detached and released, because
// space is reserved for the growth of existing claims.
func TestFullRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := smallTable{m.Table()}
		maxSize := table.Traits().MaxRecord
		s := record.New(table)
		defer s.Close()
		claim := func(n, note int) driver.Claim {
			return driver.Claim{Name: "m", ID: fmt.Sprintf("%026d", n), Kind: driver.KindRW,
				Limit: driver.RWLimit, Weight: 1,
				TTL: time.Second, Meta: strings.Repeat("\x01", note)} // of 6 bytes each, in the record
		}
		var grants []driver.Grant
		for note := driver.MaxMeta; note >= 0; {
			g, err := s.Acquire(t.Context(), claim(len(grants), note))
			switch {
			case err == nil:
				grants = append(grants, g)
			case errors.Is(err, driver.ErrQueueFull):
				note -= max(1, note/8)
			default:
				t.Fatal(err)
			}
		}
		if row, err := table.Load(t.Context(), "m"); err != nil || len(row.Data)+len(grants)*200 < maxSize-400 {
			t.Fatalf("%d holders, %d bytes of %d, %v: the record is not full", len(grants), len(row.Data), maxSize, err)
		}
		for range 12 {
			time.Sleep(300 * time.Millisecond)
			s.Renew(t.Context(), grants, func(i int, r driver.Renewal) {
				if r.Err != nil {
					t.Errorf("a renewal in a full record: %v", r.Err)
				}
			})
		}
		for i, g := range grants {
			var err error
			switch {
			case i%3 == 0:
				err = s.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakRequestRelease})
			case i%3 == 1:
				err = s.Detach(t.Context(), g, driver.MaxTTL)
			}
			if err == nil {
				err = s.SetWeight(t.Context(), g, driver.RWLimit/driver.MaxHolders)
			}
			if err == nil {
				reason := strings.Repeat("<", driver.MaxReason) // of 6 bytes each, in the record
				err = s.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakGraceful, Reason: reason})
			}
			if err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		row, err := table.Load(t.Context(), "m")
		if err != nil || len(row.Data) > maxSize {
			t.Errorf("%d bytes, and the maximum is %d; %v", len(row.Data), maxSize, err)
		}
		for _, g := range grants {
			storetest.Release(t, s, g.Claim)
		}
	})
}
