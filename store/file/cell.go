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
	"syscall"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// cell is one record on the disk that is moved by compare-and-swap: a directory that holds its versions. No operation on
// it ever waits for another process, and the outcome of each is exact, wherever any process is stopped and for however
// long.
//
// # Layout
//
// A version's file is <incarnation>-<seq>. The incarnation is random, drawn when the record is created; seq counts from
// firstSeq. The version with the largest seq is the current one, and its content never changes. To replace version v, a client
// writes its content into a file of its own in the same directory, <v>.<nonce>, called an aside of v, and then moves
// that to the name of v+1 unless this exists (renameat2 with RENAME_NOREPLACE, or link).
//
// # Swap: why its outcome is exact
//
// The move alone does not do. Old versions have to be removed some time, so a client that was stopped before its move
// could find the name v+1 free long after some other v+1 had come and gone. Looking after the move whether v is still
// there does not do either: v may be missing because the client was late, or because its swap counted and others
// followed quickly. So it is the aside that must not survive. Two rules:
//
//  1. Who removes versions first lists the directory, knowing already before that all of them have been replaced. It
//     removes the asides of all replaced versions in that list, and then the versions, the lowest first.
//  2. Who swaps writes its aside first, then sees that v+1 does not exist, then that v does exist, and then moves.
//
// Claim: if the move succeeds, no other v+1 has ever existed, so v was current. Suppose another v+1 had been there. The
// move found its name free, so somebody removed it, having listed the directory before at some time L, when that v+1
// had been replaced. If the aside was there at L, it was removed before that v+1 was, and the move fails for want of a
// file to move. If the aside came after L, then so did the two looks of rule 2. The first found no v+1, hence after its
// removal, and v was removed before v+1 (lowest first, and everybody who removes keeps to that; v cannot have come
// again, by this very claim for v), so the second look did not find v, and there was no move. Conversely a move that
// fails because v+1 exists, or because the aside is gone, changed nothing, and v had been replaced, since only then
// are its asides removed. So done and refused are all there is, but for I/O errors.
//
// The same argument for two who remove at once: the later one's list holds all that is still there, since versions are
// never made below one that exists; so it goes lowest first as well.
//
// # Room
//
// A record that exists can be written on a disk without a free block, so that a full disk ends no lock. A new version is
// written over the file of one that is not needed any more, and there always is one: a record begins with two versions
// that were never current, reserved room under the numbers below its first one, and a swap uses up one file and makes one
// superfluous. A record that grows beyond a block grows all of these files first (see reserve), or is refused. Only a file
// system that writes over nothing (btrfs) needs free blocks all the same.
//
// # Create and delete
//
// A record is created as a directory that holds its first version, made in the tmp directory and renamed to its place. Rename
// replaces an empty directory and fails on any other, so there is one winner. A record is deleted by a swap to a version
// that says "gone". On that nothing is ever built, and whoever finds it may clear the directory away: asides, versions,
// the gone one last, then rmdir, which fails on a directory that is not empty. At every moment of that, the record reads
// as absent. A client that is stopped in between and goes on when another record stands at the same place does no harm:
// it works on the directory it opened, which is the old one, or removes by names, which have the old incarnation in them;
// and rmdir fails. So there is nothing that must not be stopped here either, and no clock is needed.
//
// # Reading
//
// List, take the largest, read it; if it has gone meanwhile (so it was replaced at least twice), list again. A removed
// version's file may also be in use for something else by then (see spares), so a version that cannot be understood
// counts as damaged only if it is still the largest in a list made after it was read: then it was current all the time,
// and nobody writes to that.
type cell struct {
	*area
	at    int    // the directory that holds the cell's
	entry string // the name of the cell's directory in it
	name  string // what the header of its versions must say; empty where only the entry is known
}

func (c cell) fits(to content) bool {
	if c.name == "" {
		return to.gone || encodeName(to.name) == c.entry
	}
	return to.name == c.name || to.gone && to.name == ""
}

// area is what all cells of a store share.
type area struct {
	fsys
	dir   string        // the store's directory, for messages
	root  int           // that directory
	tmp   int           // where new directories are made
	nonce func() string // a new name, different in all processes
	// replaced reports whether others would open another directory than this one, or others in it, or take this client for gone.
	replaced func() bool
	spare    spares
}

var errReplaced = errors.New("the store's directory, or one in it, or the file that shows that this client lives, was removed, or another stands in its place")

// outdated says that of all that is tried here, nothing reaches others any more.
func (a *area) outdated() error {
	if !a.replaced() {
		return nil
	}
	return fmt.Errorf("%w: %s: %w; close this client and open another", driver.ErrCorrupt, a.dir, errReplaced)
}

// version names one version of a record. The zero version is none.
type version struct {
	inc string
	seq uint64
}

func (v version) String() string {
	if v.inc == "" {
		return ""
	}
	return fmt.Sprintf("%s-%012x", v.inc, v.seq)
}

func (v version) next() version { return version{v.inc, v.seq + 1} }

// parseFile understands a file name in a cell's directory: a version, or an aside of one.
func parseFile(name string) (v version, aside, ok bool) {
	name, _, aside = strings.Cut(name, ".")
	inc, seq, ok := strings.Cut(name, "-")
	if !ok || inc == "" || len(seq) != 12 {
		return version{}, false, false
	}
	n, err := strconv.ParseUint(seq, 16, 64)
	return version{inc, n}, aside, err == nil
}

// found is a record as it was read.
type found struct {
	version version // none if there is no record
	content
}

func (f found) alive() bool { return f.version.inc != "" && !f.gone }

// cleanEvery is after how many versions the directory is cleaned, and how many old ones are then left to be used again:
// so seldom that the cost of the list is shared by several swaps, so often that a directory stays small.
const cleanEvery = 4

// open gives the cell's directory, or -1 if there is none.
func (c cell) open() (int, error) {
	d, err := c.openDir(c.at, c.entry)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return -1, nil
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
		return -1, fmt.Errorf("%w: %s in %s is not a directory, as Holdfast would have made it; move it away", driver.ErrCorrupt, c.entry, c.dir)
	case err != nil:
		return -1, explain("open "+c.entry, err)
	}
	return d, nil
}

// load reads the record.
func (c cell) load(ctx context.Context) (found, error) {
	d, err := c.open()
	if err != nil || d < 0 {
		return found{}, err
	}
	defer c.close(d)
	return c.newest(ctx, d)
}

// files lists the cell's directory. The kernel lists none that was removed since it was opened; nothing is in that.
func (c cell) files(d int) ([]string, error) {
	names, err := c.names(d)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, explain("list "+c.entry, err)
}

// newest reads the current version in an opened directory. With an error that Is ErrCorrupt the version is set.
func (c cell) newest(ctx context.Context, d int) (f found, damage error) {
	for {
		if err := ctx.Err(); err != nil {
			return found{}, err
		}
		names, err := c.files(d)
		if err != nil {
			return found{}, err
		}
		v := largest(names)
		if v.inc == "" {
			return found{}, nil
		}
		if damage != nil && v == f.version {
			return f, damage
		}
		f, err = c.readVersion(d, v)
		switch {
		case errors.Is(err, driver.ErrCorrupt):
			damage = err
		case !errors.Is(err, fs.ErrNotExist):
			return f, err
		}
	}
}

func largest(names []string) (newest version) {
	for _, name := range names {
		if v, aside, ok := parseFile(name); ok && !aside && (newest.inc == "" || v.seq > newest.seq) {
			newest = v
		}
	}
	return newest
}

func (c cell) readVersion(d int, v version) (found, error) {
	f := found{version: v}
	b, err := c.read(d, v.String(), maxFile)
	switch {
	case errors.Is(err, syscall.ELOOP):
		err = errors.New("it is a symbolic link")
	case err != nil:
		return f, explain("read "+c.entry, err)
	default:
		f.content, err = decodeContent(b, v)
	}
	if err == nil && !c.fits(f.content) {
		err = fmt.Errorf("it is the record of another lock, %q", f.name)
	}
	if err != nil {
		return f, fmt.Errorf("%w: file %s/%s in %s: %w; nothing was changed; if no client uses this lock, move that directory away",
			driver.ErrCorrupt, c.entry, v, c.dir, err)
	}
	return f, nil
}

// swap replaces version base, which was read as alive, and returns the new version; record.ErrConflict if base is not
// current any more. If durable, the new version is on the disk when it returns.
func (c cell) swap(ctx context.Context, base version, to content, durable bool) (version, error) {
	d, err := c.open()
	if err != nil {
		return version{}, err
	}
	if d < 0 {
		return version{}, record.ErrConflict
	}
	defer c.close(d)
	next, aside := base.next(), base.String()+"."+c.nonce()
	data := to.encode(next)
	if err = c.reserve(d, len(data)); err == nil {
		err = c.writeAside(d, base, aside, data, durable)
	}
	if err == nil {
		err = c.moveIf(ctx, d, base, aside, next)
	}
	if errors.Is(err, record.ErrConflict) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
		_ = c.remove(d, aside)
		return version{}, record.ErrConflict
	}
	if err != nil {
		_ = c.remove(d, aside)
		return version{}, explain("write "+c.entry, err)
	}
	if durable {
		// The names of the version and of its directory, which may be younger than the last time anybody cared.
		if err := cmp.Or(c.sync(d), c.sync(c.at)); err != nil {
			return version{}, c.unsynced(err)
		}
	}
	if next.seq%cleanEvery == 0 {
		c.clean(d, next)
	}
	return next, nil
}

// unsynced is the error of a write that has taken effect. It is not a final one, whatever the kernel says.
func (c cell) unsynced(err error) error {
	return fmt.Errorf("sync %s: the record was written, but may not be on the disk yet: %w", c.entry, err)
}

// firstSeq is the first version of a record. The files of those below it are room: the predecessor of a version is kept, so there
// are two of them for one to be superfluous.
const firstSeq = 2

// block is what a file system gives out at a time. Where its blocks are smaller, a file that holds less than one of these has
// room only for what it holds.
const block = 4096

func blocks(size int) int { return (size + block - 1) / block }

// roomText is what a file of reserved room begins with, for people who look.
const roomText = "room that is reserved for this record, so that it can be written on a full disk\n"

// reserve makes sure that each version's file has room for as much as is to be written now. All have at least one block.
func (c cell) reserve(d, size int) error {
	if blocks(size) <= 1 {
		return nil
	}
	names, err := c.files(d)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, aside, ok := parseFile(name); !ok || aside {
			continue
		}
		have, err := c.size(d, name)
		if err == nil && blocks(have) < blocks(size) {
			err = c.extend(d, name, blocks(size)*block)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// writeAside makes an aside of base, of an old version's file if there is one to spare. On a full disk it looks for one: a holder
// must not lose its lock for want of a block.
func (c cell) writeAside(d int, base version, aside string, data []byte, durable bool) error {
	reused, err := c.reuse(d, aside, data, durable)
	if reused {
		return err
	}
	err = c.write(d, aside, data, durable)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	_ = c.remove(d, aside)
	if there, _ := c.exists(d, base.String()); !there { // this may be another record's directory, with versions of its own
		return err
	}
	c.clean(d, base)
	if reused, again := c.reuse(d, aside, data, durable); reused {
		return again
	}
	return err
}

// reuse makes an aside of an old version's file, and reports whether there was one.
func (c cell) reuse(d int, aside string, data []byte, durable bool) (bool, error) {
	old := c.spare.claim(c.entry)
	if len(old) == 0 || c.place(d, old[0].String(), d, aside) != nil {
		return false, nil
	}
	c.spare.learn(c.entry, old[1:])
	return true, c.rewrite(d, aside, data, durable)
}

// moveIf is rule 2, but for the aside, which is there.
func (c cell) moveIf(ctx context.Context, d int, base version, aside string, next version) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if taken, err := c.exists(d, next.String()); err != nil || taken {
		return cmp.Or(err, record.ErrConflict)
	}
	if there, err := c.exists(d, base.String()); err != nil || !there {
		return cmp.Or(err, record.ErrConflict)
	}
	return c.move(d, aside, next.String())
}

// clean removes what current has made superfluous, but for its predecessor and for the last few before, which are to be
// used again: rule 1. What it can't remove now is for the next time, so no error matters.
func (c cell) clean(d int, current version) {
	names, err := c.names(d)
	if err != nil {
		return
	}
	var asides []string
	var versions []version
	for _, name := range names {
		v, aside, ok := parseFile(name)
		switch {
		case !ok:
		case aside && v.seq < current.seq:
			asides = append(asides, name)
		case !aside && v.seq+1 < current.seq:
			versions = append(versions, v)
		}
	}
	sortVersions(versions)
	use := versions[max(0, len(versions)-cleanEvery):]
	if c.clear(d, asides, versions[:len(versions)-len(use)]) == nil {
		c.spare.learn(c.entry, use)
	}
}

func sortVersions(versions []version) {
	slices.SortFunc(versions, func(a, b version) int { return cmp.Compare(a.seq, b.seq) })
}

// clear removes asides, then versions in the order given, and stops at the first that it can't remove.
func (c cell) clear(d int, asides []string, versions []version) error {
	for _, name := range asides {
		if err := c.remove(d, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, v := range versions {
		if err := c.remove(d, v.String()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// create makes the record if there is none. If there is one it returns record.ErrConflict and that record.
func (c cell) create(ctx context.Context, to content, durable bool) (found, error) {
	f := found{version: version{inc: c.nonce(), seq: firstSeq}, content: to}
	tmp := c.nonce()
	if err := c.build(tmp, f, durable); err != nil {
		c.discard(tmp, f.version)
		return found{}, explain("create "+c.entry, err)
	}
	other, err := c.install(ctx, tmp)
	if err != nil {
		c.discard(tmp, f.version)
		return other, err
	}
	// The lowest may be used at once: nobody has ever made an aside of it.
	c.spare.learn(c.entry, []version{{inc: f.version.inc}})
	if durable {
		if err := c.sync(c.at); err != nil {
			return found{}, c.unsynced(err)
		}
	}
	return f, nil
}

// build makes a directory with a first version, and the room for those that follow, in tmp.
func (c cell) build(tmp string, f found, durable bool) error {
	if err := c.mkdir(c.tmp, tmp); err != nil {
		return err
	}
	d, err := c.openDir(c.tmp, tmp)
	if err != nil {
		return err
	}
	defer c.close(d)
	data := f.encode(f.version)
	room := make([]byte, blocks(len(data))*block)
	copy(room, roomText)
	for seq := range uint64(firstSeq) {
		if err := c.write(d, version{f.version.inc, seq}.String(), room, false); err != nil {
			return err
		}
	}
	if err := c.write(d, f.version.String(), data, durable); err != nil || !durable {
		return err
	}
	return c.sync(d)
}

func (c cell) discard(tmp string, v version) {
	if d, err := c.openDir(c.tmp, tmp); err == nil {
		for seq := range v.seq + 1 {
			_ = c.remove(d, version{v.inc, seq}.String())
		}
		c.close(d)
		_ = c.removeDir(c.tmp, tmp)
	}
}

// install renames a built directory to the cell's place, clearing away what is left there of a deleted record. Late
// asides can get into the way of that again and again, but only one for each client that was stopped in a swap.
func (c cell) install(ctx context.Context, tmp string) (found, error) {
	for range 8 {
		err := c.place(c.tmp, tmp, c.at, c.entry)
		switch {
		case err == nil:
			return found{}, nil
		case errors.Is(err, fs.ErrNotExist):
			return found{}, record.ErrConflict // stopped for so long that it was swept out of tmp
		case !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTDIR):
			return found{}, explain("create "+c.entry, err)
		}
		f, err := c.bury(ctx)
		if err != nil {
			return found{}, err
		}
		if f.alive() {
			return f, record.ErrConflict
		}
	}
	return found{}, record.ErrConflict
}

// bury empties the cell's directory if no record lives there, else returns the record. In a directory without any
// version none will ever come, for a directory is put into place with one in it. So only asides can be there.
func (c cell) bury(ctx context.Context) (found, error) {
	d, err := c.open()
	if err != nil || d < 0 {
		return found{}, err
	}
	defer c.close(d)
	f, err := c.newest(ctx, d)
	if err != nil || f.alive() {
		return f, err
	}
	names, err := c.files(d) // again: rule 1 wants a list made after it was known that all is over here
	if err != nil {
		return found{}, err
	}
	var asides []string
	var versions []version
	for _, name := range names {
		v, aside, ok := parseFile(name)
		switch {
		case !ok:
			return found{}, fmt.Errorf("%w: %s in %s holds %q, which Holdfast did not make; move it away", driver.ErrCorrupt, c.entry, c.dir, name)
		case aside:
			asides = append(asides, name)
		case f.gone:
			versions = append(versions, v)
		}
	}
	sortVersions(versions)
	return found{}, explain("clear "+c.entry, c.clear(d, asides, versions))
}

// destroy deletes the record; record.ErrConflict if base is not current any more.
func (c cell) destroy(ctx context.Context, base version) error {
	if _, err := c.swap(ctx, base, content{gone: true, name: c.name}, false); err != nil {
		return err
	}
	// It is deleted. The rest is tidiness, and the next to create the record does what is left of it.
	if f, err := c.bury(context.WithoutCancel(ctx)); err == nil && !f.alive() {
		_ = c.removeDir(c.at, c.entry)
	}
	return nil
}
