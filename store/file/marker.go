package file

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// A store is recognized by a file whose name contains the version of the layout. The content of the file is for people.
const (
	markerPrefix = "holdfast.v"
	markerName   = markerPrefix + "1"
	markerText   = "This directory belongs to Holdfast, which keeps locks in it. Change nothing here while programs use them.\n"
)

// ensureMarker makes sure that the directory is a store before anything in it is touched: it has a marker, or it is
// empty, or it looks exactly like a store that was made before there were markers. In the last two cases it gets a
// marker. The marker is on the disk before anything else is made, so a power cut leaves no store without one. For an
// empty directory, ensureMarker returns errAbsent unless create is set.
func (t *table) ensureMarker(create bool) error {
	names, _, err := t.listNames(t.root)
	if err != nil {
		return describeError("list "+t.path, err)
	}
	marked, err := t.entryExists(t.root, markerName) // checked after the list, since others make the marker first
	if err != nil {
		return describeError("look into "+t.path, err)
	}
	isNewerMarker := func(name string) bool { return name != markerName && strings.HasPrefix(name, markerPrefix) }
	switch {
	case slices.ContainsFunc(names, isNewerMarker):
		return fmt.Errorf("%w: %s was %w", driver.ErrCorrupt, t.path, errFuture)
	case !marked && len(names) > 0 && !isUnmarkedStore(names):
		return fmt.Errorf("%w: %s is not empty, and is not a store of Holdfast; use a new or an empty directory, such as %s",
			driver.ErrInvalid, t.path, filepath.Join(t.path, "holdfast"))
	case !marked && len(names) == 0 && !create:
		return errAbsent
	case marked && slices.Contains(names, "clock"): // which is made last
		return nil
	}
	if err := t.writeNewFile(t.root, markerName, []byte(markerText), true); err != nil && !errors.Is(err, fs.ErrExist) {
		return describeError("mark "+t.path+" as a store", err)
	}
	return describeError("sync "+t.path, t.syncHandle(t.root))
}

// isUnmarkedStore reports whether these are the names in a store that was made before there were markers.
func isUnmarkedStore(names []string) bool {
	has := func(name string) bool { return slices.Contains(names, name) }
	isForeign := func(name string) bool {
		return !slices.Contains([]string{"locks", "clients", "tmp", "clock", brokenDir}, name)
	}
	return has("locks") && has("clients") && has("tmp") && has("clock") && !slices.ContainsFunc(names, isForeign)
}

// isOwnName reports whether a name is of the form that nonces and sessions have.
func isOwnName(name string) bool {
	if len(name) <= noncePrefix || len(name) > sessionLength {
		return false
	}
	for i := range len(name) {
		c := name[i]
		letter, digit := 'a' <= c && c <= 'z', '2' <= c && c <= '7'
		if i >= noncePrefix {
			digit = '0' <= c && c <= '9'
		}
		if !letter && !digit {
			return false
		}
	}
	return true
}
