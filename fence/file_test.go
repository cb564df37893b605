package fence_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/fence"
)

// TestFiles: a file is replaced and appended to under tokens that do not fall. A rejected write changes nothing.
func TestFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "report")
	content := func() string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	ctx := t.Context()
	for _, step := range []struct {
		token      fence.Token
		write      func(context.Context, string, []byte, os.FileMode, fence.Token) error
		text, want string
	}{
		{5, fence.WriteFile, "a", "a"}, {5, fence.AppendFile, "b", "ab"}, {1 << 52, fence.WriteFile, "c", "c"},
		{1 << 52, fence.AppendFile, "d", "cd"},
	} {
		if err := step.write(ctx, name, []byte(step.text), 0o600, step.token); err != nil {
			t.Fatalf("token %d: %v", step.token, err)
		}
		if got := content(); got != step.want {
			t.Errorf("after token %d the file has %q, want %q", step.token, got, step.want)
		}
	}
	requireStale(t, fence.WriteFile(ctx, name, []byte("x"), 0o600, 7), 7, 1<<52)
	requireStale(t, fence.AppendFile(ctx, name, []byte("x"), 0o600, 1<<52-1), 1<<52-1, 1<<52)
	for _, token := range []fence.Token{0, -3, 1 << 53} {
		if err := fence.WriteFile(ctx, name, nil, 0o600, token); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("token %d: %v", token, err)
		}
	}
	if got := content(); got != "cd" {
		t.Errorf("rejected writes left %q", got)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if names, err := filepath.Glob(filepath.Join(filepath.Dir(name), ".*")); err != nil || len(names) > 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

// TestFileDamaged: a file with the largest token that cannot be read rejects all, and says what to do.
func TestFileDamaged(t *testing.T) {
	name := filepath.Join(t.TempDir(), "report")
	if err := os.WriteFile(name+".fence", []byte("ten\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fence.WriteFile(t.Context(), name, nil, 0o600, 7); !errors.Is(err, fence.ErrInvalid) {
		t.Error(err)
	}
}

// TestFileWaits: a writer waits while another one writes, until its context ends.
func TestFileWaits(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	mustMakePipe(t, name) // to open it for writing lasts until somebody reads
	var stuck sync.WaitGroup
	stuck.Go(func() {
		if err := fence.AppendFile(t.Context(), name, []byte("x"), 0o600, 5); err != nil && !errors.Is(err, os.ErrInvalid) {
			t.Logf("the append to a pipe: %v", err) // a pipe cannot be synced
		}
	})
	waitUntil(t, func() bool {
		b, err := os.ReadFile(name + ".fence")
		return err == nil && len(b) > 0
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := fence.WriteFile(ctx, name, nil, 0o600, 6); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another writer writes: %v", err)
	}
	reader, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	stuck.Wait()
	if err := fence.WriteFile(t.Context(), name, nil, 0o600, 6); err != nil {
		t.Error(err)
	}
}

// waitUntil waits until a condition holds.
func waitUntil(t *testing.T, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("waited for a minute")
		}
	}
}
