package storetest

import (
	"testing"
	"time"
)

// Eventually waits until ok returns true, for at most a minute.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	const within = time.Minute
	for from := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(from) > within {
			t.Fatalf("%s: not within %v", what, within)
		}
	}
}
