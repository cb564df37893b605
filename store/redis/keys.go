package redis

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// A lock's own key is its name under the user's template. What stands beside it has keys in the same hash slot, so that
// one script reaches all of it in a Cluster:
//
//	holdfast:{KEY}       where KEY has no braces
//	holdfast::KEY        where KEY has a hash tag of its own, like "{a}b"
//	holdfast:/{tag}KEY   where KEY has braces, but no hash tag; tag is one that falls into KEY's slot
//
// and with a letter after "holdfast" for the parts of a line: .c claims, .h holders, .l line. The first is also
// the name of the channel on which it is told that a lock is free; with a colon and a session, of that of one client.
// Different locks have different keys, and each key gives its lock's name back.
const reserved = "holdfast"

// keyspace makes keys of names.
type keyspace struct {
	prefix, suffix string // of the name in the template
	layout         Layout
}

func newKeyspace(template string, layout Layout) keyspace {
	before, after, _ := strings.Cut(template, "*")
	return keyspace{before, after, layout}
}

// checkName refuses names whose lock would stand where the record of another one does.
func (k keyspace) checkName(name string) error {
	if key := k.lockKey(name); isSideKey(key) {
		return fmt.Errorf("%w: the key %q is kept for records of other locks; a lock's key must not begin so",
			driver.ErrInvalid, key)
	}
	return nil
}

// isSideKey reports whether a key is one of those beside a lock.
func isSideKey(key string) bool {
	if strings.HasPrefix(key, rowPrefix) {
		return true
	}
	rest, ok := strings.CutPrefix(key, reserved)
	if ok && len(rest) > 1 && rest[0] == '.' {
		rest = rest[2:]
	}
	return ok && len(rest) > 1 && rest[0] == ':' && strings.IndexByte("{:/", rest[1]) >= 0
}

// lockKey is the lock's own key.
func (k keyspace) lockKey(name string) string {
	if k.prefix == "" && k.suffix == "" {
		return name
	}
	return k.prefix + name + k.suffix
}

// sideKey is the key of a part that stands beside a lock.
func sideKey(part, lock string) string {
	before, after := keyAffixes(lock)
	return reserved + part + before + lock + after
}

// keyAffixes is what stands between the part and the lock's own key, and what follows that.
func keyAffixes(lock string) (before, after string) {
	switch {
	case strings.IndexByte(lock, '{') < 0 && strings.IndexByte(lock, '}') < 0:
		return ":{", "}"
	case hashTag(lock) != lock:
		return "::", ""
	default:
		return ":/{" + tagForSlot(hashSlot(lock)) + "}", ""
	}
}

// nameOfRecord gives the lock's name back from the key of its record, if it is one of this template.
func (k keyspace) nameOfRecord(record string) (string, bool) {
	rest, ok := strings.CutPrefix(record, reserved+":")
	if !ok || rest == "" {
		return "", false
	}
	var lock string
	switch rest[0] {
	case '{':
		lock, ok = strings.CutSuffix(rest[1:], "}")
	case ':':
		lock = rest[1:]
	case '/':
		_, lock, ok = strings.Cut(rest, "}")
	default:
		return "", false
	}
	if !ok || sideKey("", lock) != record {
		return "", false
	}
	return k.nameOfKey(lock)
}

// nameOfKey gives the lock's name back from its own key.
func (k keyspace) nameOfKey(lock string) (string, bool) {
	lock, before := strings.CutPrefix(lock, k.prefix)
	lock, after := strings.CutSuffix(lock, k.suffix)
	return lock, before && after && lock != ""
}

// allKeys are the keys that the steps on a line work on, in the order of head.lua.
func (k keyspace) allKeys(name string) (keys [5]string) {
	keys[0] = k.lockKey(name)
	before, after := keyAffixes(keys[0])
	var text strings.Builder // one piece of memory for all of them
	text.Grow((len(reserved) + 2 + len(before) + len(keys[0]) + len(after)) * 4)
	for i, part := range [...]string{"", ".c", ".h", ".l"} {
		from := text.Len()
		for _, s := range [...]string{reserved, part, before, keys[0], after} {
			text.WriteString(s)
		}
		keys[i+1] = text.String()[from:]
	}
	return keys
}

// hashTag is the part of a key that decides its slot.
func hashTag(key string) string {
	_, rest, ok := strings.Cut(key, "{")
	if t, _, closed := strings.Cut(rest, "}"); ok && closed && t != "" {
		return t
	}
	return key
}
