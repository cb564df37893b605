package driverutil

import "testing"

// TestFindSimilar: a word that is mistyped is recognized, also by its beginning, and one that has nothing in common
// is not.
func TestFindSimilar(t *testing.T) {
	t.Parallel()
	known := []string{"tls", "tls-ca", "timeout", "password-file", "prefix"}
	for word, want := range map[string]string{"timout": "timeout", "password_file": "password-file", "tsl": "tls", "pre": "prefix",
		"token": "", "x": "", "prefixes": "prefix"} {
		if got := FindSimilar(word, known...); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}
