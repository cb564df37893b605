package dynamodb

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/logging"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

func init() { driver.Register("dynamodb", openURL) }

// openURL opens dynamodb://table[?options]. Credentials, and the region if it is not given, come from where the AWS
// command line finds them: the environment, the shared files, or the machine's role. The options, of which those of
// Holdfast are named like the fields of Options:
//
//	region=R               the table's region
//	endpoint=URL           another address than the region's: an emulator or a private endpoint
//	profile=P              a profile of the shared files
//	create=true            makes the table if it does not exist
//	partition-key=K        the table's partition key: by default primary_id, key with layout=awslock, and
//	                       partition_key with layout=ledger
//	ttl-attribute=A        the table's TTL attribute: by default expired_at
//	prefix=P               is put before the names of all locks
//	layout=awslock         the layout of the AWS lock client and of dynamolock: see LayoutAWSLock
//	layout=ledger          a run ledger in the layout of plain workers: see LayoutLedger
//	ledger-name=N          for that layout: see Options.LedgerName
//	started-age=6h         for that layout: see Options.StartedAge
//	lease-format=duration  how layout=awslock writes durations: see LeaseFormat
//	foreign-watch=30s      for that layout: see Options.ForeignWatch
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	opts, settings, endpoint, err := readURL(u)
	if err != nil {
		return nil, err
	}
	settings = append(settings, config.WithHTTPClient(awshttp.NewBuildableClient()), config.WithLogger(logging.Nop{}))
	cfg, err := config.LoadDefaultConfig(ctx, settings...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: the AWS configuration cannot be read: %w", driver.ErrInvalid, err)
	case cfg.Region == "":
		return nil, fmt.Errorf("%w: no AWS region is set: add region= to the store's URL, or set AWS_REGION",
			driver.ErrInvalid)
	}
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
		return nil, cmp.Or(ctx.Err(), driverutil.RefuseStore(fmt.Errorf("no AWS credentials are found: set "+
			"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, or give the machine a role (%v)", err)))
	}
	// One idle connection is kept for each renewal that may run at a time: see maxRenewers.
	transport := cfg.HTTPClient.(*awshttp.BuildableClient).GetTransport()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 512, 256
	if dial := driverutil.DialerOf(ctx); dial != nil {
		transport.DialContext = dial
	}
	l, err := connectTable(ctx, sdk.NewFromConfig(cfg, func(o *sdk.Options) {
		o.HTTPClient = &http.Client{Transport: transport}
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
	}), u.Host, opts)
	if err != nil {
		transport.CloseIdleConnections()
		return nil, err
	}
	l.onClose = transport.CloseIdleConnections
	return opts.newStore(l), nil
}

// readURL reads the options of a URL, the settings for the SDK, and the endpoint. It sends nothing.
func readURL(u *url.URL) (*Options, []func(*config.LoadOptions) error, string, error) {
	opts := &Options{}
	var settings []func(*config.LoadOptions) error
	var endpoint string
	textOf := func(to *string) func(string) error {
		return func(v string) error { *to = v; return nil }
	}
	err := driverutil.ParseOptions(u, map[string]func(string) error{
		"region":  func(v string) error { settings = append(settings, config.WithRegion(v)); return nil },
		"profile": func(v string) error { settings = append(settings, config.WithSharedConfigProfile(v)); return nil },
		"endpoint": func(v string) error {
			if e, err := url.Parse(v); err != nil || e.Scheme != "http" && e.Scheme != "https" || e.Host == "" {
				return fmt.Errorf("an endpoint looks like https://host:port")
			}
			endpoint = v
			return nil
		},
		"create":        func(v string) (err error) { opts.Create, err = strconv.ParseBool(v); return err },
		"partition-key": textOf(&opts.PartitionKey), "ttl-attribute": textOf(&opts.TTLAttribute), "prefix": textOf(&opts.Prefix),
		"layout":       func(v string) error { opts.Layout = Layout(v); return nil },
		"lease-format": func(v string) error { opts.LeaseFormat = LeaseFormat(v); return nil },
		"ledger-name":  textOf(&opts.LedgerName),
		"started-age": func(v string) (err error) {
			opts.StartedAge, err = time.ParseDuration(v)
			return err
		},
		"foreign-watch": func(v string) (err error) {
			opts.ForeignWatch, err = time.ParseDuration(v)
			return err
		},
	})
	switch {
	case err != nil:
	case u.User != nil:
		err = fmt.Errorf("%w: credentials do not belong in the URL of a DynamoDB store: "+
			"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", driver.ErrInvalid)
	case u.Host == "" || u.Path != "" && u.Path != "/":
		err = fmt.Errorf("%w: a DynamoDB store's URL looks like dynamodb://table?region=eu-central-1",
			driver.ErrInvalid)
	}
	return opts, settings, endpoint, err
}
