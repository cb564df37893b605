// Package gcs keeps locks in a bucket of Google Cloud Storage: an object a lock, replaced under a precondition on its
// generation. There is no server to run, and a lock costs a request.
//
//	import _ "github.com/holdfast-go/holdfast/store/gcs"
//
//	client, err := holdfast.Open(ctx, "gcs://my-bucket/locks/", nil)
//
// Programs that have a client of their own hand that in:
//
//	store, err := gcs.New(ctx, storageClient, "my-bucket", &gcs.Options{Prefix: "locks/"})
//	client, err := holdfast.New(store, nil)
//
// # Layout
//
// The lock NAME is the object PREFIX and NAME, a JSON text that people can read. It stays when the lock is free, for its
// token, and is removed after ten idle minutes by whoever comes by. Custom metadata that others put on the object is
// kept. Only line ends in a name are escaped, and the names that the service does not take. Other layouts are those of
// clients that are in use already: see [Layout].
//
// # Time
//
// Silent holders are judged by the store's clock, as its replies tell it: the Date of refusals, to a second, and the time
// of our own writes, to a millisecond. No client's clock is asked for the time of day.
//
// # Writes
//
// The service takes one write a second to one object, on average. A renewal, a release and a claim whose turn has come are
// written at once; a claim that comes, and can wait, leaves Options.Pace after the last write that it knows of, and comes then
// unless others have come or gone meanwhile. What the service refuses all the same is tried again, slower and slower. Whoever
// stands in a fair line, and each holder, writes three times in its TTL: for eight of each choose a TTL of a minute or more.
//
// # Permissions
//
// storage.objects.get, create, delete (which overwriting needs) and list (without which the service does not tell an
// absent object from a forbidden one): the role Storage Object User. A rule of the bucket's lifecycle, a retention policy
// or a hold must not touch the locks.
package gcs

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/storage"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options are how a store uses a bucket. The zero value, and nil, are fine.
type Options struct {
	// Prefix starts the names of all objects, as it is: "locks/" makes locks/NAME. At most 256 bytes.
	Prefix string
	// Layout is how a lock stands in the bucket. Default: LayoutRecord. All users of a lock must agree on it.
	Layout Layout
	// ForeignAge is for LayoutGCSLock: how old the object of a foreign client may be, by the store's clock, before it is
	// taken for one that a dead process has left. Longer than any of them ever holds a lock: they do not renew. 0: as old as
	// it likes.
	ForeignAge time.Duration
	// WriteInterval is how long a claim that comes, and can wait, stays away from a lock after its last write. Default 2 s, since
	// holding a lock once takes two writes, and the service wants a second between writes to one object. Less for an
	// emulator, or where locks are contended seldom; the least TTL falls with it. Negative: none.
	WriteInterval time.Duration
	// Clock is for tests. Default: the machine's.
	Clock driver.Clock
}

// New makes a store of a bucket and a client, which stays the caller's: Close leaves it open. The client speaks HTTP, and
// reads by XML, as storage.NewClient makes it. New makes one request, bounded by ctx, by which it hears the store's clock.
// The error Is ErrDenied if there is no such bucket, or no right to read in it.
func New(ctx context.Context, client *storage.Client, bucket string, opts *Options) (driver.Store, error) {
	return newStore(ctx, client, bucket, opts, func() error { return nil })
}

// newStore takes over how to close the client.
func newStore(ctx context.Context, client *storage.Client, bucket string, opts *Options, closer func() error) (driver.Store, error) {
	t, err := newTable(ctx, client, bucket, opts)
	if err != nil {
		return nil, err
	}
	t.closeClient = closer
	if opts == nil || opts.Layout == "" || opts.Layout == LayoutRecord {
		return record.New(t), nil
	}
	e := &foreignTable{table: t, layout: opts.Layout, foreignAge: opts.ForeignAge, abandonedWrites: map[string][]chan struct{}{}}
	return &foreignStore{record.New(e), opts.Layout}, nil
}

// NewTable gives bare records, for what is built on records but is no lock. It is opened like New, and needs a Prefix that
// no store has.
func NewTable(ctx context.Context, client *storage.Client, bucket string, opts *Options) (record.Table, error) {
	return newTable(ctx, client, bucket, opts)
}

const (
	defaultWriteInterval = 2 * time.Second
	maxPrefix            = 256
)

func newTable(ctx context.Context, client *storage.Client, bucket string, opts *Options) (*table, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if len(o.Prefix) > maxPrefix || encodeName(o.Prefix) != o.Prefix {
		return nil, fmt.Errorf("%w: a prefix has at most %d bytes, and no line end", driver.ErrInvalid, maxPrefix)
	}
	switch o.Layout {
	case "", LayoutRecord, LayoutGCSLock, LayoutVault:
	default:
		return nil, fmt.Errorf("%w: the layout %q; known are %s, %s and %s", driver.ErrInvalid, o.Layout, LayoutRecord, LayoutGCSLock, LayoutVault)
	}
	if o.ForeignAge < 0 || o.ForeignAge > 0 && o.Layout != LayoutGCSLock {
		return nil, fmt.Errorf("%w: a foreign age is for the layout %s, and not negative", driver.ErrInvalid, LayoutGCSLock)
	}
	if o.WriteInterval == 0 {
		o.WriteInterval = defaultWriteInterval
	}
	if o.Clock.Monotonic == nil {
		o.Clock = driver.SystemClock
	}
	t := &table{
		// A request is made once: one that the client repeats by itself would be refused for what it did the first time.
		bucket:     client.Bucket(bucket).Retryer(storage.WithPolicy(storage.RetryNever)),
		bucketName: bucket, prefix: o.Prefix, writeInterval: max(o.WriteInterval, 0), clock: record.ServerClock{Clock: o.Clock},
		closeClient: func() error { return nil },
	}
	t.life, t.end = context.WithCancel(context.Background())
	if err := t.readServerClock(ctx); err != nil {
		return nil, err
	}
	return t, nil
}
