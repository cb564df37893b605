package storeurl

import (
	"errors"
	"net/url"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// settings are those of a store for the tests.
type settings struct {
	user, host, path, name, layout, color, at string
	password                                  driverutil.Secret
	hosts                                     []string
	age, timeout, interval                    time.Duration
	number                                    int
	on                                        bool
	tls                                       driverutil.TLSOptions
}

func (s *settings) form() *Form {
	return &Form{
		Shape: "test://host",
		TLS:   &s.tls,
		Options: []Option{
			{Name: "name", To: Text(&s.name)},
			{Name: "age", To: DurationOrNone(&s.age, time.Minute, 0), Layouts: []string{"other"}},
			{Name: "number", To: Number(&s.number, 1, 5)},
			{Name: "on", To: Bool(&s.on)},
			{Name: "at", To: Address(&s.at)},
			{Name: "color", To: OneOf(&s.color, "red", "green", "blue")},
			Layout(&s.layout, "how", "own", "other"),
			Timeout(&s.timeout, 3*time.Second, 50*time.Millisecond),
			WriteInterval(&s.interval, "2s"),
			PasswordFile(&s.password),
		},
		Check: func() error {
			if s.name == "taken" {
				return RefuseBoth("a name", "another")
			}
			return nil
		},
	}
}

// TestOptions: an option is read by its declaration, and the error names it, says what it may be, and shows no secret.
func TestOptions(t *testing.T) {
	for query, says := range map[string]string{
		"name=a%26b":                   "",
		"number=5&on=true&color=blue":  "",
		"layout=":                      "",
		"color=":                       "the option color of the store's URL: write red, green or blue",
		"layout=own&timeout=50ms":      "",
		"age=0&layout=other":           "",
		"age=1m&layout=other":          "",
		"tls=false&tls-ca=f":           "",
		"nope=1":                       "unknown option nope in the store's URL; known are: age, at, color, layout, name",
		"timout=1s":                    "unknown option timout in the store's URL (did you mean timeout?); known are: age",
		"name=1&name=2":                "the store's URL sets the option name twice",
		"name=%zz":                     "cannot be parsed",
		"name=1;on=1":                  "cannot be parsed",
		"number=6":                     "the option number of the store's URL: it must be 1 to 5",
		"number=x":                     "the option number of the store's URL: write a whole number",
		"on=perhaps":                   "the option on of the store's URL: write true or false",
		"timeout=49ms":                 "the option timeout of the store's URL: it must be 50ms or more",
		"timeout=1":                    "the option timeout of the store's URL: write a duration such as 3s",
		"write-interval=-1s":           "the option write-interval of the store's URL: it must not be negative",
		"age=59s&layout=other":         "the option age of the store's URL: it must be 1m or more",
		"age=1m":                       "the option age of the store's URL is for the layout other only",
		"color=black":                  "the option color of the store's URL: write red, green or blue",
		"layout=none":                  `unknown layout "none"; use own or other`,
		"name":                         "the option name of the store's URL has no value; write name=VALUE",
		"number=5&name&on=true":        "the option name of the store's URL has no value; write name=VALUE",
		"tls-ca=":                      "the option tls-ca of the store's URL: name a file",
		"at=https://h:65536":           "the option at of the store's URL: a port is a number from 1 to 65535",
		"at=https://h:443":             "",
		"name=taken":                   "the store's URL has a name and another; remove one of them",
		"password-file=/does/not/be":   "the option password-file of the store's URL: the file cannot be used: open /does/not/be",
		"name=hunter2&password-file=x": "password-file of the store's URL",
		"rest&qq=1":                    "unknown option qq in the store's URL; known",
		"rest":                         "unknown option (not shown) in the store's URL; known",
	} {
		var s settings
		err := s.form().Read(&url.URL{Scheme: "test", Host: "h", RawQuery: query})
		switch {
		case says == "" && err != nil:
			t.Errorf("%s: %v", query, err)
		case says != "" && (!errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), says)):
			t.Errorf("%s: %v, want ErrInvalid that says %q", query, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: a secret is shown: %v", query, err)
		}
	}
	var s settings
	query := "name=a%26b&number=5&on=true&color=blue&layout=other&timeout=1m&write-interval=0&age=2m&tls-name=n"
	if err := s.form().Read(&url.URL{Scheme: "test", Host: "h", RawQuery: query}); err != nil || s.name != "a&b" ||
		s.number != 5 || !s.on || s.color != "blue" || s.layout != "other" || s.timeout != time.Minute || s.interval != -1 ||
		s.age != 2*time.Minute || s.tls.Name != "n" {
		t.Errorf("%+v %v", &s, err)
	}
}

// TestShape: what is before the options is read by the shape, and a part that the shape does not have is refused.
func TestShape(t *testing.T) {
	const (
		one    = "test://[:TOKEN@][host[:8500]]"
		many   = "test://[user[:password]@]host[:2379][,host...]"
		base   = "test://[[user]:password@]host[:3306]/database"
		bucket = "test://bucket[/prefix]"
		folder = "test:///absolute/directory"
		named  = "test://host[:1][,host...]/primary[/database]"
	)
	for _, c := range []struct{ shape, url, want string }{
		{one, "test://", "user= password= host= path="},
		{one, "test://:t@h", "user= password=t host=h:8500 path="},
		{one, "test://:9", "user= password= host=:9 path="},
		{one, "test://[::1]/", "user= password= host=[::1]:8500 path="},
		{one, "test://u:t@h", "must not have a user's name; it looks like test://[:TOKEN@]"},
		{one, "test://h/x", "must not have a path (write ?prefix=... for the start); it looks like"},
		{one, "test://h,i", "names more than one server; it looks like"},
		{many, "test://u@h,i:7", "user=u password= host=h:2379 i:7 path="},
		{many, "test://u:p@", "names no server; it looks like"},
		{many, "test://h,,i", "names no server before a port or a comma; it looks like"},
		{many, "test://:7", "names no server before a port or a comma; it looks like"},
		{many, "test://h,i:99999", "has a wrong port: a port is a number from 1 to 65535; it looks like"},
		{many, "test://h:0", "has a wrong port: a port is a number from 1 to 65535; it looks like"},
		{many, "test://h:x,i:65535", "has a wrong port"},
		{many, "test://[::1]:65535", "user= password= host=[::1]:65535 path="},
		{base, "test://u:p@h/d", "user=u password=p host=h:3306 path=d"},
		{base, "test://h", "names no database; it looks like"},
		{base, "test://h/", "names no database; it looks like"},
		{bucket, "test://b", "user= password= host=b path="},
		{bucket, "test://b/p/q/", "user= password= host=b path=p/q/"},
		{bucket, "test://b:1/p", "must not have a port; it looks like"},
		{bucket, "test://u@b", "must not have a user: look elsewhere; it looks like"},
		{bucket, "test:///p", "names no bucket; it looks like"},
		{folder, "test:///a/b", "user= password= host= path=a/b"},
		{folder, "test:///", "user= password= host= path="},
		{folder, "test://localhost/a", "user= password= host= path=a"},
		{folder, "test://h/a", "must not name a host; it looks like"},
		{folder, "test://", "names no directory; it looks like"},
		{named, "test://h/p", "user= password= host=h:1 path=p"},
		{named, "test://h", "names no primary; it looks like"},
	} {
		var s settings
		f := Form{Shape: c.shape, Credentials: "look elsewhere", User: &s.user, Password: &s.password, Hosts: &s.hosts,
			Path: &s.path, Options: []Option{Prefix(&s.name, "the start", "")}}
		u, err := url.Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := f.Read(u); err != nil {
			got = err.Error()
			if !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%s: %v", c.url, err)
			}
		} else {
			got = "user=" + s.user + " password=" + s.password.Current() + " host=" + strings.Join(s.hosts, " ") + " path=" + s.path
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s as %s: %s, want %s", c.url, c.shape, got, c.want)
		}
	}
	var s settings
	f := Form{Shape: one, Host: &s.host}
	if err := f.Read(&url.URL{Host: "h"}); err != nil || s.host != "h:8500" {
		t.Errorf("%q %v", s.host, err)
	}
}

// TestPasswordFile: a password in a file goes with a user, unless the store has passwords without one, and not with
// another password in the URL.
func TestPasswordFile(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/password"
	if err := os.WriteFile(file, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for shape, is := range map[string]bool{"test://[user[:password]@]host": true, "test://[[user]:password@]host": false} {
		for user, info := range map[string]*url.Userinfo{"": nil, "u": url.User("u")} {
			var s settings
			f := Form{Shape: shape, User: &s.user, Password: &s.password, Options: []Option{PasswordFile(&s.password)}}
			err := f.Read(&url.URL{Scheme: "test", User: info, Host: "h", RawQuery: "password-file=" + file})
			if want := is && user == ""; want != errors.Is(err, driver.ErrInvalid) || !want && s.password.Current() != "hunter2" {
				t.Errorf("%s, user %q: %v", shape, user, err)
			}
		}
		both := &url.URL{Scheme: "test", User: url.UserPassword("u", "other"), Host: "h", RawQuery: "password-file=" + file}
		var s settings
		f := Form{Shape: shape, User: &s.user, Password: &s.password, Options: []Option{PasswordFile(&s.password)}}
		if err := f.Read(both); err == nil || !strings.Contains(err.Error(), "has a password and a password-file; remove one of them") {
			t.Errorf("%s: a password and a file with another: %v", shape, err)
		}
	}
}

// TestDescribe: the description has every option, those about TLS as well, with type, bounds, values and layouts.
func TestDescribe(t *testing.T) {
	t.Parallel()
	d := Describe((*settings).form)()
	byName := map[string]driver.URLOption{}
	for _, o := range d.Options {
		byName[o.Name] = o
	}
	if d.Shape != "test://host" || len(byName) != 15 || byName["tls-ca"].Default != "the system's" ||
		!reflect.DeepEqual(byName["age"], driver.URLOption{Name: "age", Type: "duration", Bounds: "1m or more, or 0", Layouts: []string{"other"}}) ||
		!reflect.DeepEqual(byName["color"].Values, []string{"red", "green", "blue"}) || byName["number"].Bounds != "1 to 5" ||
		byName["timeout"].Default != "`3s`" || byName["layout"].Default != "`own`" {
		t.Errorf("%+v", d)
	}
	if d.Check(&url.URL{Host: "h", RawQuery: "number=3"}) != nil || d.Check(&url.URL{Host: "h", RawQuery: "number=0"}) == nil {
		t.Error("it does not check")
	}
}
