package s3

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzNames: every name has a key of its own, from which it is read again, and which services accept. The keys of names
// with a common beginning have one, too.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"a", "a/b", "/", "//", "a/", "/a//b/", ".", "..", "a/../b", "a/.", "...", ".a", "=",
		"==",
		"a=/b", "=s", "\x01\x1f\x7f\n", "é", "\U0001F512", "a\u2028", "a.json/b", ".json/.json/.json", "a..json/b",
		"a.json/", strings.Repeat("n", 512), strings.Repeat("é", 256),
		strings.Repeat("=", 512), strings.Repeat("/", 512), strings.Repeat("a/", 256), strings.Repeat(".", 300)} {
		f.Add(name, uint8(0), uint16(1))
		f.Add(name, uint8(17), uint16(250))
	}
	f.Fuzz(func(t *testing.T, name string, column uint8, cut uint16) {
		if name == "" || len(name) > 512 || !utf8.ValidString(name) || strings.ContainsRune(name, 0) ||
			column > maxColumn {
			return
		}
		key := encodeName(name, int(column))
		if got, ok := decodeName(key, int(column)); !ok || got != name {
			t.Fatalf("%q became %q, and that %q, %v", name, key, got, ok)
		}
		if len(key) > 2*len(name)+2*len(name)/100 {
			t.Errorf("%q has %d bytes, its key has %d", name, len(name), len(key))
		}
		segments := strings.Split(key, "/")
		segments[0] = strings.Repeat("p", int(column)) + segments[0]
		for n, s := range segments {
			if n < len(segments)-1 && strings.HasSuffix(s, recordSuffix) || s == "" || s == "." || s == ".." ||
				len(s) > 248 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Errorf("%q has the segment %q", name, s)
			}
		}
		for at := int(cut) % len(name); at > 0; at-- {
			if !utf8.RuneStart(name[at]) {
				continue
			}
			if prefix := listPrefix(name[:at], int(column)); !strings.HasPrefix(key, prefix) {
				t.Errorf("the key %q of %q does not begin with %q, for %q", key, name, prefix, name[:at])
			}
			break
		}
	})
}

// TestNames: keys that encodeName has not made are nobody's.
func TestNames(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"a/b": "a/b", "/a": "=sa", "a//b": "a/=sb", "a/": "a=s", ".": "=d",
		"..":     "=d.",
		"a/../b": "a/=d./b", "a\nb": "a=Jb", "a=b": "a==b", "a.json": "a.json", "a.json/b": "a=djson/b", "日本語": "日本語"} {
		if got := encodeName(name, 0); got != key {
			t.Errorf("%q became %q, not %q", name, got, key)
		}
	}
	for _, key := range []string{"", "/", "a/", "a//b", ".", "=", "=x", "=holdfast-probe", "=holdfast-runs/a", "=da",
		"a=sb", "a=/b", "a\nb"} {
		if name, ok := decodeName(key, 0); ok {
			t.Errorf("%q is the key of %q", key, name)
		}
	}
}
