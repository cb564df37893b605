package gcs

import "strings"

// escapeChar, a control character that the service takes, escapes the few that it does not.
const escapeChar = '\x10'

var (
	escaper   = strings.NewReplacer("\x10", "\x10\x10", "\n", "\x10n", "\r", "\x10r")
	unescaper = strings.NewReplacer("\x10\x10", "\x10", "\x10n", "\n", "\x10r", "\r", "\x10.", ".")
)

// encodeName gives the part of an object's name that stands for a lock's: the name itself, but for line ends, and a few names
// that the service refuses. So 512 bytes become 1024 at the very most, which the service allows with a prefix only if few
// of them are line ends.
func encodeName(name string) string {
	text := escaper.Replace(name)
	if name == "." || name == ".." || strings.HasPrefix(name, ".well-known/acme-challenge/") {
		return string(escapeChar) + text
	}
	return text
}

// decodeName is the other way; false for what no encode has made.
func decodeName(encoded string) (string, bool) {
	name := unescaper.Replace(encoded)
	return name, name != "" && encodeName(name) == encoded
}

// listPrefix is what the encoded forms of all names begin with that begin with prefix.
func listPrefix(prefix string) string {
	if strings.HasPrefix(prefix, ".") {
		return ""
	}
	return escaper.Replace(prefix)
}
