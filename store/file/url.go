package file

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() { driver.Register("file", openURL, storeurl.Describe((*storeURL).form)) }

// storeURL is what a URL says.
type storeURL struct {
	path string // without the slash at its beginning
	opts Options
}

func (s *storeURL) form() *storeurl.Form {
	return &storeurl.Form{
		Shape: "file:///absolute/directory",
		Path:  &s.path,
		Options: []storeurl.Option{
			{Name: "force", To: storeurl.Bool(&s.opts.Force),
				Means: "use the directory although its file system is not known to be a local one"},
			{Name: "group", To: storeurl.Func("text", s.readGroup),
				Means: "the name or the number of a group of users who share the store"},
		},
	}
}

func (s *storeURL) readGroup(text string) error {
	if s.opts.Group = text; text == "" {
		return errors.New("give a group's name or number, or leave the option out")
	}
	return nil
}

func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	var s storeURL
	if err := s.form().Read(u); err != nil {
		return nil, err
	}
	return New(ctx, directoryOf(s.path), &s.opts)
}

// directoryOf is the directory of a URL's path, which has lost the slash at its beginning: before a drive of Windows
// there is none.
func directoryOf(path string) string {
	if dir := filepath.FromSlash(path); filepath.VolumeName(dir) != "" {
		return dir
	}
	return filepath.FromSlash("/" + path)
}
