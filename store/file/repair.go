package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/holdfast-go/holdfast/driver"
	"slices"

	"github.com/holdfast-go/holdfast/engine/record"
)

// brokenDir is the directory, in that of the store, where copies of torn records are kept.
const brokenDir = "broken"

// repairTornRecords is called by the first client after a boot of the machine, before it fixes the clock for this
// boot, and so before it can write anything. A record that cannot be read at that time was torn when the power
// failed: it had not been synced, so nobody relied on it, and it must not block its lock forever. After that, for
// the rest of the boot, an unreadable record is damage: it is reported and not touched.
//
// Several clients may do this at the same time, and one of them may continue long after another has finished and
// locks are in use. That is why a torn version is not moved away but replaced by an ordinary swap: from then on it is
// not current any more, a late repair gets a conflict, and no version is used twice. A copy is kept in the directory
// "broken".
func repairTornRecords(ctx context.Context, a *storeDir, locks int, logger *slog.Logger) error {
	entries, _, err := a.listNames(locks)
	if err != nil {
		return describeError("list locks", err)
	}
	for _, entry := range entries {
		if _, _, ok := decodeName(entry); !ok {
			continue
		}
		vf := versionedFile{storeDir: a, parent: locks, dirName: entry}
		if err := vf.repairRecord(ctx, logger); err != nil {
			return fmt.Errorf("repair after a restart of the machine: %w", err)
		}
	}
	return nil
}

// repairRecord replaces a torn current version by the last readable version before it, or deletes the record if there
// is none.
func (vf versionedFile) repairRecord(ctx context.Context, logger *slog.Logger) error {
	f, err := vf.loadRecord(ctx)
	if !errors.Is(err, errTorn) {
		return nil // readable, or not to be touched: a client that uses the lock gets the error
	}
	logger.Warn("a lock's record was torn when the machine stopped; a copy is kept in the directory broken",
		"dir", vf.path, "lock", vf.dirName, "error", err)
	d, err := vf.openRecordDir()
	if err != nil || d < 0 {
		return err
	}
	defer vf.closeHandle(d)
	if err := vf.keepTornCopy(d, f.version); err != nil {
		return describeError("keep a torn record", err)
	}
	last, err := vf.readLastWhole(d)
	switch {
	case err != nil:
		return err
	case last.isLive():
		_, err = vf.swapVersion(ctx, f.version, last.recordContent, true)
	default:
		err = vf.deleteRecord(ctx, f.version)
	}
	if errors.Is(err, record.ErrConflict) {
		return nil
	}
	return err
}

// keepTornCopy copies a version to the directory "broken". A link would not be enough, since the file may be recycled.
func (vf versionedFile) keepTornCopy(d int, v version) error {
	bytes, err := vf.readFile(d, v.String(), maxFileSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another client has repaired it
	}
	if err != nil {
		return err
	}
	if err := vf.makeDir(vf.root, brokenDir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	broken, err := vf.openDir(vf.root, brokenDir)
	if err != nil {
		return err
	}
	defer vf.closeHandle(broken)
	if err := vf.writeNewFile(broken, vf.dirName+"~"+v.String(), bytes, false); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// readLastWhole returns the highest version that can be read.
func (vf versionedFile) readLastWhole(d int) (storedRecord, error) {
	names, _, err := vf.listFiles(d)
	if err != nil {
		return storedRecord{}, err
	}
	var versions []version
	for _, name := range names {
		if v, staged, ok := parseFile(name); ok && !staged {
			versions = append(versions, v)
		}
	}
	sortVersions(versions)
	for _, v := range slices.Backward(versions) {
		if f, err := vf.readVersion(d, v); err == nil {
			return f, nil
		}
	}
	return storedRecord{}, nil
}

// examineTorn says where the copies of torn records are, while there are any.
func examineTorn(dir string) []driver.Finding {
	copies, err := os.ReadDir(filepath.Join(dir, brokenDir))
	if err != nil || len(copies) == 0 {
		return nil
	}
	return []driver.Finding{findingTorn.With(dir, fmt.Sprintf("the records of %d locks were torn when the machine stopped, "+
		"and were replaced; copies are in %s", len(copies), filepath.Join(dir, brokenDir)))}
}
