package fence_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
)

// TestFileLinks: all symbolic links to a file lead to its fence, and writes change the file and not the link.
func TestFileLinks(t *testing.T) {
	dir := t.TempDir()
	name, link, second := filepath.Join(dir, "report"), filepath.Join(dir, "a", "today"), filepath.Join(dir, "a", "now")
	if err := os.Mkdir(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink("../report", link), os.Symlink(link, second)); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := fence.WriteFile(ctx, link, nil, 0o600, 5); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a link to nothing: %v", err)
	}
	if err := fence.WriteFile(ctx, name, []byte("a"), 0o600, 9); err != nil {
		t.Fatal(err)
	}
	requireStale(t, fence.AppendFile(ctx, link, []byte("x"), 0o600, 5), 5, 9)
	requireStale(t, fence.WriteFile(ctx, second, []byte("x"), 0o600, 8), 8, 9)
	if err := fence.WriteFile(ctx, second, []byte("b"), 0o600, 10); err != nil {
		t.Error(err)
	}
	requireStale(t, fence.AppendFile(ctx, name, []byte("x"), 0o600, 9), 9, 10)
	if err := fence.AppendFile(ctx, link, []byte("c"), 0o600, 10); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(name); string(text) != "bc" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if info, err := os.Lstat(second); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link was replaced: %v, %v", info, err)
	}
}

// TestFileRefusals: what would destroy the fence of another file is refused, and after the end of the context nothing
// is written.
func TestFileRefusals(t *testing.T) {
	name := filepath.Join(t.TempDir(), "report")
	if err := fence.WriteFile(t.Context(), name, nil, 0o600, 9); err != nil {
		t.Fatal(err)
	}
	if err := fence.WriteFile(t.Context(), name+".fence", []byte("x"), 0o600, 9); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a file with tokens: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := errors.New("ended")
	cancel(ended)
	if err := fence.AppendFile(ctx, name, []byte("x"), 0o600, 10); !errors.Is(err, ended) {
		t.Errorf("after the end of the context: %v", err)
	}
	requireStale(t, fence.WriteFile(t.Context(), name, nil, 0o600, 8), 8, 9)
}
