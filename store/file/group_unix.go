//go:build linux || darwin

package file

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
)

// A store that a group shares has these modes, whatever the umask of its clients is: all members may do everything in
// it, and nobody else may do anything. By the set-group-id bit of the directories, what is made in them belongs to the
// group, too.
const (
	sharedDirMode  = 0o2770
	sharedFileMode = 0o660
)

// sharing is who may use a store besides its owner. The zero value is nobody.
type sharing struct {
	shared bool
	group  int
	// isMember asks the machine's list of users whether a user is in the group.
	isMember func(uid, group int) bool
}

// newSharing finds the group of the options.
func newSharing(o Options) (sharing, error) {
	if o.Group == "" {
		return sharing{}, nil
	}
	s := sharing{shared: true, isMember: o.isMember}
	if s.isMember == nil {
		s.isMember = isListedMember
	}
	if number, err := strconv.ParseUint(o.Group, 10, 31); err == nil {
		s.group = int(number)
		return s, nil
	}
	g, err := user.LookupGroup(o.Group)
	if err == nil {
		s.group, err = strconv.Atoi(g.Gid)
	}
	if err != nil {
		return s, fmt.Errorf("%w: there is no group %q on this machine; give a group's name, or its number",
			driver.ErrInvalid, o.Group)
	}
	return s, nil
}

// isListedMember reports whether the machine's list of users has a user in a group.
func isListedMember(uid, group int) bool {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return false
	}
	groups, err := u.GroupIds()
	return err == nil && slices.Contains(groups, strconv.Itoa(group))
}

// checkAccess refuses a store's directory if anybody can use it who should not be able to. The owner of a directory can
// let others in, so the owner of a shared one must be somebody who may take locks away in any case: root, this user, or
// a member of the group.
func (s sharing) checkAccess(st *unix.Stat_t, dir string) error {
	if !s.shared {
		return checkPrivate(st, dir)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() && !s.isMember(int(st.Uid), s.group) {
		return fmt.Errorf("%w: %s belongs to user %d, who is not known to be in the group %d and can let others in; chown "+
			"it to root or to a member", driver.ErrDenied, dir, st.Uid, s.group)
	}
	return s.checkModes(st, dir)
}

// checkPrivate refuses the directory of a store that is not shared if another user owns it or can write in it.
func checkPrivate(st *unix.Stat_t, dir string) error {
	switch {
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to user %d, this process is user %d; use a directory of its own%s",
			driver.ErrDenied, dir, st.Uid, os.Geteuid(), describeSharing(st))
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%w: other users can write to %s (mode %04o) and could remove locks; run: chmod 0700 %[2]s%[4]s",
			driver.ErrDenied, dir, st.Mode&0o7777, describeSharing(st))
	}
	return nil
}

// checkModes refuses a directory, of a shared store or in it, that is not the group's alone, or that a member could not
// use.
func (s sharing) checkModes(st *unix.Stat_t, dir string) error {
	switch mode := uint32(st.Mode) & 0o7777; {
	case int(st.Gid) != s.group:
		return fmt.Errorf("%w: %s belongs to group %d, and not to group %d; use a directory that this group shares, or a "+
			"new one", driver.ErrDenied, dir, st.Gid, s.group)
	case mode != sharedDirMode:
		return fmt.Errorf("%w: %s has mode %04o, and a directory that a group shares has %04o: for its members alone, who "+
			"all can write; use a new directory, or chmod an empty one", driver.ErrDenied, dir, mode, sharedDirMode)
	}
	return nil
}

// checkFolder is checkModes for an open directory in the store. Its owner does not matter: nobody but members can reach
// it. In a store that is not shared there is nothing to check.
func (s sharing) checkFolder(fd int, path string) error {
	if !s.shared {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return describeError("stat "+path, err)
	}
	return s.checkModes(&st, path)
}

// describeSharing says how to use a directory that looks like one that a group shares.
func describeSharing(st *unix.Stat_t) string {
	if uint32(st.Mode)&0o7777 != sharedDirMode {
		return ""
	}
	return fmt.Sprintf(", or if its group shares the locks, say so: Group, or group=%d in the URL", st.Gid)
}

// describeOpenError is describeError for the store's directory.
func (s sharing) describeOpenError(dir string, err error) error {
	if s.shared && errors.Is(err, unix.EACCES) {
		return fmt.Errorf("open %s: %w: this process is not in the group %d, or cannot enter a directory above: %w", dir,
			driver.ErrDenied, s.group, err)
	}
	return describeError("open "+dir, err)
}

// makeSharedRoot makes the directory of a store. It gets its name when it has its mode and its group: other members
// never see it otherwise, and a client that is stopped in between leaves no half-made store in their way.
func (d disk) makeSharedRoot(dir string) error {
	above, err := unix.Open(filepath.Dir(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: there is no directory %s; make it first, so that all members of the group can enter it",
			driver.ErrInvalid, filepath.Dir(dir))
	}
	if err != nil {
		return describeError("open "+filepath.Dir(dir), err)
	}
	defer unix.Close(above)
	err = d.moveSharedDir(above, "."+filepath.Base(dir)+"."+strings.ToLower(rand.Text()), filepath.Base(dir))
	switch {
	case errors.Is(err, unix.EEXIST): // another member was faster
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("make the directory %s: %w: only root and members can give it to the group %d: %w", dir,
			driver.ErrDenied, d.group, err)
	}
	return describeError("make the directory "+dir, err)
}

// makeSharedDir makes a directory that the group shares. The error is fs.ErrExist if there is one already. What a
// client that dies in between leaves has a name by which it is removed from tmp; elsewhere it does no harm.
func (d disk) makeSharedDir(dir int, name string) error {
	there, err := d.entryExists(dir, name)
	switch {
	case err != nil:
		return err
	case there: // as always, except in a new store
		return unix.EEXIST
	}
	return d.moveSharedDir(dir, strings.ToLower(rand.Text()[:noncePrefix])+"0", name)
}

// moveSharedDir makes a directory under a temporary name, shares it, and then gives it its name.
func (d disk) moveSharedDir(dir int, temporary, name string) error {
	if err := unix.Mkdirat(dir, temporary, 0o700); err != nil {
		return err
	}
	err := d.shareDir(dir, temporary)
	if err == nil {
		err = d.renameExclusive(dir, temporary, name)
	}
	if err != nil {
		_ = d.removeDir(dir, temporary)
	}
	return err
}

// shareDir gives a new directory its group and its mode.
func (d disk) shareDir(dir int, name string) error {
	fd, err := d.openDir(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int(st.Gid) != d.group {
		if err := unix.Fchown(fd, -1, d.group); err != nil {
			return err
		}
	}
	// This comes last: a change of the group may clear the set-group-id bit.
	if err := unix.Fchmod(fd, sharedDirMode); err != nil {
		return err
	}
	return d.checkFolder(fd, name)
}

// shareFile gives a new file the mode by which the group may use it.
func (d disk) shareFile(fd int) error {
	if !d.shared {
		return nil
	}
	return unix.Fchmod(fd, sharedFileMode)
}

// checkWritable refuses to write into a file that another member may have put into the store as a link to a file
// outside of it: this process may be root. A file that has no name any more is one that another client has removed
// meanwhile.
func (d disk) checkWritable(st *unix.Stat_t, name string) error {
	if d.shared && (uint32(st.Mode)&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1) {
		return fmt.Errorf("%s is not a file of its own: it is linked from elsewhere; nothing was written to it", name)
	}
	return nil
}
