package redis

import (
	"strings"
	"testing"
)

// TestKeys: different locks have different keys, the lock's name can be read from each key, and all keys of a lock are
// in its hash slot.
func TestKeys(t *testing.T) {
	t.Parallel()
	var names []string
	parts := []string{"", "a", "{", "}", "{}", "{a}", "holdfast:", ":", "/", "x"}
	for _, a := range parts {
		for _, b := range parts {
			for _, c := range parts {
				names = append(names, a+b+c+"n", a+b+"n"+c)
			}
		}
	}
	for _, template := range []string{"*", "app:*", "{app}:*", "lock:*:v1", "*}", "{*}"} {
		k := newKeyspace(template, LayoutPlain)
		seen := map[string]string{}
		for _, name := range names {
			for i, key := range k.allKeys(name) {
				if i == 0 && isSideKey(key) {
					if k.checkName(name) == nil {
						t.Errorf("%q under %q is not refused", name, template)
					}
					break
				}
				if other, twice := seen[key]; twice && other != name {
					t.Errorf("%q and %q under %q have the key %q", name, other, template, key)
				}
				seen[key] = name
				if hashSlot(key) != hashSlot(k.lockKey(name)) {
					t.Errorf("%q under %q: %q falls into another slot", name, template, key)
				}
			}
			if back, ok := k.nameOfRecord(sideKey("", k.lockKey(name))); !ok || back != name {
				t.Errorf("the name %q under %q is read back as %q, %v", name, template, back, ok)
			}
		}
	}
	if k := newKeyspace("app:*", LayoutPlain); !strings.HasPrefix(k.lockKey("x"), "app:") {
		t.Error(k.lockKey("x"))
	} else if name, ok := k.nameOfRecord("holdfast:{other:x}"); ok {
		t.Errorf("a lock of another template is taken for %q", name)
	}
}

// TestSlots: the slots are those that Redis computes.
func TestSlots(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]uint16{"123456789": 12739, "foo": 12182, "{foo}bar": 12182, "a{foo}": 12182,
		"": 0} {
		if got := hashSlot(key); got != want {
			t.Errorf("%q: slot %d, want %d", key, got, want)
		}
	}
	for s := range uint16(slotCount) {
		if hashSlot(tagForSlot(s)) != s {
			t.Fatalf("the tag %q of slot %d falls into %d", tagForSlot(s), s, hashSlot(tagForSlot(s)))
		}
	}
}
