package gcs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

func init() { driver.Register("gcs", openURL) }

// maxIdleConns is how many idle connections are kept for requests that are sent at the same time, such as renewals.
const maxIdleConns = 64

// openURL opens gcs://bucket[/prefix][?options]. The options, of which those of Holdfast are named like the
// fields of Options:
//
//	credentials=FILE   a service account's key file; default: as Google's tools find them
//	endpoint=URL       an emulator or a private service, such as http://localhost:9000; default:
//	                   $STORAGE_EMULATOR_HOST, as in Google's own libraries, else Google's
//	anonymous=true     sends no credentials, for an emulator
//	layout=NAME        record, gcslock or vault: see Layout
//	foreign-age=24h    see Options.ForeignAge
//	write-interval=2s  see Options.WriteInterval; 0: none
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	p, err := readURL(u)
	if err != nil {
		return nil, err
	}
	link := newTransport()
	if dial := driverutil.DialerOf(ctx); dial != nil {
		link.DialContext = dial
	}
	client := &http.Client{Transport: link}
	if !p.anonymous {
		tokens, err := findTokens(p.credentials, link)
		if err != nil {
			return nil, driverutil.RefuseStore(err) // only credentials were read so far
		}
		client.Transport = &authorizedTransport{link, tokens}
	}
	closer := func() error {
		link.CloseIdleConnections()
		return nil
	}
	s, err := newStore(ctx, client, u.Host, &p.opts, closer)
	if err != nil {
		return nil, errors.Join(err, closer())
	}
	return s, nil
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

// urlSettings is the content of a URL.
type urlSettings struct {
	credentials string // the key file of a service account; empty for the default credentials
	anonymous   bool
	opts        Options
}

// readURL reads the options of a URL. It sends nothing.
func readURL(u *url.URL) (urlSettings, error) {
	var p urlSettings
	if u.Host == "" || u.Port() != "" || u.User != nil {
		return p, fmt.Errorf("%w: the URL of a bucket is gcs://bucket/prefix", driver.ErrInvalid)
	}
	p.opts.Prefix = strings.TrimPrefix(u.Path, "/")
	err := driverutil.ParseOptions(u, map[string]func(string) error{
		"endpoint": func(v string) error {
			p.opts.Endpoint = v
			return checkEndpoint(v)
		},
		"credentials": func(v string) error {
			p.credentials = v
			return nil
		},
		"anonymous": func(v string) (err error) {
			p.anonymous, err = strconv.ParseBool(v)
			return err
		},
		"layout": func(v string) error {
			p.opts.Layout = Layout(v)
			return nil
		},
		"foreign-age": func(v string) (err error) {
			p.opts.ForeignAge, err = time.ParseDuration(v)
			return err
		},
		"write-interval": func(v string) (err error) {
			if p.opts.WriteInterval, err = time.ParseDuration(v); err == nil && p.opts.WriteInterval == 0 {
				p.opts.WriteInterval = -1
			}
			return err
		},
	})
	if emulator := os.Getenv("STORAGE_EMULATOR_HOST"); emulator != "" && p.opts.Endpoint == "" {
		if !strings.Contains(emulator, "://") {
			emulator = "http://" + emulator
		}
		p.opts.Endpoint, p.anonymous = emulator, p.credentials == ""
	}
	return p, err
}
