package azure

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestNames: each name has a blob of its own, whose name the service keeps as it is, and which is told back.
func TestNames(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, name := range []string{"m", "a/b", "a//b", "/", "a\\b", "a=sb", "a==b", "=", ".", "..", "a.", "a.b", "a./b", "ä", "日本",
		"\x01", "a\nb", "\x7f", "\u0085", "\ufffe", "\uffff", "a b", "a%2Fb", "a+b", "a?b#c", "=x85", "=ufffe", "😀",
		strings.Repeat("/", 512)} {
		blob := encodeName(name)
		if other, ok := seen[blob]; ok {
			t.Errorf("%q and %q have the blob %q", name, other, blob)
		}
		seen[blob] = name
		if back, ok := decodeName(blob); !ok || back != name {
			t.Errorf("%q is %q, and back %q, %v", name, blob, back, ok)
		}
		if strings.ContainsAny(blob, "/\\") || strings.HasSuffix(blob, ".") || len(blob) > 2*len(name) ||
			checkBlobName(blob) != nil {
			t.Errorf("%q has the blob %q", name, blob)
		}
		for i := range name {
			if !strings.HasPrefix(blob, listPrefix(name[:i])) {
				t.Errorf("a list of %q does not have the blob %q of %q", name[:i], blob, name)
			}
		}
	}
	for _, blob := range []string{"", "a/b", "a.", "=", "=z", "=x8", "=xzz", "=u12", "=x41", "a=d.b", "=holdfast-clock"} {
		if name, ok := decodeName(blob); ok {
			t.Errorf("the blob %q is the lock %q", blob, name)
		}
	}
	if err := checkBlobName(strings.Repeat("x", 1025)); !errors.Is(err, driver.ErrInvalid) {
		t.Error(err)
	}
	if err := checkBlobName(strings.Repeat("ä", 1024)); err != nil {
		t.Error(err)
	}
}

// FuzzNames: what is decoded is what was encoded.
func FuzzNames(f *testing.F) {
	f.Add("a/b.")
	f.Fuzz(func(t *testing.T, name string) {
		if back, ok := decodeName(name); ok && encodeName(back) != name {
			t.Errorf("%q is decoded to %q", name, back)
		}
	})
}
