package gcs

import "strings"

// escapeChar is a control character that the service accepts. It escapes the few characters that the service refuses.
const escapeChar = '\x10'

var (
	escaper   = strings.NewReplacer("\x10", "\x10\x10", "\n", "\x10n", "\r", "\x10r")
	unescaper = strings.NewReplacer("\x10\x10", "\x10", "\x10n", "\n", "\x10r", "\r", "\x10.", ".")
)

// encodeName turns a lock's name into an object's name. They are equal, except for line ends and a few names
// that the service refuses. So 512 bytes become 1,024 at most. The service accepts those with a prefix only if
// few of them are line ends.
func encodeName(name string) string {
	text := escaper.Replace(name)
	if name == "." || name == ".." || strings.HasPrefix(name, ".well-known/acme-challenge/") {
		return string(escapeChar) + text
	}
	return text
}

// decodeName reverses encodeName. It reports false for a name that encodeName cannot have made.
func decodeName(encoded string) (string, bool) {
	name := unescaper.Replace(encoded)
	return name, name != "" && encodeName(name) == encoded
}

// listPrefix returns what all names with that prefix begin with when they are encoded.
func listPrefix(prefix string) string {
	if strings.HasPrefix(prefix, ".") {
		return ""
	}
	return escaper.Replace(prefix)
}
