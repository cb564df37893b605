package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/boot"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// newEnvironment opens a real directory. It makes the directory if there is none and create is set, and otherwise
// returns errAbsent.
func newEnvironment(dir string, o Options, create bool) (environment, error) {
	if o.Group != "" {
		return environment{}, fmt.Errorf("%w: groups of users share a store on Linux and macOS only; leave Group out (group in "+
			"a URL)", driver.ErrUnsupported)
	}
	id, err := boot.ID()
	if err != nil {
		return environment{}, fmt.Errorf("%w: %w", driver.ErrUnsupported, err)
	}
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		if !create {
			return environment{}, errAbsent
		}
		if err := makePrivateDirs(dir); err != nil {
			return environment{}, describeError("make the directory "+dir, systemError(err))
		}
	}
	root, err := openRoot(dir, o.Force)
	if err != nil {
		return environment{}, err
	}
	return environment{
		fsys:          disk{},
		rootHandle:    root,
		bootID:        id,
		readBootClock: o.Clock.Boottime,
		readWallClock: time.Now,
		syncParents:   func() { syncParentDirs(dir) },
		logger:        o.Logger,
		isReplaced:    func(handle int, name string) bool { return isPathReplaced(handle, filepath.Join(dir, name)) },
		checkFolder:   func(int, string) error { return nil }, // who may use it, it has from the store's directory
		events:        newEventHub(filepath.Join(dir, "locks")),
		create:        create,
	}, nil
}

// openPath opens a directory by its path. It follows no link in the last part.
func openPath(path string, access uint32) (int, error) {
	text, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return -1, err
	}
	var handle windows.Handle
	err = retryBusy(func() error {
		handle, err = windows.CreateFile(text, access|windows.SYNCHRONIZE, shareAll, nil, windows.OPEN_EXISTING,
			windows.FILE_FLAG_BACKUP_SEMANTICS|windows.FILE_FLAG_OPEN_REPARSE_POINT, 0)
		return err
	})
	if err != nil {
		return -1, systemError(err)
	}
	return int(handle), nil
}

// isPathReplaced reports whether an open directory was removed, or another directory exists at its path. If it was
// moved and there is none at its path, or none can be seen, no other client can open one either.
func isPathReplaced(handle int, path string) bool {
	if isRemoved(handle) {
		return true
	}
	there, err := openPath(path, toLook)
	if err != nil {
		return false
	}
	defer windows.CloseHandle(windows.Handle(there))
	var ours, theirs windows.ByHandleFileInformation
	return windows.GetFileInformationByHandle(windows.Handle(handle), &ours) == nil &&
		windows.GetFileInformationByHandle(windows.Handle(there), &theirs) == nil &&
		(ours.VolumeSerialNumber != theirs.VolumeSerialNumber ||
			ours.FileIndexHigh != theirs.FileIndexHigh || ours.FileIndexLow != theirs.FileIndexLow)
}

// isRemoved reports whether an open file or directory has no name any more.
func isRemoved(handle int) bool {
	var info struct {
		allocated, size      int64
		links                uint32
		deleted, isDirectory bool
	}
	err := windows.GetFileInformationByHandleEx(windows.Handle(handle), windows.FileStandardInfo,
		(*byte)(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	return err == nil && (info.deleted || info.links == 0) || errors.Is(err, windows.ERROR_ACCESS_DENIED)
}

// makePrivateDirs makes a directory, and those above it that do not exist, for this user alone. Administrators and the
// system have access to all files in any case. What is made in the directory takes this over.
func makePrivateDirs(dir string) error {
	if above := filepath.Dir(dir); above != dir {
		if _, err := os.Stat(above); errors.Is(err, os.ErrNotExist) {
			if err := makePrivateDirs(above); err != nil {
				return err
			}
		}
	}
	user, err := currentUser()
	if err != nil {
		return err
	}
	private, err := windows.SecurityDescriptorFromString(
		"D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;" + user.String() + ")")
	if err != nil {
		return err
	}
	text, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return err
	}
	security := windows.SecurityAttributes{SecurityDescriptor: private}
	security.Length = uint32(unsafe.Sizeof(security))
	if err := windows.CreateDirectory(text, &security); !errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		return err
	}
	return nil
}

// currentUser is the user of this process.
func currentUser() (*windows.SID, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, err
	}
	return user.User.Sid, nil
}

// openRoot opens the directory if it can be trusted.
func openRoot(dir string, force bool) (int, error) {
	handle, err := openPath(dir, toUseDir|windows.READ_CONTROL)
	if err != nil {
		return -1, describeError("open "+dir, err)
	}
	var info windows.ByHandleFileInformation
	err = systemError(windows.GetFileInformationByHandle(windows.Handle(handle), &info))
	const special = windows.FILE_ATTRIBUTE_DIRECTORY | windows.FILE_ATTRIBUTE_REPARSE_POINT
	switch {
	case err != nil:
		err = describeError("look at "+dir, err)
	case info.FileAttributes&special != windows.FILE_ATTRIBUTE_DIRECTORY:
		err = driverutil.RefuseStore(fmt.Errorf("%s is not a directory but a file or a link; give the directory itself", dir))
	default:
		err = checkTrusted(handle, dir, force)
	}
	if err != nil {
		_ = windows.CloseHandle(windows.Handle(handle))
		return -1, err
	}
	return handle, nil
}

// checkTrusted refuses a directory that others can use, or on a file system that is not known to be a local one with
// all that the store needs.
func checkTrusted(handle int, dir string, force bool) error {
	if err := checkPrivate(handle, dir); err != nil {
		return err
	}
	name, local, err := fileSystem(handle)
	switch {
	case err != nil:
		return describeError("ask for the file system of "+dir, err)
	case !local && !force:
		return fmt.Errorf("%w: the file system of %s is %s, and not known to be a local one of the kind that the store needs "+
			"(NTFS, Windows 10 version 1809 or later); use a directory on a local disk, or a server's store for several "+
			"machines; if it is one beyond doubt, set Force (force=true in a URL)", driver.ErrUnsupported, dir, name)
	}
	return nil
}

// trustedSIDs have access to all files, or stand for the owner.
var trustedSIDs = []windows.WELL_KNOWN_SID_TYPE{windows.WinLocalSystemSid, windows.WinBuiltinAdministratorsSid,
	windows.WinCreatorOwnerSid, windows.WinCreatorOwnerRightsSid}

// isTrusted reports whether somebody may change locks: this user, and those that may in any case.
func isTrusted(sid, user *windows.SID) bool {
	for _, kind := range trustedSIDs {
		if sid.IsWellKnown(kind) {
			return true
		}
	}
	return sid.Equals(user)
}

// toAlter are the rights by which somebody could remove or change locks.
const toAlter = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | fileDeleteChild | windows.DELETE |
	windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_WRITE | windows.GENERIC_ALL

const fileDeleteChild = 0x40

// checkPrivate refuses the directory of a store if another user owns it, or can write in it.
func checkPrivate(handle int, dir string) error {
	user, err := currentUser()
	if err != nil {
		return fmt.Errorf("ask who runs this process: %w", err)
	}
	rights, err := windows.GetSecurityInfo(windows.Handle(handle), windows.SE_FILE_OBJECT,
		windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return describeError("ask who may use "+dir, systemError(err))
	}
	owner, _, err := rights.Owner()
	if err != nil || !isTrusted(owner, user) {
		return fmt.Errorf("%w: %s belongs to %s, this process is %s; use a directory of its own", driver.ErrDenied, dir,
			accountName(owner), accountName(user))
	}
	list, _, err := rights.DACL()
	if err != nil || list == nil {
		return refuseOthers(dir, "everybody")
	}
	for i := range uint32(list.AceCount) {
		var entry *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(list, i, &entry); err != nil {
			return describeError("ask who may use "+dir, systemError(err))
		}
		sid := (*windows.SID)(unsafe.Pointer(&entry.SidStart))
		if entry.Header.AceType == windows.ACCESS_ALLOWED_ACE_TYPE && entry.Mask&toAlter != 0 && !isTrusted(sid, user) {
			return refuseOthers(dir, accountName(sid))
		}
	}
	return nil
}

func refuseOthers(dir, who string) error {
	return fmt.Errorf("%w: %s can write in %s and could remove locks; use a directory that does not exist yet, which is "+
		`made for this user alone, or run: icacls "%[3]s" /inheritance:r /grant:r "%%USERNAME%%:(OI)(CI)F"`,
		driver.ErrDenied, who, dir)
}

// accountName is the name of a user or a group.
func accountName(sid *windows.SID) string {
	if sid == nil {
		return "nobody"
	}
	if name, domain, _, err := sid.LookupAccount(""); err == nil {
		return domain + `\` + name
	}
	return sid.String()
}

// examineAncestors finds nothing: who may rename the directories above is not looked at here.
func examineAncestors(string) []driver.Finding { return nil }

// neededFlags has the flags of a file system on which the store works: it removes the name of an open file at once
// (FILE_SUPPORTS_POSIX_UNLINK_RENAME). Tests on a system that does not have this replace them.
var neededFlags uint32 = 0x400

// fileSystem returns the name of the file system that a directory is on, and whether it is known to be a local one on
// which the store works.
func fileSystem(handle int) (name string, local bool, err error) {
	var flags uint32
	var text [windows.MAX_PATH + 1]uint16
	err = windows.GetVolumeInformationByHandle(windows.Handle(handle), nil, 0, nil, nil, &flags, &text[0],
		uint32(len(text)))
	if err != nil {
		return "", false, systemError(err)
	}
	name = windows.UTF16ToString(text[:])
	var path [windows.MAX_LONG_PATH]uint16
	if _, err := windows.GetFinalPathNameByHandle(windows.Handle(handle), &path[0], uint32(len(path)), 0); err != nil {
		return name, false, systemError(err)
	}
	drive, err := windows.UTF16PtrFromString(filepath.VolumeName(windows.UTF16ToString(path[:])) + `\`)
	if err != nil {
		return name, false, err
	}
	kind := windows.GetDriveType(drive)
	if kind == windows.DRIVE_REMOTE {
		name += " on another machine"
	}
	return name, kind != windows.DRIVE_REMOTE && flags&neededFlags == neededFlags &&
		(name == "NTFS" || name == "ReFS"), nil
}

// mountedReadOnly is the flag of a file system on which nothing can be written.
const mountedReadOnly = windows.FILE_READ_ONLY_VOLUME

// statFileSystem asks for the state of the file system of a path.
func statFileSystem(path string) (s fileSystemState, err error) {
	handle, err := openPath(path, toLook)
	if err != nil {
		return s, err
	}
	defer windows.CloseHandle(windows.Handle(handle))
	if s.name, s.local, err = fileSystem(handle); err != nil {
		return s, err
	}
	text, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return s, err
	}
	if err := windows.GetDiskFreeSpaceEx(text, &s.freeBytes, nil, nil); err != nil {
		return s, systemError(err)
	}
	var flags uint32
	err = windows.GetVolumeInformationByHandle(windows.Handle(handle), nil, 0, nil, nil, &flags, nil, 0)
	s.readOnly = flags&mountedReadOnly != 0
	return s, systemError(err)
}

// syncParentDirs puts the name of a directory and the names of those above it on the disk, as far as this user may
// write in those: others were not made by this process just now.
func syncParentDirs(dir string) {
	for dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		if handle, err := openPath(dir, toUseDir); err == nil {
			_ = windows.FlushFileBuffers(windows.Handle(handle))
			_ = windows.CloseHandle(windows.Handle(handle))
		}
	}
}
