package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
)

// ConformTable runs the contract tests of a record.Table.
func ConformTable(t *testing.T, h tabletest.Harness) {
	t.Helper()
	for _, r := range tabletest.Run(t.Context(), h, nil) {
		switch {
		case r.Err != nil:
			t.Errorf("%s: %v\npromised: %s", r.Case.Name, r.Err, r.Case.Promise)
		case r.Skipped != "":
			t.Logf("%s: skipped: %s", r.Case.Name, r.Skipped)
		}
	}
}

// FreeLooksAgain tests a table in which nothing remains of a free lock. A record without a claim does not take the place
// of no object while there is one: the caller may have found none before a creation took effect that nobody waits for.
func FreeLooksAgain(t *testing.T, table record.Table) {
	t.Helper()
	encode := func(rec record.Record) []byte {
		data, err := record.Encode(&rec)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	free := record.Row{Name: "looks-again", Data: encode(record.Record{Token: 1})}
	if _, err := table.Swap(t.Context(), free); err != nil {
		t.Errorf("a free lock that stays free: %v", err)
	}
	held := free
	held.Data = encode(record.Record{Kind: driver.KindMutex, Limit: 1, Token: 1, Claims: []record.Claim{{ID: "id",
		Owner: "owner", Weight: 1, TTL: time.Minute, SilenceLimit: time.Minute, State: record.Granted, Token: 1}}})
	if _, err := table.Swap(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Swap(t.Context(), free); !errors.Is(err, record.ErrConflict) {
		t.Errorf("a lock that is held, and not free as the caller believes: %v", err)
	}
}
