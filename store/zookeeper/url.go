package zookeeper

import (
	"context"
	"net/url"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() { driver.Register("zookeeper", openURL, storeurl.Describe((*storeURL).form)) }

// storeURL is what a URL says.
type storeURL struct {
	user     string
	password driverutil.Secret
	servers  []string
	acl      string
	opts     Options
	tls      driverutil.TLSOptions
}

func (s *storeURL) form() *storeurl.Form {
	return &storeurl.Form{
		Shape: "zookeeper://[user[:password]@]host[:2181][,host...]",
		User:  &s.user, Password: &s.password, Hosts: &s.servers,
		Options: []storeurl.Option{
			storeurl.PasswordFile(&s.password),
			{Name: "namespace", To: storeurl.Text(&s.opts.Namespace), Means: "the beginning of all names"},
			storeurl.Layout(&s.opts.Layout, "how a lock is stored, and so which other clients see it; `plain` is one ephemeral node", publicLayouts...),
			{Name: "acl", To: storeurl.OneOf(&s.acl, "creator", "anyone"), Default: "`creator` with a user, `anyone` without",
				Means: "who may use the nodes that Holdfast makes"},
		},
		TLS: &s.tls,
	}
}

// openURL opens the store. The ensemble need not be reachable: claims wait for it, or fail.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	s, err := readURL(u)
	if err != nil {
		return nil, err
	}
	s.opts.Dial = driverutil.DialerOf(ctx)
	return New(ctx, s.servers, &s.opts)
}

// readURL reads a URL, and makes no request. User and password are given to the servers as a digest.
func readURL(u *url.URL) (*storeURL, error) {
	s := &storeURL{}
	err := s.form().Read(u)
	if err != nil {
		return nil, err
	}
	if s.opts.files, err = s.tls.Open(); err != nil {
		return nil, err
	}
	if s.opts.files != nil {
		s.opts.TLS = s.opts.files.Config()
	}
	switch s.acl {
	case "creator":
		s.opts.ACL = OnlyCreator
	case "anyone":
		s.opts.ACL = Anyone
	}
	if u.User != nil {
		// Not read again: with a digest, another password is another user, who may not use the nodes of the first.
		s.opts.Auth = []Auth{{"digest", s.user + ":" + s.password.Current()}}
	}
	return s, nil
}
