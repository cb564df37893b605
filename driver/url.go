package driver

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/internal/redact"
)

// Opener opens the store that a URL names. It is registered by a store's package and called by [Open]. It checks the
// URL and its options, for example with package driverutil/storeurl. ctx bounds the opening and not the store.
type Opener func(ctx context.Context, u *url.URL) (Store, error)

// URLForm says what the URLs of a store look like, for people. Package driverutil/storeurl makes it.
type URLForm struct {
	// Shape is what a URL looks like; what is in brackets may be left out.
	Shape string
	// Options are all options that it can have.
	Options []URLOption
	// Check reads a URL as the opener does, and returns the same errors for it. It opens nothing.
	Check func(u *url.URL) error
}

// URLOption describes an option of a store's URL.
type URLOption struct {
	Name string
	// Type is text, number, duration, choice or another common word.
	Type string
	// Bounds limit a number or a duration, such as "1 to 5" or "50ms or more". Empty: any.
	Bounds string
	// Values are what a choice may be.
	Values []string
	// Default says what counts without the option, between backticks if it is a value. Empty: nothing in particular.
	Default string
	// Layouts are the layouts of the store that the option is for. Empty: all.
	Layouts []string
	// Means says what the option is. It may have code between backticks.
	Means string
}

// DescribeValue says what values the option has, with code between backticks.
func (o URLOption) DescribeValue() string {
	text := o.Type
	if len(o.Values) > 0 {
		text = "`" + strings.Join(o.Values, "`, `") + "`"
	}
	if o.Bounds != "" {
		text += ", " + o.Bounds
	}
	return text
}

// scheme is what is known of a URL scheme.
type scheme struct {
	open     Opener
	describe func() URLForm // nil: unknown
}

var registry = struct {
	sync.Mutex
	schemes map[string]scheme
}{schemes: map[string]scheme{}}

// Register makes a URL scheme known to [Open]; a store's package calls it when it is imported. describe says what its
// URLs look like, for [DescribeURL]; it may be nil. Register panics if the scheme is known already: two packages would
// fight for it.
func Register(name string, open Opener, describe func() URLForm) {
	registry.Lock()
	defer registry.Unlock()
	if _, twice := registry.schemes[name]; twice {
		panic("holdfast: the URL scheme " + name + " is registered twice")
	}
	registry.schemes[name] = scheme{open, describe}
}

// Schemes are the registered URL schemes, sorted.
func Schemes() []string {
	registry.Lock()
	defer registry.Unlock()
	return slices.Sorted(maps.Keys(registry.schemes))
}

// DescribeURL says what the URLs of a scheme look like. It returns false if nobody knows: the scheme is not
// registered, or its store does not say.
func DescribeURL(name string) (URLForm, bool) {
	registry.Lock()
	describe := registry.schemes[name].describe
	registry.Unlock()
	if describe == nil {
		return URLForm{}, false
	}
	return describe(), true
}

// Open opens the store that raw names. It returns ErrInvalid if raw is not a URL, or if no imported package has
// registered its scheme, and otherwise the error of the opener. No error shows a password of raw, nor the value of an
// option that is named like a secret, nor any part of a URL that cannot be parsed.
func Open(ctx context.Context, raw string) (Store, error) {
	u, s, err := parseURL(raw)
	if err != nil {
		return nil, err
	}
	store, err := s.open(ctx, u)
	if err != nil {
		return nil, redact.HideSecrets(err, redact.FindSecrets(u))
	}
	return store, nil
}

// CheckURL reads a URL as [Open] does, as far as the URLForm of its store says what it may have, and returns the same
// errors. It opens nothing. Of a store that does not describe its URLs, only the scheme is checked.
func CheckURL(raw string) error {
	u, s, err := parseURL(raw)
	if err != nil || s.describe == nil {
		return err
	}
	if err := s.describe().Check(u); err != nil {
		return redact.HideSecrets(err, redact.FindSecrets(u))
	}
	return nil
}

// parseURL parses a store's URL, and finds its scheme.
func parseURL(raw string) (*url.URL, scheme, error) {
	if trouble := misplacedCharacter(raw); trouble != "" {
		return nil, scheme{}, invalid("the store's URL cannot be used: %s", trouble)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, scheme{}, invalid("the store's URL cannot be parsed: %s", parseTrouble(err))
	}
	if u.Scheme == "" || !strings.HasPrefix(raw[len(u.Scheme):], "://") {
		// What stands before a lone colon may as well be a user's name or a key.
		return nil, scheme{}, invalid("a store's URL looks like scheme://..., with one of the schemes %s", knownSchemes())
	}
	registry.Lock()
	s := registry.schemes[u.Scheme]
	registry.Unlock()
	if s.open == nil {
		return nil, scheme{}, invalid("no store is registered for %s://, only for %s; is its package imported, as in "+
			"import _ \"github.com/holdfast-go/holdfast/store/%s\"?", u.Scheme, knownSchemes(), u.Scheme)
	}
	return u, s, nil
}

// misplacedCharacter says which character of a URL has to be written as %XX, or returns an empty text. Such a URL can
// be parsed, but what stands before the character in a password would be taken for the host, and shown in errors.
func misplacedCharacter(raw string) string {
	_, rest, _ := strings.Cut(raw, "://")
	if strings.Contains(rest, "#") {
		return "write %23 for a #"
	}
	i := strings.IndexAny(rest, "/?")
	if i >= 0 && strings.ContainsAny(rest[:i], ":@") && strings.Contains(rest[i:], "@") {
		return "it has an @ behind the host; in a password, write %2F for /, %3F for ? and %40 for @, and elsewhere %40 for @"
	}
	return ""
}

// knownSchemes lists the schemes of the store packages that this program imports, for an error message.
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
		return "a character in the user's name or password must be written as %XX, such as %20 for a blank"
	case strings.Contains(text, "invalid port"):
		return "the port is not a number; in a password, write %2F for /, %3A for : and %40 for @"
	case strings.Contains(text, "control character"):
		return "it contains a control character, such as a newline at its end"
	case strings.Contains(text, "missing protocol scheme"), strings.Contains(text, "first path segment"):
		return "it must start with a scheme such as file://"
	}
	return "it is malformed"
}
