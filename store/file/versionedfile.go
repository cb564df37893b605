package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// versionedFile is one record on the disk, changed by compare-and-swap. It is a directory that holds the record's
// versions, one file each. No operation on it waits for another process, and the outcome of each operation is exact,
// wherever any process is stopped and for however long.
//
// # Layout
//
// The file of a version is named <incarnation>-<seq>. The incarnation is random and is drawn when the record is
// created; seq counts up from firstSeq. The version with the largest seq is the current one, and its content never
// changes. To replace version v, a client writes the new content into a file of its own in the same directory, named
// <v>.<nonce>, and then renames that file to the name of v+1, unless this name exists (renameat2 with
// RENAME_NOREPLACE, or link). Until the rename, the file is called a staged file of v.
//
// # Swap: why its outcome is exact
//
// The rename alone is not enough. Old versions have to be removed at some time. So a client that was stopped before its
// rename could find the name v+1 free long after some other v+1 had been made and removed. To check after the rename
// that v still exists is not enough either: v may be missing because the client was late, or because its swap took
// effect and others followed quickly. Therefore it is the staged file that must not survive. There are two rules:
//
//  1. A client that removes versions first lists the directory, at a time when it already knows that all the versions
//     that it is going to remove have been replaced. It removes the staged files of all replaced versions in that list,
//     and then the versions, the lowest first.
//  2. A client that swaps writes its staged file first, then checks that v+1 does not exist, then checks that v does
//     exist, and then renames.
//
// Claim: if the rename succeeds, no other v+1 has ever existed, and so v was current.
//
// Proof: suppose that another v+1 did exist. The rename found its name free, so a client had removed it. That client
// had listed the directory before, at a time L at which that v+1 had been replaced.
//   - If the staged file existed at L, it was removed before that v+1 was, and the rename fails because its source does
//     not exist.
//   - If the staged file was written after L, then both checks of rule 2 came after L as well. The first check found no
//     v+1, so it came after the removal of v+1. And v was removed before v+1, since all clients remove the lowest
//     version first; v cannot have been made a second time, by this same claim for v. So the second check did not find
//     v, and there was no rename.
//
// Conversely, a rename that fails because v+1 exists, or because the staged file does not, changed nothing. In both
// cases v had been replaced, since staged files are removed only of versions that were. So apart from I/O errors a
// swap is either done or refused.
//
// The same argument holds for two clients that remove at the same time: the later list contains everything that is
// still there, because no version is ever made below one that exists. So the later client also removes the lowest
// first.
//
// # Kept files
//
// A client that is alone at a record keeps the files of the versions that it makes: instead of the rename, it gives
// the staged file the name v+1 as a second one (link, which fails as the rename does). The file keeps its first name,
// <w>.<nonce> of some w before v+1, and may stay open; the client writes a later version into it. Before that it
// removes the file's name as a version, by rule 1: by that name another client could take the file for itself. If it
// is there no more, the client does not use the file. To others, the first name is a staged file of w, and they remove
// it by rule 1. So a swap takes a link and a removal in place of two renames, which is about half of the work. What a
// client has left that has ended is removed likewise.
//
// Such a swap needs no checks. The claim holds for the link, too, if the client has made v itself, by a swap of its own
// after the staged name was there. Suppose that another v+1 did exist, and was removed. Its remover had listed the
// directory at a time L at which that v+1 had been replaced, so the staged name had been there before L. If it was in
// the list, it was removed before that v+1, and if not, earlier still. No client makes a name twice, so the link fails
// because its source does not exist. That says only that somebody has removed old versions; then the client swaps by
// another file, with the checks.
//
// The client itself spares the names of its kept files when it removes old versions. It does so only if the last
// version that it has made is the current one, and it uses kept files only in a swap of that version. So it has removed
// no version that could be that v+1.
//
// Linux looks for the first name of a link, and a moment later makes the link if the file still has any name. So the
// remover of that v+1 must have removed all names of the file, not just the one that the client links by. It has: the
// client has taken away the file's name as a version, so all of them are names of staged files. They are as old as the
// staged name is, or older, and the remover spares only names of files that were versions after v. A name outside of
// the store's directory, such as a copy by links has, would remain.
//
// # Room on a full disk
//
// An existing record can be written on a disk that has no free block, so that a full disk ends no lock. A new version
// is written over the file of a version that is not needed any more, and each swap leaves one: a record begins with
// two files of reserved room, under the numbers below its first version, and each swap uses up one file and makes
// another one superfluous. A record that grows beyond a block first grows all of these files (see reserveRoom), or
// its write is refused. Only a file system that never overwrites in place (btrfs) needs free blocks nevertheless.
//
// Of several clients one may have the only superfluous file. If its swap is done, or refused because another one was,
// that other swap has left a file. If its swap is given up because its context has ended or the disk is full, the
// client gives the file back, as a spare file: it renames it to the staged name of a version that never exists, so
// that nobody removes it by rule 1. Any client may rename a spare file to be its own staged file; it is the only one
// then that writes to it, since the client before has stopped. A client that finds nothing looks again for a moment,
// and then returns an error that is not final. So a client that is stopped or killed in the middle of a swap can keep
// the last file, and only then do others fail.
//
// # Create and delete
//
// A record is created as a directory that already holds its first version: the directory is made in tmp and then
// renamed to its place. Such a rename replaces an empty directory and fails on any other, so there is one winner. A
// record is deleted by a swap to a version that says "gone". Nothing is ever built on that version, and any client
// that finds it may clear the directory: first the staged files, then the versions, the gone one last, then rmdir,
// which fails on a directory that is not empty. At every moment of this, the record reads as absent. A client that is
// stopped in the middle and continues when another record exists at the same place does no harm: it works on the
// directory that it opened, which is the old one, or it removes files by names that contain the old incarnation; and
// rmdir fails. So here too a client may be stopped anywhere, and no clock is needed.
//
// # Reading
//
// A reader lists the directory, takes the largest version and reads it. If that file has been removed meanwhile (the
// version was then replaced at least twice), the reader lists again. The file of a removed version may also be in use
// for something else by then (see recycledFiles). So a version that cannot be understood counts as damaged only if it
// is still the largest one in a list made after it was read: then it was the current version during the whole read,
// and no client writes to the file of the current version.
//
// Where many clients swap at the same time, the directory can be too large to be listed by one system call. While the
// reader makes the next one, all the versions that it would have found there may be replaced and removed, and the new
// ones may have their place in the part that it has read. So a list without any version shows that there is no record
// only if it was made by one call. The largest version in a list in parts, if it can be read, was current after the
// list was begun: a lower one is removed before the one that was current then.
//
// What can be understood is what the version contained when it was current. A file contains the number of its version,
// and a client writes over files of lower numbers only: so no number is written into the file that once was the
// version of that number, not even by a swap that comes too late and is refused. A spare file has the number of a
// swap that was given up in its name. It may be written over with that number once more, since it was not the version
// of it.
type versionedFile struct {
	*storeDir
	parent   int    // handle of the directory in which the record's directory is
	dirName  string // name of the record's directory
	lockName string // the name in the header of each version; empty where only dirName is known
}

// matchesLock reports whether content belongs to this record, and is not a copy of another lock's file.
func (vf versionedFile) matchesLock(to recordContent) bool {
	if vf.lockName == "" {
		return to.deleted || encodeName(to.name) == vf.dirName
	}
	return to.name == vf.lockName || to.deleted && to.name == ""
}

// storeDir is what all records of a store share.
type storeDir struct {
	fsys
	path     string        // path of the store's directory, for messages only
	root     int           // handle of the store's directory
	tmp      int           // handle of the directory in which new directories are made
	newNonce func() string // returns a name that no other call in any process returns
	// isReplaced reports whether other clients would open another directory than this one, or other directories in it,
	// or take this client for dead.
	isReplaced func() bool
	recycled   recycledFiles
}

var errReplaced = errors.New("the store's directory, or this client's liveness file in it, was removed or replaced")

// replacedError returns an error if nothing that this client writes reaches other clients any more.
func (s *storeDir) replacedError() error {
	if !s.isReplaced() {
		return nil
	}
	return fmt.Errorf("%w: %s: %w; close this client and open another", driver.ErrCorrupt, s.path, errReplaced)
}

// version names one version of a record. The zero version is none.
type version struct {
	incarnation string
	seq         uint64
}

func (v version) String() string {
	if v.incarnation == "" {
		return ""
	}
	var buf [64]byte
	return string(v.appendTo(buf[:0]))
}

// appendTo appends the name of a version. It does not use Sprintf, which makes three allocations.
func (v version) appendTo(b []byte) []byte {
	var buf [16]byte
	seq := strconv.AppendUint(buf[:0], v.seq, 16)
	b = append(append(b, v.incarnation...), '-')
	return append(append(b, "000000000000"[len(seq):]...), seq...)
}

// stagedName is the name of a staged file of v.
func (v version) stagedName(nonce string) string {
	var buf [96]byte
	return string(append(append(v.appendTo(buf[:0]), '.'), nonce...))
}

func (v version) nextVersion() version { return version{v.incarnation, v.seq + 1} }

// parseFile parses a file name in a record's directory: that of a version, or of a staged file of it.
func parseFile(name string) (v version, staged, ok bool) {
	name, _, staged = strings.Cut(name, ".")
	inc, seq, ok := strings.Cut(name, "-")
	if !ok || inc == "" || len(seq) != 12 {
		return version{}, false, false
	}
	n, err := strconv.ParseUint(seq, 16, 64)
	return version{inc, n}, staged, err == nil
}

// storedRecord is a record as it was read.
type storedRecord struct {
	version version // the zero version if there is no record
	recordContent
}

func (f storedRecord) isLive() bool { return f.version.incarnation != "" && !f.deleted }

// removeEvery is the number of versions after which old ones are removed, and the number of old ones that are then
// kept to be recycled. It is large enough that several swaps share the cost of one list, and small enough that a
// directory stays small.
const removeEvery = 4

// openRecordDir returns a handle of the record's directory, or -1 if there is none.
func (vf versionedFile) openRecordDir() (int, error) {
	d, err := vf.openDir(vf.parent, vf.dirName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return -1, nil
	case errors.Is(err, errNotDirectory), errors.Is(err, syscall.ELOOP):
		return -1, fmt.Errorf("%w: %s in %s is not a directory, as Holdfast would have made it; move it away",
			driver.ErrCorrupt, vf.dirName, vf.path)
	case err != nil:
		return -1, describeError("open "+vf.dirName, err)
	}
	return d, nil
}

// loadRecord reads the current version.
func (vf versionedFile) loadRecord(ctx context.Context) (storedRecord, error) {
	d, err := vf.openRecordDir()
	if err != nil || d < 0 {
		return storedRecord{}, err
	}
	defer vf.closeHandle(d)
	return vf.readNewest(ctx, d)
}

// listFiles lists the record's directory. A directory that was removed after it was opened cannot be listed any more,
// and is empty.
func (vf versionedFile) listFiles(d int) (names []string, whole bool, err error) {
	names, whole, err = vf.listNames(d)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, true, nil
	}
	return names, whole, describeError("list "+vf.dirName, err)
}

// readNewest reads the current version in an opened directory. If it returns ErrCorrupt, the version is set. A damaged
// version is read again until the list shows that it was still current afterwards: see Reading at versionedFile.
func (vf versionedFile) readNewest(ctx context.Context, d int) (f storedRecord, damage error) {
	for {
		if err := ctx.Err(); err != nil {
			return storedRecord{}, err
		}
		names, whole, err := vf.listFiles(d)
		if err != nil {
			return storedRecord{}, err
		}
		v := largestVersion(names)
		switch {
		case v.incarnation == "" && whole:
			return storedRecord{}, nil
		case v.incarnation == "": // a list in parts can miss all versions: see Reading
			continue
		case damage != nil && v == f.version:
			return f, damage
		}
		f, err = vf.readVersion(d, v)
		switch {
		case errors.Is(err, driver.ErrCorrupt):
			damage = err
		case !errors.Is(err, fs.ErrNotExist):
			return f, err
		}
	}
}

// largestVersion returns the current version in a list of file names. It is the zero version if there is none.
func largestVersion(names []string) (newest version) {
	for _, name := range names {
		if v, staged, ok := parseFile(name); ok && !staged && (newest.incarnation == "" || v.seq > newest.seq) {
			newest = v
		}
	}
	return newest
}

// readVersion reads and checks the file of a version. If it returns ErrCorrupt, the version of the result is set.
func (vf versionedFile) readVersion(d int, v version) (storedRecord, error) {
	f := storedRecord{version: v}
	b, err := vf.readFile(d, v.String(), maxFileSize)
	switch {
	case errors.Is(err, syscall.ELOOP):
		err = errors.New("it is a symbolic link")
	case err != nil:
		return f, describeError("read "+vf.dirName, err)
	default:
		f.recordContent, err = decodeContent(b, v)
	}
	if err == nil && !vf.matchesLock(f.recordContent) {
		err = fmt.Errorf("it is the record of another lock, %q", f.name)
	}
	if err != nil {
		return f, fmt.Errorf("%w: file %s/%s in %s: %w; nothing was changed; "+
			"if no client uses this lock, move that directory away",
			driver.ErrCorrupt, vf.dirName, v, vf.path, err)
	}
	return f, nil
}

// swapVersion replaces version base, which was read as live, and returns the name of the new version. It returns
// record.ErrConflict if base is not current any more. If durable, the new version is on the disk when it returns.
func (vf versionedFile) swapVersion(
	ctx context.Context, base version, to recordContent, durable bool,
) (newName string, err error) {
	d, err := vf.openRecordDir()
	if err != nil {
		return "", err
	}
	if d < 0 {
		return "", record.ErrConflict
	}
	defer vf.closeHandle(d)
	files := vf.recycled.take(vf.dirName, base)
	defer func() { vf.recycled.remember(vf.dirName, &files) }()
	next := base.nextVersion()
	newName = next.String()
	buffer := fileBuffers.Get().(*[]byte)
	defer fileBuffers.Put(buffer)
	data := to.appendFile((*buffer)[:0], next)
	*buffer = slices.Grow(data, blockSize) // for padToBlocks
	data = (*buffer)[:len(data)]
	oneBlock := countReserved(len(data)) == 1
	if !oneBlock {
		files.dropKept() // as all files grow, and a kept one would never become small again
	}
	keep := files.keepsFiles() && !durable && oneBlock
	var file keptFile // of the new version, if it has another name
	done := false
	if keep {
		file, done, err = vf.moveKeptFile(ctx, d, &files, newName, data)
	}
	if !done && err == nil {
		file, err = vf.moveStagedFile(ctx, d, &files, base, newName, data, durable, keep)
	}
	if errors.Is(err, record.ErrConflict) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
		return "", record.ErrConflict
	}
	if err != nil {
		return "", describeError("write "+vf.dirName, err)
	}
	vf.noteMade(&files, next, newName, file)
	// Without durable nothing is synced. After a power cut the record may then be old, torn or missing, but so are the
	// processes that relied on it; what outlives a power cut is the clock's floor, which is synced, and detached
	// claims, which are written as durable.
	if durable {
		// Also sync the name of the record's directory: the client that made it may not have needed it durable.
		if err := cmp.Or(vf.syncHandle(d), vf.syncHandle(vf.parent)); err != nil {
			return "", vf.unsyncedError(err)
		}
	}
	if next.seq%removeEvery == 0 {
		vf.removeOldVersions(d, next, &files)
	}
	return newName, nil
}

// noteMade notes that this client has made a version, the one after the last if there are kept files. The new file is
// kept if it has a staged name.
func (vf versionedFile) noteMade(files *knownFiles, v version, name string, file keptFile) {
	if files.kept == nil {
		files.kept = &keptFiles{fsys: vf.fsys}
	}
	k := files.kept
	k.last = v
	k.made++
	if file.staged != "" {
		file.seq, file.version = v.seq, name
		k.files = append(k.files, file)
	}
}

// moveKeptFile swaps by the file of the lowest old version, if that is kept, and returns the file if it still is. If it
// is not done and returns no error, it has changed no version, and the swap has to go by another file.
func (vf versionedFile) moveKeptFile(
	ctx context.Context, d int, files *knownFiles, next string, data []byte,
) (file keptFile, done bool, err error) {
	file, ok := files.takeKept()
	if !ok {
		return keptFile{}, false, nil
	}
	switch {
	case vf.removeFile(d, file.version) != nil: // else another client could take the file for itself, by that name
		files.old = versionRun{} // rule 1 does not allow to skip a version
	case vf.writeKeptFile(d, &file, data) != nil:
	default:
		kept := false
		if err = ctx.Err(); err == nil {
			kept, err = vf.nameVersion(d, file.staged, next, true)
		}
		if kept {
			return file, true, nil
		}
		done = err == nil
	}
	if file.handle >= 0 {
		vf.closeHandle(file.handle)
	}
	if !done {
		_ = vf.removeFile(d, file.staged)
	}
	if errors.Is(err, fs.ErrNotExist) { // another client has removed it, which does not say that the swap comes too late
		err = nil
	}
	return keptFile{}, done, err
}

// writeKeptFile writes over a kept file, and opens it if necessary.
func (vf versionedFile) writeKeptFile(d int, file *keptFile, data []byte) (err error) {
	if file.handle < 0 {
		if file.handle, err = vf.openFile(d, file.staged); err != nil {
			return err
		}
	}
	return vf.overwriteHandle(file.handle, data)
}

// moveStagedFile swaps by a new staged file. If keep is set, it returns the file with that name, where this is
// possible.
func (vf versionedFile) moveStagedFile(
	ctx context.Context, d int, files *knownFiles, base version, next string, data []byte, durable, keep bool,
) (file keptFile, err error) {
	staged := base.stagedName(vf.newNonce())
	if err = vf.reserveRoom(d, len(data)); err == nil {
		err = vf.stageVersion(ctx, d, files, base, staged, data, durable)
	}
	kept := false
	if err == nil {
		kept, err = vf.moveIfCurrent(ctx, d, staged, next, keep)
	}
	switch {
	case isDiskFull(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		_ = vf.giveBackFile(d, staged, base.nextVersion())
	case err != nil: // refused; or an I/O error, in spite of which the file may be the new version: nobody may write over it
		_ = vf.removeFile(d, staged)
	case kept:
		file = keptFile{staged: staged, handle: -1}
	}
	return file, err
}

// fileBuffers has the memory in which swaps make the files that they write.
var fileBuffers = sync.Pool{New: func() any { return new([]byte) }}

// unsyncedError is the error of a write that took effect but may not be on the disk. It is never one of the driver's
// final errors, whatever the kernel's error is, because those say that nothing was changed.
func (vf versionedFile) unsyncedError(err error) error {
	return fmt.Errorf("sync %s: the record was written, but may not be on the disk yet: %w", vf.dirName, err)
}

// firstSeq is the number of a record's first version. The files under the numbers below it are reserved room. The
// predecessor of the current version is always kept, so there must be two of them for one to be superfluous.
const firstSeq = 2

// blockSize is the unit in which most file systems allocate room, in bytes. Where blocks are smaller, each file is made
// as large, so that later versions fit nevertheless.
const blockSize = 4096

func countBlocks(size int) int { return (size + blockSize - 1) / blockSize }

// padToBlocks appends zero bytes, so that a file with the data has all the blocks that it needs. A reader ignores them.
func padToBlocks(data []byte) []byte {
	size := countReserved(len(data)) * blockSize
	padded := slices.Grow(data, size-len(data))[:size]
	clear(padded[len(data):])
	return padded
}

func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// roomText is the beginning of a file of reserved room, for people who look into it.
const roomText = "room that is reserved for this record, so that it can be written on a full disk\n"

// countReserved is how many blocks each file of a record has that holds size bytes: a few more bytes fit, because the
// numbers in a record grow as its claims are renewed.
func countReserved(size int) int { return countBlocks(size + size/16) }

// reserveRoom makes the file of each version large enough for what is written now, so that later versions of the same
// size fit even on a full disk. All files have at least one block from the beginning.
func (vf versionedFile) reserveRoom(d, size int) error {
	blocks := countReserved(size)
	if blocks <= 1 {
		return nil
	}
	names, _, err := vf.listFiles(d)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, staged, ok := parseFile(name); !ok || staged {
			continue
		}
		have, err := vf.fileSize(d, name)
		if err == nil && have < blocks*blockSize {
			err = vf.extendFile(d, name, blocks*blockSize)
		}
		if isDiskFull(err) && countBlocks(have) >= countBlocks(size) { // this version fits
			err = nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// stageVersion writes a staged file of base: into the file of an old version if this client knows of one, or if there
// are many, and otherwise into a new file. If the disk is full, any file that is not needed will do: a holder must not
// lose its lock because no block is free.
func (vf versionedFile) stageVersion(
	ctx context.Context, d int, files *knownFiles, base version, staged string, data []byte, durable bool,
) error {
	reused, err := vf.stageInRecycledFile(d, files, base, staged, data, durable)
	if reused && !isDiskFull(err) {
		return err
	}
	// Here other clients write the record as well, or it is new. A swap that comes too late writes nothing: this check
	// comes before those of rule 2, in place of none of them.
	if taken, err := vf.entryExists(d, base.nextVersion().String()); err == nil && taken {
		return record.ErrConflict
	}
	// To look for old versions costs less than a new file. If base is gone, the directory may be that of a later
	// record, with versions of its own.
	if there, _ := vf.entryExists(d, base.String()); there && vf.removeOldVersions(d, base, files) >= removeEvery {
		reused, err = vf.stageInRecycledFile(d, files, base, staged, data, durable)
		if reused && !isDiskFull(err) {
			return err
		}
	}
	if err = vf.writeNewFile(d, staged, padToBlocks(data), durable); !isDiskFull(err) {
		return err
	}
	// The new file took no block, or not all that it needs. Its name goes first, so that it cannot be taken for one
	// that is complete.
	_ = vf.removeFile(d, staged)
	return vf.stageOnFullDisk(ctx, d, files, base, staged, data, durable)
}

// fullDiskTries is how often a swap looks for a file that is not needed, some milliseconds apart, while others have all
// of them in their swaps. Such a swap takes less than a millisecond as a rule.
const fullDiskTries = 8

// stageOnFullDisk writes a staged file of base over any file that is not needed.
func (vf versionedFile) stageOnFullDisk(
	ctx context.Context, d int, files *knownFiles, base version, staged string, data []byte, durable bool,
) error {
	for try := range fullDiskTries {
		if try > 0 {
			time.Sleep(time.Duration(try) * time.Millisecond)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		taken, err := vf.entryExists(d, base.nextVersion().String())
		there, err2 := vf.entryExists(d, base.String())
		if err = cmp.Or(err, err2); err != nil || taken || !there {
			return cmp.Or(err, record.ErrConflict)
		}
		vf.removeOldVersions(d, base, files)
		for reused := true; reused; {
			reused, err = vf.stageInRecycledFile(d, files, base, staged, data, durable)
			if reused && !isDiskFull(err) {
				return err
			}
		}
		names, _, err := vf.listFiles(d)
		if err != nil {
			return err
		}
		for _, name := range names {
			if !isSpareFor(name, base) || vf.renameEntry(d, name, d, staged) != nil {
				continue
			}
			if err := vf.overwriteStaged(d, base, staged, data, durable); !isDiskFull(err) {
				return err
			}
		}
	}
	return errNoSpareFile
}

// errNoSpareFile says that a swap has found no file that it could write over. It is not final: each swap of another
// client leaves such a file.
var errNoSpareFile = noSpareFile{}

type noSpareFile struct{}

func (noSpareFile) Error() string {
	return "the disk or the quota is full, and other clients are using the room that is reserved for this lock: make room"
}

func (noSpareFile) Is(target error) bool {
	return target == record.ErrUnsent || target == syscall.ENOSPC
}

// spareSeq is the number of a version that never exists. Staged files of it are spare files.
const spareSeq = 1<<48 - 1

// maxSpareFiles is how many spare files a record keeps. On a disk with room nobody needs them.
const maxSpareFiles = 2

// giveBackFile makes a staged file, to which this client will not write any more, a spare file. The name says that last
// may have been written to it.
func (vf versionedFile) giveBackFile(d int, staged string, last version) error {
	spare := version{last.incarnation, spareSeq}.stagedName(strconv.FormatUint(last.seq, 16) + "." + vf.newNonce())
	if err := vf.renameEntry(d, staged, d, spare); err != nil {
		return vf.removeFile(d, staged)
	}
	return nil
}

// isSpareFor reports whether name belongs to a spare file that may be written over in a swap of base. A larger number
// than that of the new version must not have been written to it: see Reading at versionedFile.
func isSpareFor(name string, base version) bool {
	v, staged, ok := parseFile(name)
	if !ok || !staged || v != (version{base.incarnation, spareSeq}) {
		return false
	}
	_, rest, _ := strings.Cut(name, ".")
	number, _, _ := strings.Cut(rest, ".")
	last, err := strconv.ParseUint(number, 16, 64)
	return err == nil && last <= base.seq+1
}

// stageInRecycledFile writes a staged file into the file of an old version, and reports whether there was one.
func (vf versionedFile) stageInRecycledFile(
	d int, files *knownFiles, base version, staged string, data []byte, durable bool,
) (bool, error) {
	old := files.old
	files.old = versionRun{}
	if old.isEmpty() || vf.renameEntry(d, old.lowest().String(), d, staged) != nil {
		return false, nil
	}
	files.old = old.afterLowest()
	return true, vf.overwriteStaged(d, base, staged, data, durable)
}

// overwriteStaged writes a staged file of base over a file that has that name already. If the disk is full, and the
// file has less room than this version needs, it becomes a spare file.
func (vf versionedFile) overwriteStaged(d int, base version, staged string, data []byte, durable bool) error {
	err := vf.overwriteFile(d, staged, data, durable)
	if isDiskFull(err) {
		_ = vf.giveBackFile(d, staged, base.nextVersion())
	}
	return err
}

// moveIfCurrent does the rest of rule 2 once the staged file is written: it checks that next does not exist, then that
// the version that the file is staged for does, and then renames or links. The order of the two checks matters: see the
// proof at versionedFile.
func (vf versionedFile) moveIfCurrent(
	ctx context.Context, d int, staged, next string, keep bool,
) (kept bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if taken, err := vf.entryExists(d, next); err != nil || taken {
		return false, cmp.Or(err, record.ErrConflict)
	}
	base, _, _ := strings.Cut(staged, ".")
	if there, err := vf.entryExists(d, base); err != nil || !there {
		return false, cmp.Or(err, record.ErrConflict)
	}
	return vf.nameVersion(d, staged, next, keep)
}

// nameVersion gives a staged file the name of the next version: as a second one if keep is set and this is possible,
// and otherwise instead of the first.
func (vf versionedFile) nameVersion(d int, staged, next string, keep bool) (kept bool, err error) {
	if keep {
		if err := vf.linkFile(d, staged, next); !errors.Is(err, errors.ErrUnsupported) {
			return err == nil, err
		}
	}
	return false, vf.renameExclusive(d, staged, next)
}

// removeOldVersions removes, by rule 1, what current has made superfluous, except its predecessor and the last few
// versions before that, which are to be recycled. It returns how many those are. What it cannot remove now is left to
// the next call, so it returns no error.
func (vf versionedFile) removeOldVersions(d int, current version, files *knownFiles) (kept int) {
	names, _, err := vf.listNames(d)
	if err != nil {
		return 0
	}
	var stagedFiles []string
	versions := make([]version, 0, 3*removeEvery) // of a fixed number, which takes no allocation
	spare := 0
	for _, name := range names {
		v, staged, ok := parseFile(name)
		switch {
		case !ok:
		case staged && v.seq == spareSeq:
			if spare++; spare > maxSpareFiles {
				stagedFiles = append(stagedFiles, name)
			}
		case staged && v.seq < current.seq && !files.isKept(name):
			stagedFiles = append(stagedFiles, name)
		case !staged && v.seq+1 < current.seq:
			versions = append(versions, v)
		}
	}
	sortVersions(versions)
	use := versions[max(0, len(versions)-removeEvery):]
	if vf.removeFiles(d, stagedFiles, versions[:len(versions)-len(use)]) != nil {
		return 0
	}
	if files.old = runOf(use); files.old.incarnation == current.incarnation {
		files.old.incarnation = current.incarnation // the other one is a part of the whole list
	}
	return len(use)
}

func sortVersions(versions []version) {
	slices.SortFunc(versions, func(a, b version) int { return cmp.Compare(a.seq, b.seq) })
}

// removeFiles removes staged files, then versions in the order given. It stops at the first file that it cannot remove:
// rule 1 does not allow it to skip one.
func (vf versionedFile) removeFiles(d int, stagedFiles []string, versions []version) error {
	for _, name := range stagedFiles {
		if err := vf.removeFile(d, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, v := range versions {
		if err := vf.removeFile(d, v.String()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// createRecord creates the record if there is none. If there is one, it returns that record and record.ErrConflict.
func (vf versionedFile) createRecord(ctx context.Context, to recordContent, durable bool) (storedRecord, error) {
	// A client that has not read the record begins here, and in most cases it is there: to look costs one call, and to
	// build a directory without effect costs ten that change the disk.
	if there, err := vf.clearDeletedRecord(ctx); err != nil {
		return storedRecord{}, err
	} else if there.isLive() {
		return there, record.ErrConflict
	}
	f := storedRecord{version: version{incarnation: vf.newNonce(), seq: firstSeq}, recordContent: to}
	tmp := vf.newNonce()
	if err := vf.buildRecordDir(tmp, f, durable); err != nil {
		vf.discardRecordDir(tmp, f.version)
		return storedRecord{}, describeError("create "+vf.dirName, err)
	}
	other, err := vf.installRecordDir(ctx, tmp)
	if err != nil {
		vf.discardRecordDir(tmp, f.version)
		return other, err
	}
	// The lowest file may be recycled at once: no client has ever made a staged file of that version.
	files := knownFiles{old: versionRun{incarnation: f.version.incarnation, below: 1}}
	vf.noteMade(&files, f.version, "", keptFile{})
	vf.recycled.remember(vf.dirName, &files)
	if durable {
		if err := vf.syncHandle(vf.parent); err != nil {
			return storedRecord{}, vf.unsyncedError(err)
		}
	}
	return f, nil
}

// buildRecordDir makes a directory in tmp that holds the first version and the room for those that follow.
func (vf versionedFile) buildRecordDir(tmp string, f storedRecord, durable bool) error {
	if err := vf.makeDir(vf.tmp, tmp); err != nil {
		return err
	}
	d, err := vf.openDir(vf.tmp, tmp)
	if err != nil {
		return err
	}
	defer vf.closeHandle(d)
	data := f.encodeFile(f.version)
	room := make([]byte, countBlocks(len(data))*blockSize)
	copy(room, roomText)
	for seq := range uint64(firstSeq) {
		if err := vf.writeNewFile(d, version{f.version.incarnation, seq}.String(), room, false); err != nil {
			return err
		}
	}
	if err := vf.writeNewFile(d, f.version.String(), padToBlocks(data), durable); err != nil || !durable {
		return err
	}
	return vf.syncHandle(d)
}

// discardRecordDir removes a directory in tmp that was not put into place. If that fails, removeOldTmp does it later.
func (vf versionedFile) discardRecordDir(tmp string, v version) {
	if d, err := vf.openDir(vf.tmp, tmp); err == nil {
		for seq := range v.seq + 1 {
			_ = vf.removeFile(d, version{v.incarnation, seq}.String())
		}
		vf.closeHandle(d)
		_ = vf.removeDir(vf.tmp, tmp)
	}
}

// installRecordDir renames a built directory to the record's place, after it has cleared what is left there of a
// deleted record. Late staged files can prevent the rename several times, but only once per client that was stopped
// in a swap.
func (vf versionedFile) installRecordDir(ctx context.Context, tmp string) (storedRecord, error) {
	for range 8 {
		err := vf.renameEntry(vf.tmp, tmp, vf.parent, vf.dirName)
		switch {
		case err == nil:
			return storedRecord{}, nil
		case errors.Is(err, fs.ErrNotExist):
			// This client was stopped for so long that its directory was removed from tmp.
			return storedRecord{}, record.ErrConflict
		case !errors.Is(err, fs.ErrExist) && !errors.Is(err, errNotDirectory):
			return storedRecord{}, describeError("create "+vf.dirName, err)
		}
		f, err := vf.clearDeletedRecord(ctx)
		if err != nil {
			return storedRecord{}, err
		}
		if f.isLive() {
			return f, record.ErrConflict
		}
	}
	return storedRecord{}, record.ErrConflict
}

// clearDeletedRecord empties the record's directory if the record is deleted, and otherwise returns the record. A
// directory without any version never gets one, because a directory is put into place with a version in it. So it can
// contain only staged files.
func (vf versionedFile) clearDeletedRecord(ctx context.Context) (storedRecord, error) {
	d, err := vf.openRecordDir()
	if err != nil || d < 0 {
		return storedRecord{}, err
	}
	defer vf.closeHandle(d)
	f, err := vf.readNewest(ctx, d)
	if err != nil || f.isLive() {
		return f, err
	}
	names, _, err := vf.listFiles(d) // a second list: rule 1 needs one made after the record was known to be deleted
	if err != nil {
		return storedRecord{}, err
	}
	var stagedFiles []string
	var versions []version
	for _, name := range names {
		v, staged, ok := parseFile(name)
		switch {
		case !ok:
			return storedRecord{}, fmt.Errorf("%w: %s in %s holds %q, which Holdfast did not make; move it away",
				driver.ErrCorrupt, vf.dirName, vf.path, name)
		case staged:
			stagedFiles = append(stagedFiles, name)
		case f.deleted:
			versions = append(versions, v)
		}
	}
	sortVersions(versions)
	return storedRecord{}, describeError("clear "+vf.dirName, vf.removeFiles(d, stagedFiles, versions))
}

// deleteRecord deletes the record. It returns record.ErrConflict if base is not current any more.
func (vf versionedFile) deleteRecord(ctx context.Context, base version) error {
	if _, err := vf.swapVersion(ctx, base, recordContent{deleted: true, name: vf.lockName}, false); err != nil {
		return err
	}
	// The record is deleted now. If the directory cannot be removed, the next client that creates the record does it.
	if f, err := vf.clearDeletedRecord(context.WithoutCancel(ctx)); err == nil && !f.isLive() {
		_ = vf.removeDir(vf.parent, vf.dirName)
	}
	_ = vf.recycled.take(vf.dirName, version{}) // closes its files
	return nil
}
