package driverutil

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// Options are checked by name, number and value, and the error names the option.
func TestParseOptions(t *testing.T) {
	var got string
	known := map[string]func(string) error{
		"db":  func(v string) error { got = v; return nil },
		"bad": func(v string) error { return errors.New("must be good") },
	}
	for query, says := range map[string]string{
		"db=7":       "",
		"db=a%26b":   "",
		"":           "",
		"nope=1":     "unknown option nope in the store's URL; known are: bad, db",
		"db=1&db=2":  "option db stands in the store's URL twice",
		"bad=1":      "option bad of the store's URL: must be good",
		"db=%zz":     "cannot be parsed",
		"db=1;bad=1": "cannot be parsed",
	} {
		err := ParseOptions(&url.URL{RawQuery: query}, known)
		switch {
		case says == "" && err != nil:
			t.Errorf("%s: %v", query, err)
		case says != "" && (!errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), says)):
			t.Errorf("%s: %v, want ErrInvalid that says %q", query, err, says)
		}
	}
	if ParseOptions(&url.URL{RawQuery: "db=a%26b"}, known); got != "a&b" {
		t.Errorf("got %q", got)
	}
}

// RedactURL keeps the place and nothing else.
func TestRedactURL(t *testing.T) {
	u, err := url.Parse("redis://user:SECRET@host:6379/0?password=SECRET#SECRET")
	if err != nil || RedactURL(u) != "redis://host:6379/0" {
		t.Errorf("%v %s", err, RedactURL(u))
	}
	if u, err := url.Parse("consul://?token=SECRET"); err != nil || RedactURL(u) != "consul://" {
		t.Errorf("%v %s", err, RedactURL(u))
	}
}

// TestIsLoopback: this machine is told from others by its name and by its addresses.
func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{"localhost": true, "127.0.0.1": true, "127.1.2.3": true, "::1": true,
		"": false, "10.0.0.1": false, "localhost.example": false, "::": false} {
		if IsLoopback(host) != want {
			t.Errorf("%q: %v", host, !want)
		}
	}
}
