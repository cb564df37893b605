package dynamodb

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/logging"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() { driver.Register("dynamodb", openURL, storeurl.Describe((*storeURL).form)) }

// storeURL is what a URL says. Credentials, and the region if it is not given, come from where the AWS command line
// finds them: the environment, the shared files, or the machine's role.
type storeURL struct {
	table, region, endpoint, profile string
	opts                             Options
}

func (s *storeURL) form() *storeurl.Form {
	o := &s.opts
	return &storeurl.Form{
		Shape:       "dynamodb://table",
		Credentials: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
		Host:        &s.table,
		Options: []storeurl.Option{
			{Name: "region", To: storeurl.Text(&s.region), Default: "as the AWS command line", Means: "the region of the table"},
			{Name: "endpoint", To: storeurl.Address(&s.endpoint), Default: "the region's",
				Means: "another address: an emulator or a private endpoint"},
			{Name: "profile", To: storeurl.Text(&s.profile), Means: "a profile of the shared configuration files"},
			storeurl.Create(&o.Create, "table"),
			{Name: "partition-key", To: storeurl.Text(&o.PartitionKey), Means: "the table's partition key",
				Default: "`primary_id`; `key` with `awslock`, `partition_key` with `ledger`"},
			{Name: "ttl-attribute", To: storeurl.Text(&o.TTLAttribute), Default: "`expired_at`",
				Means: "the table's TTL attribute", Layouts: storeurl.For(LayoutRecord)},
			{Name: "prefix", To: storeurl.Text(&o.Prefix), Means: "the beginning of all keys", Layouts: storeurl.For(LayoutRecord)},
			storeurl.Layout(&o.Layout, "`record` is that of clients which put an item on the condition that it does not exist. "+
				"`awslock` is that of the AWS lock client and of dynamolock, for the mutex. `ledger` is a run ledger that plain "+
				"workers can share, without locks", layouts...),
			{Name: "ledger-name", To: storeurl.Text(&o.LedgerName), Default: "the name of the table",
				Means: "the name of the ledger that the table is", Layouts: storeurl.For(LayoutLedger)},
			{Name: "started-age", To: storeurl.DurationOrNone(&o.StartedAge, minStartedAge, 0), Default: "no age is enough",
				Means:   "how old the start of a plain worker's run without an end must be for another run to begin, such as `6h`",
				Layouts: storeurl.For(LayoutLedger)},
			{Name: "lease-format", To: storeurl.OneOf(&o.LeaseFormat, LeaseFormatMillis, LeaseFormatDuration), Default: "`millis`",
				Means:   "how durations are written: `millis` as by the AWS client in Java, `duration` as by dynamolock",
				Layouts: storeurl.For(LayoutAWSLock)},
			{Name: "foreign-watch", To: storeurl.Duration(&o.ForeignWatch, 0, 0), Default: "a try is refused at once, even if " +
				"that holder died long ago", Means: "a try (`run -n`) watches a foreign holder for its whole lease, if that is no " +
				"longer than this, and takes over if it was not renewed meanwhile", Layouts: storeurl.For(LayoutAWSLock)},
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
		if s.endpoint != "" {
			o.BaseEndpoint = &s.endpoint
		}
	}), s.table, &s.opts)
	if err != nil {
		transport.CloseIdleConnections()
		return nil, err
	}
	l.onClose = transport.CloseIdleConnections
	return s.opts.newStore(l), nil
}
