package file

import "golang.org/x/sys/unix"

// mountedReadOnly is the flag of a file system that is mounted read-only.
const mountedReadOnly = unix.MNT_RDONLY

// fileSystem returns the name of the file system that a directory is on, and whether it is known to be a local one.
func fileSystem(fd int) (name string, local bool, err error) {
	var st unix.Statfs_t
	if err := retryInterrupted(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return "", false, err
	}
	name = unix.ByteSliceToString(st.Fstypename[:])
	return name, st.Flags&unix.MNT_LOCAL != 0 && (name == "apfs" || name == "hfs"), nil
}
