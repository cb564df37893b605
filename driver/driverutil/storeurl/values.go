package storeurl

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Value is the type of an option, and where its value goes.
type Value struct {
	kind   string
	bounds string
	values []string
	set    func(text string) error
}

// Func is a value that a function reads. kind says to people what it is.
func Func(kind string, set func(text string) error) Value { return Value{kind: kind, set: set} }

func textOf(kind string, to *string) Value {
	return Func(kind, func(text string) error { *to = text; return nil })
}

// Text is any text.
func Text(to *string) Value { return textOf("text", to) }

// File is the path of a file. It is never empty: a variable that is not set, in the URL of a script, must not take the
// file away unnoticed.
func File(to *string) Value {
	return Func("file", func(text string) error {
		if *to = text; text == "" {
			return errors.New("name a file")
		}
		return nil
	})
}

// Bool is true or false.
func Bool(to *bool) Value {
	return Func("true or false", func(text string) (err error) {
		if *to, err = strconv.ParseBool(text); err != nil {
			return errors.New("write true or false")
		}
		return nil
	})
}

// BoolIfGiven is true or false, and nil without the option.
func BoolIfGiven(to **bool) Value {
	v := Bool(new(bool))
	v.set = func(text string) error {
		*to = new(bool)
		return Bool(*to).set(text)
	}
	return v
}

// Number is a whole number of at least least, and at most most if that is more.
func Number(to *int, least, most int) Value {
	limits := newLimits(least, most, strconv.Itoa)
	return Value{kind: "number", bounds: limits.text, set: func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil {
			return errors.New("write a whole number")
		}
		*to = n
		return limits.check(n)
	}}
}

// Duration is a duration of at least least, and at most most if that is more.
func Duration(to *time.Duration, least, most time.Duration) Value {
	limits := newLimits(least, most, formatDuration)
	return Value{kind: "duration", bounds: limits.text, set: func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil {
			return errors.New("write a duration such as 3s or 500ms")
		}
		*to = d
		return limits.check(d)
	}}
}

// DurationOrNone is a duration that may be 0, too.
func DurationOrNone(to *time.Duration, least, most time.Duration) Value {
	v := Duration(to, least, most)
	v.bounds = strings.TrimPrefix(v.bounds+", or 0", ", ")
	return Value{kind: v.kind, bounds: v.bounds, set: func(text string) error {
		if d, err := time.ParseDuration(text); err == nil && d == 0 {
			*to = 0
			return nil
		}
		return v.set(text)
	}}
}

// limits are the bounds of a number or a duration.
type limits[N int | time.Duration] struct {
	least, most N
	text        string // for people; empty: there are none to be told
}

// newLimits makes the bounds of a number or a duration, and the words for them.
func newLimits[N int | time.Duration](least, most N, format func(N) string) limits[N] {
	l := limits[N]{least: least, most: most}
	switch {
	case most > least:
		l.text = format(least) + " to " + format(most)
	case least > 0:
		l.text = format(least) + " or more"
	}
	return l
}

func (l limits[N]) check(n N) error {
	switch {
	case n >= l.least && (n <= l.most || l.most <= l.least):
		return nil
	case l.text == "":
		return errors.New("it must not be negative")
	}
	return errors.New("it must be " + l.text)
}

// formatDuration is 1m or 6h and not 1m0s or 6h0m0s.
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// OneOf is one of some values. An empty text is none of them, so that a variable that is not set, in the URL of a
// script, does not weaken anything unnoticed.
func OneOf[T ~string](to *T, values ...T) Value {
	return Value{kind: "choice", values: For(values...), set: func(text string) error {
		if *to = T(text); !slices.Contains(values, *to) {
			return errors.New("write " + driverutil.JoinOr(values))
		}
		return nil
	}}
}

// Address is the address of a service that speaks HTTP.
func Address(to *string) Value {
	return Func("address", func(text string) error {
		at, err := url.Parse(text)
		if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || at.User != nil {
			return errors.New("write it as https://host:port")
		}
		if port := at.Port(); port != "" {
			if err := checkPort(port); err != nil {
				return err
			}
		}
		*to = text
		return nil
	})
}

// SecretFile is a file with a password or a token, which is read at once, and again for each connection.
func SecretFile(secret *driverutil.Secret) Value {
	return Func("file", func(path string) error {
		if err := secret.ReadFrom(path); err != nil {
			return fmt.Errorf("the file cannot be used: %w", err)
		}
		return nil
	})
}
