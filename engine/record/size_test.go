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

// limited is a table of small records.
type limited struct{ record.Table }

func (limited) MaxRecordSize() int { return 40 << 10 }

// TestFullRecord promises that claims which fill a record to the last byte that they may are renewed, asked, broken,
// detached and given back all the same: there is room for what a claim that stands may grow by.
func TestFullRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := limited{m.Table()}
		most := table.MaxRecordSize()
		s := record.New(table)
		defer s.Close()
		claim := func(n, note int) driver.Claim {
			return driver.Claim{Name: "m", ID: fmt.Sprintf("%026d", n), Kind: driver.KindSemaphore,
				Limit: driver.MaxLimit, Weight: 1,
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
		if row, err := table.Load(t.Context(), "m"); err != nil || len(row.Data)+len(grants)*200 < most-400 {
			t.Fatalf("%d holders, %d bytes of %d, %v: it is not full", len(grants), len(row.Data), most, err)
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
				err = s.Break(t.Context(), g.Name, g.Ref, driver.BreakRequestRelease)
			case i%3 == 1:
				err = s.(driver.Detacher).Detach(t.Context(), g, driver.MaxTTL)
			}
			if err == nil {
				err = s.(driver.WeightChanger).SetWeight(t.Context(), g, driver.MaxLimit/1000)
			}
			if err == nil {
				err = s.Break(t.Context(), g.Name, g.Ref, driver.BreakGraceful)
			}
			if err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		row, err := table.Load(t.Context(), "m")
		if err != nil || len(row.Data) > most {
			t.Errorf("%d bytes, and %d is the most; %v", len(row.Data), most, err)
		}
		for _, g := range grants {
			storetest.Release(t, s, g.Claim)
		}
	})
}
