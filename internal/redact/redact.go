// Package redact keeps the secrets of a store's URL out of error texts.
package redact

import (
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// The patterns are compiled when they are first used: most programs redact nothing.
var (
	secretOption = pattern(`(?i)pass|pwd|secret|token|key|cred|auth|sig`)
	fileOption   = pattern(`(?i)file$|^tls-key$|^sslkey$|^credentials$`)
	nameOption   = pattern(`^partition-key$`) // its value is the name of an attribute
)

func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// isSecret reports whether an option's value must not be shown. The path of a file with a secret in it is not secret:
// somebody who has to correct the path needs to see it.
func isSecret(name, value string) bool {
	path := fileOption().MatchString(name) && strings.HasPrefix(value, "/")
	return secretOption().MatchString(name) && !path && !nameOption().MatchString(name)
}

// FindSecrets returns the parts of a URL that must not be shown, decoded and as written, the longest first.
//
// A password that is also the name of the user is hidden only where it is written as a password. Hidden wherever it
// stands, it would spoil what an error says about the user, and show that both are the same.
func FindSecrets(u *url.URL) []string {
	var s []string
	isUser := func(password string) bool { return password != "" && password == u.User.Username() }
	if password, ok := u.User.Password(); ok && isUser(password) {
		s = append(s, ":"+password+"@", "password="+password)
	} else if ok {
		s = append(s, password, url.QueryEscape(password), url.PathEscape(password))
		if _, written, ok := strings.Cut(u.User.String(), ":"); ok {
			s = append(s, written)
		}
	}
	for _, pair := range strings.FieldsFunc(u.RawQuery, func(r rune) bool { return r == '&' || r == ';' }) {
		name, value, _ := strings.Cut(pair, "=")
		decoded, err := url.QueryUnescape(value)
		switch {
		case !isSecret(name, value):
		case err == nil && isUser(decoded):
			s = append(s, name+"="+value)
		case err == nil:
			s = append(s, value, decoded, url.PathEscape(decoded))
		default:
			s = append(s, value)
		}
	}
	slices.SortFunc(s, func(a, b string) int { return len(b) - len(a) })
	return slices.DeleteFunc(slices.Compact(s), func(s string) bool { return s == "" })
}

// HideSecrets replaces the secrets in an error's text. errors.Is gives the same answers for the result.
func HideSecrets(err error, secrets []string) error {
	text := err.Error()
	for _, s := range secrets {
		text = hideSecret(text, s)
	}
	if text == err.Error() {
		return err
	}
	return &redactedError{text: text, err: err}
}

// maxShortSecret is the length of secrets that are hidden only where they are words of their own. They occur in so many
// words that a text without them would be hard to read, and would tell what they are by what it lacks.
const maxShortSecret = 3

// hideSecret replaces a secret in a text.
func hideSecret(text, secret string) string {
	if len(secret) > maxShortSecret || strings.HasPrefix(secret, ":") {
		return strings.ReplaceAll(text, secret, "xxxxx")
	}
	var b strings.Builder
	for from := 0; ; {
		i := strings.Index(text[from:], secret)
		if i < 0 {
			b.WriteString(text[from:])
			return b.String()
		}
		start, end := from+i, from+i+len(secret)
		b.WriteString(text[from:start])
		if start > 0 && isWordByte(text[start-1]) || end < len(text) && isWordByte(text[end]) {
			b.WriteString(secret)
		} else {
			b.WriteString("xxxxx")
		}
		from = end
	}
}

// isWordByte reports whether a byte may be a part of a word; those of UTF-8 sequences are.
func isWordByte(c byte) bool {
	return c >= 0x80 || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// redactedError answers errors.Is as the error that it hides; errors.As and Unwrap do not reach that error, because its
// text has the secrets.
type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string        { return e.text }
func (e *redactedError) Is(target error) bool { return errors.Is(e.err, target) }
