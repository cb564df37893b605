package storetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// Examine returns the codes of what a store finds in its settings, sorted. Each finding must say everything that a
// finding says, and show no password.
func Examine(t testing.TB, s driver.Store) []string {
	t.Helper()
	found, err := s.Examine(t.Context())
	if err != nil {
		t.Fatalf("examine: %v", err)
	}
	codes := []string{}
	for _, f := range found {
		if f.What == "" || f.Fix == "" || f.Why == "" && f.Severity != driver.SeverityUnknown {
			t.Errorf("%s says too little: %+v", f.Code, f)
		}
		if strings.Contains(f.String(), "secret") {
			t.Errorf("%s shows a password: %s", f.Code, f)
		}
		codes = append(codes, f.Code)
	}
	slices.Sort(codes)
	return codes
}

// ExpectFindings fails unless the store finds exactly these codes in its settings.
func ExpectFindings(t testing.TB, what string, s driver.Store, codes ...string) {
	t.Helper()
	slices.Sort(codes)
	if found := Examine(t, s); !slices.Equal(found, codes) {
		t.Errorf("%s: found %q, want %q", what, found, codes)
	}
}
