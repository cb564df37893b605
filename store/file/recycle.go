package file

import (
	"slices"
	"sync"
)

// recycledFiles remembers which old versions this client may write its next staged files over. To create and to
// remove a file is most of what a swap costs. So the file of an old version is renamed to be the next staged file and
// is written over. On ext4, this makes a swap two to four times as fast (BenchmarkTableSwap: 0.2 ms instead of 0.6
// ms).
//
// That rename removes the old version, and it keeps rule 1 of versionedFile: the versions in here come from a list
// that was made after all of them had been replaced; the staged files in that list have been removed; the lowest
// version is taken first; and all versions below it had been removed before. An entry becomes outdated when another
// client removes the version first. Then the rename fails, and all entries of that record are forgotten.
//
// A client that is alone at a record does not rename: see Kept files at versionedFile.
//
// A reader may have opened the file before it was taken, and then reads another version or a mixture of two. It detects
// this, because a file contains its version and a checksum, and it then lists the directory again (see Reading at
// versionedFile).
type recycledFiles struct {
	mu       sync.Mutex
	byRecord map[string]versionRun // by the name of the record's directory
	kept     map[string]*keptFiles // likewise
}

// knownFiles is what a swap knows of the files of its record.
type knownFiles struct {
	old  versionRun // may be written over
	kept *keptFiles // nil if this client has not made the version that is swapped
}

// keptFiles are files of versions that this client has made one after the other, up to the current one. Each file also
// keeps the name that it had when it was staged: see Kept files at versionedFile.
type keptFiles struct {
	last  version
	made  int        // how many versions up to the last one are this client's
	files []keptFile // the lowest version first
}

// keptFile is a file with its number and its two names.
type keptFile struct {
	seq             uint64
	version, staged string
}

// keepAfter is how many versions a client makes one after the other before it keeps their files. Where clients take turns,
// each would have to remove the names that the others keep.
const keepAfter = removeEvery

// keepsFiles reports whether the file of the next version is to be kept.
func (f *knownFiles) keepsFiles() bool { return f.kept != nil && f.kept.made >= keepAfter }

// isKept reports whether name is the staged name of a kept file.
func (f *knownFiles) isKept(name string) bool {
	return f.kept != nil && slices.ContainsFunc(f.kept.files, func(k keptFile) bool { return k.staged == name })
}

// takeKept returns the file of the lowest old version, if it is kept.
func (f *knownFiles) takeKept() (file keptFile, ok bool) {
	if f.old.isEmpty() {
		return keptFile{}, false
	}
	k := f.kept
	lowest := slices.IndexFunc(k.files, func(file keptFile) bool { return file.seq >= f.old.from })
	if lowest < 0 || k.files[lowest].seq != f.old.from {
		return keptFile{}, false
	}
	file = k.files[lowest]
	k.files = slices.Delete(k.files, 0, lowest+1) // also those of lower versions, which were removed
	f.old = f.old.afterLowest()
	return file, true
}

// noteMade notes that this client has made a version, the one after the last if there are kept files. If the new file is
// kept, staged is its other name.
func (f *knownFiles) noteMade(v version, name, staged string) {
	if f.kept == nil {
		f.kept = &keptFiles{}
	}
	f.kept.last = v
	f.kept.made++
	if staged != "" {
		f.kept.files = append(f.kept.files, keptFile{v.seq, name, staged})
	}
}

// versionRun is versions of one incarnation, each the next of the one before: from one number, and below another. Most
// locks of a process with very many have one, so it is small.
type versionRun struct {
	incarnation string
	from, below uint64
}

// runOf returns the run with which a sorted list of versions begins.
func runOf(versions []version) (r versionRun) {
	for _, v := range versions {
		switch {
		case r.isEmpty():
			r = versionRun{incarnation: v.incarnation, from: v.seq, below: v.seq + 1}
		case v.incarnation != r.incarnation || v.seq != r.below:
			return r
		default:
			r.below++
		}
	}
	return r
}

func (r versionRun) isEmpty() bool   { return r.from == r.below }
func (r versionRun) lowest() version { return version{r.incarnation, r.from} }

// afterLowest returns the run without its lowest version.
func (r versionRun) afterLowest() versionRun { return versionRun{r.incarnation, r.from + 1, r.below} }

const (
	// maxRecycledRecords is the largest number of records with entries. Beyond it, all entries are forgotten, which only
	// means that new files are made.
	maxRecycledRecords = 1 << 14
	// maxKeptRecords is the largest number of records with kept files. Beyond it, all are forgotten: then swaps rename.
	maxKeptRecords = 256
)

// take removes and returns what is known of a record for a swap of version base, so that two goroutines never use two
// versions in the wrong order, and never write one file.
func (s *recycledFiles) take(entry string, base version) (f knownFiles) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f = knownFiles{old: s.byRecord[entry], kept: s.kept[entry]}
	if f.kept != nil && f.kept.last != base {
		f.kept = nil
	}
	delete(s.byRecord, entry)
	delete(s.kept, entry)
	return f
}

// remember replaces what is known of a record. The old versions must keep rule 1: see recycledFiles.
func (s *recycledFiles) remember(entry string, f *knownFiles) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byRecord == nil {
		s.byRecord, s.kept = map[string]versionRun{}, map[string]*keptFiles{}
	}
	if len(s.byRecord) >= maxRecycledRecords {
		clear(s.byRecord)
	}
	if !f.old.isEmpty() {
		s.byRecord[entry] = f.old
	}
	if len(s.kept) >= maxKeptRecords {
		clear(s.kept)
	}
	if f.kept != nil {
		s.kept[entry] = f.kept
	}
}
