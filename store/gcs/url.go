package gcs

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() { driver.Register("gcs", openURL, storeurl.Describe((*storeURL).form)) }

// storeURL is what a URL says.
type storeURL struct {
	bucket      string
	credentials string // the key file of a service account; empty for the default credentials
	anonymous   bool
	opts        Options
}

func (s *storeURL) form() *storeurl.Form {
	return &storeurl.Form{
		Shape:       "gcs://bucket[/prefix]",
		Credentials: "use the option credentials, or what Google's tools use",
		Host:        &s.bucket, Path: &s.opts.Prefix,
		Options: []storeurl.Option{
			{Name: "credentials", To: storeurl.File(&s.credentials), Default: "as Google's tools find them",
				Means: "a service account's key file"},
			{Name: "anonymous", To: storeurl.Bool(&s.anonymous), Means: "use no credentials, for an emulator"},
			{Name: "endpoint", To: storeurl.Address(&s.opts.Endpoint), Default: "Google's, or that of `$STORAGE_EMULATOR_HOST`",
				Means: "the address of an emulator or a private service, such as `http://localhost:9000`"},
			storeurl.Layout(&s.opts.Layout, "`gcslock` is that of clients in Go, shell and Terraform (not of the package of that "+
				"name on PyPI, which takes over our locks while they are held), and `vault` that of Vault; both are for the mutex",
				layouts...),
			storeurl.ForeignAge(&s.opts.ForeignAge, "a foreign client's object", LayoutGCSLock),
			storeurl.WriteInterval(&s.opts.WriteInterval, "`2s`; a shorter one allows a shorter TTL"),
		},
	}
}

// maxIdleConns is how many idle connections are kept for requests that are sent at the same time, such as renewals.
const maxIdleConns = 64

func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	s, err := readURL(u)
	if err != nil {
		return nil, err
	}
	link := newTransport()
	if dial := driverutil.DialerOf(ctx); dial != nil {
		link.DialContext = dial
	}
	client := &http.Client{Transport: link}
	if !s.anonymous {
		tokens, err := findTokens(s.credentials, link)
		if err != nil {
			return nil, driverutil.RefuseStore(err) // only credentials were read so far
		}
		client.Transport = &authorizedTransport{link, tokens}
	}
	closer := func() error {
		link.CloseIdleConnections()
		return nil
	}
	store, err := newStore(ctx, client, s.bucket, &s.opts, closer)
	if err != nil {
		return nil, errors.Join(err, closer())
	}
	return store, nil
}

// newTransport makes the connections. All requests may share one connection, so it is pinged when nothing has
// arrived on it for a while. Without that, the requests on a dead connection would time out one after the
// other, and each new one would be sent on it as well.
func newTransport() *http.Transport {
	link := http.DefaultTransport.(*http.Transport).Clone()
	link.MaxIdleConnsPerHost = maxIdleConns
	link.HTTP2 = &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 2 * time.Second}
	return link
}

// readURL reads a URL. It sends nothing.
func readURL(u *url.URL) (*storeURL, error) {
	s := &storeURL{}
	if err := s.form().Read(u); err != nil {
		return nil, err
	}
	if emulator := os.Getenv("STORAGE_EMULATOR_HOST"); emulator != "" && s.opts.Endpoint == "" {
		if !strings.Contains(emulator, "://") {
			emulator = "http://" + emulator
		}
		s.opts.Endpoint, s.anonymous = emulator, s.credentials == ""
	}
	return s, nil
}
