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
// also recognize its own locks by an attribute such as an owner, and renew, retake or delete them. It is
// refused once a claim of ours has taken the item over, as it is among its own kind.
//
// A foreign put removes our record. Then our waiters queue again, in a new order. If the last grant is less
// than 3 s old, the next token may be smaller: tokens are made from the service's clock, and the estimates
// of two clients may differ by so much.
//
// An idle lock keeps its item, with an expired_at in the past. Only the table's own TTL on expired_at, which
// is free of charge, removes it. It does not matter when.
//
// With LayoutAWSLock the items look like those of the AWS lock client in Java and of its ports, such as dynamolock
// in Go. They support the plain mutex only. Their clients and ours exclude each other. Foreign clients write
// the length of a lease in two ways, and can each read only their own. Ours read both, and write the one
// that Options.LeaseFormat names.
//
// With LayoutLedger the table has the sort key sequence, a number, and one row for each start, success and failure of
// a key, which is the id of an event:
//
//	partition_key   S: the key
//	sequence        N: 1, 2, 3 ...; the newest row says how the key stands
//	atomic_counter  N: 1, and one more for each start that came too late
//	exec_status     S: started, succeeded or failed
//	created_at      S: a time in ISO 8601
//
// A plain worker reads the newest row. It stops if that is started or succeeded, and else sends UpdateItem for the next
// sequence with ADD atomic_counter 1, SET exec_status and created_at; it goes on if the counter that comes back is 1.
// At the end it writes succeeded or failed to the next sequence. Workers of ours follow the same rules, so each event
// has one run at a time, of a plain worker or ours. When a worker of ours dies, its run is abandoned after its TTL: the
// next client of ours writes failed after it. Plain workers wait until then. How the two meet, and what each late
// request does, is in the comment of type ledger.
//
// The table is one ledger. Rows are kept: there is no retention by age (KeepFor), and Forget and KeepRuns remove only
// the rows that end runs, because a plain worker that has read the table some time ago could take the place of a
// removed start. A plain worker's run has no token, no heartbeat and no result.
//
// # Cost
//
// Each take, renewal and release is one conditional write, billed by the size of the item. (A kilobyte holds
// two or three claims.) A refused take is billed like a write, and needs one more consistent read where the
// service does not return the item with the refusal. A client that has sent nothing for half a minute reads
// once before it takes or renews a lock, to learn the service's time. A waiter costs about one consistent
// read per second.
//
// With LayoutLedger, a run costs one read and two writes, and one read and one write for each renewal; a key that has
// succeeded costs one read.
//
// # Permissions
//
// dynamodb:GetItem and PutItem, with LayoutAWSLock UpdateItem instead of PutItem, with LayoutLedger also Query,
// UpdateItem and, for Forget and KeepRuns, DeleteItem; Scan to list locks or keys; CreateTable, DescribeTable and
// UpdateTimeToLive to make a table.
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
	"github.com/holdfast-go/holdfast/driver/driverutil"
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
	// LedgerName is for LayoutLedger: the name of the ledger that the table is. Client.Ledger takes no other name then,
	// and the name is not in the table. Default: the name of the table.
	LedgerName string
	// StartedAge is for LayoutLedger. It lets a run of a key begin after the start of a plain worker's run that has no
	// end, if its created_at is longer ago than this. At least a minute, which is more than the clocks of machines
	// differ. Default: never. A plain worker sends no heartbeat, so nobody knows whether it is dead or slow, and the
	// event of a slow one is then processed twice. Choose a time that no worker may need. A created_at is read as ISO
	// 8601; without a time zone it counts as 12 hours later than in UTC, the latest that it can be. A row whose
	// created_at cannot be read is never let through.
	StartedAge time.Duration
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
	// LayoutLedger is a run ledger in the layout of plain workers, with which it can share the table. Such a store has
	// a ledger, and no locks. See the package's documentation.
	LayoutLedger Layout = "ledger"
)

// layouts are all of them, the default first.
var layouts = []Layout{LayoutRecord, LayoutAWSLock, LayoutLedger}

// reservedChar is in the keys of items that are no locks. A lock's name cannot contain it.
const reservedChar = "\x00"

// runsPrefix begins, after the user's prefix, the keys of the run ledger.
const runsPrefix = reservedChar + "runs" + reservedChar

// New makes a store that keeps locks in the table of that name. The client stays the caller's: Close does not
// close it. Its retry settings are not used.
//
// New sends one read, bounded by ctx. The reply shows that the table exists and has the right key, and tells the
// service's clock. New returns ErrInvalid if the client is nil, an option cannot work, the table is missing or its key
// does not fit, and ErrDenied if a permission is missing.
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
	switch o.Layout {
	case LayoutAWSLock:
		return newAWSLock(l, o.LeaseFormat, o.ForeignWatch)
	case LayoutLedger:
		return &ledgerStore{tableClient: l, name: cmp.Or(o.LedgerName, l.tableName), startedAge: o.StartedAge}
	}
	return record.New(&table{tableClient: l, prefix: o.Prefix, ttlAttribute: o.ttlAttribute()})
}

// partitionKey is the name of the partition key, by default the one that the other clients of the layout use.
func (o *Options) partitionKey() string {
	switch o.Layout {
	case LayoutAWSLock:
		return cmp.Or(o.PartitionKey, "key")
	case LayoutLedger:
		return cmp.Or(o.PartitionKey, "partition_key")
	}
	return cmp.Or(o.PartitionKey, "primary_id")
}

// ttlAttribute is empty for the layouts without such an attribute.
func (o *Options) ttlAttribute() string {
	if o.Layout == LayoutAWSLock || o.Layout == LayoutLedger {
		return ""
	}
	return cmp.Or(o.TTLAttribute, "expired_at")
}

// checkOptions says what is wrong with the options.
func (o *Options) checkOptions() error {
	if err := driverutil.CheckLayout(o.Layout, layouts...); err != nil {
		return err
	}
	switch {
	case !slices.Contains([]LeaseFormat{"", LeaseFormatMillis, LeaseFormatDuration}, o.LeaseFormat):
		return fmt.Errorf("%w: a lease format is %s or %s, not %q",
			driver.ErrInvalid, LeaseFormatMillis, LeaseFormatDuration, o.LeaseFormat)
	case (o.Layout == LayoutAWSLock || o.Layout == LayoutLedger) && o.TTLAttribute != "":
		return driverutil.RefuseForLayout("TTLAttribute", LayoutRecord)
	case (o.Layout == LayoutAWSLock || o.Layout == LayoutLedger) && o.Prefix != "":
		return driverutil.RefuseForLayout("Prefix", LayoutRecord)
	case o.Layout != LayoutAWSLock && o.LeaseFormat != "":
		return driverutil.RefuseForLayout("LeaseFormat", LayoutAWSLock)
	case o.Layout != LayoutAWSLock && o.ForeignWatch != 0:
		return driverutil.RefuseForLayout("ForeignWatch", LayoutAWSLock)
	case o.ForeignWatch < 0:
		return fmt.Errorf("%w: ForeignWatch must not be negative", driver.ErrInvalid)
	case o.Layout != LayoutLedger && o.LedgerName != "":
		return driverutil.RefuseForLayout("LedgerName", LayoutLedger)
	case o.Layout != LayoutLedger && o.StartedAge != 0:
		return driverutil.RefuseForLayout("StartedAge", LayoutLedger)
	case o.StartedAge < 0 || o.StartedAge > 0 && o.StartedAge < minStartedAge:
		return fmt.Errorf("%w: a started age is %v or more: the clocks of workers may differ by less", driver.ErrInvalid,
			minStartedAge)
	case strings.Contains(o.LedgerName, "/"):
		return fmt.Errorf("%w: a ledger's name has no slash: %q", driver.ErrInvalid, o.LedgerName)
	case strings.Contains(o.Prefix, reservedChar) || !utf8.ValidString(o.Prefix) || len(o.Prefix) > maxPrefix:
		return fmt.Errorf("%w: a prefix is at most %d bytes of UTF-8 without NUL", driver.ErrInvalid, maxPrefix)
	}
	seen := map[string]bool{dataAttribute: true, versionAttribute: true}
	if o.Layout == LayoutLedger {
		for _, a := range []string{sortKey, counterAttribute, statusAttribute, createdAttribute, idAttribute, beforeAttribute,
			runAttribute} {
			seen[a] = true
		}
	}
	for _, a := range []string{o.partitionKey(), o.ttlAttribute()} {
		if seen[a] {
			return fmt.Errorf("%w: the attribute %q is used for something else; the partition key and the TTL attribute "+
				"must be two others", driver.ErrInvalid, a)
		}
		seen[a] = true
	}
	return nil
}

// minStartedAge is more than the wall clocks of machines that are kept right can differ.
const minStartedAge = time.Minute

// maxPrefix leaves room for the longest name in a key, which DynamoDB limits to 2,048 bytes.
const maxPrefix = 1024

// NewTable gives access to bare records next to the locks, for data that is built on records but is no lock. They
// have no TTL attribute, so neither foreign clients nor the table's TTL touch them.
func NewTable(ctx context.Context, client *sdk.Client, tableName string, opts *Options) (record.Table, error) {
	opts = cmp.Or(opts, &Options{})
	if opts.Layout == LayoutLedger {
		return nil, fmt.Errorf("%w: a table with the layout %s has no records", driver.ErrInvalid, LayoutLedger)
	}
	l, err := connectTable(ctx, client, tableName, opts)
	if err != nil {
		return nil, err
	}
	return &table{tableClient: l, prefix: opts.Prefix + reservedChar}, nil
}

// OpenLedgerTable opens the records of the run ledger, in the same table. They have the TTL attribute only if they are
// to be removed.
func (t *table) OpenLedgerTable(ctx context.Context) (record.Table, error) {
	return &table{
		tableClient: t.tableClient.share(), prefix: t.prefix + runsPrefix, keepAttribute: t.ttlAttribute,
	}, nil
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
	l := newTableClient(client, tableName, opts)
	if err := l.checkTable(ctx, opts.Create, opts.ttlAttribute()); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}
