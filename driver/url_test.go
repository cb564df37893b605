package driver_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func number(v string) error { _, err := strconv.Atoi(v); return err }
func file(v string) error   { _, err := os.ReadFile(v); return err }

func testForm() *storeurl.Form {
	f := &storeurl.Form{Shape: "test://[user[:password]@][host[:1]][,host...][/path]"}
	for name, read := range map[string]func(string) error{"db": number, "password": number, "password-file": file,
		"tls-key": file, "sslkey": file, "credentials": file} {
		f.Options = append(f.Options, storeurl.Option{Name: name, To: storeurl.Func("text", read)})
	}
	return f
}

func init() {
	driver.Register("test", func(ctx context.Context, u *url.URL) (driver.Store, error) {
		if u.Query().Has("reparse") { // as SDKs do
			_, err := url.Parse(u.Scheme + "://" + u.User.String() + "@[" + u.RawQuery)
			return nil, fmt.Errorf("dial %s with %s: %w", u, u.Query().Get("password"), err)
		}
		return nil, testForm().Read(u)
	}, nil)
}

// No part of a secret shows in an error, however broken the URL is around it.
func TestOpenHidesSecrets(t *testing.T) {
	corpus := []string{
		"test://user:SECRET@host:port/0",
		"test://user:SECRET@host:63 79/0",
		"test://user:SECRET@ho st/0",
		"test://user:SECRET@[::1/0",
		"test://user:SECRET@host/%zz",
		"test://user:SECRET%zz@host/",
		"test://user:%SECRET@host/",
		"test://user:SEC/SECRET@host/",
		"test://user:SECRET/x@host/",
		"test://user:SECRET?x@host/",
		"test://user:SECRET#x@host/",
		"test://user:SECRET\n@host/",
		"test://user:SECRET\x7f@host/",
		"test://user:SECRET @host/",
		"test://user:<SECRET>@host/",
		"test://user:\"SECRET\"@host/",
		"test://user:SECRET@@host/",
		"test://:SECRET@host:x/",
		"test://user:SECRET@",
		"test://user:SECRET",
		"test:user:SECRET@host",
		"test:/user:SECRET@host",
		"test:SECRET",
		"user:SECRET@host",
		"SECRET:@host",
		"SECRET:x@host",
		":SECRET@host",
		"SECRET@host",
		"//user:SECRET@host",
		"/SECRET",
		"SECRET",
		"te_st://user:SECRET@host",
		"1test://user:SECRET@host",
		"te st://user:SECRET@host",
		"unknown://user:SECRET@host/?password=SECRET",
		"unknown:user:SECRET@host",
		"test://host/?password=SECRET",
		"test://host/?password=SECRET&password=SECRET",
		"test://host/?PASSWORD=SECRET",
		"test://host/?sslpassword=SECRET",
		"test://host/?password=a%SECRET",
		"test://host/?password-file=SECRET",
		"test://host/?tls-key=SECRET",
		"test://host/?password=/SECRET",
		"test://host/?password=SECRET;x=1",
		"test://host/?password=x;SECRET",
		"test://host/?password=x&%53ECRET/=y",
		"test://host/?password=x&SECRET rest",
		"test://host/?db=1&token=SECRET",
		"test://host/?db=1#SECRET",
		"test://user:SECRET@host/?db=x",
		"test://user:SECRET@host/?nope=x",
		"test://user:SECRET@host/?reparse",
		"test://user:a%2FSECRET%40@host/?reparse",
		"test://user:SECRET@host/?reparse&password=SECRET",
		"test://host/?reparse&password=%20SECRET%2F",
		" test://user:SECRET@host",
		"test ://user:SECRET@host",
		"http://[fe80::SECRET%25en0]:8080/",
		"http://[fe80::1%SECRET]/",
	}
	for _, raw := range corpus {
		_, err := driver.Open(t.Context(), strings.ReplaceAll(raw, "SECRET", "hunter2secret"))
		if err == nil {
			continue // a URL may be fine
		}
		if strings.Contains(fmt.Sprintf("%v %+v %q", err, err, err), "hunter2") {
			t.Errorf("%s: %v", raw, err)
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(e.Error(), "hunter2") {
				t.Errorf("%s: unwrapped: %v", raw, e)
			}
		}
	}
}

// The error for a scheme that nobody registered says which are, and what may be missing.
func TestOpenUnknownScheme(t *testing.T) {
	_, err := driver.Open(t.Context(), "redis://host")
	for _, part := range []string{"redis://", "test", `import _ "github.com/holdfast-go/holdfast/store/redis"`} {
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%v: want ErrInvalid that says %s", err, part)
		}
	}
}

// TestAPathIsNoSecret: an error names the path of a file that contains a secret, so that its user can find the fault.
func TestAPathIsNoSecret(t *testing.T) {
	for _, option := range []string{"password-file", "tls-key", "sslkey", "credentials"} {
		_, err := driver.Open(t.Context(), "test://user:hunter2@host/?"+option+"=/no/such/file")
		if err == nil || !strings.Contains(err.Error(), "open /no/such/file") {
			t.Errorf("%s: want the path; %v", option, err)
		}
	}
}

// A scheme belongs to one package.
func TestRegisterTwice(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	driver.Register("test", nil, nil)
}

// TestOpenMisplacedCharacters: a character that must be written as %XX is an error before anything is taken for a
// host, and the same character where it may be is none.
func TestOpenMisplacedCharacters(t *testing.T) {
	for raw, want := range map[string]string{
		"test://:SECRET#x@host":       "%23",
		"test://:a@SECRET#x@host":     "%23",
		"test://host/#SECRET":         "%23",
		"test://:a@SECRET/x@host":     "%2F",
		"test://:a@SECRET?x@host":     "%3F",
		"test://:12/SECRET@host":      "%2F",
		"test://user:12/SECRET@host":  "%2F",
		"test://host:1/a?user=b@host": "%40",
	} {
		_, err := driver.Open(t.Context(), raw)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for _, raw := range []string{"test://u:p@p@host:1/a", "test:///home/a@b", "test://host/a@b", "test://u:p%40%23%2F@host:1/a%40b"} {
		if _, err := driver.Open(t.Context(), raw); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// TestOpenPasswordOfUser: a password that is also the name of the user is hidden as a password, and nowhere else: an
// error may name the user in what is to be done.
func TestOpenPasswordOfUser(t *testing.T) {
	for _, raw := range []string{"test://USER:USER@host/?reparse=1", "test://USER@host/?reparse=1&password=USER"} {
		for _, user := range []string{"worker", "app"} {
			_, err := driver.Open(t.Context(), strings.ReplaceAll(raw, "USER", user))
			if err == nil || !strings.Contains(err.Error(), "test://"+user) || strings.Contains(err.Error(), ":"+user+"@") ||
				strings.Contains(err.Error(), "password="+user) {
				t.Errorf("%s: %v", raw, err)
			}
		}
	}
}

// TestOpenShortSecrets: a short password is hidden where it is a word of its own, and leaves other words whole.
func TestOpenShortSecrets(t *testing.T) {
	_, err := driver.Open(t.Context(), "test://u:p@host/?reparse=1&password=p")
	if err == nil || !strings.Contains(err.Error(), "with xxxxx") || !strings.Contains(err.Error(), "parse") {
		t.Error(err)
	}
	_, err = driver.Open(t.Context(), "test://host/?password=a&cd")
	if err == nil || strings.Contains(err.Error(), "cd") || !strings.Contains(err.Error(), "unknown option") {
		t.Error(err)
	}
}
