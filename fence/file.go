package fence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// fenceSuffix is the end of the name of the file that keeps the largest token for a file.
const fenceSuffix = ".fence"

// WriteFile replaces a file, if no larger token has written to it. It writes a temporary file in the same directory,
// syncs it, and renames it, so that readers see the old content or the new one, also after a crash. perm belongs to
// the new file, whatever the umask.
//
// The largest token is in a second file, NAME.fence, which is locked with flock meanwhile and must not be removed. All
// writers must be able to lock it: on a network file system, check that flock works between machines. WriteFile waits
// for other writers until ctx ends; a writer that is stopped in the middle of a write makes the others wait.
//
// Symbolic links are followed: the file that they lead to is replaced, and its fence is used. Hard links are not names
// of one file for a fence: the new file is another one, with the owner of this process.
//
// Errors: [*StaleError], [ErrInvalid], those of the file system, the context's. On systems without flock it is
// errors.ErrUnsupported.
func WriteFile(ctx context.Context, name string, data []byte, perm os.FileMode, t Token) error {
	return underToken(ctx, name, t, func(path string) error { return replaceFile(path, data, perm) })
}

// AppendFile appends to a file in one write, and syncs it, if no larger token has written to it. If there is no file,
// it makes one with perm before the umask. See [WriteFile].
//
// If the write fails, such as on a full disk, the part that was written is removed. A process or a machine that ends
// during the write can leave a part.
func AppendFile(ctx context.Context, name string, data []byte, perm os.FileMode, t Token) error {
	return underToken(ctx, name, t, func(path string) error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, perm)
		if err != nil {
			return err
		}
		err = appendAll(f, data)
		return errors.Join(err, f.Close())
	})
}

// appendAll appends the data and makes them durable. If that fails, the file gets its old length back, so that no
// part of a line stays.
func appendAll(f *os.File, data []byte) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	switch {
	case err != nil && info.Mode().IsRegular(): // nobody else appends: the writers take turns
		return errors.Join(err, f.Truncate(info.Size()), f.Sync())
	case err == nil && info.Size() == 0:
		return syncDirectory(filepath.Dir(f.Name())) // the file may be new
	}
	return err
}

// underToken calls write, with the path of the file, while no other writer can check its token. The token is stored
// before: if this process then dies, the resource has seen a token that has written nothing, which rejects nobody who
// may write.
func underToken(ctx context.Context, name string, t Token, write func(path string) error) error {
	if err := checkWrite(ctx, name, t); err != nil {
		return err
	}
	path, err := followLinks(name)
	if err != nil {
		return err
	}
	if strings.HasSuffix(path, fenceSuffix) {
		return invalid("files whose names end in %s keep the tokens of others: give %q another name", fenceSuffix, name)
	}
	f, err := os.OpenFile(path+fenceSuffix, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer f.Close() // which unlocks it
	if err := lockFile(ctx, f); err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	largest, err := readToken(f)
	switch {
	case err != nil:
		return err
	case largest > t:
		return &StaleError{Resource: name, Token: t, Largest: largest}
	case largest < t:
		// The digits have a fixed number, so that a write in place is never a mixture of two tokens of unlike length.
		if _, err := f.WriteAt(fmt.Appendf(nil, "%016d\n", t), 0); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if largest == 0 { // the file is new, and must not vanish in a power cut
			if err := syncDirectory(filepath.Dir(path)); err != nil {
				return err
			}
		}
	}
	return write(path)
}

// followLinks returns the path of the file that a name stands for, so that all symbolic links to it lead to one fence.
func followLinks(name string) (string, error) {
	path, err := filepath.EvalSymlinks(name)
	if !errors.Is(err, os.ErrNotExist) {
		return path, err
	}
	if _, err := os.Lstat(name); err == nil {
		return "", invalid("%q is a symbolic link to a file that does not exist: make that file first", name)
	}
	return name, nil // a new file
}

// readToken reads the largest token; 0 from a new file.
func readToken(f *os.File) (Token, error) {
	text, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil || len(text) == 0 {
		return 0, err
	}
	t, err := Parse(strings.TrimSuffix(string(text), "\n"))
	if err != nil {
		return 0, fmt.Errorf("%s does not hold a token (restore it, or write a token into it that is larger than all before): %w",
			f.Name(), err)
	}
	return t, nil
}

// lockFile waits for an exclusive lock. The system call cannot be ended with a context, so it is tried again and again;
// writers hold the lock for one write only.
func lockFile(ctx context.Context, f *os.File) error {
	const longestPause = 20 * time.Millisecond
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, longestPause) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if done, err := tryLockFile(f); done || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// replaceFile writes a new file next to the old one and renames it, so that a reader or a power cut finds either
// of them whole.
func replaceFile(name string, data []byte, perm os.FileMode) (err error) {
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(perm), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	return syncDirectory(dir) // so that the rename survives a power cut
}

// syncDirectory makes a new name in the directory durable.
func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
