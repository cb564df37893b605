package gcs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// table is a bucket as a record.Table: one object per record. A row's version is the object's generation and
// metageneration, and the metadata that other programs have put on it: a write replaces the metadata, and so
// must contain what is to stay.
//
// Each write of an object gives it a new generation, which is not used again, even after a deletion. A change of its
// metadata alone gives it a new metageneration, so both are compared (Cloud Storage documentation, "Request
// preconditions"). The service is strongly consistent for objects and for lists ("Consistency"), unless an object is
// cached, which Cache-Control: no-store prevents.
type table struct {
	record.Unsupported

	closeClient   func() error // closes the client, if it belongs to the store
	bucket        *bucketClient
	bucketName    string
	prefix        string
	writeInterval time.Duration
	clock         *record.ServerClock
	life          *driverutil.Lifetime
}

// clockObject never exists: a read of it is refused, and the refusal has a Date.
const clockObject = "\x10holdfast-clock"

// tokenGap is more than the estimates of the service's clock of two clients can differ.
const tokenGap = 2 * time.Second

// minTTL leaves a second between renewals. The service accepts about one write per second to one object, and answers
// more with 429 ("Quotas and limits"). Writes to other objects do not count, so each lock has that rate for itself.
const minTTL = 3 * time.Second

// Info promises what the service promises: it is strongly consistent, and keeps what it has confirmed.
func (t *table) Info() driver.Info {
	return driver.Info{
		Store:       "gcs://" + t.bucketName + "/" + t.prefix,
		Clock:       t.clock.Clock,
		Tier:        driver.TierSettings,
		ExpiryClock: driver.ExpiryClockStore,
		Survives:    driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenGap:    tokenGap, TokenRegression: "when an object is removed within 2 s of its last grant",
		MinTTL:     max(minTTL, 5*t.writeInterval/2),
		MaxHolders: 8, MaxWaiters: 8,
		WriteInterval: t.writeInterval,
	}
}

func (t *table) TokenFloor() int64   { return t.clock.TokenFloor() }
func (t *table) Clock() record.Clock { return t.clock }

// ReadClock is one read: each reply tells the time.
func (t *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	return record.ReadClockByLoad(ctx, t)
}

// Traits say that a sweep can go on where it stopped.
func (t *table) Traits() record.Traits { return record.Traits{ListsInOrder: true, Ledger: true} }

// Keys names the object of a lock as a URL, for people.
func (t *table) Keys(name string) []string {
	return []string{"gs://" + t.bucketName + "/" + t.prefix + encodeName(name)}
}

// objectName is the name of the object of a lock.
func (t *table) objectName(name string) string { return t.prefix + encodeName(name) }

// requestTimeout is how long one request may take. After that another request finds out what became of it.
const requestTimeout = 5 * time.Second

// callServer sends one request, which ends when the table is closed. needs names the permissions that the request
// needs, for the error if they are missing.
func (t *table) callServer(ctx context.Context, needs string, request func(context.Context) error) error {
	return t.life.Call(ctx, requestTimeout, "Cloud Storage", request, func(err error) error {
		return t.explainError(err, needs)
	})
}

// readServerClock learns the store's clock, and checks that the bucket exists and can be read.
func (t *table) readServerClock(ctx context.Context) error {
	err := t.callServer(ctx, "storage.objects.get and storage.objects.list", func(ctx context.Context) error {
		_, err := t.bucket.readAttrs(ctx, t.prefix+clockObject, conditions{})
		return err
	})
	switch {
	case err == nil:
		return fmt.Errorf("%w: the object %s%s in the bucket %s must not exist: remove it",
			driver.ErrCorrupt, t.prefix, clockObject, t.bucketName)
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

// Load is one read. It needs one more if other programs have put metadata on the object, and sometimes one for
// the clock.
func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	if err := t.refreshClock(ctx); err != nil {
		return record.Row{}, err
	}
	for {
		row, err := t.readObject(ctx, name)
		switch {
		case errors.Is(err, errNotFound):
			return record.Row{Name: name}, nil
		case !errors.Is(err, record.ErrConflict): // a conflict: the object was replaced between two requests
			return row, err
		}
	}
}

// readObject reads a record and its version. It is a conflict if the object is replaced between the two
// requests that this may need.
func (t *table) readObject(ctx context.Context, name string) (record.Row, error) {
	row := record.Row{Name: name}
	err := t.callServer(ctx, "storage.objects.get and storage.objects.list", func(ctx context.Context) error {
		// The object may be of another program, and large.
		data, head, err := t.bucket.readObject(ctx, t.objectName(name), record.MaxData+1)
		if err != nil {
			return err
		}
		v := version{Generation: head.generation, Metageneration: head.metageneration}
		if v.Metageneration > 1 || head.hasMetadata { // in headers, the case of metadata keys is lost
			unchanged := conditions{generation: v.Generation, metageneration: v.Metageneration}
			attrs, err := t.bucket.readAttrs(ctx, t.objectName(name), unchanged)
			if err != nil {
				return err
			}
			v.Metadata = attrs.Metadata
		}
		row.Data, row.Version = data, v.String()
		return nil
	})
	return row, err
}

// Swap is one write.
func (t *table) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	v, _, err := versionConditions(row.Version)
	if err != nil {
		return record.Row{}, err
	}
	row, _, err = t.writeObject(ctx, row, objectContent{data: row.Data, contentType: "application/json",
		metadata: v.Metadata, foreignMetadata: v.Metadata})
	return row, err
}

// objectContent is what a write puts into an object.
type objectContent struct {
	data            []byte
	contentType     string
	metadata        map[string]string
	foreignMetadata map[string]string // the part of metadata that other programs have put there
}

// writeObject replaces the object of the row's version, and returns the time at which the service did.
func (t *table) writeObject(
	ctx context.Context, row record.Row, c objectContent,
) (now record.Row, written time.Time, err error) {
	_, cond, err := versionConditions(row.Version)
	if err != nil {
		return record.Row{}, written, err
	}
	err = t.callServer(ctx, "storage.objects.create and storage.objects.delete", func(ctx context.Context) error {
		from := t.clock.Clock.Now()
		a, err := t.bucket.writeObject(ctx, t.objectName(row.Name), cond, c)
		if err != nil {
			return err
		}
		if !a.Created.IsZero() {
			t.clock.AddTimestamp(a.Created, time.Millisecond, from, t.clock.Clock.Now())
		}
		row.Version = version{Generation: a.Generation, Metageneration: a.Metageneration,
			Metadata: c.foreignMetadata}.String()
		written = a.Created
		return nil
	})
	if err != nil {
		return record.Row{}, written, err
	}
	return row, written, nil
}

// Delete is one request, and one more if it is refused: an earlier attempt, whose reply was lost, may have removed the
// object.
func (t *table) Delete(ctx context.Context, row record.Row) error {
	if row.Version == "" {
		return nil
	}
	err := t.removeObject(ctx, row)
	if errors.Is(err, record.ErrConflict) {
		if now, lerr := t.Load(ctx, row.Name); lerr == nil && now.Version == "" {
			return nil
		}
	}
	return err
}

// removeObject removes the object of the row's version. It is a conflict if there is none.
func (t *table) removeObject(ctx context.Context, row record.Row) error {
	_, cond, err := versionConditions(row.Version)
	if err != nil {
		return err
	}
	err = t.callServer(ctx, "storage.objects.delete", func(ctx context.Context) error {
		return t.bucket.deleteObject(ctx, t.objectName(row.Name), cond)
	})
	if errors.Is(err, errNotFound) {
		return record.ErrConflict
	}
	return err
}

// List reads the names page by page, in the order of the objects' names, and some of the objects at a time.
func (t *table) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	return t.listRows(ctx, prefix, encodeName(after), t.Load)
}

// listRows yields the rows of all objects whose names begin with prefix and come after after. It skips
// objects that are not a lock's.
func (t *table) listRows(ctx context.Context, prefix, after string, load loadFunc) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		if err := t.refreshClock(ctx); err != nil { // once here, and not in each Load
			yield(record.Row{}, err)
			return
		}
		startOffset := ""
		if after != "" {
			startOffset = t.prefix + after
		}
		for token := ""; ; {
			var page []string
			err := t.callServer(ctx, "storage.objects.list", func(ctx context.Context) (err error) {
				page, token, err = t.bucket.listNames(ctx, t.prefix+listPrefix(prefix), startOffset, token, pageSize)
				return err
			})
			if err != nil {
				yield(record.Row{}, err)
				return
			}
			var names []string
			for _, object := range page {
				object = strings.TrimPrefix(object, t.prefix)
				name, ok := decodeName(object)
				if ok && strings.HasPrefix(name, prefix) && object > after { // the service lists the offset itself, too
					names = append(names, name)
				}
			}
			if !record.LoadRows(ctx, names, load, yield) {
				return
			}
			if token == "" {
				return
			}
		}
	}
}

// loadFunc is the type of Load.
type loadFunc func(context.Context, string) (record.Row, error)

// pageSize is how many names the service returns in one reply.
const pageSize = 1000

// Close ends the calls that are running. It does not close a client of the caller's.
func (t *table) Close() error {
	t.life.End()
	return t.closeClient()
}
