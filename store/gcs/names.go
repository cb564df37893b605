package gcs

import "strings"

// dle, a control character that the service takes, escapes the few that it does not.
const dle = '\x10'

var (
	escape   = strings.NewReplacer("\x10", "\x10\x10", "\n", "\x10n", "\r", "\x10r")
	unescape = strings.NewReplacer("\x10\x10", "\x10", "\x10n", "\n", "\x10r", "\r", "\x10.", ".")
)

// encode gives the part of an object's name that stands for a lock's: the name itself, but for line ends, and a few names
// that the service refuses. So 512 bytes become 1024 at the very most, which the service allows with a prefix only if few
// of them are line ends.
func encode(name string) string {
	text := escape.Replace(name)
	if name == "." || name == ".." || strings.HasPrefix(name, ".well-known/acme-challenge/") {
		return string(dle) + text
	}
	return text
}

// decode is the other way; false for what no encode has made.
func decode(encoded string) (string, bool) {
	name := unescape.Replace(encoded)
	return name, name != "" && encode(name) == encoded
}

// listPrefix is what the encoded forms of all names begin with that begin with prefix.
func listPrefix(prefix string) string {
	if strings.HasPrefix(prefix, ".") {
		return ""
	}
	return escape.Replace(prefix)
}
