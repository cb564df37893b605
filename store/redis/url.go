package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

// shapes are what the URLs of each scheme look like.
var shapes = map[string]string{
	"redis":          "redis://[[user]:password@]host[:6379][/database]",
	"rediss":         "rediss://[[user]:password@]host[:6379][/database]",
	"redis+sentinel": "redis+sentinel://[[user]:password@]host[:26379][,host...]/primary[/database]",
	"redis+cluster":  "redis+cluster://[[user]:password@]host[:6379][,host...][/0]",
	"redlock":        "redlock://[[user]:password@]host[:6379][,host...][/database]",
}

func init() {
	for scheme := range maps.Keys(shapes) {
		open := openURL
		if scheme == "redlock" {
			open = openRedlockURL
		}
		driver.Register(scheme, open, storeurl.Describe(func(s *storeURL) *storeurl.Form { return s.form(scheme) }))
	}
}

// storeURL is what a URL says.
type storeURL struct {
	client   rueidis.ClientOption
	servers  []string
	path     string
	opts     Options
	password driverutil.Secret
	secure   driverutil.TLSOptions
	tls      *driverutil.TLSFiles // nil: no TLS
}

func (s *storeURL) form(scheme string) *storeurl.Form {
	c := &s.client
	f := &storeurl.Form{
		Shape: shapes[scheme],
		User:  &c.Username, Password: &s.password, Hosts: &s.servers, Path: &s.path,
		Options: []storeurl.Option{
			{Name: "prefix", To: storeurl.Func("text", s.readPrefix), Means: "the beginning of the keys of the locks"},
			{Name: "template", To: storeurl.Text(&s.opts.Key),
				Means: "the keys of the locks, with a star in place of the name; instead of `prefix`"},
			storeurl.Layout(&s.opts.Layout, "`plain` is that of clients which use `SET NX PX`, such as redis-py, redsync, "+
				"redislock and rueidislock. `redisson` is for the mutex, and not for redlock", layouts...),
			{Name: "foreign-turn", To: storeurl.DurationOrNone(&s.opts.ForeignTurn, time.Millisecond, maxForeignTurn),
				Default: "not at all", Layouts: storeurl.For(LayoutPlain), Means: "for how long a lock that is handed over is left " +
					"to foreign clients; not for redlock"},
			{Name: "replicas", To: storeurl.Number(&s.opts.Replicas, 0, 0), Default: "`0`", Means: "how many replicas must have a " +
				"grant, a renewal or a step of a run before it counts; not for redlock"},
			{Name: "addrs", To: storeurl.Func("host:port,host:port", s.readServers(scheme)),
				Means: "more servers, Sentinels or nodes"},
			storeurl.Timeout(&c.ConnWriteTimeout, DefaultClientOption().ConnWriteTimeout, 10*time.Millisecond),
			storeurl.PasswordFile(&s.password),
			{Name: "sentinel-user", To: storeurl.Text(&c.Sentinel.Username), Means: "the user for the Sentinels themselves"},
			{Name: "sentinel-password", To: storeurl.Text(&c.Sentinel.Password),
				Means: "the password for the Sentinels themselves"},
		},
		TLS: &s.secure,
	}
	f.Check = func() error { return s.readPath(scheme, f) }
	return f
}

// readPrefix refuses a star in a prefix, which would become a second star in the template.
func (s *storeURL) readPrefix(text string) error {
	if strings.Contains(text, "*") {
		return errors.New("a prefix has no star; see template")
	}
	s.opts.Key = text + "*"
	return nil
}

// readServers reads a list of further servers, and adds the default port.
func (s *storeURL) readServers(scheme string) func(text string) error {
	return func(text string) error {
		for server := range strings.SplitSeq(text, ",") {
			if server == "" || strings.HasPrefix(server, ":") { // which would be this machine
				return errors.New("it names an empty server")
			}
			server, err := storeurl.AddPort(server, defaultPort(scheme))
			if err != nil {
				return err
			}
			s.servers = append(s.servers, server)
		}
		return nil
	}
}

func defaultPort(scheme string) string {
	if scheme == string(sentinel) {
		return "26379"
	}
	return "6379"
}

// tooMany says what to do with a URL of one server that names more.
const tooMany = "names more than one server (see redis+sentinel://, redis+cluster:// and redlock://)"

// readPath reads the database from the path, and before it the name of the primary that the Sentinels watch.
func (s *storeURL) readPath(scheme string, f *storeurl.Form) error {
	path := strings.Trim(s.path, "/")
	switch scheme {
	case "redis+sentinel":
		s.client.Sentinel.MasterSet, path, _ = strings.Cut(path, "/")
		if s.client.Sentinel.MasterSet == "" { // without it, the client would not ask the Sentinels
			return f.Refuse("names no primary")
		}
	case "redis+cluster":
		if path != "" && path != "0" {
			return f.Refuse("names a database, and a Redis Cluster has only database 0")
		}
	case "redlock":
		if len(slices.Compact(slices.Sorted(slices.Values(s.servers)))) < len(s.servers) {
			return f.Refuse("names a server twice, and Redlock needs independent ones")
		}
		if len(s.servers) < fewestServers {
			return f.Refuse(fmt.Sprintf("names %d of the %d or more servers that Redlock needs; for one server use redis://",
				len(s.servers), fewestServers))
		}
	default:
		if len(s.servers) > 1 {
			return f.Refuse(tooMany)
		}
	}
	if path == "" {
		return nil
	}
	db, err := strconv.Atoi(path)
	if err != nil || db < 0 {
		return f.Refuse("names a database that is not a number")
	}
	s.client.SelectDB = db
	return nil
}

// openURL opens the URLs of one server, of Sentinels and of a Cluster.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	p, err := readURL(u)
	if err != nil {
		return nil, err
	}
	p.useDialer(ctx)
	s, err := openClient(ctx, p.client, &p.opts)
	if err != nil {
		return nil, err
	}
	s.admission.Sources = p.password.Sources()
	return s, nil
}

// readURL turns a URL into the options of a client and of a store. It sends no request.
func readURL(u *url.URL) (*storeURL, error) {
	s := &storeURL{client: DefaultClientOption(), opts: Options{Place: driverutil.RedactURL(u)}}
	f := s.form(u.Scheme)
	if strings.Contains(u.Host, ",") && (u.Scheme == "redis" || u.Scheme == "rediss") {
		return nil, f.Refuse(tooMany)
	}
	err := f.Read(u)
	if err != nil {
		return nil, err
	}
	if s.secure.Off && u.Scheme == "rediss" {
		return nil, storeurl.RefuseBoth("tls=false", "the scheme rediss, which means TLS")
	}
	s.secure.On = s.secure.On || u.Scheme == "rediss"
	if s.tls, err = s.secure.Open(); err != nil {
		return nil, err
	}
	c := &s.client
	if c.InitAddress = s.servers; s.password.IsFile() {
		c.AuthCredentialsFn = s.credentials
	} else {
		c.Password = s.password.Current()
	}
	if s.tls != nil {
		c.TLSConfig = s.tls.Config() // that TLS is used; see useDialer
		c.Sentinel.TLSConfig = c.TLSConfig
	}
	switch u.Scheme {
	case "redis+sentinel":
		c.Sentinel.Dialer = c.Dialer
		c.Sentinel.Dialer.Resolver = sentinelResolver
	case "redis+cluster":
	default:
		// rueidis would otherwise ask the server whether it belongs to a Cluster, and follow the Cluster's other nodes.
		c.ForceSingleClient = true
	}
	return s, nil
}
