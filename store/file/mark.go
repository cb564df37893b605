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

// A store is known by a file whose name says how it is laid out. What is in the file is for people.
const (
	markStem = "holdfast.v"
	mark     = markStem + "1"
	markText = "This directory belongs to Holdfast, which keeps locks in it. Change nothing here while programs use them.\n"
)

// mark makes sure that the directory is a store's before anything in it is touched: it has a mark, or it is empty, or it
// looks just like those that were made before there were marks; the latter two get theirs. The mark is on the disk before
// anything else is made, so a power cut leaves no store without one. An empty directory is errAbsent unless a store is to
// be made.
func (t *table) mark(create bool) error {
	names, err := t.names(t.root)
	if err != nil {
		return explain("list "+t.dir, err)
	}
	marked, err := t.exists(t.root, mark) // after the list: what others make there comes after their mark
	if err != nil {
		return explain("look into "+t.dir, err)
	}
	future := func(name string) bool { return name != mark && strings.HasPrefix(name, markStem) }
	switch {
	case slices.ContainsFunc(names, future):
		return fmt.Errorf("%w: %s was %w", driver.ErrCorrupt, t.dir, errFuture)
	case !marked && len(names) > 0 && !unmarked(names):
		return fmt.Errorf("%w: %s is not empty, and no store of Holdfast's; use a new or an empty directory, such as %s",
			driver.ErrInvalid, t.dir, filepath.Join(t.dir, "holdfast"))
	case !marked && len(names) == 0 && !create:
		return errAbsent
	case marked && slices.Contains(names, "clock"): // which comes last
		return nil
	}
	if err := t.write(t.root, mark, []byte(markText), true); err != nil && !errors.Is(err, fs.ErrExist) {
		return explain("mark "+t.dir+" as a store", err)
	}
	return explain("sync "+t.dir, t.sync(t.root))
}

// unmarked reports whether these are the names in a store that was made before there were marks.
func unmarked(names []string) bool {
	has := func(name string) bool { return slices.Contains(names, name) }
	foreign := func(name string) bool {
		return !slices.Contains([]string{"locks", "clients", "tmp", "clock", "broken"}, name)
	}
	return has("locks") && has("clients") && has("tmp") && has("clock") && !slices.ContainsFunc(names, foreign)
}

// ownName reports whether a name is of the form that nonces and sessions have.
func ownName(name string) bool {
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
