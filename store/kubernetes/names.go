package kubernetes

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
)

// How a lock's name becomes the name of an object, which is a DNS subdomain: at most 253 small letters, digits, dashes
// and dots, where a dash or a dot stands between two others that are neither. After the prefix, small letters and
// digits stay as they are, and so does a dash between two of them. Any other byte is a dot and two hexadecimal
// digits. A name that would be too long, or would not begin with a letter or a digit, is a hash, and "hash" after a
// dot; so no other name becomes the same. The whole name is kept in an annotation of the object.
const (
	hashSuffix = ".hash"
	maxObject  = 253
	hexDigits  = "0123456789abcdef"
)

var hashEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// objectName is the name of the object of a lock.
func objectName(prefix, name string) string {
	var b strings.Builder
	b.WriteString(prefix)
	for i := range len(name) {
		c := name[i]
		switch {
		case isPlain(c), c == '-' && i > 0 && i+1 < len(name) && isPlain(name[i-1]) && isPlain(name[i+1]):
			b.WriteByte(c)
		default:
			b.WriteByte('.')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	if b.Len() > maxObject || !isPlain(name[0]) {
		sum := sha256.Sum256([]byte(name))
		return prefix + hashEncoding.EncodeToString(sum[:]) + hashSuffix
	}
	return b.String()
}

// isPlain reports whether a byte may stand anywhere in the name of an object.
func isPlain(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

// checkObjectName reports what is wrong with a name that is to be that of an object as it is.
func checkObjectName(name string) error {
	if len(name) > maxObject {
		return fmt.Errorf("it is longer than %d bytes", maxObject)
	}
	for _, label := range strings.Split(name, ".") {
		if label == "" || !isPlain(label[0]) || !isPlain(label[len(label)-1]) {
			return fmt.Errorf("it and each part between two dots begins and ends with a small letter or a digit")
		}
		for i := range len(label) {
			if !isPlain(label[i]) && label[i] != '-' {
				return fmt.Errorf("it has only small letters, digits, dashes and dots")
			}
		}
	}
	return nil
}
