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
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/foreign"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Layout is how a lock is stored in the bucket.
type Layout string

// All layouts but LayoutRecord belong to other lock clients. Their clients and ours exclude each other, by the same
// object. These layouts support the plain mutex and the election only.
//
// In them a lock is held while its object exists. We remove the object on a precondition on its generation, and keep
// our own record in its custom metadata, under "holdfast". A foreign holder cannot be notified, so it can be broken by
// force only. Nothing remains of a free lock, so a write that comes late could take it again. If it is not known
// whether a write that takes the lock has taken effect, a release waits until 15 s after that write. Therefore the
// token of a grant is the time at which the service created the object, to a millisecond.
const (
	// LayoutRecord is Holdfast's own layout, and the default.
	LayoutRecord Layout = "record"
	// LayoutGCSLock is the layout of gcslock in Go and in shell, of similar clients in Python, TypeScript and Ruby,
	// and of Terraform: only the existence of the object counts. They know no TTL. What a crashed process of theirs
	// leaves blocks until Options.ForeignAge. What one of ours leaves blocks them until the next client of ours comes.
	// The package gcslock of PyPI is different: it takes over every object without an expiry of its own making.
	LayoutGCSLock Layout = "gcslock"
	// LayoutVault is the layout of Vault's high availability: metadata "lock" with an identity and a time. A Vault
	// has expired 15 s after its last write, by the store's clock. It judges us by its own clock, which must be right.
	LayoutVault Layout = "vault"
)

// layouts are all of them, the default first.
var layouts = []Layout{LayoutRecord, LayoutGCSLock, LayoutVault}

const (
	recordKey     = "holdfast"
	tokenKey      = "holdfast-token" // exists while the token is the object's creation time, and not in our record
	vaultKey      = "lock"
	vaultTTL      = 15 * time.Second
	maxMeta       = 256                   // bytes: custom metadata are limited to 8 KiB
	minCreateTime = 10 * time.Millisecond // a faster service could create an object twice in one millisecond
)

// vaultLock is what Vault keeps in an object's metadata.
type vaultLock struct {
	Key       string    `json:"key"`
	Value     string    `json:"value"`
	Identity  string    `json:"identity"`
	Timestamp time.Time `json:"timestamp"`
}

// foreignTable is a bucket as a record.Table for the foreign layouts: a record with a claim is an object, and
// a record without a claim is no object.
type foreignTable struct {
	*table
	layout     Layout
	foreignAge time.Duration
	writes     *foreign.Writes
}

// maxLateness is changed by tests.
var maxLateness = foreign.MaxLateness

func newForeignTable(t *table, opts *Options) *foreignTable {
	f := &foreignTable{table: t, layout: opts.Layout, foreignAge: opts.ForeignAge}
	f.writes = foreign.NewWrites(t.life, t.clock.Clock, maxLateness, f.removeLate)
	return f
}

// Info limits the metadata of claims, which must fit into the object's custom metadata.
func (t *foreignTable) Info() driver.Info {
	i := t.table.Info()
	i.MaxMeta = maxMeta
	i.TokenRegression = "when the service's clock is set back"
	return i
}

// Traits: there are no idle records.
func (t *foreignTable) Traits() record.Traits {
	return record.Traits{Traceless: true, ExpiresIdle: true}
}

// checkName refuses a name for which our object would be another one than a foreign client's. Names with line ends are
// escaped: the service refuses them, so no foreign client has such an object.
func (t *foreignTable) checkName(name string) error {
	escaped := escaper.Replace(name)
	if strings.ContainsRune(name, escapeChar) || t.prefix != "" && encodeName(name) != escaped {
		return fmt.Errorf("%w: in the layout %s a lock's name has no control character 0x10, and with a prefix it is not "+
			". or .. and does not begin with .well-known/acme-challenge/", driver.ErrInvalid, t.layout)
	}
	return nil
}

// Load is one read of the object's metadata.
func (t *foreignTable) Load(ctx context.Context, name string) (record.Row, error) {
	if err := t.checkName(name); err != nil {
		return record.Row{}, err
	}
	if err := errors.Join(t.writes.Await(ctx, name), t.refreshClock(ctx)); err != nil {
		return record.Row{}, err
	}
	attrs, err := t.readAttrs(ctx, name)
	switch {
	case errors.Is(err, errNotFound):
		return record.Row{Name: name}, nil
	case err != nil:
		return record.Row{}, err
	}
	t.writes.Saw(name, attrs.Metadata[recordKey])
	v := version{Generation: attrs.Generation, Metageneration: attrs.Metageneration,
		Metadata: maps.Clone(attrs.Metadata)}
	for _, key := range []string{recordKey, tokenKey, vaultKey} {
		delete(v.Metadata, key)
	}
	var rec *record.Record
	if text := attrs.Metadata[recordKey]; text == "" {
		v.Foreign, rec = true, t.foreignRecord(attrs)
	} else if rec, err = record.Decode(name, []byte(text)); err != nil {
		return record.Row{Name: name}, err
	} else if attrs.Metadata[tokenKey] != "" && len(rec.Claims) == 1 {
		rec.Token, rec.Claims[0].Token = creationToken(attrs.Created), creationToken(attrs.Created)
	}
	row := record.Row{Name: name, Version: v.String()}
	row.Data, err = record.Encode(rec)
	return row, err
}

// readAttrs reads the metadata of the object of a lock.
func (t *foreignTable) readAttrs(ctx context.Context, name string) (attrs *objectAttrs, err error) {
	err = t.callServer(ctx, "storage.objects.get and storage.objects.list", func(ctx context.Context) (err error) {
		attrs, err = t.bucket.readAttrs(ctx, t.objectName(name), conditions{})
		return err
	})
	return attrs, err
}

// removeLate removes an object that has this record. If that fails, the object stays until its claim expires.
func (t *foreignTable) removeLate(ctx context.Context, name, data string) {
	attrs, err := t.readAttrs(ctx, name)
	if err == nil && attrs.Metadata[recordKey] == data {
		v := version{Generation: attrs.Generation, Metageneration: attrs.Metageneration}
		_ = t.removeObject(ctx, record.Row{Name: name, Version: v.String()})
	}
}

// creationToken is the token of a grant that created an object.
func creationToken(created time.Time) int64 { return created.UnixMilli() * 1000 }

// foreignRecord makes a record for an object that another client has created.
func (t *foreignTable) foreignRecord(attrs *objectAttrs) *record.Record {
	c := record.Claim{ID: fmt.Sprint(foreign.IDPrefix, attrs.Generation), Owner: "a foreign client", Weight: 1,
		TTL:   foreign.NoEndTTL,
		State: record.Granted, Token: 1, Beat: attrs.Generation, Since: attrs.Updated.UnixMicro()}
	var l vaultLock
	switch {
	case t.layout == LayoutVault && json.Unmarshal([]byte(attrs.Metadata[vaultKey]), &l) == nil && l.Identity != "":
		c.ID, c.Owner, c.TTL = foreign.IDPrefix+l.Identity, truncateOwner(cmp.Or(l.Value, l.Identity)), vaultTTL
	case t.layout == LayoutGCSLock && t.foreignAge > 0:
		c.TTL = t.foreignAge
	}
	if c.SilenceLimit = c.TTL; c.TTL != foreign.NoEndTTL {
		c.ExpiresAt = attrs.Updated.Add(c.TTL).UnixMicro()
	}
	return &record.Record{Kind: driver.KindMutex, Limit: 1, Token: 1, Claims: []record.Claim{c}}
}

// truncateOwner cuts a foreign owner to the length that a record can have.
func truncateOwner(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), driver.MaxOwner)], "")
}

// Swap is one write, or one removal if the record has no claim.
func (t *foreignTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if err := t.checkName(row.Name); err != nil {
		return record.Row{}, err
	}
	rec, err := record.Decode(row.Name, row.Data)
	switch {
	case err != nil:
		return record.Row{}, err
	case len(rec.Claims) == 0:
		return record.Row{Name: row.Name}, t.free(ctx, row)
	case strings.HasPrefix(rec.Claims[0].ID, foreign.IDPrefix):
		return record.Row{}, fmt.Errorf("%w: a foreign holder cannot be notified; break it by force",
			driver.ErrUnsupported)
	}
	v, _, err := versionConditions(row.Version)
	if err != nil {
		return record.Row{}, err
	}
	fresh := row.Version == "" || v.Foreign
	content, err := t.makeContent(row, &rec.Claims[0], v.Metadata, fresh)
	if err != nil {
		return record.Row{}, err
	}
	from := t.clock.Clock.Now()
	mark := ""
	if row.Version == "" {
		mark = string(row.Data)
	}
	written, err := foreign.Do(ctx, t.writes, row.Name, mark, func(ctx context.Context) (w writtenRow, err error) {
		w.row, w.at, err = t.writeObject(ctx, row, content)
		return w, err
	})
	now := written.row
	// A grant makes a new object, or replaces a foreign one, and its token is the time at which the service did that. A
	// renewal writes the object again, which changes the time, and so keeps the token in the record.
	if err == nil && fresh {
		now.Token = creationToken(written.at)
		if t.clock.Clock.Since(from) < minCreateTime {
			time.Sleep(time.Millisecond) // the object must not be created again in the same millisecond
		}
	}
	return now, err
}

// writtenRow is a row and when the service wrote it.
type writtenRow struct {
	row record.Row
	at  time.Time
}

// free removes the object of a lock, if there is one. Before that, it waits until no creation of the object can come
// that nobody knows of: it would find the lock free. The caller may have found no object before such a creation took
// effect, so then free looks again.
func (t *foreignTable) free(ctx context.Context, row record.Row) error {
	if err := t.writes.Settle(ctx, row.Name); err != nil {
		return err
	}
	if row.Version != "" {
		return t.removeObject(ctx, row)
	}
	_, err := t.readAttrs(ctx, row.Name)
	return foreign.ResultOfAbsence(err, errNotFound)
}

// makeContent makes the object that represents a claim.
func (t *foreignTable) makeContent(
	row record.Row, c *record.Claim, kept map[string]string, fresh bool,
) (objectContent, error) {
	meta := maps.Clone(kept)
	if meta == nil {
		meta = map[string]string{}
	}
	meta[recordKey] = string(row.Data)
	if fresh {
		meta[tokenKey] = "created"
	}
	if t.layout == LayoutGCSLock {
		return objectContent{data: []byte("1"), contentType: "text/plain", metadata: meta, foreignMetadata: kept}, nil
	}
	text, err := json.Marshal(vaultLock{Key: t.prefix + encodeName(row.Name), Value: c.Owner, Identity: c.ID,
		Timestamp: time.UnixMicro(c.ExpiresAt).Add(-vaultTTL).UTC().Truncate(time.Second)})
	meta[vaultKey] = string(text)
	return objectContent{contentType: "application/octet-stream", metadata: meta, foreignMetadata: kept}, err
}

// List returns for each object what Load returns.
func (t *foreignTable) List(ctx context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	return t.listRows(ctx, prefix, "", t.Load)
}

// Close waits for the writes that are running, so that none takes effect after it.
func (t *foreignTable) Close() error {
	t.life.End()
	t.life.Wait()
	return t.table.Close()
}
