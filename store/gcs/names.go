package gcs

import "strings"

// encode gives the part of an object's name that stands for a lock's. The service takes any UTF-8 but line ends, and
// refuses a few names that begin with a dot; other control characters are no good in listings. Each takes two bytes at the
// most, so that a name of 512 bytes fits into the 1024 that the service allows.
func encode(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c < 0x20, c == 0x7f, c == '.' && i == 0:
			b.WriteByte('%')
			b.WriteByte(c ^ 0x40)
		case c == '%':
			b.WriteString("%%")
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// decode is the other way; false for what no encode has made.
func decode(encoded string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(encoded); i++ {
		c := encoded[i]
		if c == '%' && i+1 < len(encoded) {
			i++
			if c = encoded[i]; c != '%' {
				c ^= 0x40
			}
		}
		b.WriteByte(c)
	}
	name := b.String()
	return name, name != "" && encode(name) == encoded
}
