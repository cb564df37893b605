package record_test

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/engine/record"
)

// TestSessions: a list of sessions names those that are in it and no others, and stands for all if it would be too
// long. What is no session is left out.
func TestSessions(t *testing.T) {
	one, two := record.NewSession(), "b3k-_X"
	for _, c := range []struct {
		sessions []string
		maxSize  int
		text     string
	}{
		{nil, 0, ""},
		{[]string{one}, len(one), one},
		{[]string{one}, len(one) - 1, record.AllSessions},
		{[]string{one, two}, 100, one + "," + two},
		{[]string{"*", "a,b", "a b", "\x00", "ä", "", strings.Repeat("a", 65), two}, 100, two},
	} {
		if got := record.JoinSessions(c.sessions, c.maxSize); got != c.text {
			t.Errorf("%q in %d bytes: %q, want %q", c.sessions, c.maxSize, got, c.text)
		}
	}
	for text, want := range map[string]bool{
		"": false, one: false, two: true, one + "," + two: true, two + "x": false, record.AllSessions: true,
	} {
		if record.NamesSession(text, two) != want {
			t.Errorf("%q names %q: want %v", text, two, want)
		}
	}
}
