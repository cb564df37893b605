package s3

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() { driver.Register("s3", openURL, storeurl.Describe((*storeURL).form)) }

// storeURL is what a URL says. Credentials, and the region and the endpoint if they are not given, come from where
// the AWS command line finds them: the environment, the shared files, or the machine's role.
type storeURL struct {
	bucket, region, endpoint, profile string
	pathStyle                         *bool // nil: not given
	opts                              Options
}

func (s *storeURL) form() *storeurl.Form {
	return &storeurl.Form{
		Shape:       "s3://bucket[/prefix]",
		Credentials: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
		Host:        &s.bucket, Path: &s.opts.Prefix,
		Options: []storeurl.Option{
			{Name: "region", To: storeurl.Text(&s.region), Default: "as the AWS command line; `us-east-1` with an endpoint",
				Means: "the region of the bucket"},
			{Name: "endpoint", To: storeurl.Address(&s.endpoint), Default: "the region's",
				Means: "another address, such as `https://minio.example.com:9000`"},
			{Name: "path-style", To: storeurl.BoolIfGiven(&s.pathStyle), Default: "`true` with an endpoint",
				Means: "the bucket is in the path of the address, and not in the host's name"},
			{Name: "profile", To: storeurl.Text(&s.profile), Means: "a profile of the shared configuration files"},
			storeurl.Layout(&s.opts.Layout, "`terraform` is that of the lock files of Terraform and OpenTofu, for the mutex",
				layouts...),
			storeurl.ForeignAge(&s.opts.ForeignAge, "a lock file of Terraform", LayoutTerraform),
			storeurl.WriteInterval(&s.opts.WriteInterval, "`2s` on R2, which accepts one write per second and object; "+
				"elsewhere `0`"),
		},
	}
}

// openURL opens a store by its URL, with the credentials that the AWS SDK finds.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	var s storeURL
	if err := s.form().Read(u); err != nil {
		return nil, err
	}
	cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion(s.region), config.WithSharedConfigProfile(s.profile),
		config.WithHTTPClient(awshttp.NewBuildableClient()), config.WithLogger(logging.Nop{}))
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
	t, err := newTable(ctx, client, s.bucket, &s.opts)
	if err != nil {
		transport.CloseIdleConnections()
		return nil, err
	}
	t.bucket.onClose = transport.CloseIdleConnections
	return t.newStore(&s.opts)
}

// maxIdleConns is how many idle connections are kept for requests that are sent at the same time, such as renewals.
const maxIdleConns = 64
