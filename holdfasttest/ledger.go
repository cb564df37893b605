package holdfasttest

import (
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast"
)

// AssertRuns fails the test unless the runs of a key in a ledger have these states, from the first run to the last. No
// states mean that the key was never run. A run whose worker stopped renewing is abandoned from then on, even if nobody
// has tried to begin another one.
func (s *Store) AssertRuns(t testing.TB, ledger, key string, want ...holdfast.RunState) {
	t.Helper()
	runs, err := s.operator.Ledger(ledger, nil).History(t.Context(), key)
	if err != nil {
		t.Fatalf("holdfasttest: the runs of %q in the ledger %q: %v", key, ledger, err)
	}
	var got []holdfast.RunState
	for _, r := range runs {
		got = append(got, r.State)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the runs of %q in the ledger %q are %v, want %v", key, ledger, got, want)
	}
}
