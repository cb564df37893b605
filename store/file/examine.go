package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// The findings, without the directory and what was seen there.
var (
	findingNoStore = driver.Finding{Code: "file-no-store", Severity: driver.SeverityWarning,
		What: "there is no store in this directory yet",
		Why:  "the first claim makes one, and excludes only those who use the same directory",
		Fix:  "see that this is the directory that others use"}
	findingAncestorGroup = driver.Finding{Code: "file-ancestor-group", Severity: driver.SeverityWarning,
		Why: "they can move the store away, and the next client makes a second one",
		Fix: "chmod g-w it, unless all in that group are trusted"}
	findingAncestorOwner = driver.Finding{Code: "file-ancestor-owner", Severity: driver.SeverityWarning,
		Why: "that user can move the store away, and the next client makes a second one",
		Fix: "use a directory below ones of root's or of this user's"}
	findingTorn = driver.Finding{Code: "file-torn", Severity: driver.SeverityWarning,
		Why: "the claims in them are lost",
		Fix: "remove the copies when nobody needs them any more"}
	findingTemporary = driver.Finding{Code: "file-temporary", Severity: driver.SeverityCritical,
		Why: "files that are old are removed from there, and with the liveness file of a client its locks can be taken",
		Fix: "use a directory such as /var/lib/holdfast"}
	findingMemory = driver.Finding{Code: "file-memory", Severity: driver.SeverityWarning,
		Why: "a restart of the machine removes all locks and tokens",
		Fix: "use a directory on a disk"}
	findingContainer = driver.Finding{Code: "file-container", Severity: driver.SeverityWarning,
		Why: "it is usually the container's own layer: other containers do not see these locks, and they go with the container",
		Fix: "mount a volume of the host that all of them share, and keep the store there"}
	findingNotLocal = driver.Finding{Code: "file-not-local", Severity: driver.SeverityCritical,
		Why: "clients on two machines may both acquire a lock",
		Fix: "use a directory on a local disk, or a server's store; remove force=true"}
	findingSpace = driver.Finding{Code: "file-space", Severity: driver.SeverityWarning,
		Why: "claims and renewals fail when the file system is full",
		Fix: "make room, or move the store to a file system of its own"}
	findingFileSystemReadOnly = driver.Finding{Code: "file-read-only", Severity: driver.SeverityCritical,
		What: "the file system is mounted read-only",
		Why:  "no claim can be written",
		Fix:  "mount -o remount,rw"}
	findingEvents = driver.Finding{Code: "file-events", Severity: driver.SeverityWarning,
		Why: "waiters poll, and are granted a lock later",
		Fix: "sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288"}
)

// Examine looks at the directory, at those above it, and at its file system. It opens the store if there is one.
func (t *table) Examine(ctx context.Context) ([]driver.Finding, error) {
	all := append(examineAncestors(t.path), examineTemporary(t.path, t.temporaryDirs)...)
	if fs, err := t.statFileSystem(existingPart(t.path)); err == nil {
		all = append(all, examineFileSystem(t.path, fs)...)
	}
	err := t.openStore(ctx, false)
	if errors.Is(err, errAbsent) {
		return append(all, findingNoStore.With(t.path, findingNoStore.What)), nil
	}
	if err != nil {
		return all, err
	}
	if t.events != nil {
		_, cancel, err := t.events.subscribe(encodeName("holdfast-doctor"))
		if err != nil {
			all = append(all, findingEvents.With(t.path, fmt.Sprintf("there are no file events: %v", err)))
		} else {
			cancel()
		}
	}
	return append(all, examineTorn(t.path)...), nil
}

// usualTemporaryDirs are the directories from which files are removed by age (systemd: tmpfiles.d).
func usualTemporaryDirs() []string { return []string{"/tmp", "/var/tmp", os.TempDir()} }

// examineTemporary returns a finding if a directory is below one of the temporary ones.
func examineTemporary(dir string, temporary []string) []driver.Finding {
	for _, above := range temporary {
		if isBelow(dir, above) {
			return []driver.Finding{findingTemporary.With(dir, "it is below "+above+", a temporary directory")}
		}
	}
	return nil
}

// isBelow reports whether a path is another one, or below it.
func isBelow(path, above string) bool {
	const separator = string(filepath.Separator)
	return strings.HasPrefix(path+separator, filepath.Clean(above)+separator)
}

// existingPart returns the directory, or the nearest one above it that exists.
func existingPart(dir string) string {
	for dir != filepath.Dir(dir) {
		if _, err := os.Lstat(dir); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// fileSystemState is what the kernel says of a file system.
type fileSystemState struct {
	name      string // its type
	local     bool   // that type is known to be a local one
	readOnly  bool
	freeBytes uint64
	freeFiles uint64 // meaningless if it has no limit
	fileLimit uint64 // 0: none
}

// A store needs little room: some KiB per lock. Less than this is about to become none.
const (
	minFreeBytes = 16 << 20
	minFreeFiles = 1000
)

// examineFileSystem compares the file system with what locks need.
func examineFileSystem(dir string, fs fileSystemState) (all []driver.Finding) {
	add := func(when bool, f driver.Finding, what string) {
		if when {
			all = append(all, f.With(dir, what))
		}
	}
	kind := "the file system is " + fs.name
	add(!fs.local, findingNotLocal, kind+", not known to be a local one")
	add(fs.name == "tmpfs" || fs.name == "ramfs", findingMemory, kind+", which is in memory")
	add(fs.name == "overlayfs", findingContainer, kind)
	add(fs.readOnly, findingFileSystemReadOnly, findingFileSystemReadOnly.What)
	// ramfs reports no size at all.
	add(fs.name != "ramfs" && !fs.readOnly && fs.freeBytes < minFreeBytes, findingSpace,
		fmt.Sprintf("the file system has %d MiB left", fs.freeBytes>>20))
	add(fs.fileLimit > 0 && !fs.readOnly && fs.freeFiles < minFreeFiles, findingSpace,
		fmt.Sprintf("the file system has room for %d files", fs.freeFiles))
	return all
}
