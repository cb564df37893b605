package file

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	maxPlain  = 200 // bytes of a file name that is an encoded lock name in full
	maxPrefix = 100 // bytes of the readable part before a hash
	hashMark  = "%h"
	// plainBytes are the bytes of a lock name that are written as they are.
	plainBytes = "abcdefghijklmnopqrstuvwxyz0123456789._-"
)

// checkName refuses names that no lock can have.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: the lock's name is empty", driver.ErrInvalid)
	case len(name) > driver.MaxName:
		return fmt.Errorf("%w: the lock's name has %d bytes, %d are allowed", driver.ErrInvalid, len(name),
			driver.MaxName)
	case strings.IndexByte(name, 0) >= 0:
		return fmt.Errorf("%w: the lock's name %q contains NUL", driver.ErrInvalid, name)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: the lock's name %q is not UTF-8", driver.ErrInvalid, name)
	}
	return nil
}

// encodeName returns the name of a lock's directory. No two lock names share one, even where the file system folds
// case or normalises Unicode: the result is lower-case ASCII, and every byte other than [a-z0-9._-] (and a dot at the
// beginning) is written as % and two hexadecimal digits. A result that is too long for a file name is cut, and ends
// in %h and the SHA-256 of the name instead; h is not a hexadecimal digit, so that no other name is encoded to the
// same. The full name is in the header of the record.
func encodeName(name string) string {
	if len(name) <= maxPlain && strings.Trim(name, plainBytes) == "" && !strings.HasPrefix(name, ".") {
		return name // the usual case, without a copy
	}
	var b strings.Builder
	b.Grow(len(name))
	cut := 0 // where the readable part of a hashed name would end
	for i := range len(name) {
		c := name[i]
		if strings.IndexByte(plainBytes, c) >= 0 && (c != '.' || i > 0) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02x", c)
		}
		if b.Len() <= maxPrefix {
			cut = b.Len()
		}
	}
	if b.Len() <= maxPlain {
		return b.String()
	}
	sum := sha256.Sum256([]byte(name))
	return b.String()[:cut] + hashMark + hex.EncodeToString(sum[:])
}

// noticePrefix begins the names of the files in turns by which clients that wait for a lock are notified. No lock's
// name is encoded with a plus.
func noticePrefix(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8]) + "+"
}

// decodeName is the inverse of encodeName. For a hashed name, whole is false, and name is only a part of the
// beginning. ok is false for an entry that encodeName cannot have made: that is not a file of Holdfast.
func decodeName(entry string) (name string, whole, ok bool) {
	head, hash, hashed := strings.Cut(entry, hashMark)
	var b []byte
	for i := 0; i < len(head); i++ {
		if head[i] != '%' {
			b = append(b, head[i])
			continue
		}
		if i+2 >= len(head) {
			return "", false, false
		}
		c, err := hex.DecodeString(head[i+1 : i+3])
		if err != nil {
			return "", false, false
		}
		b = append(b, c[0])
		i += 2
	}
	if hashed {
		return string(b), false, len(hash) == 2*sha256.Size && hash == strings.ToLower(hash)
	}
	return string(b), true, checkName(string(b)) == nil && encodeName(string(b)) == entry
}
