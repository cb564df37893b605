package storetest

import (
	"testing"

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
