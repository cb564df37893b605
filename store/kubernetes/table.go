package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// table is the leases of a namespace as a record.Table: one object per record, which is in an annotation. A row's
// version is the object's uid and resource version. The API server compares both before it replaces or removes an
// object, and reads without a resource version show what was written before ("Kubernetes API Concepts", "Resource
// versions").
type table struct {
	record.Unsupported

	*client
	prefix string // of the objects' names
	label  string // what the objects keep, by which they are listed
	place  string // for people
	layout Layout
	// insecure is set if the server's certificate is not checked, as far as it is known.
	insecure bool
}

const (
	nameAnnotation   = "holdfast/name"
	recordAnnotation = "holdfast/record"
	// notifyAnnotation has the sessions of the clients that the last change concerns. If it is missing they are all.
	notifyAnnotation = "holdfast/notify"
	managedByLabel   = "app.kubernetes.io/managed-by"
	componentLabel   = "app.kubernetes.io/component"
	managedBy        = "holdfast"
)

// maxRecord is the size of the largest record, and maxSessions that of the longest list of sessions, in bytes: the
// annotations of an object have 256 KiB together.
const (
	maxRecord   = 250 << 10
	maxSessions = 2 << 10
)

// tokenGap is more than the estimates of the servers' clock of two clients can differ, if each has seen one reply on a
// slow network from another server.
const tokenGap = 6 * time.Second

// Info promises what Kubernetes promises over etcd: what is acknowledged is on a quorum of disks.
func (t *table) Info() driver.Info {
	return driver.Info{
		Store:           t.place,
		Clock:           t.clock.Clock,
		Tier:            driver.TierSettings,
		ExpiryClock:     driver.ExpiryClockStore,
		Survives:        driver.Survives{Restart: true, PowerCut: true, Failover: true},
		TokenGap:        tokenGap,
		TokenRegression: "when an object is removed within 6 s of its last grant",
	}
}

func (t *table) TokenFloor() int64   { return t.clock.TokenFloor() }
func (t *table) Clock() record.Clock { return t.clock }

// ReadClock is one read: each reply tells the time.
func (t *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	return record.ReadClockByLoad(ctx, t)
}

// Traits say that the objects are listed in the order of their names.
func (t *table) Traits() record.Traits {
	return record.Traits{MaxRecord: maxRecord, ListsInOrder: true, Ledger: true}
}

// Keys names the object of a lock, for people.
func (t *table) Keys(name string) []string {
	return []string{"lease " + t.namespace + "/" + objectName(t.prefix, name)}
}

// labels select the objects of this table.
func (t *table) labels() string {
	return managedByLabel + "=" + managedBy + "," + componentLabel + "=" + t.label
}

// readRow reads an object as a row.
func (t *table) readRow(l *lease) (record.Row, error) {
	data, isRecord := l.Meta.Annotations[recordAnnotation]
	row := record.Row{Name: l.Meta.Annotations[nameAnnotation], Version: l.version(), Data: []byte(data)}
	if !isRecord || row.Name == "" || objectName(t.prefix, row.Name) != l.Meta.Name {
		return row, fmt.Errorf("%w: the lease %s is not Holdfast's", driver.ErrCorrupt, l.Meta.Name)
	}
	return row, nil
}

// Load is one read.
func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	l, err := t.get(ctx, objectName(t.prefix, name))
	switch {
	case errors.Is(err, errNotFound):
		return record.Row{Name: name}, nil
	case err != nil:
		return record.Row{Name: name}, err
	}
	if read, err := parseVersion(l.version()); err == nil {
		t.expectShown(l.Meta.Name, read)
	}
	row, err := t.readRow(l)
	if err == nil && row.Name != name {
		err = fmt.Errorf("%w: the lease %s is that of the lock %q", driver.ErrCorrupt, l.Meta.Name, row.Name)
	}
	row.Name = name
	return row, err
}

// Swap is one write.
func (t *table) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if !utf8.Valid(row.Data) {
		return record.Row{}, fmt.Errorf("%w: a record is UTF-8", driver.ErrInvalid)
	}
	l := &lease{Meta: metadata{Name: objectName(t.prefix, row.Name),
		Labels: map[string]string{managedByLabel: managedBy, componentLabel: t.label},
		Annotations: map[string]string{nameAnnotation: row.Name, recordAnnotation: string(row.Data),
			notifyAnnotation: record.JoinSessions(row.Notify, maxSessions)}}}
	if rec, err := record.Decode(row.Name, row.Data); err == nil && t.label == lockLabel {
		l.Spec = describeHolder(rec)
	}
	l.Meta.UID, l.Meta.ResourceVersion, _ = strings.Cut(row.Version, " ")
	now, err := t.write(ctx, l)
	if err != nil {
		return record.Row{}, err
	}
	row.Version = now.version()
	return row, nil
}

// describeHolder says who holds a lock, for people: kubectl shows the holder. No client of ours reads it.
//
// A program of client-go that elects its leader by this lease by mistake must never lead, since that would exclude
// nobody. It takes a lease that has no holder, or its own name as the holder, or that it has seen unchanged for the
// duration, which is 0 if there is none. So there is always a holder, with a text that no such program is called, and
// the longest duration.
func describeHolder(rec *record.Record) leaseSpec {
	holders, owner := 0, ""
	for _, c := range rec.Claims {
		if c.State == record.Granted {
			holders, owner = holders+1, cmp.Or(owner, c.Owner)
		}
	}
	text, seconds := "(free)", int32(math.MaxInt32)
	switch {
	case holders == 1:
		text = shorten(owner) + " (holdfast)"
	case holders > 1:
		text = fmt.Sprintf("%s and %d more (holdfast)", shorten(owner), holders-1)
	}
	return leaseSpec{Holder: &text, Seconds: &seconds}
}

// shorten makes of an owner's text what fits in a column.
func shorten(owner string) string {
	const most = 64
	runes := []rune(cmp.Or(owner, "unknown"))
	for i, r := range runes {
		if !unicode.IsPrint(r) {
			runes[i] = '?'
		}
	}
	if len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return string(runes)
}

// Delete is one request.
func (t *table) Delete(ctx context.Context, row record.Row) error {
	if row.Version == "" {
		return nil
	}
	uid, version, _ := strings.Cut(row.Version, " ")
	err := t.remove(ctx, objectName(t.prefix, row.Name), uid, version)
	if errors.Is(err, errNotFound) {
		return nil
	}
	return err
}

// List reads the objects page by page.
func (t *table) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	last := ""
	if after != "" {
		last = objectName(t.prefix, after)
	}
	return t.listRows(ctx, prefix, last, t.labels(), t.readListed)
}

// readListed is readRow without the objects of stores whose prefix begins with ours.
func (t *table) readListed(l *lease) (record.Row, error) {
	if name := l.Meta.Annotations[nameAnnotation]; name != "" && objectName(t.prefix, name) != l.Meta.Name {
		return record.Row{}, nil
	}
	return t.readRow(l)
}

// listRows yields the rows of all objects with these labels whose locks' names begin with prefix, and whose own names
// come after a text. Pages of a server are of one moment. If that is too long ago, the listing begins again, and leaves
// out what it has yielded.
func (t *table) listRows(ctx context.Context, prefix, last, labels string, read func(*lease) (record.Row, error),
) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		token := ""
		for {
			page, err := t.list(ctx, labels, token)
			if errors.Is(err, errExpired) && token != "" {
				token = ""
				continue
			}
			if err != nil {
				yield(record.Row{}, err)
				return
			}
			for i := range page.Items {
				l := &page.Items[i]
				if l.Meta.Name <= last || !strings.HasPrefix(l.Meta.Name, t.prefix) {
					continue
				}
				last = l.Meta.Name
				row, err := read(l)
				if row.Name == "" || !strings.HasPrefix(row.Name, prefix) {
					continue
				}
				if !yield(row, err) {
					return
				}
			}
			if token = page.Meta.Continue; token == "" {
				return
			}
		}
	}
}

// Close ends the calls that are running.
func (t *table) Close() error {
	t.close()
	return nil
}
