package gcs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/storage"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Layout is how a lock stands in the bucket.
type Layout string

// The layouts. All but LayoutRecord are those of other clients, who exclude us and are excluded by us on the same object;
// they carry the plain mutex and the election only. The lock is held as long as its object exists: we remove it by its
// generation, and keep our own record in its custom metadata, under "holdfast". A foreign holder hears of nothing, so it
// can be broken by force only. As nothing is left of a free lock, the token of a grant is the time at which the service
// has created the object, which it tells to a millisecond.
const (
	// LayoutRecord is our own, and the default.
	LayoutRecord Layout = "record"
	// LayoutGCSLock is that of gcslock in Go and shell, its Python, TypeScript and Ruby kin, and Terraform: the object's
	// existence is all. They know no TTL: what a crashed process of theirs has left blocks until Options.ForeignAge, and
	// what one of ours has left blocks them until the next of ours comes by. The package gcslock of PyPI is not of their kind:
	// it takes over every object that does not bear an end of its own making.
	LayoutGCSLock Layout = "gcslock"
	// LayoutVault is that of Vault's high availability: metadata "lock" with an identity and a time. A Vault counts as
	// silent 15 s after its last write, by the store's clock. It judges us by its own, which should be right.
	LayoutVault Layout = "vault"
)

const (
	ownKey      = "holdfast"
	tokenKey    = "holdfast-token" // there while the token is the time of the object's creation, and does not stand in our record
	vaultKey    = "lock"
	vaultTTL    = 15 * time.Second
	foreignID   = "foreign-"
	forEver     = 100 * 365 * 24 * time.Hour
	maxMeta     = 256 // bytes, since custom metadata are 8 KiB at the most
	settleLimit = 10 * time.Second
	near        = 10 * time.Millisecond // a service that answers sooner could be asked for two grants in one millisecond
)

// vaultLock is what Vault keeps in an object's metadata.
type vaultLock struct {
	Key       string    `json:"key"`
	Value     string    `json:"value"`
	Identity  string    `json:"identity"`
	Timestamp time.Time `json:"timestamp"`
}

// existence is a bucket as a record.Table in which a record with a claim is an object, and one without is none.
type existence struct {
	*table
	layout     Layout
	foreignAge time.Duration

	mu     sync.Mutex
	astray map[string][]chan struct{} // by name: writes whose callers have gone; each is closed when it is over
	writes sync.WaitGroup
}

func (t *existence) Info() driver.Info {
	i := t.table.Info()
	i.MaxMeta = maxMeta
	i.TokenRegression = "when the service's clock is set back"
	return i
}

// ReleasesWithoutTrace and SweptByStore: see record.Forgetful and record.Swept. There are no idle records to be looked for.
func (t *existence) ReleasesWithoutTrace() {}
func (t *existence) ExpiresIdleRecords()   {}

// Load is one look at the object's metadata.
func (t *existence) Load(ctx context.Context, name string) (record.Row, error) {
	if err := errors.Join(t.settle(ctx, name), t.keepClock(ctx)); err != nil {
		return record.Row{}, err
	}
	var attrs *storage.ObjectAttrs
	err := t.call(ctx, "storage.objects.get and storage.objects.list", func(ctx context.Context) (err error) {
		attrs, err = t.object(name).Attrs(ctx)
		return err
	})
	switch {
	case errors.Is(err, storage.ErrObjectNotExist):
		return record.Row{Name: name}, nil
	case err != nil:
		return record.Row{}, err
	}
	v := version{Generation: attrs.Generation, Metageneration: attrs.Metageneration, Metadata: maps.Clone(attrs.Metadata)}
	for _, key := range []string{ownKey, tokenKey, vaultKey} {
		delete(v.Metadata, key)
	}
	var rec *record.Record
	if text := attrs.Metadata[ownKey]; text == "" {
		v.Foreign, rec = true, t.foreign(attrs)
	} else if rec, err = record.Decode(name, []byte(text)); err != nil {
		return record.Row{Name: name}, err
	} else if attrs.Metadata[tokenKey] != "" && len(rec.Claims) == 1 {
		rec.Token, rec.Claims[0].Token = token(attrs.Created), token(attrs.Created)
	}
	row := record.Row{Name: name, Version: v.String()}
	row.Data, err = record.Encode(rec)
	return row, err
}

// token is the token of a grant that created an object.
func token(created time.Time) int64 { return created.UnixMilli() * 1000 }

// foreign is the record of an object that another client has made.
func (t *existence) foreign(attrs *storage.ObjectAttrs) *record.Record {
	c := record.Claim{ID: fmt.Sprint(foreignID, attrs.Generation), Owner: "a foreign client", Weight: 1, TTL: forEver,
		State: record.Granted, Token: 1, Beat: attrs.Generation, Since: attrs.Updated.UnixMicro()}
	var l vaultLock
	switch {
	case t.layout == LayoutVault && json.Unmarshal([]byte(attrs.Metadata[vaultKey]), &l) == nil && l.Identity != "":
		c.ID, c.Owner, c.TTL = foreignID+l.Identity, short(cmp.Or(l.Value, l.Identity)), vaultTTL
	case t.layout == LayoutGCSLock && t.foreignAge > 0:
		c.TTL = t.foreignAge
	}
	if c.SilenceLimit = c.TTL; c.TTL != forEver {
		c.ExpiresAt = attrs.Updated.Add(c.TTL).UnixMicro()
	}
	return &record.Record{Kind: driver.KindMutex, Limit: 1, Token: 1, Claims: []record.Claim{c}}
}

func short(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), driver.MaxOwner)], "")
}

// Swap is one write, or one deletion.
func (t *existence) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	rec, err := record.Decode(row.Name, row.Data)
	switch {
	case err != nil:
		return record.Row{}, err
	case len(rec.Claims) == 0 && row.Version == "":
		return row, nil
	case len(rec.Claims) == 0:
		return record.Row{Name: row.Name}, t.remove(ctx, row)
	case strings.HasPrefix(rec.Claims[0].ID, foreignID):
		return record.Row{}, fmt.Errorf("%w: a foreign holder hears of nothing; break it by force", driver.ErrUnsupported)
	}
	v, _, err := conditions(row.Version)
	if err != nil {
		return record.Row{}, err
	}
	fresh := row.Version == "" || v.Foreign
	content, err := t.content(row, &rec.Claims[0], v.Metadata, fresh)
	if err != nil {
		return record.Row{}, err
	}
	from := t.clock.Clock.Now()
	row, written, err := t.writeOn(ctx, row, content)
	if err == nil && fresh {
		row.Token = token(written)
		if t.clock.Clock.Since(from) < near {
			time.Sleep(time.Millisecond) // so that the lock is not created anew at the same time
		}
	}
	return row, err
}

// content is what an object looks like that stands for a claim.
func (t *existence) content(row record.Row, c *record.Claim, kept map[string]string, fresh bool) (content, error) {
	meta := maps.Clone(kept)
	if meta == nil {
		meta = map[string]string{}
	}
	meta[ownKey] = string(row.Data)
	if fresh {
		meta[tokenKey] = "created"
	}
	if t.layout == LayoutGCSLock {
		return content{data: []byte("1"), contentType: "text/plain", metadata: meta, kept: kept}, nil
	}
	text, err := json.Marshal(vaultLock{Key: t.prefix + encode(row.Name), Value: c.Owner, Identity: c.ID,
		Timestamp: time.UnixMicro(c.ExpiresAt).Add(-vaultTTL).UTC().Truncate(time.Second)})
	meta[vaultKey] = string(text)
	return content{contentType: "application/octet-stream", metadata: meta, kept: kept}, err
}

// writeOn writes, and goes on when its caller gives up: nothing is left of a lock that is free, so a write that is on its
// way could not be barred. Whoever looks at the lock next waits for its answer.
func (t *existence) writeOn(ctx context.Context, row record.Row, c content) (record.Row, time.Time, error) {
	type answer struct {
		row     record.Row
		written time.Time
		err     error
	}
	if err := ctx.Err(); err != nil {
		return record.Row{}, time.Time{}, errors.Join(record.ErrUnsent, err)
	}
	answered, over := make(chan answer, 1), make(chan struct{})
	going, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	t.mu.Lock()
	if t.life.Err() != nil {
		t.mu.Unlock()
		cancel()
		return record.Row{}, time.Time{}, driver.ErrClosed
	}
	t.writes.Go(func() {
		defer cancel()
		defer close(over)
		row, written, err := t.write(going, row, c)
		answered <- answer{row, written, err}
	})
	t.mu.Unlock()
	select {
	case a := <-answered:
		return a.row, a.written, a.err
	case <-ctx.Done():
		t.mu.Lock()
		t.astray[row.Name] = append(t.astray[row.Name], over)
		t.mu.Unlock()
		return record.Row{}, time.Time{}, ctx.Err()
	}
}

// settle waits for the writes whose callers have gone.
func (t *existence) settle(ctx context.Context, name string) error {
	for {
		t.mu.Lock()
		waits := t.astray[name]
		if len(waits) == 0 {
			delete(t.astray, name)
			t.mu.Unlock()
			return nil
		}
		over := waits[0]
		t.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		}
		t.mu.Lock()
		if waits := t.astray[name]; len(waits) > 0 && waits[0] == over {
			t.astray[name] = waits[1:]
		}
		t.mu.Unlock()
	}
}

// List gives what Load gives for each object.
func (t *existence) List(ctx context.Context, prefix string) iter.Seq2[record.Row, error] {
	return t.list(ctx, prefix, "", t.Load)
}

func (t *existence) Close() error {
	t.mu.Lock()
	t.end()
	t.mu.Unlock()
	t.writes.Wait()
	return t.table.Close()
}
