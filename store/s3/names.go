package s3

import "strings"

// How a lock's name becomes the key of an object, without its suffix, except in Terraform's layout, where the key is
// that of the state: there the name stays as it is. Most names stay as they are. What some service refuses, or takes
// for something else, is escaped: control characters, slashes that would make an empty segment, the segments . and ..,
// and segments of more than 255 bytes, which are file names for some services. Where an object a is, MinIO does not
// list a/b: so no segment but the last ends in the suffix of all keys.
//
//	=A to =_   the control characters 1 to 31, as on a keyboard
//	=?         DEL
//	==         an equals sign
//	=s         a slash at the beginning or the end, or after another slash
//	=d         the first dot of a segment that is . or .., and that of .json at the end of a segment but the last
//	=/         nothing: the segment continues after the slash
const escapeChar = '='

// recordSuffix ends the key of a record's object.
const recordSuffix = ".json"

// maxSegment is the length in bytes after which a segment of a key is continued in another one. With the suffix of
// its layout it stays below 255.
const maxSegment = 240

// encodeName turns a lock's name into a key that is put after a prefix of which the last segment has column bytes. A
// key is at most twice as long as its name, and two bytes longer for each maxSegment of it. The service refuses keys of
// more than 1,024 bytes with their prefix, which only names of more than 300 bytes with very many escapes can have.
func encodeName(name string, column int) string {
	var b strings.Builder
	for i, r := range name {
		token := encodeRune(name, i, r)
		if token != "/" && column+len(token) >= maxSegment {
			b.WriteString("=/")
			column = 0
		}
		b.WriteString(token)
		if column += len(token); token == "/" {
			column = 0
		}
	}
	return b.String()
}

// encodeRune is what stands in the key for the character at name[i].
func encodeRune(name string, i int, r rune) string {
	switch {
	case r == escapeChar:
		return "=="
	case r < ' ':
		return string([]byte{escapeChar, byte('@' + r)})
	case r == 0x7f:
		return "=?"
	case r == '/' && (i == 0 || i == len(name)-1 || name[i-1] == '/'):
		return "=s"
	case r == '.':
		rest, _, more := strings.Cut(name[i:], "/")
		begins := i == 0 || name[i-1] == '/'
		if begins && (rest == "." || rest == "..") || more && rest == recordSuffix {
			return "=d"
		}
	}
	return string(r)
}

// decodeName reverses encodeName. It reports false for a key that encodeName cannot have made.
func decodeName(key string, column int) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(key); i++ {
		if key[i] != escapeChar {
			b.WriteByte(key[i])
			continue
		}
		if i++; i == len(key) {
			return "", false
		}
		switch c := key[i]; {
		case c == escapeChar:
			b.WriteByte(escapeChar)
		case c > '@' && c <= '_':
			b.WriteByte(c - '@')
		case c == '?':
			b.WriteByte(0x7f)
		case c == 's':
			b.WriteByte('/')
		case c == 'd':
			b.WriteByte('.')
		case c != '/':
			return "", false
		}
	}
	name := b.String()
	return name, name != "" && encodeName(name, column) == key
}

// listPrefix returns what the keys of all names with that prefix begin with. What becomes of a slash or a dot at the
// end of the prefix depends on what follows, so it is what the keys of names that go on in different ways have in
// common.
func listPrefix(prefix string, column int) string {
	if prefix == "" {
		return ""
	}
	common := encodeName(prefix, column)
	for _, rest := range []string{"n", "/n", "./n", ".json/n", "json/n", "son/n", "on/n", "n/n"} {
		key := encodeName(prefix+rest, column)
		for !strings.HasPrefix(key, common) {
			common = common[:len(common)-1]
		}
	}
	// MinIO refuses prefixes that end in dots.
	return strings.TrimRight(strings.ToValidUTF8(common, ""), ".")
}

// columnOf is the length of the last segment of a prefix.
func columnOf(prefix string) int { return len(prefix) - strings.LastIndexByte(prefix, '/') - 1 }
