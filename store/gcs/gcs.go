// Package gcs keeps locks in a bucket of Google Cloud Storage: one object per lock, which is replaced on a
// precondition on its generation. There is no server to run.
//
//	import _ "github.com/holdfast-go/holdfast/store/gcs"
//
//	client, err := holdfast.Open(ctx, "gcs://my-bucket/locks/", nil)
//
// A program that has credentials of its own passes an HTTP client with them:
//
//	httpClient, err := google.DefaultClient(ctx, gcs.Scope) // golang.org/x/oauth2/google
//	store, err := gcs.New(ctx, httpClient, "my-bucket", &gcs.Options{Prefix: "locks/"})
//	client, err := holdfast.New(store, nil)
//
// # Layout
//
// The lock NAME is the object whose name is PREFIX and NAME. It contains JSON that people can read. The
// object stays when the lock is free, for its token. Any client that lists or waits removes it after ten idle
// minutes. Custom metadata that other programs put on the object is kept. Only line ends in a name are
// escaped, and the names that the service does not accept. The other layouts belong to other lock
// clients: see [Layout].
//
// # Time
//
// The store's clock decides when a claim has expired. Replies tell it: refusals by their Date, to a second,
// and our own writes by the object's times, to a millisecond. No client's time of day is used.
//
// # Writes
//
// The service accepts one write per second to one object, on average. A renewal, a release, and a claim that
// was promoted are written at once. A new claim that can wait stays away from the lock until
// Options.WriteInterval after the last write that it knows of, and is written then, unless other claims have
// come or gone meanwhile. A write that the service refuses because there are too many is sent again, at
// growing intervals. Each holder, and each waiter in a fair queue, writes three times in its TTL. With eight of
// each, choose a TTL of a minute or more.
//
// # Permissions
//
// storage.objects.get, create, delete (which replacing needs) and list (without it the service does not tell
// an absent object from a forbidden one): the role Storage Object User. Lifecycle rules, retention policies
// and holds must not affect the locks.
//
// # Decisions
//
// A try waits if a claim may just have expired. The date of a reply has whole seconds. A try that finds
// a claim whose end lies in that second waits once, 2 s at most, so that a job that tries once is not refused because
// of an expired lock.
package gcs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/foreign"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options are the settings of a store. The zero value and nil mean the defaults.
type Options struct {
	// Prefix is put before the names of all objects as it is: "locks/" makes locks/NAME. At most 256 bytes.
	Prefix string
	// Endpoint is the address of an emulator or a private service, such as http://localhost:9000. Default:
	// DefaultEndpoint.
	Endpoint string
	// Layout is how a lock is stored in the bucket. All users of a lock must use the same one. Default:
	// LayoutRecord.
	Layout Layout
	// ForeignAge is for LayoutGCSLock. An object of a foreign client that is older, by the store's clock, counts
	// as left by a dead process. Foreign clients do not renew, so it must be longer than any of them ever holds
	// a lock. Default: such an object never expires.
	ForeignAge time.Duration
	// WriteInterval is how long a new claim that can wait stays away from a lock after its last write. The
	// default is 2 s: to take and to release a lock are two writes, and the service wants a second between
	// writes to one object. Use less for an emulator, or where locks are rarely contended; then the minimal TTL
	// is smaller, too. A negative value means no interval. In the URL, where it is write-interval, 0 means none.
	WriteInterval time.Duration
	// Clock is the client's clock, which tests replace. Default: driver.SystemClock.
	Clock driver.Clock
}

// New makes a store that keeps locks in a bucket. The client adds the credentials to each request, as one of
// google.DefaultClient does, and must not send a request again by itself. It stays the caller's: Close does not close
// it.
//
// New sends one request, bounded by ctx, from which it learns the store's clock. It returns ErrInvalid if the client
// is nil or an option cannot work, and ErrDenied if the bucket does not exist or may not be read.
func New(ctx context.Context, client *http.Client, bucket string, opts *Options) (driver.Store, error) {
	return newStore(ctx, client, bucket, opts, func() error { return nil })
}

// newStore is New for a client that may belong to the store: Close calls closeClient.
func newStore(
	ctx context.Context, client *http.Client, bucket string, opts *Options, closeClient func() error,
) (driver.Store, error) {
	t, err := newTable(ctx, client, bucket, opts)
	if err != nil {
		return nil, err
	}
	t.closeClient = closeClient
	if opts == nil || opts.Layout == "" || opts.Layout == LayoutRecord {
		return record.New(t), nil
	}
	return foreign.New(newForeignTable(t, opts), string(opts.Layout)), nil
}

// NewTable gives access to bare records, for data that is built on records but is no lock. It is opened like
// New. Use a Prefix that no store of locks has.
func NewTable(ctx context.Context, client *http.Client, bucket string, opts *Options) (record.Table, error) {
	t, err := newTable(ctx, client, bucket, opts)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// OpenLedgerTable opens the records of the run ledger, in the same bucket. No lock has an object with their prefix. It
// sends one request, which shows that it can read.
func (t *table) OpenLedgerTable(ctx context.Context) (record.Table, error) {
	l := &table{
		bucket: t.bucket, bucketName: t.bucketName, prefix: t.prefix + runsPrefix, writeInterval: t.writeInterval,
		clock:       t.clock,
		life:        driverutil.NewLifetime(),
		closeClient: func() error { return nil },
	}
	if err := l.readServerClock(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// runsPrefix begins, after the user's prefix, the names of the objects of the run ledger. encodeName makes no such
// name.
const runsPrefix = string(escapeChar) + "holdfast-runs/"

const (
	defaultWriteInterval = 2 * time.Second
	maxPrefix            = 256
)

// newTable checks the options and reads the service's clock.
func newTable(ctx context.Context, client *http.Client, bucket string, opts *Options) (*table, error) {
	switch {
	case client == nil:
		return nil, fmt.Errorf("%w: the client is nil: pass one with credentials, such as one of google.DefaultClient", driver.ErrInvalid)
	case bucket == "":
		return nil, fmt.Errorf("%w: a Cloud Storage store needs the name of its bucket", driver.ErrInvalid)
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	t := &table{
		bucketName: bucket, prefix: o.Prefix, writeInterval: max(o.WriteInterval, 0),
		clock:       &record.ServerClock{Clock: o.Clock},
		closeClient: func() error { return nil },
		life:        driverutil.NewLifetime(),
	}
	t.bucket = &bucketClient{endpoint: strings.TrimSuffix(o.Endpoint, "/"), bucket: bucket,
		http: httpclient.New(client, httpclient.Service{Name: "Cloud Storage", IsOwn: isOwnReply, Clock: o.Clock,
			AddDate: t.clock.AddDate})}
	if err := t.readServerClock(ctx); err != nil {
		return nil, err
	}
	return t, nil
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
	switch {
	case len(c.Prefix) > maxPrefix || encodeName(c.Prefix) != c.Prefix || !utf8.ValidString(c.Prefix):
		return c, fmt.Errorf("%w: a prefix is at most %d bytes of UTF-8, and has no line end", driver.ErrInvalid, maxPrefix)
	case c.ForeignAge != 0 && c.Layout != LayoutGCSLock:
		return c, driverutil.RefuseForLayout("ForeignAge", LayoutGCSLock)
	case c.ForeignAge < 0:
		return c, fmt.Errorf("%w: ForeignAge must not be negative", driver.ErrInvalid)
	}
	c.Endpoint = cmp.Or(c.Endpoint, DefaultEndpoint)
	if err := checkEndpoint(c.Endpoint); err != nil {
		return c, fmt.Errorf("%w: the endpoint: %w", driver.ErrInvalid, err)
	}
	c.WriteInterval = cmp.Or(c.WriteInterval, defaultWriteInterval)
	if c.Clock.Monotonic == nil {
		c.Clock = driver.SystemClock
	}
	return c, nil
}

// checkEndpoint checks that an address can be that of a service.
func checkEndpoint(address string) error {
	e, err := url.Parse(address)
	if err != nil || e.Host == "" || e.Scheme != "http" && e.Scheme != "https" {
		return errors.New("write it as http://host:port")
	}
	return nil
}
