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
// URL's options, for example with driverutil.ParseOptions. ctx bounds the opening and not the store.
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

// Open opens the store that raw names. It returns ErrInvalid if raw is not a URL, or if no imported package has
// registered its scheme, and otherwise the error of the opener. No error shows a password of raw, nor the value of an
// option that is named like a secret, nor any part of a URL that cannot be parsed.
func Open(ctx context.Context, raw string) (Store, error) {
	if trouble := misplacedCharacter(raw); trouble != "" {
		return nil, invalid("the store's URL cannot be used: %s", trouble)
	}
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
		return nil, redact.HideSecrets(err, redact.FindSecrets(u))
	}
	return store, nil
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
