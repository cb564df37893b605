package driverutil

import (
	"slices"
	"testing"
)

// TestPermits: the numbers of permits are read as they were written, and nothing else is read as numbers.
func TestPermits(t *testing.T) {
	for _, want := range [][]int64{nil, {0}, {0, 3, 12}, {999_999_999_999}} {
		if got := ParsePermits(FormatPermits(want)); !slices.Equal(got, want) {
			t.Errorf("%v became %v", want, got)
		}
	}
	for _, text := range []string{",", "0,", "1,1", "2,1", "-1", "x", "0 1", "99999999999999999999"} {
		if got := ParsePermits(text); got != nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}
