package file

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// localTypes are the file systems that are known to provide what this store needs: one kernel orders all renames,
// flock works between all processes, and fsync puts the data on the disk.
var localTypes = map[uint32]string{
	unix.EXT4_SUPER_MAGIC:      "ext2, ext3 or ext4",
	unix.XFS_SUPER_MAGIC:       "xfs",
	unix.BTRFS_SUPER_MAGIC:     "btrfs",
	unix.F2FS_SUPER_MAGIC:      "f2fs",
	unix.BCACHEFS_SUPER_MAGIC:  "bcachefs",
	unix.TMPFS_MAGIC:           "tmpfs",
	unix.RAMFS_MAGIC:           "ramfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs",
	0x2fc12fc1:                 "zfs",
	0x3153464a:                 "jfs",
	0x52654973:                 "reiserfs",
}

// sharedTypes are the file systems whose names the error shows. They are refused like unknown ones.
var sharedTypes = map[uint32]string{
	unix.NFS_SUPER_MAGIC:  "nfs",
	unix.CIFS_SUPER_MAGIC: "cifs",
	unix.SMB_SUPER_MAGIC:  "smb",
	unix.SMB2_SUPER_MAGIC: "smb",
	unix.FUSE_SUPER_MAGIC: "fuse",
	unix.V9FS_MAGIC:       "9p",
	unix.CEPH_SUPER_MAGIC: "ceph",
	unix.AFS_SUPER_MAGIC:  "afs",
	unix.CODA_SUPER_MAGIC: "coda",
	0x01161970:            "gfs2",
	0x7461636f:            "ocfs2",
	0x0bd00bd0:            "lustre",
	0x47504653:            "gpfs",
	0x786f4256:            "vboxsf",
}

// mountedReadOnly is the flag of a file system that is mounted read-only.
const mountedReadOnly = unix.ST_RDONLY

// fileSystem returns the name of the file system that a directory is on, and whether it is known to be a local one.
func fileSystem(fd int) (name string, local bool, err error) {
	var st unix.Statfs_t
	if err := retryInterrupted(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return "", false, err
	}
	name, local = fileSystemKind(uint32(st.Type))
	return name, local, nil
}

func fileSystemKind(magic uint32) (name string, local bool) {
	if name, ok := localTypes[magic]; ok {
		return name, true
	}
	if name, ok := sharedTypes[magic]; ok {
		return name, false
	}
	return fmt.Sprintf("of an unknown type (0x%x)", magic), false
}
