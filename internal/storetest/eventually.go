package storetest

import (
	"testing"
	"time"
)

// Eventually waits, for a minute at the most, for something that is to come by itself.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	const within = time.Minute
	for from := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(from) > within {
			t.Fatalf("%s: not within %v", what, within)
		}
	}
}
