package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/holdfast-go/holdfast/engine/record"
)

// repair is done by the first client after a boot of the machine, before it fixes the clock for this boot, which it must
// have done before it writes anything. What cannot be read then was torn when the power failed: it had not been synced,
// so nobody relied on its being there, and it must not block its lock for ever. After that, for the rest of the boot, an
// unreadable record is damage, reported and left alone.
//
// Several clients may do this at once, and one of them may go on with it long after another has finished and locks are
// in use. That is why a torn version is not moved away but replaced by an ordinary swap: from then on it is no longer
// current, a late repair conflicts, and no version is used twice. A copy is kept in the directory "broken".
func repair(ctx context.Context, a *area, locks int, log *slog.Logger) error {
	entries, err := a.names(locks)
	if err != nil {
		return explain("list locks", err)
	}
	for _, entry := range entries {
		if _, _, ok := decodeName(entry); !ok {
			continue
		}
		c := cell{area: a, at: locks, entry: entry}
		if err := c.mend(ctx, log); err != nil {
			return fmt.Errorf("repair after a restart of the machine: %w", err)
		}
	}
	return nil
}

// mend replaces a torn current version by the one before it that is whole, or deletes the record if there is none.
func (c cell) mend(ctx context.Context, log *slog.Logger) error {
	f, err := c.load(ctx)
	if !errors.Is(err, errTorn) {
		return nil // whole, or not to be touched; whoever uses the lock will be told
	}
	log.Warn("a lock's record was torn when the machine stopped; a copy is kept in the directory broken",
		"dir", c.dir, "lock", c.entry, "error", err)
	d, err := c.open()
	if err != nil || d < 0 {
		return err
	}
	defer c.close(d)
	if err := c.keep(d, f.version); err != nil {
		return explain("keep a torn record", err)
	}
	last, err := c.lastWhole(d)
	switch {
	case err != nil:
		return err
	case last.alive():
		_, err = c.swap(ctx, f.version, last.content, true)
	default:
		err = c.destroy(ctx, f.version)
	}
	if errors.Is(err, record.ErrConflict) {
		return nil
	}
	return err
}

// keep copies a version to the directory "broken". A link would not do: the file may be used again.
func (c cell) keep(d int, v version) error {
	bytes, err := c.read(d, v.String(), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another client was here
	}
	if err != nil {
		return err
	}
	if err := c.mkdir(c.root, "broken"); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	broken, err := c.openDir(c.root, "broken")
	if err != nil {
		return err
	}
	defer c.close(broken)
	if err := c.write(broken, c.entry+"~"+v.String(), bytes, false); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// lastWhole is the highest version that can be read.
func (c cell) lastWhole(d int) (found, error) {
	names, err := c.files(d)
	if err != nil {
		return found{}, err
	}
	var versions []version
	for _, name := range names {
		if v, aside, ok := parseFile(name); ok && !aside {
			versions = append(versions, v)
		}
	}
	sortVersions(versions)
	for _, v := range slices.Backward(versions) {
		if f, err := c.readVersion(d, v); err == nil {
			return f, nil
		}
	}
	return found{}, nil
}
