package azure

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// table is a container as a record.Table: one blob per record. A row's version is the blob's ETag.
//
// Each write of a blob gives it a new ETag, also if its content is the same, and reads and lists show what was written
// before ("Managing concurrency in Blob Storage"). The ETag is opaque, and compared for equality alone.
type table struct {
	record.Unsupported

	*containerClient
	place  string // of the container, for people
	prefix string // of the names of all blobs
}

// clockBlob never exists: a read of it is refused, and the refusal has a Date.
const clockBlob = "=holdfast-clock"

// runsPrefix begins, after the user's prefix, the names of the blobs of the run ledger. encodeName makes no such name.
const runsPrefix = "=holdfast-runs/"

// tokenGap is more than the estimates of the service's clock of two clients can differ, if each has seen one reply of
// another host on a slow network.
const tokenGap = 6 * time.Second

// Info promises what the service promises: it is strongly consistent, and keeps what it has confirmed. A failover to
// another region forgets the last writes.
func (t *table) Info() driver.Info {
	return driver.Info{
		Store:           t.place,
		Clock:           t.clock.Clock,
		Tier:            driver.TierSettings,
		ExpiryClock:     driver.ExpiryClockStore,
		Survives:        driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenGap:        tokenGap,
		TokenRegression: "when a blob is removed within 6 s of its last grant, or the account fails over to another region",
	}
}

func (t *table) TokenFloor() int64   { return t.clock.TokenFloor() }
func (t *table) Clock() record.Clock { return t.clock }

// ReadClock is one read: each reply tells the time.
func (t *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	return record.ReadClockByLoad(ctx, t)
}

// Traits say that a sweep can go on where it stopped: listings are in the order of the names.
func (t *table) Traits() record.Traits { return record.Traits{ListsInOrder: true, Ledger: true} }

// Keys names the blob of a lock by its address, for people.
func (t *table) Keys(name string) []string {
	return []string{t.url(request{blob: t.blobName(name)})}
}

// blobName is the name of the blob of a lock.
func (t *table) blobName(name string) string { return t.prefix + encodeName(name) }

// OpenLedgerTable opens the records of the run ledger, in the same container. No lock has a blob with their prefix. It
// sends one request, which shows that it can read.
func (t *table) OpenLedgerTable(ctx context.Context) (record.Table, error) {
	l := &table{containerClient: t.share(), place: t.place, prefix: t.prefix + runsPrefix}
	if err := l.readServerClock(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// readServerClock learns the store's clock, and checks that the container exists and can be read.
func (t *table) readServerClock(ctx context.Context) error {
	_, err := t.head(ctx, t.prefix+clockBlob, "")
	switch {
	case err == nil:
		return fmt.Errorf("%w: the blob %s%s in the container %s must not exist: remove it",
			driver.ErrCorrupt, t.prefix, clockBlob, t.container)
	case !errors.Is(err, errNotFound):
		return err
	case !t.clock.Known():
		return fmt.Errorf("%w: the replies have no Date, or come from a cache", driver.ErrUnsupported)
	}
	return nil
}

// refreshClock reads the clock if no reply has told it for a while.
func (t *table) refreshClock(ctx context.Context) error {
	if t.clock.IsStale() {
		return t.readServerClock(ctx)
	}
	return nil
}

// Load is one read, and sometimes one more for the clock.
func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	row, at := record.Row{Name: name}, t.blobName(name)
	if err := errors.Join(checkBlobName(at), t.refreshClock(ctx)); err != nil {
		return row, err
	}
	b, err := t.get(ctx, at, record.MaxData+1) // the blob may be of another program, and large
	switch {
	case errors.Is(err, errNotFound):
		return row, nil
	case err != nil:
		return row, err
	}
	row.Data, row.Version = b.data, b.etag
	return row, nil
}

// writeKey is the metadata of a blob that differs with each write.
const writeKey = "holdfastwrite"

// Swap is one write, and one read more if that is refused. A refusal may be the answer to a second request, if a proxy
// has sent the first one again whose reply it had lost. Then the blob is what we have written. If it cannot be read,
// the outcome is unknown.
func (t *table) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	at, write := t.blobName(row.Name), rand.Text()
	if err := checkBlobName(at); err != nil {
		return record.Row{}, err
	}
	etag, err := t.put(ctx, at, row.Version, row.Data, map[string]string{writeKey: write})
	if !errors.Is(err, record.ErrConflict) && !errors.Is(err, errNotFound) {
		row.Version = etag
		return row, err
	}
	b, err := t.get(ctx, at, record.MaxData+1)
	switch {
	case errors.Is(err, errNotFound):
		return record.Row{}, record.ErrConflict
	case err != nil:
		return record.Row{}, fmt.Errorf("a write was refused, and then: %w", err)
	case b.metadata[writeKey] == write:
		row.Version = b.etag
		return row, nil
	}
	return record.Row{Name: row.Name, Data: b.data, Version: b.etag}, record.ErrConflict
}

// Delete is one request, and one more if it is refused: an earlier attempt, whose reply was lost, may have removed the
// blob.
func (t *table) Delete(ctx context.Context, row record.Row) error {
	if row.Version == "" {
		return nil
	}
	err := t.remove(ctx, t.blobName(row.Name), row.Version)
	switch {
	case errors.Is(err, errNotFound):
		return nil
	case errors.Is(err, record.ErrConflict):
		if now, loadErr := t.Load(ctx, row.Name); loadErr == nil && now.Version == "" {
			return nil
		}
	}
	return err
}

// List reads the names page by page, in their order, and some of the blobs at a time.
func (t *table) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	if after != "" {
		after = t.blobName(after)
	}
	decode := func(blob string) (string, bool) { return decodeName(strings.TrimPrefix(blob, t.prefix)) }
	return t.listRows(ctx, t.prefix+listPrefix(prefix), after, "", func(b listed) (string, bool) {
		name, ok := decode(b.Name.String())
		return name, ok && strings.HasPrefix(name, prefix)
	}, t.Load)
}

// pageSize is how many names the service returns in one reply at most.
const pageSize = 5000

// listRows yields the rows of the blobs whose names begin with blobPrefix and come after another one. include is what
// to list besides the names, and nameOf is the name of the lock of a blob, or false.
func (t *table) listRows(
	ctx context.Context, blobPrefix, after, include string, nameOf func(listed) (string, bool),
	load func(context.Context, string) (record.Row, error),
) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		for marker := ""; ; {
			page, next, err := t.list(ctx, blobPrefix, marker, include, pageSize)
			if err != nil {
				yield(record.Row{}, err)
				return
			}
			var names []string
			for _, b := range page {
				// The service cannot begin to list after a name.
				if name, ok := nameOf(b); ok && b.Name.String() > after {
					names = append(names, name)
				}
			}
			if !record.LoadRows(ctx, names, load, yield) || next == "" {
				return
			}
			marker = next
		}
	}
}

// Close ends the calls that are running. It does not close a client of the caller's.
func (t *table) Close() error { return t.close() }
