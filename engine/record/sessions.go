package record

import (
	"crypto/rand"
	"slices"
	"strings"
)

// A table whose [Watcher] has a session may put the sessions of [Row.Notify] into the notification of a change, or
// next to the record. These functions are for such tables.

// AllSessions is what [JoinSessions] returns in place of too many sessions. A table may write it where it knows of
// none.
const AllSessions = "*"

// maxSession is the size of the longest session, in bytes.
const maxSession = 64

// NewSession makes a session of 26 letters and digits.
func NewSession() string { return rand.Text() }

// JoinSessions makes of sessions one text of at most maxSize bytes, of ASCII letters, digits, commas, minus signs, and
// underscores, or [AllSessions]. It leaves out what is not a session: clients read each other's from the record.
func JoinSessions(sessions []string, maxSize int) string {
	text := strings.Join(slices.DeleteFunc(slices.Clone(sessions), isNoSession), ",")
	if len(text) > maxSize {
		return AllSessions
	}
	return text
}

func isNoSession(s string) bool {
	return s == "" || len(s) > maxSession || strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r == '-' || r == '_')
	})
}

// NamesSession reports whether a text that [JoinSessions] has made has a session in it, or stands for all.
func NamesSession(text, session string) bool {
	return text == AllSessions || slices.Contains(strings.Split(text, ","), session)
}
