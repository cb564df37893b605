package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/foreign"
	"github.com/holdfast-go/holdfast/engine/record"
)

const (
	// renewedAnnotation is the renewTime with which a record was written. When another client has written the lease,
	// the record is about the past.
	renewedAnnotation = "holdfast/renewed"
	microTime         = "2006-01-02T15:04:05.000000Z07:00"
	maxRemembered     = 4096
)

// leaderElectionTable is the leases of a namespace as a record.Table for LayoutLeaderElection. It has no Watcher: a
// waiter has no place in a lease, so there is no queue, and waiters poll. It never removes an object, because others
// may have made it, and count its leaseTransitions.
type leaderElectionTable struct {
	record.Unsupported

	t *table
	// How a lock's name becomes that of an object, and the reverse. Tests replace them.
	objectOf func(name string) (string, error)
	nameOf   func(object string) string

	mu   sync.Mutex
	seen map[string]*lease // by lock: the object of the last version that was read or written
}

// newLeaderElectionTable makes a table in which a lock has the name of its object.
func newLeaderElectionTable(t *table) *leaderElectionTable {
	return &leaderElectionTable{t: t, seen: map[string]*lease{},
		objectOf: func(name string) (string, error) {
			if err := checkObjectName(t.prefix + name); err != nil {
				return "", fmt.Errorf("%w: in the layout %s the name of a lock is that of a lease: %v",
					driver.ErrInvalid, LayoutLeaderElection, err)
			}
			return t.prefix + name, nil
		},
		nameOf: func(object string) string { return strings.TrimPrefix(object, t.prefix) }}
}

// Info says when tokens can fall.
func (e *leaderElectionTable) Info() driver.Info {
	i := e.t.Info()
	i.TokenRegression = "when an object or its annotations are removed within 6 s of its last grant"
	return i
}

func (e *leaderElectionTable) TokenFloor() int64   { return e.t.TokenFloor() }
func (e *leaderElectionTable) Clock() record.Clock { return e.t.Clock() }
func (e *leaderElectionTable) ReadClock(ctx context.Context) (time.Time, time.Duration, error) {
	return e.t.ReadClock(ctx)
}

// Traits: an object is the user's, and nobody removes it.
func (e *leaderElectionTable) Traits() record.Traits {
	return record.Traits{MaxRecord: maxRecord, ExpiresIdle: true}
}

// Keys names the object of a lock, for people.
func (e *leaderElectionTable) Keys(name string) []string {
	return []string{"lease " + e.t.namespace + "/" + e.t.prefix + name}
}

// Load is one read.
func (e *leaderElectionTable) Load(ctx context.Context, name string) (record.Row, error) {
	if strings.HasPrefix(name, "\x1f") { // the name of no lock: the engine wants to know the server's time
		if _, err := e.t.get(ctx, objectName(defaultPrefix, "holdfast-probe")); err != nil && !errors.Is(err, errNotFound) {
			return record.Row{Name: name}, err
		}
		return record.Row{Name: name}, nil
	}
	l, err := e.load(ctx, name)
	switch {
	case errors.Is(err, errNotFound):
		return record.Row{Name: name}, nil
	case err != nil:
		return record.Row{Name: name}, err
	}
	return e.readRow(l)
}

// load reads an object, and remembers it.
func (e *leaderElectionTable) load(ctx context.Context, name string) (*lease, error) {
	object, err := e.objectOf(name)
	if err != nil {
		return nil, err
	}
	l, err := e.t.get(ctx, object)
	if err == nil && l.Meta.DeletionTimestamp != "" {
		err = fmt.Errorf("the lease %s is being deleted: no claim on it could last", object)
	}
	if err == nil && l.Meta.Labels[managedByLabel] == managedBy {
		err = fmt.Errorf("%w: the lease %s is a lock in the layout %s", driver.ErrCorrupt, object, LayoutRecord)
	}
	if err == nil {
		e.remember(name, l)
	}
	return l, err
}

// remember keeps an object, for what others have added to its metadata.
func (e *leaderElectionTable) remember(name string, l *lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.seen) >= maxRemembered {
		clear(e.seen)
	}
	e.seen[name] = l
}

// recall returns the object of a version, without its record, from memory or by one read. If there is another version,
// the error is record.ErrConflict.
func (e *leaderElectionTable) recall(ctx context.Context, name, version string) (*lease, error) {
	e.mu.Lock()
	l := e.seen[name]
	e.mu.Unlock()
	if l == nil || l.version() != version {
		var err error
		l, err = e.load(ctx, name)
		switch {
		case errors.Is(err, errNotFound), err == nil && l.version() != version:
			return nil, record.ErrConflict
		case err != nil:
			return nil, errors.Join(record.ErrUnsent, err)
		}
	}
	return l, nil
}

// valueOf is what a pointer points to, or the zero value.
func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// readRow makes a row of an object. If our record is about the past, only its token counts.
func (e *leaderElectionTable) readRow(l *lease) (record.Row, error) {
	row := record.Row{Name: e.nameOf(l.Meta.Name), Version: l.version()}
	if l.Spec.Strategy != nil || l.Spec.Preferred != nil {
		return row, fmt.Errorf("%w: the holder of the lease %s is chosen by a controller (coordinated leader election)",
			driver.ErrUnsupported, l.Meta.Name)
	}
	rec := &record.Record{}
	if data, ok := l.Meta.Annotations[recordAnnotation]; ok {
		var err error
		if rec, err = record.Decode(row.Name, []byte(data)); err != nil {
			return row, err
		}
		if valueOf(l.Spec.Holder) == holderOf(rec) &&
			l.Meta.Annotations[renewedAnnotation] == valueOf(l.Spec.RenewTime) {
			row.Data = []byte(data)
			return row, nil
		}
	}
	now := &record.Record{Token: rec.Token, Ended: rec.Ended, NotesDroppedUntil: rec.NotesDroppedUntil}
	for _, c := range rec.Claims { // the other client has ended it
		micros := e.t.TokenFloor()
		now.Ended = append(now.Ended, record.EndedClaim{ID: c.ID, Cause: driver.LossGone,
			Until: micros + (c.TTL + driver.UnreachableTimeout(c.TTL)).Microseconds()})
	}
	if valueOf(l.Spec.Holder) == "" {
		micros := e.t.TokenFloor()
		now.Idle = max(micros, 1)
	} else {
		ended, dropped := now.Ended, now.NotesDroppedUntil
		now = foreignRecord(now.Token, &l.Spec)
		now.Ended, now.NotesDroppedUntil = ended, dropped
	}
	var err error
	row.Data, err = record.Encode(now)
	return row, err
}

// foreignRecord makes the record of a lease that a foreign client holds. It expires by client-go's own rule: when it
// was seen unchanged for its duration, by the reader's clock. The times in the lease are by the holder's clock, and
// are only shown.
func foreignRecord(token int64, s *leaseSpec) *record.Record {
	text, _ := json.Marshal(s) // a struct of texts and numbers
	beat, id := fnv.New64a(), fnv.New64a()
	_, _ = beat.Write(text) // a hash takes everything
	_, _ = id.Write([]byte(*s.Holder))
	owner := strings.ToValidUTF8((*s.Holder)[:min(len(*s.Holder), driver.MaxOwner)], "")
	token = max(token, 1)
	c := record.Claim{ID: fmt.Sprintf("%s%x", foreign.IDPrefix, id.Sum64()), Owner: owner, Weight: 1,
		TTL: time.Duration(valueOf(s.Seconds)) * time.Second, State: record.Granted, Token: token,
		Beat: int64(beat.Sum64() >> 11)}
	if c.TTL <= 0 {
		c.TTL = foreign.NoEndTTL // no leader election writes that
	}
	if at, err := time.Parse(time.RFC3339, valueOf(s.AcquireTime)); err == nil {
		c.Since = max(at.UnixMicro(), 0)
	}
	c.SilenceLimit = c.TTL
	return &record.Record{Kind: driver.KindMutex, Limit: 1, Token: token, Claims: []record.Claim{c}}
}

// holderOf is the holderIdentity of a record: empty if nobody holds the lock.
func holderOf(rec *record.Record) string {
	if len(rec.Claims) == 0 {
		return ""
	}
	return cmp.Or(rec.Claims[0].Owner, "holdfast") + "_" + rec.Claims[0].ID
}

// Swap is one write, and a read before it if the object is not remembered.
func (e *leaderElectionTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	rec, err := record.Decode(row.Name, row.Data)
	if err != nil {
		return record.Row{}, err
	}
	if len(rec.Claims) > 0 && strings.HasPrefix(rec.Claims[0].ID, foreign.IDPrefix) {
		return record.Row{}, fmt.Errorf("%w: a foreign holder cannot be notified; break it by force",
			driver.ErrUnsupported)
	}
	object, err := e.objectOf(row.Name)
	if err != nil {
		return record.Row{}, err
	}
	l := &lease{Meta: metadata{Name: object}}
	if row.Version != "" {
		was, err := e.recall(ctx, row.Name, row.Version)
		if err != nil {
			return record.Row{}, err
		}
		*l = *was
	}
	e.writeSpec(l, rec)
	annotations := map[string]string{recordAnnotation: string(row.Data), renewedAnnotation: *l.Spec.RenewTime}
	for k, v := range l.Meta.Annotations {
		if _, ours := annotations[k]; !ours {
			annotations[k] = v
		}
	}
	l.Meta.Annotations = annotations
	now, err := e.t.write(ctx, l)
	if err != nil {
		return record.Row{}, err
	}
	e.remember(row.Name, now)
	row.Version = now.version()
	return row, nil
}

// writeSpec makes the lease show a record as client-go would write it. Each write has a renewTime in another second, by
// which client-go sees that the holder is alive: it compares whole seconds, and does not compare them with its clock.
func (e *leaderElectionTable) writeSpec(l *lease, rec *record.Record) {
	micros := e.t.TokenFloor()
	at := time.UnixMicro(micros).UTC()
	if last, err := time.Parse(time.RFC3339, valueOf(l.Spec.RenewTime)); err == nil && at.Unix() <= last.Unix() {
		at = last.UTC().Truncate(time.Second).Add(time.Second)
	}
	now := at.Format(microTime)
	holder, seconds, transitions := holderOf(rec), int32(1), valueOf(l.Spec.Transitions)
	acquired := valueOf(l.Spec.AcquireTime)
	if holder != valueOf(l.Spec.Holder) {
		acquired = now
		if holder != "" && l.Meta.ResourceVersion != "" {
			transitions = max(transitions+1, 0)
		}
	}
	if holder != "" {
		seconds = int32((rec.Claims[0].TTL + time.Second - 1) / time.Second)
	}
	l.Spec = leaseSpec{Holder: &holder, Seconds: &seconds, RenewTime: &now, Transitions: &transitions}
	l.Spec.AcquireTime = &acquired
	if acquired == "" {
		l.Spec.AcquireTime = &now
	}
}

// Delete removes an object. The engine asks for it only if a name is not used again.
func (e *leaderElectionTable) Delete(ctx context.Context, row record.Row) error {
	object, err := e.objectOf(row.Name)
	if err != nil || row.Version == "" {
		return err
	}
	uid, version, _ := strings.Cut(row.Version, " ")
	if err = e.t.remove(ctx, object, uid, version); errors.Is(err, errNotFound) {
		return nil
	}
	return err
}

// List lists all leases of the namespace but those of Holdfast's own layout.
func (e *leaderElectionTable) List(ctx context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	return e.t.listRows(ctx, prefix, "", "", func(l *lease) (record.Row, error) {
		if l.Meta.Labels[managedByLabel] == managedBy {
			return record.Row{}, nil
		}
		return e.readRow(l)
	})
}

// Close ends the calls that are running.
func (e *leaderElectionTable) Close() error { return e.t.Close() }
