package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// table is a bucket as a record.Table: one key per record.
//
// The version of a record is the revision of its key, which is the sequence number of the message in the bucket's
// stream, and a checksum of the data. The servers compare the revision alone. They use a number twice if the bucket is
// restored from a backup, if they lose their last writes in a power cut, or if a bucket whose numbers begin with 1 is
// made again. So a client replaces only what it has read or written in the present epoch: see epoch.
//
// A key that was removed leaves a marker, which has a revision of its own, and which the server removes later.
type table struct {
	record.Unsupported

	js        jetstream.JetStream
	stream    jetstream.Stream
	kv        jetstream.KeyValue
	bucket    string
	place     string // Info.Store
	session   string // names the client in records: see record.Watcher
	opts      Options
	keyPrefix string // without the dot after it
	clock     record.ServerClock
	isRemote  bool         // the server is on another machine, and the connection is not encrypted
	closeConn func() error // nil: the connection is the user's
	life      *driverutil.Lifetime

	mu       sync.Mutex
	settings settings              // guarded by mu
	watches  map[watched]*keyWatch // guarded by mu
	// The last revisions that this client has seen, by name; guarded by mu. See checkFresh and mayReplace.
	seen  map[string]lastSeen
	epoch epoch // guarded by mu
	// For how long the servers have not found the bucket; guarded by mu. See maxMissing.
	missing driverutil.Outage
}

// epoch is a time in which each revision of the bucket stands for one write only, as far as this client can see.
// Another one begins when the connection was lost, since the server may have lost its last writes, and when the
// bucket is seen to be another one than before, or to have fewer revisions. The first one has the number 0.
type epoch struct {
	number     uint64
	reconnects uint64    // of the connection
	created    time.Time // when the bucket was made
	largest    uint64    // the largest revision that was seen
	stateRead  uint64    // the number of the epoch in which the state of the bucket was last read
}

// version is what Row.Version says.
type version struct {
	revision uint64 // 0: there is no record
	sum      uint64 // the checksum of the data
}

var crcTable = crc64.MakeTable(crc64.ECMA)

func versionOf(revision uint64, data []byte) version {
	return version{revision, crc64.Checksum(data, crcTable)}
}

func (v version) String() string {
	return strconv.FormatUint(v.revision, 10) + "-" + strconv.FormatUint(v.sum, 16)
}

// parseVersion parses the version of a row: the revision, and a checksum of what was written.
func parseVersion(text string) (v version, err error) {
	if text == "" {
		return version{}, nil
	}
	revision, sum, _ := strings.Cut(text, "-")
	if v.revision, err = strconv.ParseUint(revision, 10, 64); err == nil {
		v.sum, err = strconv.ParseUint(sum, 16, 64)
	}
	if err != nil || v.revision == 0 {
		return version{}, fmt.Errorf("%w: the version %q", driver.ErrInvalid, text)
	}
	return v, nil
}

// lastSeen is the largest revision of a key that this client has seen.
type lastSeen struct {
	version
	removed  bool // it is a marker
	epoch    uint64
	at       driver.Instant
	oldReads driver.Instant // when the first of the reads came that showed an older revision; zero: none
}

const (
	// maxSeen is how many names a client remembers revisions of. After a reconnect, those of which it does not are read
	// before each write.
	maxSeen = 8192
	// maxStale is for how long reads may show an older revision than this client has seen, before they are believed: a
	// leader that was cut off from the others steps down sooner. After that the bucket was restored from a backup.
	maxStale = 30 * time.Second
	// markerTTL is how long the marker of a removed key is kept.
	markerTTL = time.Hour
)

// notifyHeader has the sessions of the clients that a write concerns; without it they are all. maxSessions is the
// size of the longest list of them, in bytes.
const (
	notifyHeader = "Holdfast-Notify"
	maxSessions  = 1 << 10
)

// explainTime is how long a request that has ended without an answer may take to say why.
const explainTime = 200 * time.Millisecond

// callServer makes a request, bounded by ctx, the table's timeout and its life. The request is published to subject.
//
// nats.go holds the lock of the connection while it writes to the socket, and takes it for whatever it is asked. So
// while a server reads nothing, calls of nats.go block for up to the FlusherTimeout of the connection, whatever their
// context. callServer does not wait for that: the outcome of such a request is unknown. Close waits.
func callServer[T any](
	ctx context.Context, t *table, subject string, request func(context.Context) (T, error),
) (T, error) {
	type answer struct {
		value T
		err   error
	}
	living, done := t.life.Bind(ctx)
	defer done()
	timeout := t.opts.Timeout
	answers := make(chan answer, 1)
	if !t.life.Go(func() {
		var a answer
		before := t.lastViolation()
		if a.err = t.checkConnected(); a.err == nil {
			a.err = driverutil.CallWithTimeout(living, timeout, "NATS", func(ctx context.Context) (err error) {
				a.value, err = request(ctx)
				return err
			})
		}
		if a.err != nil {
			a.err = t.explainError(ctx, a.err, subject, before)
		}
		answers <- a
	}) {
		var none T
		return none, driver.ErrClosed
	}
	blocked := time.NewTimer(timeout + explainTime)
	defer blocked.Stop()
	var a answer
	select {
	case a = <-answers:
	case <-living.Done():
		a.err = living.Err()
	case <-blocked.C:
		a.err = errors.New("no answer from NATS: the connection is blocked, because the server does not read")
	}
	if a.err != nil && t.life.Err() != nil {
		a.err = driver.ErrClosed
	}
	return a.value, a.err
}

// readState reads the settings of the bucket and the clock of its leader.
func (t *table) readState(ctx context.Context) (jetstream.Stream, error) {
	return callServer(ctx, t, t.apiSubject("STREAM.INFO"), func(ctx context.Context) (jetstream.Stream, error) {
		before := t.currentEpoch()
		sent := t.opts.Clock.Now()
		stream, err := t.js.Stream(ctx, t.streamName())
		if err != nil {
			return nil, err
		}
		state := stream.CachedInfo()
		// If the settings are refused the clock stays as old as it is, so that the next call looks at them again.
		if err := t.noteState(state, before); err != nil {
			return nil, err
		}
		t.clock.AddReply(state.TimeStamp.UnixMicro(), sent, t.opts.Clock.Now())
		return stream, nil
	})
}

// currentEpoch returns the epoch. It begins another one if the connection was made again.
func (t *table) currentEpoch() epoch {
	reconnects := t.conn().Stats().Reconnects
	t.mu.Lock()
	defer t.mu.Unlock()
	if reconnects > t.epoch.reconnects {
		t.epoch.reconnects = reconnects
		t.epoch.number++
	}
	return t.epoch
}

// noteState takes over the settings of the bucket, and looks whether it is still the one that this client knows; before
// is the epoch in which it asked. It returns the error of readSettings.
func (t *table) noteState(state *jetstream.StreamInfo, before epoch) error {
	s, err := t.readSettings(state)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settings = s
	t.missing.RequestAnswered()
	now, last := &t.epoch, state.State.LastSeq
	inTime := now.number == before.number
	switch {
	case now.created.IsZero(): // the store is being opened
		*now = epoch{reconnects: now.reconnects, created: state.Created, largest: last}
		return nil
	case !state.Created.Equal(now.created):
		now.number++
		now.created, now.largest = state.Created, last
		clear(t.seen)
	case last < before.largest:
		now.number++
		now.largest = last
	default:
		now.largest = max(now.largest, last)
	}
	if inTime {
		now.stateRead = now.number
	}
	return nil
}

// mayReplace reports whether a version of a key may be replaced or removed, and the epoch in which that is so. If not,
// the key must be read again, because its revision may be that of another write.
func (t *table) mayReplace(name string, v version) (number uint64, ok bool) {
	number = t.currentEpoch().number
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.seen[name] // the zero value is of epoch 0: what others have read before then counts, too
	return number, last.epoch == number && (last.revision != v.revision || last.sum == v.sum)
}

// errOldVersion says that mayReplace does not allow a write, which was not sent.
var errOldVersion = fmt.Errorf("%w: the key must be read again", record.ErrConflict)

// entry is what a key contains.
type entry struct {
	version        // revision 0: the key has never existed, or its marker was removed
	removed bool   // it is a marker
	epoch   uint64 // in which it was asked for
	data    []byte
}

// readKey asks the bucket's leader for a key. The Get of jetstream.KeyValue would ask any replica, if the bucket allows
// it (allow_direct).
func (t *table) readKey(ctx context.Context, key string) (entry, error) {
	request, err := json.Marshal(map[string]string{"last_by_subj": t.subject(key)})
	if err != nil {
		return entry{}, err
	}
	subject := t.apiSubject("STREAM.MSG.GET")
	return callServer(ctx, t, subject, func(ctx context.Context) (entry, error) {
		epoch := t.currentEpoch()
		m, err := t.conn().RequestWithContext(ctx, subject, request)
		if err != nil {
			return entry{}, err
		}
		e, err := decodeEntry(m.Data)
		if err != nil {
			return entry{}, fmt.Errorf("the key %s: %w", key, err)
		}
		e.epoch = epoch.number
		return e, nil
	})
}

// decodeEntry decodes the reply to a read of a key. The error is an APIError if it is one.
func decodeEntry(text []byte) (entry, error) {
	var reply struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Sequence uint64 `json:"seq"`
			Header   []byte `json:"hdrs"`
			Data     []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(text, &reply); err != nil {
		return entry{}, fmt.Errorf("the reply of the server cannot be read: %v", err)
	}
	switch {
	case reply.Error != nil && reply.Error.ErrorCode != jetstream.JSErrCodeMessageNotFound:
		return entry{}, reply.Error
	case reply.Message == nil:
		return entry{}, nil
	}
	e := entry{version: versionOf(reply.Message.Sequence, reply.Message.Data), data: reply.Message.Data}
	if len(reply.Message.Header) > 0 {
		header, err := nats.DecodeHeadersMsg(reply.Message.Header)
		if err != nil {
			return entry{}, fmt.Errorf("its headers cannot be read: %v", err)
		}
		e.removed = isMarker(header)
	}
	return e, nil
}

// loadEntry is Load, without the clock. The entry shows the marker if there is one.
func (t *table) loadEntry(ctx context.Context, name string) (record.Row, entry, error) {
	t.mu.Lock()
	before := t.seen[name]
	t.mu.Unlock()
	e, err := t.readKey(ctx, t.key(name))
	if err == nil {
		err = t.checkFresh(name, e, before)
	}
	if err != nil {
		return record.Row{}, entry{}, err
	}
	row := record.Row{Name: name}
	if e.revision > 0 && !e.removed {
		row.Version, row.Data = e.version.String(), e.data
	}
	return row, e, nil
}

// checkFresh refuses a read that shows less than this client had seen before it asked. It comes from a server that does
// not know yet that it is no longer the leader. Nothing is decided by such a read alone, but a holder would take its
// lock for lost.
func (t *table) checkFresh(name string, e entry, before lastSeen) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.opts.Clock.Now()
	// Markers expire, so a key may be gone if its marker was seen, or if there was time for a marker that was not.
	mayBeGone := e.revision == 0 && (before.removed || now.Since(before.at) > markerTTL/2)
	if e.revision >= before.revision || mayBeGone {
		if e.revision >= t.seen[name].revision || mayBeGone && t.seen[name] == before {
			t.noteLocked(name, e)
		}
		return nil
	}
	last := t.seen[name]
	if last.oldReads == (driver.Instant{}) {
		last.oldReads = now
		t.seen[name] = last
	}
	if now.Since(last.oldReads) > maxStale {
		t.noteLocked(name, e)
		return nil
	}
	return errors.New("the NATS server that answered does not know the last change; another one may be the leader")
}

// noteWritten remembers what this client has written.
func (t *table) noteWritten(name string, e entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.revision >= t.seen[name].revision {
		t.noteLocked(name, e)
	}
}

// noteLocked remembers the entry that the server has shown last, within a limit.
func (t *table) noteLocked(name string, e entry) {
	t.missing.RequestAnswered()
	if e.revision == 0 {
		delete(t.seen, name)
		return
	}
	if len(t.seen) >= maxSeen {
		for other := range t.seen { // any of them
			delete(t.seen, other)
			break
		}
	}
	t.seen[name] = lastSeen{version: e.version, removed: e.removed, epoch: e.epoch, at: t.opts.Clock.Now()}
	t.epoch.largest = max(t.epoch.largest, e.revision)
}

// Load is one request, and one more if the state of the bucket was not read for half a minute, or since the connection
// was made again.
func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	if t.Clock().IsStale() {
		if _, err := t.readState(ctx); err != nil {
			return record.Row{}, err
		}
	}
	row, _, err := t.loadEntry(ctx, name)
	return row, err
}

// Swap is one request. To create a key that was removed takes three.
func (t *table) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if len(row.Data) > t.Traits().MaxRecord {
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes", driver.ErrInvalid, len(row.Data))
	}
	expected, err := parseVersion(row.Version)
	if err != nil {
		return record.Row{}, err
	}
	now, err := t.writeKey(ctx, row, expected)
	if errors.Is(err, record.ErrConflict) && expected.revision == 0 {
		found, e, lerr := t.loadEntry(ctx, row.Name)
		switch {
		case lerr != nil:
			return record.Row{}, err
		case !e.removed:
			if found.Version == "" { // the write that was in the way is not done yet
				found = record.Row{}
			}
			return found, err
		}
		now, err = t.writeKey(ctx, row, e.version)
	}
	if err != nil {
		return record.Row{}, err
	}
	row.Version = now.String()
	return row, nil
}

// writeKey writes a key if its version is the expected one; revision 0: if it does not exist.
func (t *table) writeKey(ctx context.Context, row record.Row, expected version) (version, error) {
	return callServer(ctx, t, t.writeSubject(t.key(row.Name)), func(ctx context.Context) (version, error) {
		number, ok := t.mayReplace(row.Name, expected)
		if !ok && expected.revision > 0 {
			return version{}, errOldVersion
		}
		m := nats.NewMsg(t.writeSubject(t.key(row.Name)))
		m.Header.Set(notifyHeader, record.JoinSessions(row.Notify, maxSessions))
		m.Data = row.Data
		ack, err := t.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(expected.revision))
		if err != nil {
			return version{}, err
		}
		now := versionOf(ack.Sequence, row.Data)
		t.noteWritten(row.Name, entry{version: now, epoch: number})
		return now, nil
	})
}

// Delete is one request. It leaves a marker, which the server removes after an hour if the bucket allows that. A
// request that was refused is followed by a read: an earlier attempt, whose reply was lost, may have removed the key.
func (t *table) Delete(ctx context.Context, row record.Row) error {
	expected, err := parseVersion(row.Version)
	if err != nil {
		return err
	}
	if expected.revision > 0 {
		_, err = callServer(ctx, t, t.writeSubject(t.key(row.Name)), func(ctx context.Context) (struct{}, error) {
			if _, ok := t.mayReplace(row.Name, expected); !ok {
				return struct{}{}, errOldVersion
			}
			if t.knownSettings().canExpireMarkers {
				return struct{}{}, t.kv.Purge(ctx, t.key(row.Name), jetstream.LastRevision(expected.revision),
					jetstream.PurgeTTL(markerTTL))
			}
			return struct{}{}, t.kv.Delete(ctx, t.key(row.Name), jetstream.LastRevision(expected.revision))
		})
		if !errors.Is(err, record.ErrConflict) {
			return err
		}
	}
	now, _, lerr := t.loadEntry(ctx, row.Name)
	switch {
	case lerr != nil && expected.revision > 0:
		return err
	case lerr != nil:
		return lerr
	case now.Version != "":
		return record.ErrConflict
	}
	return nil
}

// maxConcurrentReads is how many keys a listing reads at a time.
const maxConcurrentReads = 16

// List asks for all keys below the prefix, and reads some of them at a time. Names are ordered by their bytes.
func (t *table) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		names, err := t.listNames(ctx, prefix, after)
		if err != nil {
			yield(record.Row{}, err)
			return
		}
		for some := range slices.Chunk(names, maxConcurrentReads) {
			if !t.loadAll(ctx, some, yield) {
				return
			}
		}
	}
}

// listNames returns the names with a prefix that come after another one, in order. Some may be of removed keys.
func (t *table) listNames(ctx context.Context, prefix, after string) (names []string, err error) {
	info, err := callServer(ctx, t, t.apiSubject("STREAM.INFO"), func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return t.stream.Info(ctx, jetstream.WithSubjectFilter(t.subject(t.keyPrefix+".*")))
	})
	if err != nil {
		return nil, err
	}
	start := t.subject(t.keyPrefix + ".")
	for subject := range info.State.Subjects {
		name, ok := decodeName(strings.TrimPrefix(subject, start))
		if ok && strings.HasPrefix(name, prefix) && name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// loadAll loads rows at the same time, and yields those that exist. It reports whether the listing goes on.
func (t *table) loadAll(ctx context.Context, names []string, yield func(record.Row, error) bool) bool {
	rows, errs := make([]record.Row, len(names)), make([]error, len(names))
	var loads sync.WaitGroup
	for i, name := range names {
		loads.Go(func() { rows[i], _, errs[i] = t.loadEntry(ctx, name) })
	}
	loads.Wait()
	for i, row := range rows {
		switch {
		case errors.Is(errs[i], driver.ErrClosed), ctx.Err() != nil:
			yield(record.Row{}, errors.Join(errs[i], ctx.Err()))
			return false
		case errs[i] == nil && row.Version == "":
			continue
		}
		row.Name = names[i]
		if !yield(row, errs[i]) {
			return false
		}
	}
	return true
}

// Close ends the calls in flight and the watches, and closes the connection if it is the store's own.
func (t *table) Close() error {
	if !t.life.End() {
		return nil
	}
	t.life.Wait()
	if t.closeConn != nil {
		return t.closeConn()
	}
	return nil
}
