package metrics

import (
	"strings"

	"github.com/holdfast-go/holdfast"
)

// otherLabel takes the place of the label values that are too many.
const otherLabel = "other"

// labelSet bounds the number of values of one label.
type labelSet struct {
	max   int
	known map[string]struct{}
}

// bound returns the value if it is known or there is room for it, otherwise otherLabel.
func (s *labelSet) bound(value string) string {
	if value == "" {
		return ""
	}
	value = strings.ToValidUTF8(value, "?")
	if _, ok := s.known[value]; ok {
		return value
	}
	if len(s.known) >= s.max {
		return otherLabel
	}
	if s.known == nil {
		s.known = map[string]struct{}{}
	}
	value = strings.Clone(value) // it may be a part of a long name
	s.known[value] = struct{}{}
	return value
}

// isRun reports whether an event is about a run of a ledger.
func isRun(e *holdfast.Event) bool { return e.Attempt > 0 || e.Kind.OfRuns() }

// ledgerOf is the ledger's name in the Lock of an event of a run. The rest of it is the key, which may be anything.
func ledgerOf(lock string) string {
	ledger, _, _ := strings.Cut(lock, "/")
	return ledger
}
