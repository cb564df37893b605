//go:build linux || darwin || windows

package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

func openStore(t *testing.T, dir string) *store {
	t.Helper()
	s, err := New(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.(*store)
}

// TestReadsLeaveNoTrace: reading where there is no store finds no locks and leaves no trace. The first claim makes
// the store, and the clients that read before see it.
func TestReadsLeaveNoTrace(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	for _, dir := range []string{empty, filepath.Join(t.TempDir(), "deep", "store")} {
		s, watcher := openStore(t, dir), openStore(t, dir)
		checkReads(t, s)
		if _, err := os.Stat(dir); dir != empty && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a look has made %s: %v", dir, err)
		} else if dir == empty && len(listDir(t, dir)) > 0 {
			t.Errorf("a look has made %q", listDir(t, dir))
		}
		results := make(chan error)
		go func() {
			lock, err := watcher.NextChange(t.Context(), driver.Lock{Name: "a"})
			if err == nil && len(lock.Holders) != 1 {
				err = errors.New("nobody holds it")
			}
			results <- err
		}()
		g, err := s.Acquire(t.Context(), claimOf("a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := <-results; err != nil {
			t.Errorf("watching: %v", err)
		}
		if lock, err := watcher.Inspect(t.Context(), "a"); err != nil || len(lock.Holders) != 1 ||
			lock.Token != g.Token {
			t.Errorf("%+v, %v", lock, err)
		}
		if found := examine(t, s); slices.Contains(found, "file-no-store") {
			t.Errorf("found: %q", found)
		}
	}
}

// checkReads makes every call that makes no claim.
func checkReads(t *testing.T, s *store) {
	t.Helper()
	if lock, err := s.Inspect(t.Context(), "a"); err != nil || len(lock.Holders) > 0 {
		t.Errorf("inspect: %+v, %v", lock, err)
	}
	for lock, err := range s.List(t.Context(), "") {
		t.Errorf("list: %+v, %v", lock, err)
	}
	if found := examine(t, s); !slices.Contains(found, "file-no-store") {
		t.Errorf("found: %q", found)
	}
	if plan := s.Explain(claimOf("a")); len(plan.Keys) != 3 {
		t.Errorf("explain: %+v", plan)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := s.NextChange(ctx, driver.Lock{Name: "a"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("watch: %v", err)
	}
	c := claimOf("a")
	g := driver.Grant{Claim: c, Token: 1, GrantedTTL: c.TTL, Ref: c.ID}
	s.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
		if !errors.Is(r.Err, driver.ErrLost) {
			t.Errorf("renew: %v", r.Err)
		}
	})
	for what, err := range map[string]error{
		"break":      s.Break(t.Context(), "a", c.ID, driver.Break{Mode: driver.BreakForce}),
		"release":    s.Release(t.Context(), c, ""),
		"detach":     s.Detach(t.Context(), g, time.Minute),
		"set-weight": s.SetWeight(t.Context(), g, 1),
	} {
		if !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestCloseBeforeFirstClaim: a store that is closed before its first claim returns ErrClosed, and makes nothing.
func TestCloseBeforeFirstClaim(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	s := openStore(t, dir)
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	_, err1 := s.Acquire(t.Context(), claimOf("a"))
	_, err2 := s.Inspect(t.Context(), "a")
	_, err3 := s.LivenessFile()
	for _, err := range []error{err1, err2, err3} {
		if !errors.Is(err, driver.ErrClosed) {
			t.Error(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was made: %v", err)
	}
}

// TestDirectoryEmptied: a holder loses its lock at the next renewal, and can make no claims any more, if everything in
// its directory is removed or moved, or only the locks or the liveness files: a client that counts as dead loses each
// lock to the next claimant.
func TestDirectoryEmptied(t *testing.T) {
	t.Parallel()
	for how, empty := range map[string]func(dir string) error{
		"all removed": func(dir string) (err error) {
			for _, name := range []string{markerName, "clock", "clients", "locks", "tmp"} {
				err = errors.Join(err, os.RemoveAll(dir+"/"+name))
			}
			return err
		},
		"the locks moved":     func(dir string) error { return os.Rename(dir+"/locks", t.TempDir()+"/away") },
		"the clients moved":   func(dir string) error { return os.Rename(dir+"/clients", t.TempDir()+"/away") },
		"the clients removed": func(dir string) error { return os.RemoveAll(dir + "/clients") },
		"the clients emptied": func(dir string) error {
			return errors.Join(os.RemoveAll(dir+"/clients"), os.Mkdir(dir+"/clients", 0o700))
		},
		"an old file removed": func(dir string) error {
			files, err := filepath.Glob(dir + "/clients/*")
			return errors.Join(err, os.Remove(files[0]))
		},
	} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, dir)
			g, err := s.Acquire(t.Context(), claimOf("a"))
			if err != nil {
				t.Fatal(err)
			}
			if err := empty(dir); err != nil {
				t.Fatal(err)
			}
			other := openStore(t, dir)
			if _, err := other.Acquire(t.Context(), claimOf("a")); err != nil {
				t.Fatal(err)
			}
			s.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
				if !errors.Is(r.Err, driver.ErrLost) {
					t.Errorf("the holder got %v", r.Err)
				}
			})
			began := time.Now()
			if _, err := s.Acquire(t.Context(), claimOf("b")); !errors.Is(err, errReplaced) ||
				time.Since(began) > 5*time.Second {
				t.Errorf("a claim, after %v: %v", time.Since(began), err)
			}
		})
	}
}
