package file

import "slices"

// keptFiles are files of versions of one record that this client has made one after the other, up to the current one.
// Each file also keeps the name that it had when it was staged: see Kept files at versionedFile.
type keptFiles struct {
	fsys  fsys
	last  version
	made  int        // how many versions up to the last one are this client's
	files []keptFile // the lowest version first

	// Guarded by the mutex of recycledFiles.
	inUse     bool // a swap has them
	mayBeOpen bool // they are in the list of those that may be open
}

// keptFile is a file with its number and its two names.
type keptFile struct {
	seq             uint64
	version, staged string
	handle          int // -1 if it is not open
}

// keepAfter is how many versions a client makes one after the other before it keeps their files. Where clients take
// turns, each would have to remove the names that the others keep.
const keepAfter = removeEvery

// keepsFiles reports whether the file of the next version is to be kept.
func (f *knownFiles) keepsFiles() bool { return f.kept != nil && f.kept.made >= keepAfter }

// isKept reports whether name is the staged name of a kept file.
func (f *knownFiles) isKept(name string) bool {
	return f.kept != nil && slices.ContainsFunc(f.kept.files, func(k keptFile) bool { return k.staged == name })
}

// takeKept returns the file of the lowest old version, if it is kept, and is not the last file that is not needed:
// while a kept file has only its staged name, another client may remove that, and on a full disk its room would be
// lost.
func (f *knownFiles) takeKept() (file keptFile, ok bool) {
	k := f.kept
	if f.old.isEmpty() || f.old.from+2 >= k.last.seq {
		return keptFile{}, false
	}
	lowest := slices.IndexFunc(k.files, func(file keptFile) bool { return file.seq >= f.old.from })
	if lowest < 0 || k.files[lowest].seq != f.old.from {
		return keptFile{}, false
	}
	file = k.files[lowest]
	k.closeHandles(k.files[:lowest])
	k.files = slices.Delete(k.files, 0, lowest+1) // also those of lower versions, which were removed
	f.old = f.old.afterLowest()
	return file, true
}

// dropKept forgets the files that are kept now.
func (f *knownFiles) dropKept() {
	if f.kept != nil {
		f.kept.closeHandles(f.kept.files)
		f.kept.files = nil
	}
}

// closeHandles closes those of the files that are open.
func (k *keptFiles) closeHandles(files []keptFile) {
	for i := range files {
		if files[i].handle >= 0 {
			k.fsys.closeHandle(files[i].handle)
			files[i].handle = -1
		}
	}
}

// keptRecords are the kept files of all records, as far as no swap has them.
type keptRecords struct {
	byRecord  map[string]*keptFiles      // by the name of the record's directory
	mayBeOpen [maxOpenRecords]*keptFiles // those of the last records whose files were opened
	next      int                        // in mayBeOpen: the oldest
}

const (
	// maxKeptRecords is the largest number of records with kept files. Beyond it, all are forgotten: then swaps rename.
	maxKeptRecords = 256
	// maxOpenRecords is the largest number of records whose kept files stay open, about six for each.
	maxOpenRecords = 16
)

// take removes and returns the kept files of a record for a swap of version base; nil if there are none.
func (r *keptRecords) take(entry string, base version) *keptFiles {
	k := r.byRecord[entry]
	if k == nil {
		return nil
	}
	delete(r.byRecord, entry)
	if k.last != base {
		k.closeHandles(k.files)
		return nil
	}
	k.inUse = true
	return k
}

// remember replaces the kept files of a record.
func (r *keptRecords) remember(entry string, k *keptFiles) {
	if len(r.byRecord) >= maxKeptRecords {
		r.forgetAll()
	}
	if r.byRecord == nil {
		r.byRecord = map[string]*keptFiles{}
	}
	if other := r.byRecord[entry]; other != nil {
		other.closeHandles(other.files)
	}
	r.byRecord[entry], k.inUse = k, false
	if !k.mayBeOpen && slices.ContainsFunc(k.files, func(file keptFile) bool { return file.handle >= 0 }) {
		r.limitOpen(k)
	}
}

// limitOpen closes the files of another record in exchange. If a swap has these, it gives them back later, and then
// others are closed.
func (r *keptRecords) limitOpen(k *keptFiles) {
	oldest := r.mayBeOpen[r.next]
	r.mayBeOpen[r.next], k.mayBeOpen = k, true
	r.next = (r.next + 1) % len(r.mayBeOpen)
	if oldest == nil {
		return
	}
	oldest.mayBeOpen = false
	if !oldest.inUse {
		oldest.closeHandles(oldest.files)
	}
}

func (r *keptRecords) forgetAll() {
	for _, k := range r.byRecord {
		k.closeHandles(k.files)
	}
	clear(r.byRecord)
}
