package storeurl

import (
	"cmp"
	"errors"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// shape is what the text of Form.Shape allows.
type shape struct {
	hasUser, hasUserName bool
	needsUser            bool   // a password does not go without a user
	host                 string // what is in the place of the host; empty: nothing
	needsHost            bool
	severalHosts         bool
	port                 string // the default; empty: there is no port
	path                 string // what the path is; empty: there is none
	needsPath            bool
}

var (
	defaultPort = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\[:([0-9]+)\]`) })
	firstWord   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[a-z]+`) })
)

// parseShape reads what a store's URL looks like, as the documents show it, with optional parts in brackets. So
// the form of a URL is written once, for people and for the parser.
func parseShape(text string) (s shape) {
	_, host, _ := strings.Cut(text, "://")
	if user, after, ok := strings.Cut(host, "@]"); ok {
		s.hasUser, s.hasUserName = true, !strings.HasPrefix(user, "[:")
		s.needsUser = strings.HasPrefix(user, "[user")
		host = after
	}
	host, path, ok := strings.Cut(host, "/")
	if s.needsPath = ok && !strings.HasSuffix(host, "["); ok {
		path, _, _ = strings.Cut(path, "[")
		s.path = strings.TrimSuffix(path[strings.LastIndexByte(path, '/')+1:], "]")
	}
	s.host, s.needsHost = firstWord().FindString(host), !strings.HasPrefix(host, "[")
	s.severalHosts = strings.Contains(host, ",")
	if m := defaultPort().FindStringSubmatch(host); m != nil {
		s.port = m[1]
	}
	return s
}

// readParts reads what is before the options.
func (f *Form) readParts(u *url.URL) error {
	s := parseShape(f.Shape)
	if err := f.readUser(u, s); err != nil {
		return err
	}
	if err := f.readHosts(u, s); err != nil {
		return err
	}
	path := strings.TrimPrefix(u.Path, "/")
	switch {
	case s.path == "" && path != "":
		return f.Refuse("must not have a path" + f.describePrefix())
	case s.needsPath && path == "" && (s.host != "" || u.Path == ""):
		return f.Refuse("names no " + s.path)
	}
	if f.Path != nil {
		*f.Path = path
	}
	return nil
}

// readUser reads the name and the password, and refuses what the shape does not have.
func (f *Form) readUser(u *url.URL, s shape) error {
	switch {
	case u.User == nil:
		return nil
	case !s.hasUser && f.Credentials != "":
		return f.Refuse("must not have a user: " + f.Credentials)
	case !s.hasUser:
		return f.Refuse("must not have a user")
	case !s.hasUserName && u.User.Username() != "":
		return f.Refuse("must not have a user's name")
	}
	if f.User != nil {
		*f.User = u.User.Username()
	}
	if f.Password != nil {
		password, _ := u.User.Password()
		f.Password.SetText(password)
	}
	return nil
}

// readHosts reads the servers, adds the default port, and refuses what the shape does not have.
func (f *Form) readHosts(u *url.URL, s shape) error {
	what := s.host
	if what == "host" {
		what = "server"
	}
	switch {
	case s.host == "":
		if u.Host != "" && u.Host != "localhost" {
			return f.Refuse("must not name a host")
		}
		return nil
	case u.Host == "" && s.needsHost:
		return f.Refuse("names no " + what)
	case s.port == "" && u.Port() != "":
		return f.Refuse("must not have a port")
	case !s.severalHosts && strings.Contains(u.Host, ","):
		return f.Refuse("names more than one " + what)
	}
	var hosts []string
	for host := range strings.SplitSeq(u.Host, ",") {
		if s.port != "" && u.Host != "" {
			var err error
			if host, err = AddPort(host, s.port); err != nil {
				return f.Refuse("has a wrong port: " + err.Error())
			}
			if strings.HasPrefix(host, ":") && s.needsHost {
				return f.Refuse("names no " + what + " before a port or a comma")
			}
		}
		hosts = append(hosts, host)
	}
	if f.Host != nil {
		*f.Host = hosts[0]
	}
	if f.Hosts != nil && u.Host != "" {
		*f.Hosts = hosts
	}
	return nil
}

// describePrefix says how the keys of a store get a beginning, if that is not by the path.
func (f *Form) describePrefix() string {
	for _, o := range f.Options {
		if o.Name == "prefix" || o.Name == "namespace" {
			return " (write ?" + o.Name + "=... for " + o.Means + ")"
		}
	}
	return ""
}

// AddPort adds the default port to a host that has none, and refuses a port that cannot be.
func AddPort(host, port string) (string, error) {
	name, given, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	given = cmp.Or(given, port)
	return net.JoinHostPort(name, given), checkPort(given)
}

// checkPort refuses what is not the number of a port. The text is not shown: it may be the end of a password.
func checkPort(text string) error {
	if n, err := strconv.ParseUint(text, 10, 16); err != nil || n == 0 {
		return errors.New("a port is a number from 1 to 65535")
	}
	return nil
}
