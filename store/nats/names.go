package nats

import (
	"strings"
)

const hexDigits = "0123456789ABCDEF"

// isPlain reports whether a byte of a name stands for itself in a key. The dot does not, because it separates tokens:
// so each name is one token.
func isPlain(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_' || b == '/'
}

// encodeName makes a token of a key of a lock's name: each byte that is not plain becomes = and two hexadecimal digits.
// So 512 bytes become 1,536 at most.
func encodeName(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; isPlain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('=')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String()
}

// decodeName reverses encodeName. It reports false for a text that encodeName cannot have made.
func decodeName(token string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		if token[i] != '=' {
			b.WriteByte(token[i])
			continue
		}
		if i+2 >= len(token) {
			return "", false
		}
		high, low := strings.IndexByte(hexDigits, token[i+1]), strings.IndexByte(hexDigits, token[i+2])
		if high < 0 || low < 0 {
			return "", false
		}
		b.WriteByte(byte(high<<4 | low))
		i += 2
	}
	name := b.String()
	return name, name != "" && encodeName(name) == token
}
