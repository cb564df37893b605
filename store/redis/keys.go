package redis

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// A lock's own key is its name under the user's template. The further keys of the lock are in the same hash slot,
// because a script in a Cluster may only use keys of one slot (redis.io: "Redis cluster specification", hash tags):
//
//	holdfast:{KEY}       where KEY has no braces
//	holdfast::KEY        where KEY has a hash tag of its own, like "{a}b"
//	holdfast:/{tag}KEY   where KEY has braces, but no hash tag; tag is one that falls into KEY's slot
//
// The first of these keys is the record. The parts of the queue have a dot and a letter after "holdfast": .c claims, .h
// holders, .l queue. The record's key is also the name of the channel that says when the lock is free. With a colon and
// a session after it, it is the channel of one client.
//
// Different locks have different keys, and the lock's name can be read from each key. Old clients and data use these
// keys, so none of them may change.
const reserved = "holdfast"

// keyspace makes the keys of a store's locks.
type keyspace struct {
	prefix, suffix string // the template before and after the star
	layout         Layout
}

// newKeyspace divides the template at its star. withDefaults has checked that there is one.
func newKeyspace(template string, layout Layout) keyspace {
	before, after, _ := strings.Cut(template, "*")
	return keyspace{before, after, layout}
}

// checkName refuses a name whose lock would have the key of another lock's record. That is possible, since users choose
// the names and the template.
func (k keyspace) checkName(name string) error {
	if key := k.lockKey(name); isSideKey(key) {
		return fmt.Errorf("%w: the key %q is reserved for Holdfast's records; use another name or prefix",
			driver.ErrInvalid, key)
	}
	return nil
}

// isSideKey reports whether a key is reserved: a record, a part of a queue, or a row of a table. It must know every
// form that sideKey and rowKey make, or a user could make a lock in the place of another one's record.
func isSideKey(key string) bool {
	if strings.HasPrefix(key, rowPrefix) || strings.HasPrefix(key, runPrefix) {
		return true
	}
	rest, ok := strings.CutPrefix(key, reserved)
	if ok && len(rest) > 1 && rest[0] == '.' {
		rest = rest[2:]
	}
	return ok && len(rest) > 1 && rest[0] == ':' && strings.IndexByte("{:/", rest[1]) >= 0
}

// lockKey returns the lock's own key.
func (k keyspace) lockKey(name string) string {
	if k.prefix == "" && k.suffix == "" {
		return name
	}
	return k.prefix + name + k.suffix
}

// sideKey returns the key of a part of the lock: "" is its record.
func sideKey(part, lock string) string {
	before, after := keyAffixes(lock)
	return reserved + part + before + lock + after
}

// keyAffixes returns the text between the part's letter and the lock's own key, and the text after that key. Together
// they put the part into the slot of the lock's own key.
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

// nameOfRecord returns the lock's name from the key of its record. It reports false if the record belongs to no lock of
// this template. It builds the record's key again and compares it, so that keys which only look like records are left
// out.
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

// nameOfKey returns the lock's name from its own key, and false if the key does not fit the template.
func (k keyspace) nameOfKey(lock string) (string, bool) {
	lock, before := strings.CutPrefix(lock, k.prefix)
	lock, after := strings.CutSuffix(lock, k.suffix)
	return lock, before && after && lock != ""
}

// allKeys returns the keys that the scripts on a lock with a queue use, in the order of KEYS in shared/state.lua. A
// script names all keys that it uses, since a Cluster finds the node by them.
func (k keyspace) allKeys(name string) (keys [5]string) {
	keys[0] = k.lockKey(name)
	before, after := keyAffixes(keys[0])
	// One allocation for all four keys: BenchmarkUncontended shows what more would cost.
	var text strings.Builder
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

// hashTag returns the part of a key that decides its slot: the text in the first pair of braces if there is any in it,
// else the whole key (redis.io: "Redis cluster specification", hash tags).
func hashTag(key string) string {
	_, rest, ok := strings.Cut(key, "{")
	if t, _, closed := strings.Cut(rest, "}"); ok && closed && t != "" {
		return t
	}
	return key
}
