package storeurl

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/redact"
)

// Form declares the URLs of a store, and where their parts go.
type Form struct {
	// Shape is what the URL looks like, to people and to [Form.Read]:
	//
	//	scheme://[[user][:password]@]host[:6379][,host...][/database]
	//
	// What is in brackets may be left out, and what is not in the shape is refused: a user, a user's name, a second
	// host, a port, or a path. The number is the default port. Other words than host say what else is in its place,
	// as in gcs://bucket[/prefix].
	Shape string
	// Credentials says how credentials are given, where the URL has none.
	Credentials string

	// User, Password, Host, Hosts and Path are where the parts of the URL go; nil: nowhere. A host gets the default
	// port. The path is without the slash before it.
	User     *string
	Password *driverutil.Secret
	Host     *string
	Hosts    *[]string
	Path     *string

	// Options are all options, but those about TLS.
	Options []Option
	// TLS is where the options about TLS go; nil: there are none.
	TLS *driverutil.TLSOptions

	// Check refuses what no single part shows. It is called when all parts and options have been read.
	Check func() error
}

// Option declares one option of a store's URL. Its name and its sentence are for people, too.
type Option struct {
	Name string
	// To is what values it has, and where the value goes.
	To Value
	// Default says what counts without the option, between backticks if it is a value; empty: there is nothing to be
	// said.
	Default string
	// Layouts are the layouts that the option is for; nil: all. With another one it is refused.
	Layouts []string
	// Means says what the option is, without a full stop. It may have code between backticks.
	Means string
}

// For is a list of layouts for [Option.Layouts].
func For[L ~string](layouts ...L) []string {
	names := make([]string, len(layouts))
	for i, l := range layouts {
		names[i] = string(l)
	}
	return names
}

// all are the options with those about TLS.
func (f *Form) all() []Option {
	if f.TLS == nil {
		return f.Options
	}
	return slices.Concat(f.Options, tlsOptions(f.TLS))
}

// Read reads a URL. It returns [driver.ErrInvalid] for one that has another shape, for an option that is unknown, is
// given twice, has no value or one that it cannot have, or is for another layout, and for what Check refuses. No error shows
// a secret of the URL. It sends nothing, but reads files with passwords.
func (f *Form) Read(u *url.URL) error {
	err := f.readParts(u)
	if err == nil {
		err = f.readOptions(u)
	}
	if err == nil && f.Check != nil {
		err = f.Check()
	}
	if err != nil {
		return redact.HideSecrets(err, redact.FindSecrets(u))
	}
	return nil
}

// readOptions reads all options of the URL. An option that is unknown, given twice, or not for the layout is an
// error: a misspelled option must not be ignored.
func (f *Form) readOptions(u *url.URL) error {
	given, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fmt.Errorf("%w: the options of the store's URL cannot be parsed; write %%XX for special characters",
			driver.ErrInvalid)
	}
	known := map[string]Option{}
	for _, o := range f.all() {
		known[o.Name] = o
	}
	layout := cmp.Or(given.Get("layout"), strings.Trim(known["layout"].Default, "`"))
	for _, name := range slices.Sorted(maps.Keys(given)) {
		o, ok := known[name]
		switch {
		case !ok:
			return unknownOption(u, name, slices.Sorted(maps.Keys(known)))
		case len(given[name]) > 1:
			return fmt.Errorf("%w: the store's URL sets the option %s twice", driver.ErrInvalid, name)
		case slices.Contains(strings.Split(u.RawQuery, "&"), name): // without =, url.ParseQuery makes it an empty text
			return fmt.Errorf("%w: the option %s of the store's URL has no value; write %s=VALUE", driver.ErrInvalid, name, name)
		}
		if err := o.To.set(given.Get(name)); errors.Is(err, driver.ErrInvalid) {
			return err
		} else if err != nil {
			return fmt.Errorf("%w: the option %s of the store's URL: %w", driver.ErrInvalid, name, err)
		}
		if o.Layouts != nil && !slices.Contains(o.Layouts, layout) {
			return driverutil.RefuseForLayout("the option "+name+" of the store's URL", o.Layouts...)
		}
	}
	if _, hasPassword := u.User.Password(); hasPassword {
		for _, file := range []string{"password-file", "token-file"} {
			if given.Has(file) {
				return RefuseBoth("a password", "a "+file)
			}
		}
	}
	if given.Has("password-file") && f.User != nil && *f.User == "" && parseShape(f.Shape).needsUser {
		return f.Refuse("has a password-file, but no user")
	}
	return nil
}

// unknownOption names the option that was perhaps meant, and all that exist.
func unknownOption(u *url.URL, name string, known []string) error {
	shown := showOption(u, name)
	meant := ""
	if shown == name {
		if like := driverutil.FindSimilar(name, known...); like != "" {
			meant = " (did you mean " + like + "?)"
		}
	}
	if len(known) == 0 {
		return fmt.Errorf("%w: unknown option %s in the store's URL, which has none", driver.ErrInvalid, shown)
	}
	return fmt.Errorf("%w: unknown option %s in the store's URL%s; known are: %s", driver.ErrInvalid, shown, meant,
		strings.Join(known, ", "))
}

var plainOption = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{0,31}$`)
})

// showOption is an unknown option's name, if it looks like one and has a value: it could be the rest of a password
// with an & in it.
func showOption(u *url.URL, name string) string {
	if plainOption().MatchString(name) && strings.Contains(u.RawQuery, name+"=") {
		return name
	}
	return "(not shown)"
}

// Refuse returns the error for a URL that has another shape: what says what is wrong, and follows "the store's URL".
func (f *Form) Refuse(what string) error {
	return fmt.Errorf("%w: the store's URL %s; it looks like %s", driver.ErrInvalid, what, f.Shape)
}

// RefuseBoth returns the error for a URL that has two things of which one is enough.
func RefuseBoth(one, other string) error {
	return fmt.Errorf("%w: the store's URL has %s and %s; remove one of them", driver.ErrInvalid, one, other)
}

// Describe returns what [driver.Register] wants to know of the URLs of a store, from the form of its settings. A form
// of settings that are zero describes; another one reads each URL that is checked.
func Describe[S any](form func(*S) *Form) func() driver.URLForm {
	return func() driver.URLForm {
		f := form(new(S))
		d := driver.URLForm{Shape: f.Shape, Check: func(u *url.URL) error { return form(new(S)).Read(u) }}
		for _, o := range f.all() {
			d.Options = append(d.Options, driver.URLOption{Name: o.Name, Type: o.To.kind, Bounds: o.To.bounds,
				Values: o.To.values, Default: o.Default, Layouts: o.Layouts, Means: o.Means})
		}
		return d
	}
}
