package file

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

func init() { driver.Register("file", openURL) }

func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	if u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) {
		return nil, fmt.Errorf("%w: a file store's URL is file:///absolute/directory, with three slashes",
			driver.ErrInvalid)
	}
	var o Options
	err := driverutil.ParseOptions(u, map[string]func(string) error{
		"force": func(value string) (err error) { o.Force, err = strconv.ParseBool(value); return err },
		"group": func(value string) error {
			if o.Group = value; value == "" {
				return errors.New("give a group's name or number, or leave the option out")
			}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	return New(ctx, u.Path, &o)
}
