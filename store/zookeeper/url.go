package zookeeper

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

func init() { driver.Register("zookeeper", openURL) }

// openURL opens zookeeper://[user:password@]host[:port][,host...][?options]. User and password are given to the
// servers as a digest. The options:
//
//	password-file=FILE   the user's password, instead of one in the URL
//	namespace=N   precedes all names
//	layout=L      curator (the default), curator-readwrite, kazoo, both, curator-semaphore or plain
//	acl=A         who may use the nodes that are created: creator (the default with a user) or anyone (without)
//	tls=true      encrypts; so does each of the following
//	tls-ca=FILE   the trusted authorities, in PEM, instead of the system's
//	tls-cert=FILE, tls-key=FILE   this client's own certificate
//	tls-name=N    the name that the servers' certificates are checked for
//
// The ensemble need not be reachable: claims wait for it, or fail.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	o, err := parseOptions(u)
	if err != nil {
		return nil, err
	}
	o.Dial = driverutil.DialerOf(ctx)
	return New(ctx, strings.Split(u.Host, ","), &o)
}

func parseOptions(u *url.URL) (Options, error) {
	var o Options
	var secure driverutil.TLSOptions
	inURL, _ := u.User.Password()
	password := driverutil.NewSecret(inURL)
	text := func(to *string) func(string) error {
		return func(v string) error { *to = v; return nil }
	}
	err := driverutil.ParseOptions(u, secure.AddTo(map[string]func(string) error{
		"namespace": text(&o.Namespace),
		"layout":    func(v string) error { o.Layout = Layout(v); return nil },
		"acl": func(v string) error {
			switch v {
			case "creator":
				o.ACL = OnlyCreator
			case "anyone":
				o.ACL = Anyone
			default:
				return fmt.Errorf("it is creator or anyone, not %q", v)
			}
			return nil
		},
		"password-file": password.ReadFrom,
	}))
	if err != nil {
		return o, err
	}
	if u.Path != "" && u.Path != "/" {
		return o, fmt.Errorf("%w: a ZooKeeper store's URL has no path; "+
			"write ?namespace=... for what precedes all names", driver.ErrInvalid)
	}
	if o.files, err = secure.Open(); err != nil {
		return o, err
	}
	if o.files != nil {
		o.TLS = o.files.Config()
	}
	if u.Query().Has("password-file") && u.User.Username() == "" {
		return o, fmt.Errorf("%w: password-file takes a user: zookeeper://user@%s", driver.ErrInvalid, u.Host)
	}
	if u.User != nil {
		// Not read again: with a digest, another password is another user, who may not use the nodes of the first.
		o.Auth = []Auth{{"digest", u.User.Username() + ":" + password.Current()}}
	}
	return o, nil
}
