package s3

import (
	"bytes"
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

// table is a bucket as a record.Table: one object per record. A row's version is the object's ETag, which is a hash of
// its content. Each write adds a random text to the record, so no ETag comes twice.
//
// Reads and lists show what was written before (Amazon S3 User Guide, "Amazon S3 data consistency model"; MinIO and R2
// promise the same). "How to prevent object overwrites with conditional writes" describes the conditions.
type table struct {
	record.Unsupported

	bucket        *bucketClient
	prefix        string
	column        int    // of the prefix: see encodeName
	suffix        string // of the keys of all locks, by layout
	plainNames    bool   // a name is in its key as it is, by layout
	place         string // of the bucket, for people
	service       string // identifies the service, for the result of a probe
	writeInterval time.Duration
	removal       removal
}

// Traits: on a service that deletes without comparing, or of which nobody knows, no object is ever deleted, so the
// engine does not look for idle records. A lifecycle rule may remove them.
func (t *table) Traits() record.Traits {
	return record.Traits{ExpiresIdle: !t.removal.compares(), ListsInOrder: true, Ledger: true}
}

// tokenGap is more than the estimates of the service's clock of two clients can differ, if each has seen one reply on a
// slow network.
const tokenGap = 3 * time.Second

// Info promises what the service promises: it is strongly consistent, and keeps what it has confirmed.
func (t *table) Info() driver.Info {
	i := driver.Info{
		Store:       t.place,
		Clock:       t.bucket.clock.Clock,
		Tier:        driver.TierSettings,
		ExpiryClock: driver.ExpiryClockStore,
		Survives:    driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenGap:    tokenGap,
		TokenRegression: "when an object is removed within 3 s of its last grant, or before the service's clock has " +
			"passed a token that was raised",
		WriteInterval: t.writeInterval,
	}
	if t.writeInterval > 0 {
		i.MinTTL, i.MaxHolders, i.MaxWaiters = max(driver.MinTTL, 5*t.writeInterval/2), 8, 8
	}
	return i
}

func (t *table) TokenFloor() int64   { return t.bucket.clock.TokenFloor() }
func (t *table) Clock() record.Clock { return t.bucket.clock }

// ReadClock is one read: each reply tells the time.
func (t *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	return record.ReadClockByLoad(ctx, t)
}

// key is the key of the object of a lock.
func (t *table) key(name string) string {
	if t.plainNames {
		return t.prefix + name + t.suffix
	}
	return t.prefix + encodeName(name, t.column) + t.suffix
}

// nameOf reverses key. It reports false for the key of an object that is not a lock's.
func (t *table) nameOf(key string) (string, bool) {
	own, isLock := strings.CutSuffix(strings.TrimPrefix(key, t.prefix), t.suffix)
	switch {
	case !isLock:
		return "", false
	case t.plainNames:
		return own, own != ""
	}
	return decodeName(own, t.column)
}

// keyPrefix begins the keys of all names with that prefix, and perhaps others.
func (t *table) keyPrefix(prefix string) string {
	if t.plainNames {
		return t.prefix + prefix
	}
	return t.prefix + listPrefix(prefix, t.column)
}

// Keys names the object of a lock as a URL, for people.
func (t *table) Keys(name string) []string {
	return []string{"s3://" + t.bucket.bucket + "/" + t.key(name)}
}

// The content of an object is the record, and in a line of its own the random text. Without a record it stands for one
// that was removed: see Delete.

// makeContent makes the content of an object.
func makeContent(data []byte) []byte { return fmt.Appendf(nil, "%s\n\"%s\"\n", data, newRandom()) }

// newRandom makes the random text of a write.
func newRandom() string { return rand.Text() }

var lenRandomLine = len(makeContent(nil))

// readContent returns the record in an object's content.
func readContent(content []byte) (data []byte, ok bool) {
	at := len(content) - lenRandomLine
	if at < 0 || !bytes.HasPrefix(content[at:], []byte("\n\"")) || !bytes.HasSuffix(content, []byte("\"\n")) {
		return nil, false
	}
	return content[:at], true
}

// maxObject is more than an object of ours has, in bytes. Those of other programs may be large.
var maxObject = record.MaxData + int64(lenRandomLine) + 1

// makeRow makes the row of an object. If that stands for a removed record, the row has a version, and no data.
func (t *table) makeRow(name string, o object) (record.Row, error) {
	row := record.Row{Name: name}
	data, ok := readContent(o.data)
	if !ok {
		return row, fmt.Errorf("%w: the object %s is not Holdfast's", driver.ErrCorrupt, t.key(name))
	}
	row.Data, row.Version = data, o.etag
	return row, nil
}

// Load is one read.
func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	row := record.Row{Name: name}
	o, err := t.bucket.get(ctx, t.key(name), maxObject)
	switch {
	case errors.Is(err, errNotFound):
		return row, nil
	case err != nil:
		return row, err
	}
	if row, err = t.makeRow(name, o); err == nil && len(row.Data) == 0 {
		row = record.Row{Name: name}
	}
	return row, err
}

// Swap is one write. If it is refused, it is one read more, and if a record is to be made where an object stands for a
// removed one, another write.
//
// A refusal may be the answer to a second request, if a proxy has sent the first one again whose reply it had lost.
// Then the object is what we have written. If it cannot be read, the outcome is unknown.
func (t *table) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	content := makeContent(row.Data)
	for {
		etag, err := t.bucket.put(ctx, t.key(row.Name), row.Version, content)
		if err == nil {
			row.Version = etag
			return row, nil
		}
		if !errors.Is(err, record.ErrConflict) {
			return record.Row{}, err
		}
		o, err := t.bucket.get(ctx, t.key(row.Name), maxObject)
		switch {
		case errors.Is(err, errNotFound):
			return record.Row{}, record.ErrConflict
		case err != nil:
			return record.Row{}, fmt.Errorf("a write was refused, and then: %w", err)
		case bytes.Equal(o.data, content):
			row.Version = o.etag
			return row, nil
		}
		now, err := t.makeRow(row.Name, o)
		switch {
		case err != nil:
			return record.Row{}, err
		case len(now.Data) > 0:
			return now, record.ErrConflict
		case row.Version != "":
			return record.Row{}, record.ErrConflict
		}
		row.Version = now.Version
	}
}

// Delete is one request. On a service that deletes without comparing, it writes an object that stands for the absent
// record: it is compared, and a later record replaces it. It does so too, as a second request, if we may not delete.
func (t *table) Delete(ctx context.Context, row record.Row) error {
	if row.Version == "" {
		return nil
	}
	err := driver.ErrDenied
	if t.removal.compares() {
		err = t.bucket.remove(ctx, t.key(row.Name), row.Version)
	}
	if errors.Is(err, driver.ErrDenied) {
		_, err = t.bucket.put(ctx, t.key(row.Name), row.Version, makeContent(nil))
	}
	switch {
	case errors.Is(err, errNotFound):
		return nil
	case errors.Is(err, record.ErrConflict):
		// An earlier attempt, whose reply was lost, may have removed it.
		if now, loadErr := t.Load(ctx, row.Name); loadErr == nil && now.Version == "" {
			return nil
		}
	}
	return err
}

// List reads the keys page by page, in their order, and some of the objects at a time.
func (t *table) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	return t.listRows(ctx, prefix, after, t.Load)
}

// loadFunc is the type of Load.
type loadFunc func(context.Context, string) (record.Row, error)

// listRows yields the rows of all objects whose names begin with prefix and come after a name. It skips objects that
// are not a lock's.
func (t *table) listRows(ctx context.Context, prefix, after string, load loadFunc) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		if after != "" {
			after = t.key(after)
		}
		for token := ""; ; {
			page, next, err := t.bucket.list(ctx, t.keyPrefix(prefix), after, token)
			if err != nil {
				yield(record.Row{}, err)
				return
			}
			var names []string
			for _, key := range page {
				if name, ok := t.nameOf(key); ok && strings.HasPrefix(name, prefix) {
					names = append(names, name)
				}
			}
			if !record.LoadRows(ctx, names, load, yield) || next == "" {
				return
			}
			token = next
		}
	}
}

// Close ends the calls that are running. It does not close a client of the caller's.
func (t *table) Close() error {
	t.bucket.close()
	return nil
}
