package file

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

func FuzzNames(f *testing.F) {
	long := strings.Repeat("ä", 256)
	for _, pair := range [][2]string{{"a", "A"}, {"a/b", "a%2fb"}, {".", ".."}, {"ß", "ss"}, {"é", "e\u0301"}, {"İ",
		"i"},
		{long, long[:510] + "ö"}, {"../x", "x"}, {"a.", "a "}, {"𝄞", "%f0%9d%84%9e"}, {strings.Repeat("a", 201),
			strings.Repeat("A", 201)},
		{strings.Repeat("a", 100) + "%h" + strings.Repeat("0", 64), strings.Repeat("a", 512)}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if checkName(a) != nil || checkName(b) != nil {
			t.Skip()
		}
		ea, eb := encodeName(a), encodeName(b)
		if a != b && strings.EqualFold(ea, eb) {
			t.Errorf("%q and %q share the file %q", a, b, ea)
		}
		if ea == "" || len(ea) > 255 || ea[0] == '.' || ea != strings.ToLower(ea) || strings.Trim(ea,
			"abcdefghijklmnopqrstuvwxyz0123456789._-%") != "" {
			t.Errorf("%q becomes %q, which is not fit for a file name everywhere", a, ea)
		}
		name, whole, ok := decodeName(ea)
		if !ok || whole && name != a || !whole && !strings.HasPrefix(a, name) {
			t.Errorf("%q becomes %q and comes back as %q (whole %v, ok %v)", a, ea, name, whole, ok)
		}
	})
}

func FuzzDecodeName(f *testing.F) {
	for _, entry := range []string{"", ".DS_Store", "A", "%", "%4", "%41", "%61", "%zz", "a%h", "lost+found", "%00"} {
		f.Add(entry)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		if name, whole, ok := decodeName(entry); ok && whole && encodeName(name) != entry {
			t.Errorf("%q is taken for the lock %q, whose file is %q", entry, name, encodeName(name))
		}
	})
}

func FuzzContent(f *testing.F) {
	f.Add("name", []byte("data"), false)
	f.Add("n\nn", []byte{}, true)
	f.Fuzz(func(t *testing.T, name string, data []byte, gone bool) {
		c := recordContent{deleted: gone, name: name, data: data}
		v := version{"abc", 7}
		b := c.encodeFile(v)
		if _, err := decodeContent(b, v.nextVersion()); err == nil {
			t.Fatalf("%q was taken for another version", b)
		}
		back, err := decodeContent(append(slices.Clone(b), "left over"...), v)
		if err != nil || back.name != name || string(back.data) != string(data) || back.deleted != gone {
			t.Fatalf("%q came back as %+v, %v", b, back, err)
		}
		for cut := range len(b) {
			if _, err := decodeContent(b[:cut], v); err == nil {
				t.Fatalf("%q was taken for whole, %d bytes are missing", b[:cut], len(b)-cut)
			}
		}
	})
}

func FuzzDecodeContent(f *testing.F) {
	f.Add([]byte("holdfast/1 00000000 live -1 1\n"))
	f.Add([]byte("holdfast/2 whatever\n"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = decodeContent(b, version{}) })
}

func TestCheckName(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{"": false, "a\x00b": false, "\xff": false, strings.Repeat("x",
		driver.MaxName+1): false,
		strings.Repeat("x", driver.MaxName): true, "../x": true, ".": true, "𝄞": true, "a\nb": true} {
		if err := checkName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}
