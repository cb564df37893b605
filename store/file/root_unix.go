//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/boot"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// newEnvironment opens a real directory. It makes the directory if there is none and create is set, and otherwise
// returns errAbsent.
func newEnvironment(dir string, o Options, create bool) (environment, error) {
	id, err := boot.ID()
	if err != nil {
		return environment{}, fmt.Errorf("%w: %w", driver.ErrUnsupported, err)
	}
	shift, err := boot.ClockShift()
	if err != nil {
		return environment{}, fmt.Errorf("%w: %w", driver.ErrUnsupported, err)
	}
	shared, err := newSharing(o)
	if err != nil {
		return environment{}, err
	}
	d := disk{sharing: shared, oneName: mustHaveOneName(o)}
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		if !create {
			return environment{}, errAbsent
		}
		if err := checkAncestors(dir); err != nil {
			return environment{}, err
		}
		if err := d.makeRoot(dir); err != nil {
			return environment{}, err
		}
	}
	if err := checkAncestors(dir); err != nil {
		return environment{}, err
	}
	root, err := openRoot(dir, shared, o.Force, fileSystem)
	if err != nil {
		return environment{}, err
	}
	return environment{
		fsys:          d,
		rootHandle:    root,
		bootID:        id,
		readBootClock: func() time.Duration { return o.Clock.Boottime() - shift },
		readWallClock: time.Now,
		syncParents:   func() { syncParentDirs(dir) },
		logger:        o.Logger,
		isReplaced:    func(handle int, name string) bool { return isPathReplaced(handle, filepath.Join(dir, name)) },
		checkFolder:   d.checkFolder,
		events:        newEventHub(filepath.Join(dir, "locks")),
		create:        create,
	}, nil
}

// isPathReplaced reports whether an open directory was removed, or another directory exists at its path. If it was
// moved and there is none at its path, or none can be seen, no other client can open one either. Both directories are
// looked up now: on an overlay, the inode number of a directory may change with the first write in it.
func isPathReplaced(fd int, path string) bool {
	var ours, theirs unix.Stat_t
	if unix.Fstat(fd, &ours) != nil {
		return false
	}
	return ours.Nlink == 0 || unix.Stat(path, &theirs) == nil && (ours.Dev != theirs.Dev || ours.Ino != theirs.Ino)
}

// makeRoot makes the directory of a store.
func (d disk) makeRoot(dir string) error {
	if d.shared {
		return d.makeSharedRoot(dir)
	}
	return describeError("make the directory "+dir, os.MkdirAll(dir, 0o700))
}

// openRoot opens the directory if it can be trusted.
func openRoot(dir string, who sharing, force bool, kind func(fd int) (string, bool, error)) (int, error) {
	fd, err := openAt(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return -1, driverutil.RefuseStore(fmt.Errorf(
			"%s is not a directory but a file or a symbolic link; give the directory itself", dir))
	}
	if err != nil {
		return -1, who.describeOpenError(dir, err)
	}
	if err := checkTrusted(fd, dir, who, force, kind); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// checkTrusted refuses a directory that users other than those in who can use, or that may not be on a local file
// system.
func checkTrusted(
	fd int, dir string, who sharing, force bool, kind func(fd int) (string, bool, error),
) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return describeError("stat "+dir, err)
	}
	if err := who.checkAccess(&st, dir); err != nil {
		return err
	}
	if force {
		return nil
	}
	name, local, err := kind(fd)
	if err != nil {
		return describeError("ask for the file system of "+dir, err)
	}
	if !local {
		return fmt.Errorf("%w: the file system of %s is %s, and not known to be a local one; use a directory on a local disk, "+
			"or a server's store for several machines; if it is local beyond doubt, set Force (force=true in a URL)",
			driver.ErrUnsupported, dir, name)
	}
	return nil
}

// checkAncestors refuses a directory that any user of this machine can move away, since the next client would then
// make a second store in its place.
func checkAncestors(dir string) error {
	for _, above := range listAncestors(dir) {
		if above.mode&0o002 != 0 && above.mode&unix.S_ISVTX == 0 {
			return driverutil.RefuseStore(fmt.Errorf(
				"others can write in %s (mode %04o), and so move %s away; chmod o-w it, or set its sticky bit",
				above.path, above.mode&0o7777, dir))
		}
	}
	return nil
}

// examineAncestors names the others who can move a directory away. These may be trusted: the user's own group, or the
// owner of a container's root directory.
func examineAncestors(dir string) (all []driver.Finding) {
	for _, above := range listAncestors(dir) {
		switch {
		case above.mode&0o020 != 0 && above.mode&unix.S_ISVTX == 0:
			all = append(all, findingAncestorGroup.With(dir,
				fmt.Sprintf("the group %d can write in %s", above.gid, above.path)))
		case above.uid != 0 && int(above.uid) != os.Geteuid():
			all = append(all, findingAncestorOwner.With(dir, fmt.Sprintf("%s belongs to user %d", above.path, above.uid)))
		}
	}
	return all
}

// statFileSystem asks the kernel for the state of the file system of a path.
func statFileSystem(path string) (s fileSystemState, err error) {
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return s, err
	}
	defer unix.Close(fd)
	if s.name, s.local, err = fileSystem(fd); err != nil {
		return s, err
	}
	var st unix.Statfs_t
	if err := retryInterrupted(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return s, err
	}
	s.freeBytes, s.freeFiles, s.fileLimit = uint64(st.Bavail)*uint64(st.Bsize), uint64(st.Ffree), uint64(st.Files)
	s.readOnly = st.Flags&mountedReadOnly != 0
	return s, nil
}

type ancestor struct {
	path     string
	mode     uint32
	uid, gid uint32
}

// listAncestors returns the directories above dir, by its name and by its name without symbolic links, as far as they
// exist and can be seen.
func listAncestors(dir string) (all []ancestor) {
	seen := map[string]bool{}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		real = dir
	}
	for _, path := range []string{dir, real} {
		for path != filepath.Dir(path) {
			path = filepath.Dir(path)
			var st unix.Stat_t
			if !seen[path] && unix.Stat(path, &st) == nil {
				all = append(all, ancestor{path, uint32(st.Mode), st.Uid, st.Gid})
			}
			seen[path] = true
		}
	}
	return all
}

// syncParentDirs puts the name of a directory and the names of those above it on the disk, so that a power cut does
// not remove the whole store with its floor. A directory that this user cannot open was not made by this process just
// now.
func syncParentDirs(dir string) {
	for dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		if f, err := os.Open(dir); err == nil {
			_ = f.Sync()
			f.Close()
		}
	}
}
