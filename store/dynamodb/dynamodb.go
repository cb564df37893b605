// Package dynamodb keeps locks in a DynamoDB table, one item each: a lock costs a request, not a server.
//
//	import _ "github.com/holdfast-go/holdfast/store/dynamodb"
//
//	client, err := holdfast.Open(ctx, "dynamodb://locks?region=eu-central-1&create=true", nil)
//
// Programs that have a client of the AWS SDK hand that in:
//
//	store, err := dynamodb.New(ctx, dynamodbClient, &dynamodb.Options{Table: "locks"})
//
// # Layout
//
// The lock NAME is the item whose partition key, primary_id, is NAME. It has the attributes
//
//	expired_at        N: seconds since 1970. The lock is free to foreign clients when their clock is past it
//	holdfast          S: the record: who holds the lock, who waits, the last token, as JSON
//	holdfast_version  S: changes with every write
//
// and no others: each write of ours puts the whole item. So the plain pattern works on the same items: a client that puts
// an item if "attribute_not_exists(primary_id) OR expired_at < :now" is shut out while a claim of ours holds the lock,
// and shuts us out until its own expired_at has passed, by the service's clock. A client that knows its locks by an attribute
// of its own, such as an owner, and renews, takes again or deletes what bears its mark, is refused once ours has taken over
// the item, as it is among its own kind. A foreign put drops our record; then those that waited in line come again, in a new
// order, and if the last grant is less than 3 s old the next token may be smaller: two clients' estimates of the service's clock,
// from which tokens are made, may differ by as much. Both attributes can have other names. The table is for locks alone: do not keep data of your own in their items.
//
// An idle lock keeps its item, with an expired_at in the past. Nobody but the table's own TTL on expired_at, which costs
// nothing, removes it. When that comes, late or early, does not matter.
//
// With LayoutAWSLock the items are those of the AWS lock client in Java and of its ports, such as dynamolock in Go, and carry the
// plain mutex only. Its clients and ours exclude each other. How long a lease is they write in ways that the others cannot read;
// ours read all, and write the one that is chosen.
//
// Each take, renewal and release is one conditional write, billed by the size of the item (a kilobyte carries two or three
// claims). A refused take is billed like a write as well, and one consistent read more where the service does not tell with
// the refusal how the item stands. A client that has asked nothing for half a minute reads once before it takes or renews a lock, for
// the service's time. Waiting costs about one consistent read a second for each client and lock.
//
// Permissions: dynamodb:GetItem and PutItem, and for LayoutAWSLock UpdateItem in its place; Scan to list locks; CreateTable, DescribeTable and UpdateTimeToLive to make
// a table. A global table does not carry locks: its regions do not see each other's writes in time. DAX must not be in
// between.
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

// Options are how a store uses a table.
type Options struct {
	// PartitionKey is the table's partition key, a string. Default: primary_id; for LayoutAWSLock: key.
	PartitionKey string
	// TTLAttribute is the attribute by which foreign clients judge, and the table's TTL. Default: expired_at.
	TTLAttribute string
	// Prefix starts the keys of all locks. Default: nothing.
	Prefix string
	// Create makes the table if there is none: billed by request, with its TTL on.
	Create bool
	// Layout is how a lock stands in the table. Default: LayoutRecord.
	Layout Layout
	// LeaseFormat is how LayoutAWSLock writes durations. Default: LeaseMillis.
	LeaseFormat LeaseFormat
	// ForeignWatch is for LayoutAWSLock, where a foreign holder counts as dead when it was seen unchanged for its lease: one who only
	// tries then watches such a holder, too, if its lease is no longer than this, and stays for as long. 0: it is refused at once,
	// also where the holder died long ago, until somebody waits for the lock.
	ForeignWatch time.Duration
	// Clock is for tests. Default: the machine's.
	Clock driver.Clock
}

// Layout is how a lock stands in a table.
type Layout string

// The layouts.
const (
	LayoutRecord  Layout = "record"  // this package's own, described above
	LayoutAWSLock Layout = "awslock" // that of the AWS lock client and its ports, dynamolock among them: the plain mutex only
)

// reservedChar is in the keys of rows that are no locks, and never in a lock's name.
const reservedChar = "\x00"

// New makes a store of a client, which stays the caller's. It makes one read, which shows that the table is there and has the
// right key, and tells the service's clock. Whatever retries the client is set up with are not used.
func New(ctx context.Context, client *sdk.Client, tableName string, opts *Options) (driver.Store, error) {
	opts = cmp.Or(opts, &Options{})
	c, err := connectTable(ctx, client, tableName, opts)
	if err != nil {
		return nil, err
	}
	return opts.newStore(c), nil
}

func (o *Options) newStore(l *tableClient) driver.Store {
	if o.Layout == LayoutAWSLock {
		return newAWSLock(l, o.LeaseFormat, o.ForeignWatch)
	}
	return record.New(&table{tableClient: l, prefix: o.Prefix, ttlAttribute: o.ttlAttribute()})
}

func (o *Options) partitionKey() string {
	if o.Layout == LayoutAWSLock {
		return cmp.Or(o.PartitionKey, "key")
	}
	return cmp.Or(o.PartitionKey, "primary_id")
}

// ttlAttribute is empty for the layout that has no such attribute.
func (o *Options) ttlAttribute() string {
	if o.Layout == LayoutAWSLock {
		return ""
	}
	return cmp.Or(o.TTLAttribute, "expired_at")
}

// checkOptions reports what is wrong with options.
func (o *Options) checkOptions() error {
	switch {
	case !slices.Contains([]Layout{"", LayoutRecord, LayoutAWSLock}, o.Layout):
		return fmt.Errorf("%w: a layout is %s or %s, not %q", driver.ErrInvalid, LayoutRecord, LayoutAWSLock, o.Layout)
	case !slices.Contains([]LeaseFormat{"", LeaseFormatMillis, LeaseFormatDuration}, o.LeaseFormat):
		return fmt.Errorf("%w: a lease is written as %s or %s, not %q", driver.ErrInvalid, LeaseFormatMillis, LeaseFormatDuration, o.LeaseFormat)
	case o.Layout == LayoutAWSLock && o.TTLAttribute+o.Prefix != "":
		return fmt.Errorf("%w: the layout %s has neither a TTL attribute nor a prefix", driver.ErrInvalid, o.Layout)
	case o.Layout != LayoutAWSLock && (o.LeaseFormat != "" || o.ForeignWatch != 0), o.ForeignWatch < 0:
		return fmt.Errorf("%w: only the layout %s has leases to write, or to watch; and for no negative time", driver.ErrInvalid, LayoutAWSLock)
	case strings.Contains(o.Prefix, reservedChar) || !utf8.ValidString(o.Prefix) || len(o.Prefix) > maxPrefix:
		return fmt.Errorf("%w: a prefix is at most %d bytes of UTF-8 without NUL", driver.ErrInvalid, maxPrefix)
	}
	seen := map[string]bool{dataAttribute: true, versionAttribute: true}
	for _, a := range []string{o.partitionKey(), o.ttlAttribute()} {
		if seen[a] {
			return fmt.Errorf("%w: the attribute %q is used for something else; partition key and TTL attribute must be other ones", driver.ErrInvalid, a)
		}
		seen[a] = true
	}
	return nil
}

// maxPrefix leaves room for the longest name in a key, which DynamoDB limits to 2,048 bytes.
const maxPrefix = 1024

// NewTable gives bare records beside the locks, for what is built on records but is no lock. They have no expired_at:
// neither foreign clients nor the table's TTL touch them.
func NewTable(ctx context.Context, client *sdk.Client, tableName string, opts *Options) (record.Table, error) {
	opts = cmp.Or(opts, &Options{})
	l, err := connectTable(ctx, client, tableName, opts)
	if err != nil {
		return nil, err
	}
	return &table{tableClient: l, prefix: opts.Prefix + reservedChar}, nil
}

// connectTable checks the table, and makes it if that is wanted.
func connectTable(ctx context.Context, client *sdk.Client, tableName string, opts *Options) (*tableClient, error) {
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
