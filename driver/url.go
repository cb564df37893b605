package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Opener opens the store that a URL names. It is registered by a store's package and called by [Open]. It checks the
// URL's options with [Query]. ctx bounds the opening and not the store.
type Opener func(ctx context.Context, u *url.URL) (Store, error)

var registry = struct {
	sync.Mutex
	openers map[string]Opener
}{openers: map[string]Opener{}}

// Register makes a URL scheme known to [Open]; a store's package calls it when it is imported. It panics if the scheme
// is known already: two packages would fight for it.
func Register(scheme string, open Opener) {
	registry.Lock()
	defer registry.Unlock()
	if _, twice := registry.openers[scheme]; twice {
		panic("holdfast: the URL scheme " + scheme + " is registered twice")
	}
	registry.openers[scheme] = open
}

// Schemes are the registered URL schemes, sorted.
func Schemes() []string {
	registry.Lock()
	defer registry.Unlock()
	return slices.Sorted(maps.Keys(registry.openers))
}

// Open opens the store that raw names. The error Is ErrInvalid if raw is not a URL, or if no imported package has
// registered its scheme; else it is the opener's. No error shows a password of raw, nor the value of an option that
// is named like a secret, nor any part of a URL that cannot be parsed.
func Open(ctx context.Context, raw string) (Store, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, invalid("the store's URL cannot be parsed: %s", parseTrouble(err))
	}
	if u.Scheme == "" || !strings.HasPrefix(raw[len(u.Scheme):], "://") {
		// What stands before a lone colon may as well be a user's name or a key.
		return nil, invalid("a store's URL looks like scheme://..., with one of the schemes %s", knownSchemes())
	}
	registry.Lock()
	open := registry.openers[u.Scheme]
	registry.Unlock()
	if open == nil {
		return nil, invalid("no store is registered for %s://, only for %s; is its package imported, as in "+
			"import _ \"github.com/holdfast-go/holdfast/store/%s\"?", u.Scheme, knownSchemes(), u.Scheme)
	}
	store, err := open(ctx, u)
	if err != nil {
		return nil, scrub(err, secrets(u))
	}
	return store, nil
}

func knownSchemes() string {
	if s := Schemes(); len(s) > 0 {
		return strings.Join(s, ", ")
	}
	return "(none is imported)"
}

// parseTrouble says what is wrong with a URL in words of our own: those of net/url quote parts of it, often just the
// password.
func parseTrouble(err error) string {
	var escape url.EscapeError
	var host url.InvalidHostError
	text := err.Error()
	switch {
	case errors.As(err, &escape):
		return "a % is not followed by two hexadecimal digits; write %25 for a % itself"
	case errors.As(err, &host):
		return "a character is not allowed in the host's name"
	case strings.Contains(text, "invalid userinfo"):
		return "a character in the user's name or password must be written as %XX"
	case strings.Contains(text, "invalid port"):
		return "the port is not a number; in a password, write %2F for /, %3A for : and %40 for @"
	case strings.Contains(text, "control character"):
		return "it contains a control character"
	case strings.Contains(text, "missing protocol scheme"), strings.Contains(text, "first path segment"):
		return "it must start with a scheme such as file://"
	}
	return "it is malformed"
}

// Redact shows a URL without what may be secret: its user info, options and fragment.
func Redact(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// Query reads the options of a store's URL: it calls known[name] with the value of each, in the order of their names.
// The error Is ErrInvalid for an option that is not known, stands there twice, or whose function returns an error.
func Query(u *url.URL, known map[string]func(value string) error) error {
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return invalid("the options of the store's URL cannot be parsed; write %%XX for special characters")
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		set, ok := known[name]
		switch {
		case !ok:
			return invalid("unknown option %s in the store's URL; known are: %s",
				shownOption(name), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case len(options[name]) > 1:
			return invalid("the option %s stands in the store's URL twice", name)
		}
		if err := set(options[name][0]); err != nil {
			return scrub(fmt.Errorf("%w: option %s of the store's URL: %w", ErrInvalid, name, err), secrets(u))
		}
	}
	return nil
}

var plainOption = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{0,31}$`)

// shownOption is an unknown option's name, if it looks like one: it could be the rest of a password with an & in it.
func shownOption(name string) string {
	if plainOption.MatchString(name) {
		return name
	}
	return "(not shown)"
}

var (
	secretOption = regexp.MustCompile(`(?i)pass|pwd|secret|token|key|cred|auth|sig`)
	fileOption   = regexp.MustCompile(`(?i)file$|^tls-key$|^sslkey$|^credentials$`)
)

// isSecret tells whether an option's value must not be shown. The path of a file with a secret in it is none: whoever has
// to mend it needs to see it.
func isSecret(name, value string) bool {
	path := fileOption.MatchString(name) && strings.HasPrefix(value, "/")
	return secretOption.MatchString(name) && !path
}

// secrets are the parts of a URL that must not be shown, decoded and as written, the longest first.
func secrets(u *url.URL) []string {
	var s []string
	if password, ok := u.User.Password(); ok {
		s = append(s, password, url.QueryEscape(password), url.PathEscape(password))
		if _, written, ok := strings.Cut(u.User.String(), ":"); ok {
			s = append(s, written)
		}
	}
	for _, pair := range strings.FieldsFunc(u.RawQuery, func(r rune) bool { return r == '&' || r == ';' }) {
		name, value, _ := strings.Cut(pair, "=")
		if decoded, err := url.QueryUnescape(value); err == nil && isSecret(name, value) {
			s = append(s, value, decoded, url.PathEscape(decoded))
		} else if isSecret(name, value) {
			s = append(s, value)
		}
	}
	slices.SortFunc(s, func(a, b string) int { return len(b) - len(a) })
	return slices.DeleteFunc(slices.Compact(s), func(s string) bool { return s == "" })
}

// scrub hides secrets in an error's text. What the error is stays as it was.
func scrub(err error, secrets []string) error {
	text := err.Error()
	for _, s := range secrets {
		text = strings.ReplaceAll(text, s, "xxxxx")
	}
	if text == err.Error() {
		return err
	}
	return &scrubbed{text: text, err: err}
}

// scrubbed answers errors.Is as the error that it hides; errors.As and Unwrap do not reach that, since its text does.
type scrubbed struct {
	text string
	err  error
}

func (e *scrubbed) Error() string        { return e.text }
func (e *scrubbed) Is(target error) bool { return errors.Is(e.err, target) }
