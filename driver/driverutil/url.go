package driverutil

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/redact"
)

// RedactURL shows a URL without what may be secret: its user info, its options and its fragment.
func RedactURL(u *url.URL) string {
	if u.Host == "" && u.Path == "" {
		return u.Scheme + "://" // String would leave out the slashes
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// IsLoopback reports whether a host, without a port, is this machine: what is sent there needs no encryption.
func IsLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// ParseOptions reads the options of a store's URL: it calls known[name] with the value of each option, in the order of
// their names. It returns ErrInvalid for an option that is not known, that is given twice, or whose function returns an
// error. No error shows a secret of the URL.
func ParseOptions(u *url.URL, known map[string]func(value string) error) error {
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fmt.Errorf("%w: the options of the store's URL cannot be parsed; write %%XX for special characters",
			driver.ErrInvalid)
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		set, ok := known[name]
		switch {
		case !ok:
			return fmt.Errorf("%w: unknown option %s in the store's URL; known are: %s", driver.ErrInvalid,
				showOption(u, name), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case len(options[name]) > 1:
			return fmt.Errorf("%w: the option %s stands in the store's URL twice", driver.ErrInvalid, name)
		}
		if err := set(options[name][0]); err != nil {
			err = fmt.Errorf("%w: option %s of the store's URL: %w", driver.ErrInvalid, name, err)
			return redact.HideSecrets(err, redact.FindSecrets(u))
		}
	}
	return nil
}

var plainOption = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{0,31}$`)
})

// showOption is an unknown option's name, if it looks like one and has a value: it could be the rest of a password with an
// & in it.
func showOption(u *url.URL, name string) string {
	if plainOption().MatchString(name) && strings.Contains(u.RawQuery, name+"=") {
		return name
	}
	return "(not shown)"
}
