// Package s3 keeps locks in a bucket of Amazon S3, or of a service that speaks its protocol and obeys conditions of
// writes, such as MinIO and Cloudflare's R2: one object per lock, which is replaced if its ETag is still the same.
//
//	import _ "github.com/holdfast-go/holdfast/store/s3"
//
//	client, err := holdfast.Open(ctx, "s3://my-bucket/locks/?region=eu-central-1", nil)
//
// A program that has a client of the AWS SDK passes it:
//
//	cfg, err := config.LoadDefaultConfig(ctx) // github.com/aws/aws-sdk-go-v2/config
//	store, err := s3.New(ctx, awss3.NewFromConfig(cfg), "my-bucket", &s3.Options{Prefix: "locks/"})
//	client, err := holdfast.New(store, nil)
//
// # Layout
//
// The lock NAME is the object whose key is PREFIX, NAME and .json. It contains JSON that people can read. In a name,
// only control characters, equals signs, and slashes and dots in some places are escaped. The object stays when the
// lock is free, for its token. Any client that lists or waits removes it after ten idle minutes, if the service
// compares the ETag before it deletes an object. If not, as MinIO, no object is ever deleted; the bucket may have a
// lifecycle rule that removes objects after three days or more. [LayoutTerraform] is the layout of Terraform's lock
// files.
//
// # Services
//
// The first client in a week tries whether the service obeys If-None-Match and If-Match in PUT, and If-Match in DELETE.
// A service that is seen to ignore them in PUT is refused, and so is Google Cloud Storage, which has a store of its
// own. The bucket must not be replicated in both directions, and all clients must use the same one.
//
// MinIO must have one server pool: with more, it does not always obey, and two clients could take one lock. Each client
// tries that MinIO refuses 32 writes in a row, which shows nearly every other pool, but not one that is hardly used.
//
// # Time
//
// The service's clock decides when a claim has expired. Each reply tells it, to a second. No client's time of day is
// used. The clocks of the service's hosts must agree within 100 ms.
//
// # Permissions
//
// s3:GetObject and s3:PutObject for the objects, and s3:ListBucket for the bucket: without it the service does not tell
// an absent object from a forbidden one. With s3:DeleteObject, idle locks are removed. Lifecycle rules and retention
// must not affect the locks.
//
// # Decisions
//
// The SDK, and not requests of our own as for Cloud Storage. Linked next to the store for DynamoDB, it adds 1.5 MB to
// the command and 0.2 ms to its start. It knows the endpoints of all partitions and corrects the date of signatures.
//
// What a service does is tried, and remembered in the bucket. Services differ in the conditions that they obey, also by
// version. The first client in a week sends about forty requests to find out; the others read one object, from which
// they learn the service's clock as well. MinIO with several server pools obeys only sometimes, so one refusal proves
// nothing, and pools can be added: 32 writes must be refused, and each client of MinIO tries. Rejected: a list of known
// services, which would be wrong for the next version.
//
// On services that delete blindly nothing is deleted. To forget a name, an object that stands for no record is written
// on its ETag. Rejected: a deletion after a last look, which could remove a grant that was made in between. For the
// same reason layout=terraform is refused there: its locks are free when there is no object.
//
// Keys end in .json. Where there is an object a, MinIO does not list a/b. So no key may be a directory of another.
//
// In Terraform's layout a release waits for its token. Nothing is left of a free lock from which the next token could
// be made, and two clients know the service's clock only to a second or two. So a token is the latest time that the
// clock may show, and the object is removed when the clock has certainly passed it. Rejected: an object for the token
// next to each lock: two requests more per lock, and objects that remain.
//
// Where nothing is left of a free lock, a release waits for writes that may still come. A write that creates an object
// cannot be refused after the release. If it got no answer, the release waits until 15 s after it, and only then
// removes the object, or looks once more whether there is one (engine/foreign, also for Cloud Storage). Rejected: an
// object that is created and removed to refuse that write: it can come after that as well.
package s3

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options are the settings of a store. The zero value and nil mean the defaults.
type Options struct {
	// Prefix is put before the keys of all objects as it is: "locks/" makes locks/NAME.json. At most 256 bytes, of
	// which 100 may follow the last slash.
	Prefix string
	// Layout is how a lock is stored in the bucket. All users of a lock must use the same one. Default: LayoutRecord.
	Layout Layout
	// ForeignAge is for LayoutTerraform. A lock file of Terraform that is older, by the service's clock, counts as left
	// by a dead process. Terraform does not renew, so it must be longer than any run of it takes. Default: such a file
	// never expires.
	ForeignAge time.Duration
	// WriteInterval is how long a new claim that can wait stays away from a lock after its last write, for services
	// that limit the writes to one object. Default: 2 s for R2, which accepts one write per second, and 0 elsewhere. A
	// negative value means no interval. In the URL, where it is write-interval, 0 means none.
	WriteInterval time.Duration
	// Clock is the client's clock, which tests replace. Default: driver.SystemClock.
	Clock driver.Clock
}

const (
	maxPrefix       = 256
	maxColumn       = 100
	r2WriteInterval = 2 * time.Second
)

// New makes a store that keeps locks in a bucket. It uses the client's settings and credentials, but sends no write
// again by itself. The client stays the caller's: Close does not close it.
//
// New reads one object, or tries out the service: see the package's comment. ctx bounds that. New returns ErrInvalid
// if the client is nil, an option cannot work, or the bucket is in another region; ErrDenied if the bucket does not
// exist, may not be used, or the credentials are not valid; and ErrUnsupported if the service does not obey conditions.
func New(ctx context.Context, client *sdk.Client, bucket string, opts *Options) (driver.Store, error) {
	t, err := newTable(ctx, client, bucket, opts)
	if err != nil {
		return nil, err
	}
	return t.newStore(opts)
}

// newStore makes the store of a layout.
func (t *table) newStore(opts *Options) (driver.Store, error) {
	if opts != nil && opts.Layout == LayoutTerraform {
		return newTerraformStore(t, opts.ForeignAge)
	}
	return record.New(t), nil
}

// NewTable gives access to bare records, for data that is built on records but is no lock. It is opened like New. Use a
// Prefix that no store of locks has.
func NewTable(ctx context.Context, client *sdk.Client, bucket string, opts *Options) (record.Table, error) {
	t, err := newTable(ctx, client, bucket, opts)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// runsPrefix begins, after the user's prefix, the keys of the objects of the run ledger. No lock has such a key: see
// decodeName.
const runsPrefix = string(escapeChar) + "holdfast-runs/"

// OpenLedgerTable opens the records of the run ledger, in the same bucket. It sends nothing.
func (t *table) OpenLedgerTable(context.Context) (record.Table, error) {
	l := *t
	l.bucket, l.prefix, l.column = t.bucket.share(), t.prefix+runsPrefix, 0
	return &l, nil
}

// newTable checks the options, and finds out what the service does.
func newTable(ctx context.Context, client *sdk.Client, bucket string, opts *Options) (*table, error) {
	if client == nil {
		return nil, fmt.Errorf("%w: the client is nil: pass one that NewFromConfig of the AWS SDK's service/s3 has "+
			"made",
			driver.ErrInvalid)
	}
	if err := checkBucket(bucket); err != nil {
		return nil, err
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	settings := client.Options()
	t := &table{bucket: newBucketClient(client, bucket, o.Clock), prefix: o.Prefix, suffix: recordSuffix,
		column: columnOf(o.Prefix),
		place:  "s3://" + bucket + "/" + o.Prefix, service: "Amazon S3, " + settings.Region,
		writeInterval: max(o.WriteInterval, 0)}
	if o.Layout == LayoutTerraform {
		t.suffix, t.plainNames = terraformSuffix, true
	}
	if endpoint := aws.ToString(settings.BaseEndpoint); endpoint != "" {
		e, err := url.Parse(endpoint)
		switch {
		case err != nil || e.Host == "":
			return nil, fmt.Errorf("%w: the client's endpoint is not a URL", driver.ErrInvalid)
		case e.Hostname() == "storage.googleapis.com" || strings.HasSuffix(e.Hostname(), ".storage.googleapis.com"):
			return nil, errGoogle
		case strings.HasSuffix(e.Hostname(), ".r2.cloudflarestorage.com") && o.WriteInterval == 0:
			t.writeInterval = r2WriteInterval
		}
		t.service = e.Host
		t.place += "?endpoint=" + e.Scheme + "://" + e.Host
	} else if settings.Region != "" {
		t.place += "?region=" + settings.Region
	}
	if err := t.probe(ctx, o.Layout == LayoutTerraform); err != nil {
		t.bucket.close()
		return nil, err
	}
	return t, nil
}

// checkBucket refuses kinds of buckets that do not keep the promises of a general purpose bucket.
func checkBucket(bucket string) error {
	switch {
	case bucket == "":
		return fmt.Errorf("%w: a store on S3 needs the name of its bucket", driver.ErrInvalid)
	case strings.HasSuffix(bucket, "--x-s3") || strings.HasSuffix(bucket, "--xa-s3"): // the second: an access point of one
		return fmt.Errorf("%w: a directory bucket does not list its objects in order: use a general purpose bucket",
			driver.ErrUnsupported)
	case strings.HasSuffix(bucket, ".mrap"):
		return fmt.Errorf("%w: a multi-region access point leads to buckets that learn of each other's writes "+
			"later: use one "+
			"bucket", driver.ErrUnsupported)
	}
	return nil
}

// withDefaults checks the options, and fills in the defaults.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if err := driverutil.CheckLayout(c.Layout, layouts...); err != nil {
		return c, err
	}
	switch why := prefixProblem(c.Prefix); {
	case why != "":
		return c, fmt.Errorf("%w: the prefix %q %s", driver.ErrInvalid, c.Prefix, why)
	case c.ForeignAge != 0 && c.Layout != LayoutTerraform:
		return c, driverutil.RefuseForLayout("ForeignAge", LayoutTerraform)
	case c.ForeignAge < 0:
		return c, fmt.Errorf("%w: ForeignAge must not be negative", driver.ErrInvalid)
	}
	if c.Clock.Monotonic == nil {
		c.Clock = driver.SystemClock
	}
	return c, nil
}

// prefixProblem says which rule a prefix breaks, or is empty. It must need no escapes.
func prefixProblem(prefix string) string {
	switch {
	case len(prefix) > maxPrefix:
		return fmt.Sprintf("has more than %d bytes", maxPrefix)
	case !utf8.ValidString(prefix):
		return "is not UTF-8"
	case columnOf(prefix) > maxColumn:
		return fmt.Sprintf("has more than %d bytes after its last slash", maxColumn)
	}
	name := prefix + "n" // as before the name of a lock
	for i, r := range name {
		switch escaped := encodeRune(name, i, r); {
		case escaped == string(r) && r != 0:
		case r == '=':
			return "has an equals sign"
		case r == '/' && i == 0:
			return "begins with a slash"
		case r == '/':
			return "has an empty segment"
		case r == '.':
			return "has a segment that is . or .., or that ends in " + recordSuffix
		default:
			return "has a control character"
		}
	}
	if encodeName(name, 0) != name {
		return fmt.Sprintf("has a segment of %d bytes or more", maxSegment)
	}
	return ""
}
