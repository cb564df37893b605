package azure

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
)

// How a lock's name becomes the name of a blob. Most names stay as they are. Escaped is what the service refuses,
// changes or warns of ("Naming and referencing containers, blobs, and metadata"). So is the slash: an account with a
// hierarchical namespace makes directories of slashes, so that the locks a and a/b could not both be.
//
//	=A to =_   the control characters 1 to 31, as on a keyboard
//	=?         DEL
//	==         an equals sign
//	=s =b      a slash, a backslash
//	=d         a dot at the end
//	=xNN       a control character of two bytes
//	=uNNNN     a character that XML has no place for
const escapeChar = '='

// maxBlobName is the length of the longest name that the service accepts.
const maxBlobName = 1024

// encodeName turns a lock's name into a blob's. It has at most twice as many bytes.
func encodeName(name string) string {
	var b strings.Builder
	for i, r := range name {
		b.WriteString(encodeRune(r, i == len(name)-1))
	}
	return b.String()
}

// encodeRune is what stands in a blob's name for a character.
func encodeRune(r rune, isLast bool) string {
	switch {
	case r == escapeChar:
		return "=="
	case r < ' ':
		return string([]byte{escapeChar, byte('@' + r)})
	case r == 0x7f:
		return "=?"
	case r == '/':
		return "=s"
	case r == '\\':
		return "=b"
	case r == '.' && isLast:
		return "=d"
	case r > 0x7f && unicode.IsControl(r):
		return fmt.Sprintf("=x%02x", r)
	case r == 0xfffe || r == 0xffff:
		return fmt.Sprintf("=u%04x", r)
	}
	return string(r)
}

// decodeName reverses encodeName. It reports false for a name that encodeName cannot have made.
func decodeName(encoded string) (string, bool) {
	var b strings.Builder
	for rest := encoded; rest != ""; {
		before, after, escaped := strings.Cut(rest, string(escapeChar))
		b.WriteString(before)
		if rest = after; !escaped {
			break
		}
		if rest == "" {
			return "", false
		}
		digits := map[byte]int{'x': 2, 'u': 4}[rest[0]]
		switch c := rest[0]; {
		case c == escapeChar:
			b.WriteByte(escapeChar)
		case c > '@' && c <= '_':
			b.WriteByte(c - '@')
		case c == '?':
			b.WriteByte(0x7f)
		case c == 's':
			b.WriteByte('/')
		case c == 'b':
			b.WriteByte('\\')
		case c == 'd':
			b.WriteByte('.')
		case digits > 0 && len(rest) > digits:
			var r rune
			if _, err := fmt.Sscanf(rest[1:1+digits], "%x", &r); err != nil {
				return "", false
			}
			b.WriteRune(r)
			rest = rest[digits:]
		default:
			return "", false
		}
		rest = rest[1:]
	}
	name := b.String()
	return name, name != "" && encodeName(name) == encoded
}

// listPrefix returns what the blobs of all names with that prefix begin with. A dot at its end may be the end of a
// name.
func listPrefix(prefix string) string {
	return encodeName(strings.TrimRight(prefix, "."))
}

// checkBlobName refuses a name that the service would refuse or change, and emulators would not.
func checkBlobName(name string) error {
	switch {
	case len(utf16.Encode([]rune(name))) > maxBlobName:
		return fmt.Errorf("%w: the name of a blob, which has the prefix and the escaped name of the lock, must not be longer "+
			"than %d characters", driver.ErrInvalid, maxBlobName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: a name must be UTF-8", driver.ErrInvalid)
	}
	return nil
}
