package nats

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() { driver.Register("nats", openURL, storeurl.Describe((*storeURL).form)) }

// storeURL is what a URL says.
type storeURL struct {
	user            string
	password, token driverutil.Secret
	servers         []string
	bucket, domain  string
	sync, creds     string
	opts            Options
	tls             driverutil.TLSOptions

	config nats.Options // what of it nats.go needs
	hosts  string       // as in the URL, but sorted
}

func (s *storeURL) form() *storeurl.Form {
	o := &s.opts
	f := &storeurl.Form{
		Shape: "nats://[user[:password]@]host[:4222][,host...]/bucket",
		User:  &s.user, Password: &s.password, Hosts: &s.servers, Path: &s.bucket,
		Options: []storeurl.Option{
			storeurl.Prefix(&o.Prefix, "the beginning of all keys: the lock NAME is the key `locks.NAME`", "`"+defaultPrefix+"`"),
			storeurl.Create(&o.Create, "bucket"),
			{Name: "replicas", To: storeurl.Number(&o.Replicas, 1, maxReplicas), Default: "`1`", Means: "how many servers keep " +
				"the bucket that `create` makes. Use 3 in a cluster: of 2, neither may fail"},
			{Name: "sync", To: storeurl.OneOf(&s.sync, "always"),
				Means: "all servers have `sync_interval: always`, so a power cut loses nothing"},
			storeurl.ClockSkew(&o.ClockSkew, "`1s`, in a cluster", nil),
			storeurl.Timeout(&o.Timeout, defaultTimeout, 50*time.Millisecond),
			{Name: "domain", To: storeurl.Text(&s.domain), Means: "the JetStream domain"},
			{Name: "creds", To: storeurl.File(&s.creds), Means: "a file with the credentials of a user, as nsc makes it"},
			storeurl.PasswordFile(&s.password),
			storeurl.TokenFile(&s.token, "a file with a token, instead of a user and a password"),
		},
		TLS: &s.tls,
	}
	f.Check = func() error {
		if !validBucket.MatchString(s.bucket) {
			return f.Refuse("names a bucket that has other characters than letters, digits, _ and -")
		}
		return nil
	}
	return f
}

// openURL opens a store by its URL.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	s, err := readURL(u)
	if err != nil {
		return nil, err
	}
	if dial := driverutil.DialerOf(ctx); dial != nil {
		s.config.CustomDialer = dialer(dial)
	}
	return s.open(ctx)
}

// readURL turns a URL into the connection's settings and ours. It sends nothing to a server.
func readURL(u *url.URL) (*storeURL, error) {
	hosts := strings.Split(u.Host, ",")
	slices.Sort(hosts)
	s := &storeURL{config: newConfig(), hosts: strings.Join(hosts, ",")}
	err := s.form().Read(u)
	if err != nil {
		return nil, err
	}
	s.opts.SyncAlways = s.sync != ""
	if s.opts, err = s.opts.withDefaults(); err != nil {
		return nil, err
	}
	for _, server := range s.servers {
		s.config.Servers = append(s.config.Servers, "nats://"+server)
	}
	return s, s.readSecrets()
}

// readSecrets reads the files of the URL for the first time, and says how nats.go reads them again.
func (s *storeURL) readSecrets() error {
	c := &s.config
	if s.creds != "" {
		_, err := os.ReadFile(s.creds)
		if err == nil {
			err = nats.UserCredentials(s.creds)(c)
		}
		if err != nil {
			return fmt.Errorf("%w: creds: %v", driver.ErrInvalid, err)
		}
	}
	files, err := s.tls.Open()
	if err != nil {
		return err
	}
	if s.opts.secrets = slices.Concat(s.password.Sources(), s.token.Sources()); files != nil {
		s.opts.secrets = append(s.opts.secrets, files)
		c.Secure, c.TLSConfig = true, files.Config()
		c.RootCAsCB = func() (*x509.CertPool, error) { return files.Config().RootCAs, nil }
	}
	if s.password.IsFile() {
		c.UserInfo = func() (string, string) { return s.user, s.password.Current() }
	} else {
		c.User, c.Password = s.user, s.password.Current()
	}
	if s.token.IsFile() {
		c.TokenHandler = s.token.Current
	}
	return nil
}
