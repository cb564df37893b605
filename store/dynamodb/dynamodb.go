// Package dynamodb keeps locks in a DynamoDB table, one item per lock. There is no server to run.
//
//	import _ "github.com/holdfast-go/holdfast/store/dynamodb"
//
//	client, err := holdfast.Open(ctx, "dynamodb://locks?region=eu-central-1&create=true", nil)
//
// A program that has a client of the AWS SDK already passes that:
//
//	store, err := dynamodb.New(ctx, dynamodbClient, "locks", nil)
//	client, err := holdfast.New(store, nil)
//
// # Layout
//
// The lock NAME is the item whose partition key, primary_id, is NAME. It has the attributes
//
//	expired_at        N: seconds since 1970. After that the lock is free to foreign clients, by their own clocks
//	holdfast          S: the record as JSON: the holders, the waiters, the last token
//	holdfast_version  S: changes with every write
//
// and no others, because each write puts the whole item. Both expired_at and primary_id can have other
// names. The table is for locks alone: do not keep data of your own in their items.
//
// The common lock pattern works on the same items. A foreign client that puts an item on the condition
// "attribute_not_exists(primary_id) OR expired_at < :now" is refused while a claim of ours holds the lock,
// and it excludes our claims until its expired_at has passed by the service's clock. A foreign client may
// also recognise its own locks by an attribute such as an owner, and renew, retake or delete them. It is
// refused once a claim of ours has taken the item over, as it is among its own kind.
//
// A foreign put removes our record. Then our waiters queue again, in a new order. If the last grant is less
// than 3 s old, the next token may be smaller: tokens are made from the service's clock, and the estimates
// of two clients may differ by so much.
//
// An idle lock keeps its item, with an expired_at in the past. Only the table's own TTL on expired_at, which
// is free of charge, removes it. It does not matter when.
//
// With LayoutAWSLock the items are those of the AWS lock client in Java and of its ports, such as dynamolock
// in Go. They support the plain mutex only. Their clients and ours exclude each other. Foreign clients write
// the length of a lease in two ways, and can each read only their own. Ours read both, and write the one
// that Options.LeaseFormat names.
//
// # Cost
//
// Each take, renewal and release is one conditional write, billed by the size of the item. (A kilobyte holds
// two or three claims.) A refused take is billed like a write, and needs one more consistent read where the
// service does not return the item with the refusal. A client that has sent nothing for half a minute reads
// once before it takes or renews a lock, to learn the service's time. A waiter costs about one consistent
// read per second.
//
// # Permissions
//
// dynamodb:GetItem and PutItem, with LayoutAWSLock UpdateItem instead of PutItem; Scan to list locks;
// CreateTable, DescribeTable and UpdateTimeToLive to make a table.
//
// Do not use a global table: its regions see each other's writes too late. Do not use DAX.
package dynamodb

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options are the settings of a store. The zero value and nil mean the defaults.
type Options struct {
	// PartitionKey is the name of the table's partition key, a string. Default: primary_id, and key for
	// LayoutAWSLock.
	PartitionKey string
	// TTLAttribute is the attribute that says when a lock expires: to foreign clients, and to the table's TTL.
	// Default: expired_at. LayoutAWSLock has none.
	TTLAttribute string
	// Prefix is put before the names of all locks. At most 1,024 bytes. Default: nothing. Not with
	// LayoutAWSLock.
	Prefix string
	// Create makes the table if it does not exist: billed by request, with its TTL turned on.
	Create bool
	// Layout is how a lock is stored in the table. All users of a lock must use the same one. Default:
	// LayoutRecord.
	Layout Layout
	// LeaseFormat is how LayoutAWSLock writes durations. Default: LeaseFormatMillis.
	LeaseFormat LeaseFormat
	// ForeignWatch is for LayoutAWSLock, where a foreign holder counts as dead when a client has seen it
	// unchanged for its lease. A caller that only tries the lock (TryLock) then watches such a holder for its
	// lease, if that is no longer than ForeignWatch. With 0 the caller is refused at once, even if the holder
	// died long ago and no client has waited for the lock since.
	ForeignWatch time.Duration
	// Clock is the client's clock, which tests replace. Default: driver.SystemClock.
	Clock driver.Clock
}

// Layout is how a lock is stored in a table.
type Layout string

// All users of a lock must use the same layout.
const (
	// LayoutRecord is this package's own layout, described above.
	LayoutRecord Layout = "record"
	// LayoutAWSLock is the layout of the AWS lock client and of its ports, such as dynamolock. It supports the
	// plain mutex only.
	LayoutAWSLock Layout = "awslock"
)

// reservedChar is in the keys of items that are no locks. A lock's name cannot contain it.
const reservedChar = "\x00"

// runsPrefix begins, after the user's prefix, the keys of the run ledger.
const runsPrefix = reservedChar + "runs" + reservedChar

// New makes a store that keeps locks in the table of that name. The client stays the caller's: Close does not
// close it. Its retry settings are not used.
//
// New sends one read, bounded by ctx. It shows that the table exists and has the right key, and tells the service's
// clock. The error Is ErrInvalid if the client is nil, an option cannot work, the table is missing or its key does not
// fit, and ErrDenied if a permission is missing.
//
// The SDK's log output is off, unless the client has another logger than the one that the SDK's configuration
// sets by default, which writes to standard error.
func New(ctx context.Context, client *sdk.Client, tableName string, opts *Options) (driver.Store, error) {
	opts = cmp.Or(opts, &Options{})
	c, err := connectTable(ctx, client, tableName, opts)
	if err != nil {
		return nil, err
	}
	return opts.newStore(c), nil
}

// newStore makes the store of the layout.
func (o *Options) newStore(l *tableClient) driver.Store {
	if o.Layout == LayoutAWSLock {
		return newAWSLock(l, o.LeaseFormat, o.ForeignWatch)
	}
	return record.New(&table{tableClient: l, prefix: o.Prefix, ttlAttribute: o.ttlAttribute()})
}

// partitionKey is the name of the partition key. The AWS lock client calls it key by default.
func (o *Options) partitionKey() string {
	if o.Layout == LayoutAWSLock {
		return cmp.Or(o.PartitionKey, "key")
	}
	return cmp.Or(o.PartitionKey, "primary_id")
}

// ttlAttribute is empty for LayoutAWSLock, which has no such attribute.
func (o *Options) ttlAttribute() string {
	if o.Layout == LayoutAWSLock {
		return ""
	}
	return cmp.Or(o.TTLAttribute, "expired_at")
}

// checkOptions says what is wrong with the options.
func (o *Options) checkOptions() error {
	switch {
	case !slices.Contains([]Layout{"", LayoutRecord, LayoutAWSLock}, o.Layout):
		return fmt.Errorf("%w: a layout is %s or %s, not %q", driver.ErrInvalid, LayoutRecord, LayoutAWSLock, o.Layout)
	case !slices.Contains([]LeaseFormat{"", LeaseFormatMillis, LeaseFormatDuration}, o.LeaseFormat):
		return fmt.Errorf("%w: a lease format is %s or %s, not %q",
			driver.ErrInvalid, LeaseFormatMillis, LeaseFormatDuration, o.LeaseFormat)
	case o.Layout == LayoutAWSLock && o.TTLAttribute+o.Prefix != "":
		return fmt.Errorf("%w: the layout %s has neither a TTL attribute nor a prefix", driver.ErrInvalid, o.Layout)
	case o.Layout != LayoutAWSLock && (o.LeaseFormat != "" || o.ForeignWatch != 0), o.ForeignWatch < 0:
		return fmt.Errorf("%w: a lease format and a foreign watch, which cannot be negative, are for the layout %s",
			driver.ErrInvalid, LayoutAWSLock)
	case strings.Contains(o.Prefix, reservedChar) || !utf8.ValidString(o.Prefix) || len(o.Prefix) > maxPrefix:
		return fmt.Errorf("%w: a prefix is at most %d bytes of UTF-8 without NUL", driver.ErrInvalid, maxPrefix)
	}
	seen := map[string]bool{dataAttribute: true, versionAttribute: true}
	for _, a := range []string{o.partitionKey(), o.ttlAttribute()} {
		if seen[a] {
			return fmt.Errorf("%w: the attribute %q is used for something else; the partition key and the TTL attribute "+
				"must be two others", driver.ErrInvalid, a)
		}
		seen[a] = true
	}
	return nil
}

// maxPrefix leaves room for the longest name in a key, which DynamoDB limits to 2,048 bytes.
const maxPrefix = 1024

// NewTable gives access to bare records beside the locks, for data that is built on records but is no lock. They
// have no TTL attribute, so neither foreign clients nor the table's TTL touch them.
func NewTable(ctx context.Context, client *sdk.Client, tableName string, opts *Options) (record.Table, error) {
	opts = cmp.Or(opts, &Options{})
	l, err := connectTable(ctx, client, tableName, opts)
	if err != nil {
		return nil, err
	}
	return &table{tableClient: l, prefix: opts.Prefix + reservedChar}, nil
}

// OpenLedgerTable opens the records of the run ledger, in the same table. They have no TTL attribute.
func (t *table) OpenLedgerTable(ctx context.Context) (record.Table, error) {
	return &table{tableClient: t.tableClient.share(), prefix: t.prefix + runsPrefix}, nil
}

// connectTable checks the table, and makes it if the options say so.
func connectTable(ctx context.Context, client *sdk.Client, tableName string, opts *Options) (*tableClient, error) {
	if client == nil {
		return nil, fmt.Errorf("%w: the client is nil: pass one that dynamodb.NewFromConfig of the AWS SDK has made",
			driver.ErrInvalid)
	}
	if tableName == "" {
		return nil, fmt.Errorf("%w: a DynamoDB store needs the name of its table", driver.ErrInvalid)
	}
	if err := opts.checkOptions(); err != nil {
		return nil, err
	}
	l := newTableClient(client, tableName, opts.partitionKey(), opts.Clock)
	if err := l.checkTable(ctx, opts.Create, opts.ttlAttribute()); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}
