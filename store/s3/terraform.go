package s3

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/foreign"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Layout is how a lock is stored in the bucket.
type Layout string

const (
	// LayoutRecord is Holdfast's own layout, and the default.
	LayoutRecord Layout = "record"
	// LayoutTerraform is the layout of the lock files of Terraform's backend for S3, and of OpenTofu's (use_lockfile).
	// The lock NAME excludes a run of Terraform whose state has the key PREFIX and NAME, by the object with .tflock
	// after that key. Nothing in a name is escaped. A lock is held while it exists. Terraform shows our holder as it
	// shows its own. It supports the plain mutex and the election only.
	//
	// Terraform knows no TTL. What a crashed process of its leaves blocks until Options.ForeignAge. What one of ours
	// leaves blocks Terraform until the next client of ours comes, or until somebody runs terraform force-unlock. A
	// foreign holder cannot be notified, so it can be broken by force only.
	//
	// Nothing remains of a free lock. For tokens to rise nevertheless, a release waits until the service's clock has
	// certainly passed the token: up to two seconds after the lock was taken, or longer if replies took long. If it is
	// not known whether a write that takes the lock has taken effect, a release waits until 15 s after that write: it
	// could come later, and take the lock again. The service must compare before it deletes, or a late release could
	// remove the lock of somebody else; others, such as MinIO, are refused, and so is a client without
	// s3:DeleteObject.
	LayoutTerraform Layout = "terraform"
)

// layouts are all of them, the default first.
var layouts = []Layout{LayoutRecord, LayoutTerraform}

const (
	terraformSuffix = ".tflock"
	// foreignVersion begins the version of a row that another client has written.
	foreignVersion = "foreign "
	// maxSettleTime is how long a release waits for its token to be in the past. A grant after requests that took for
	// long has a token as far ahead. One that is further ahead is of a time before the service's clock was set back.
	maxSettleTime = 15 * time.Second
	// maxNap is how long it waits at most before it looks at the clock again, which replies may have made better known.
	maxNap          = 300 * time.Millisecond
	terraformMinTTL = 3 * time.Second
	// maxLockFile is more than the record of one claim needs.
	maxLockFile = 64 << 10
)

// lockFile is the content of a lock file. Terraform ignores the fields that it does not know.
type lockFile struct {
	ID        string
	Operation string
	Info      string
	Who       string
	Version   string
	Created   time.Time
	Path      string
	Holdfast  json.RawMessage `json:",omitempty"` // our record
	Random    string          `json:",omitempty"`
}

// terraformTable is a bucket as a record.Table for LayoutTerraform: a record with a claim is an object, and a record
// without a claim is no object.
type terraformTable struct {
	*table
	foreignAge time.Duration
	writes     *foreign.Writes
}

// maxLateness is changed by tests.
var maxLateness = foreign.MaxLateness

// newTerraformStore makes the store, or refuses a service that deletes without comparing.
func newTerraformStore(t *table, foreignAge time.Duration) (driver.Store, error) {
	if !t.removal.compares() {
		t.bucket.close()
		return nil, fmt.Errorf("%w: the service does not compare the ETag before it deletes an object: the layout %s needs "+
			"that", driver.ErrUnsupported, LayoutTerraform)
	}
	return foreign.New(newTerraformTable(t, foreignAge), string(LayoutTerraform)), nil
}

func newTerraformTable(t *table, foreignAge time.Duration) *terraformTable {
	f := &terraformTable{table: t, foreignAge: foreignAge}
	f.writes = foreign.NewWrites(t.bucket.life, t.bucket.clock.Clock, maxLateness, f.removeLate)
	return f
}

// Info says when tokens can fall.
func (t *terraformTable) Info() driver.Info {
	i := t.table.Info()
	i.TokenRegression = "when Terraform or somebody removes an object within 3 s of its last grant, or the " +
		"service's clock " +
		"is set back"
	i.MinTTL = max(i.MinTTL, terraformMinTTL)
	return i
}

// Traits: there are no idle records.
func (t *terraformTable) Traits() record.Traits {
	return record.Traits{Traceless: true, ExpiresIdle: true}
}

// Load is one read.
func (t *terraformTable) Load(ctx context.Context, name string) (record.Row, error) {
	row := record.Row{Name: name}
	if err := t.writes.Await(ctx, name); err != nil {
		return row, err
	}
	o, f, err := t.readLockFile(ctx, t.key(name))
	switch {
	case errors.Is(err, errNotFound):
		return row, nil
	case err != nil:
		return row, err
	}
	if len(f.Holdfast) > 0 {
		t.writes.Saw(name, f.Random)
		row.Version, row.Data = o.etag, f.Holdfast
		return row, nil
	}
	row.Version = foreignVersion + o.etag
	row.Data, err = record.Encode(t.foreignRecord(o, f))
	return row, err
}

// readLockFile reads an object. If another program has written it, the lock file may be empty.
func (t *terraformTable) readLockFile(ctx context.Context, key string) (o object, f lockFile, err error) {
	if o, err = t.bucket.get(ctx, key, maxLockFile); err == nil && json.Unmarshal(o.data, &f) != nil {
		f = lockFile{}
	}
	return o, f, err
}

// removeLate removes a lock file that has this random text. If that fails, the file stays until its claim expires.
func (t *terraformTable) removeLate(ctx context.Context, name, random string) {
	if o, f, err := t.readLockFile(ctx, t.key(name)); err == nil && f.Random == random {
		_ = t.bucket.remove(ctx, t.key(name), o.etag)
	}
}

// foreignRecord makes a record for an object that another client has created. Its time is the service's.
func (t *terraformTable) foreignRecord(o object, f lockFile) *record.Record {
	beat := fnv.New32a()
	_, _ = beat.Write([]byte(o.etag)) // a hash takes everything
	c := record.Claim{ID: foreign.IDPrefix + cmp.Or(f.ID, strings.Trim(o.etag, `"`)), Owner: foreignOwner(f), Weight: 1,
		TTL: foreign.NoEndTTL, State: record.Granted, Token: 1, Beat: int64(beat.Sum32())}
	if !o.written.IsZero() {
		c.Since = o.written.UnixMicro()
		if t.foreignAge > 0 {
			c.TTL = t.foreignAge
			c.ExpiresAt = o.written.Add(c.TTL).UnixMicro()
		}
	}
	c.SilenceLimit = c.TTL
	return &record.Record{Kind: driver.KindMutex, Limit: 1, Token: 1, Claims: []record.Claim{c}}
}

// foreignOwner is what is shown of a foreign holder.
func foreignOwner(f lockFile) string {
	text := cmp.Or(strings.Join(strings.Fields(f.Who+" "+f.Operation), " "), "a foreign client")
	return strings.ToValidUTF8(text[:min(len(text), driver.MaxOwner)], "")
}

// Swap is one write, or one removal if the record has no claim.
func (t *terraformTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	rec, err := record.Decode(row.Name, row.Data)
	etag, isForeign := strings.CutPrefix(row.Version, foreignVersion)
	switch {
	case err != nil:
		return record.Row{}, err
	case len(rec.Claims) == 0:
		return record.Row{Name: row.Name}, t.free(ctx, row, etag, rec.Token)
	case strings.HasPrefix(rec.Claims[0].ID, foreign.IDPrefix):
		return record.Row{}, fmt.Errorf("%w: a foreign holder cannot be notified; break it by force",
			driver.ErrUnsupported)
	}
	// The token of a grant is beyond what the service's clock can show now. It was not beyond that when an earlier
	// grant was released: see awaitToken.
	if etag == "" || isForeign {
		_, late, _ := t.bucket.clock.Bounds()
		row.Token = max(rec.Token, late+1)
		rec.Token, rec.Claims[0].Token = row.Token, row.Token
	} else {
		row.Token = 0
	}
	if row.Data, err = record.Encode(rec); err != nil {
		return record.Row{}, err
	}
	random, mark := newRandom(), ""
	if etag == "" {
		mark = random
	}
	content, err := t.makeLockFile(row, &rec.Claims[0], random)
	if err != nil {
		return record.Row{}, err
	}
	key := t.key(row.Name)
	row.Version, err = foreign.Do(ctx, t.writes, row.Name, mark, func(ctx context.Context) (string, error) {
		return t.putOnce(ctx, key, etag, content, random)
	})
	if err != nil {
		return record.Row{}, err
	}
	return row, nil
}

// putOnce is put for a lock file with a random text. If it is refused although the file is there, a proxy has sent the
// request again, and the first one took effect.
func (t *terraformTable) putOnce(ctx context.Context, key, etag string, content []byte, random string) (string, error) {
	now, err := t.bucket.put(ctx, key, etag, content)
	if !errors.Is(err, record.ErrConflict) {
		return now, err
	}
	o, f, err := t.readLockFile(ctx, key)
	switch {
	case errors.Is(err, errNotFound):
		return "", record.ErrConflict
	case err != nil:
		return "", fmt.Errorf("a write was refused, and then: %w", err)
	case f.Random != random:
		return "", record.ErrConflict
	}
	return o.etag, nil
}

// free removes the object of a lock, if there is one. Before that, it waits until no creation of the object can come
// that nobody knows of: it would find the lock free. The caller may have found no object before such a creation took
// effect, so then free looks again.
func (t *terraformTable) free(ctx context.Context, row record.Row, etag string, token int64) error {
	if err := t.writes.Settle(ctx, row.Name); err != nil {
		return err
	}
	if etag == "" {
		_, _, err := t.readLockFile(ctx, t.key(row.Name))
		return foreign.ResultOfAbsence(err, errNotFound)
	}
	if err := t.awaitToken(ctx, token); err != nil {
		return err
	}
	if t.removal == removalLenient {
		return t.replaceAndRemove(ctx, row, etag)
	}
	return t.removeObject(ctx, row.Name, etag)
}

// replaceAndRemove removes the object of a lock on a service that says that it has removed what was not there. That the
// lock was held until now is proven by a write, which leaves a record without a claim for as long as it takes to remove
// it. Then it does not matter who removes it.
func (t *terraformTable) replaceAndRemove(ctx context.Context, row record.Row, etag string) error {
	random := newRandom()
	content, err := t.makeLockFile(row, &record.Claim{ID: random, Owner: "nobody: it was released"}, random)
	if err != nil {
		return err
	}
	if etag, err = t.putOnce(ctx, t.key(row.Name), etag, content, random); err != nil {
		return err
	}
	const maxTries = 3
	for range maxTries {
		err = t.bucket.remove(ctx, t.key(row.Name), etag)
		if errors.Is(err, errNotFound) || errors.Is(err, record.ErrConflict) {
			return nil
		}
		if err == nil || driverutil.IsFinal(err) {
			break
		}
	}
	return err
}

// awaitToken waits until the service's clock has certainly passed a token, unless that would take longer than
// maxSettleTime: then the clock was set back, as Info says.
func (t *terraformTable) awaitToken(ctx context.Context, token int64) error {
	for {
		early, _, _ := t.bucket.clock.Bounds()
		ahead := time.Duration(token-early+1) * time.Microsecond
		if early > token || ahead > maxSettleTime {
			return nil
		}
		if err := t.bucket.life.Sleep(ctx, min(ahead, maxNap)); err != nil {
			return errors.Join(record.ErrUnsent, err)
		}
	}
}

// removeObject removes an object. If it is refused, and there is none, the outcome is unknown: a proxy may have sent
// the request again, or somebody else has removed the object.
func (t *terraformTable) removeObject(ctx context.Context, name, etag string) error {
	err := t.bucket.remove(ctx, t.key(name), etag)
	if errors.Is(err, record.ErrConflict) {
		if _, _, readErr := t.readLockFile(ctx, t.key(name)); readErr != nil {
			err = readErr
		}
	}
	return err
}

// Delete removes the object of a row.
func (t *terraformTable) Delete(ctx context.Context, row record.Row) error {
	row.Version = strings.TrimPrefix(row.Version, foreignVersion)
	return t.table.Delete(ctx, row)
}

// makeLockFile makes the object that represents a claim.
func (t *terraformTable) makeLockFile(row record.Row, c *record.Claim, random string) ([]byte, error) {
	created := c.Since
	if created == 0 {
		created = t.TokenFloor()
	}
	return json.Marshal(lockFile{ID: c.ID, Operation: "holdfast", Info: c.Meta, Who: c.Owner, Version: "holdfast",
		Created: time.UnixMicro(created).UTC(), Path: t.bucket.bucket + "/" + strings.TrimSuffix(t.key(row.Name),
			t.suffix),
		Holdfast: row.Data, Random: random})
}

// List returns for each object what Load returns.
func (t *terraformTable) List(ctx context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	return t.listRows(ctx, prefix, "", t.Load)
}

// Close waits for the writes that are running, so that none takes effect after it.
func (t *terraformTable) Close() error {
	if t.bucket.life.End() {
		t.bucket.life.Wait()
		t.bucket.onClose()
	}
	return nil
}
