package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

func init() { driver.Register("s3", openURL) }

// openURL opens s3://bucket[/prefix][?options]. Credentials, and the region and the endpoint if they are not given,
// come from where the AWS command line finds them: the environment, the shared files, or the machine's role. The
// options, of which those of Holdfast are named like the fields of Options:
//
//	region=R           the bucket's region; default with an endpoint: us-east-1
//	endpoint=URL       another address than the region's, such as https://minio.example.com:9000
//	path-style=true    the bucket is in the path of the URL, and not in the host's name; default with an endpoint: true
//	profile=P          a profile of the shared files
//	layout=terraform   see LayoutTerraform
//	foreign-age=24h    see Options.ForeignAge
//	write-interval=2s  see Options.WriteInterval; 0: none
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	s, err := readURL(u)
	if err != nil {
		return nil, err
	}
	s.config = append(s.config, config.WithHTTPClient(awshttp.NewBuildableClient()), config.WithLogger(logging.Nop{}))
	cfg, err := config.LoadDefaultConfig(ctx, s.config...)
	if err != nil {
		return nil, fmt.Errorf("%w: the AWS configuration cannot be read: %w", driver.ErrInvalid, err)
	}
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
		return nil, cmp.Or(ctx.Err(), driverutil.RefuseStore(fmt.Errorf("no AWS credentials are found: set "+
			"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, or give the machine a role (%v)", err)))
	}
	transport := cfg.HTTPClient.(*awshttp.BuildableClient).GetTransport()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = maxIdleConns, maxIdleConns
	if dial := driverutil.DialerOf(ctx); dial != nil {
		transport.DialContext = dial
	}
	client := sdk.NewFromConfig(cfg, func(o *sdk.Options) {
		o.HTTPClient = &http.Client{Transport: transport}
		if s.endpoint != "" {
			o.BaseEndpoint = &s.endpoint
		}
		o.UsePathStyle = o.BaseEndpoint != nil
		if s.pathStyle != nil {
			o.UsePathStyle = *s.pathStyle
		}
		if o.Region == "" && o.BaseEndpoint != nil {
			o.Region = "us-east-1"
		}
	})
	if client.Options().Region == "" {
		return nil, fmt.Errorf("%w: no AWS region is set: add region= to the store's URL, or set AWS_REGION",
			driver.ErrInvalid)
	}
	t, err := newTable(ctx, client, u.Host, &s.opts)
	if err != nil {
		transport.CloseIdleConnections()
		return nil, err
	}
	t.bucket.onClose = transport.CloseIdleConnections
	return t.newStore(&s.opts)
}

// maxIdleConns is how many idle connections are kept for requests that are sent at the same time, such as renewals.
const maxIdleConns = 64

// urlSettings is the content of a URL.
type urlSettings struct {
	config    []func(*config.LoadOptions) error
	endpoint  string
	pathStyle *bool // nil: not given
	opts      Options
}

// readURL reads the options of a URL. It sends nothing.
func readURL(u *url.URL) (urlSettings, error) {
	var s urlSettings
	switch {
	case u.User != nil:
		return s, fmt.Errorf("%w: credentials do not belong in the URL of a store on S3: set AWS_ACCESS_KEY_ID and "+
			"AWS_SECRET_ACCESS_KEY", driver.ErrInvalid)
	case u.Host == "" || u.Port() != "":
		return s, fmt.Errorf("%w: the URL of a store on S3 looks like s3://bucket/prefix?region=eu-central-1",
			driver.ErrInvalid)
	}
	s.opts.Prefix = strings.TrimPrefix(u.Path, "/")
	err := driverutil.ParseOptions(u, map[string]func(string) error{
		"region":  func(v string) error { s.config = append(s.config, config.WithRegion(v)); return nil },
		"profile": func(v string) error { s.config = append(s.config, config.WithSharedConfigProfile(v)); return nil },
		"endpoint": func(v string) error {
			e, err := url.Parse(v)
			if err != nil || e.Scheme != "http" && e.Scheme != "https" || e.Host == "" || e.User != nil {
				return errors.New("an endpoint looks like https://host:port")
			}
			s.endpoint = v
			return nil
		},
		"path-style": func(v string) error {
			on, err := strconv.ParseBool(v)
			s.pathStyle = &on
			return err
		},
		"layout": func(v string) error {
			s.opts.Layout = Layout(v)
			return nil
		},
		"foreign-age": func(v string) (err error) {
			s.opts.ForeignAge, err = time.ParseDuration(v)
			return err
		},
		"write-interval": func(v string) (err error) {
			if s.opts.WriteInterval, err = time.ParseDuration(v); err == nil && s.opts.WriteInterval == 0 {
				s.opts.WriteInterval = -1
			}
			return err
		},
	})
	return s, err
}
