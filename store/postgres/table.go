package postgres

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	stdbinary "encoding/binary"
	"fmt"
	"hash/fnv"
	"iter"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// table is a table of PostgreSQL as a record.Table: one row per record.
//
// The version of a row has two parts. The first is a random number, so no version is ever used twice, not
// even after a backup was restored. The second is the hash of the data, so a row that an operator has
// edited has another version. PostgreSQL's own xmin would not do: transaction numbers are used again, and a
// dump does not keep them.
type table struct {
	record.Unsupported

	location     *location
	opts         Options
	info         driver.Info
	clock        record.ServerClock
	batcher      *batcher
	listener     *listener
	behindPooler bool   // there is no listening
	closePool    func() // may be nil

	nameSize, ownerSize, atSize int // sizes of ShedLock's columns; negative: unlimited

	loadStmt, insertStmt, updateStmt, replaceStmt, deleteStmt, pageStmt *statement

	contended [bucketCount]atomic.Int32 // by bucket: how many of the next updates may well be refused
}

// contendedWrites is how many updates after a refused write use the statement that says why it was refused. Where
// several clients want one lock, refusals come in a row; where one client uses it, they do not come at all.
const contendedWrites = 8

// A write is one statement. It also returns the server's clock and, if it was refused, the row that was
// there instead. $1 is the row's name, $2 its bucket, and NOTICES the channels of the clients that it concerns.
//
// Clients that look at each change hold a shared advisory lock on the bucket of the name. A writer that cannot take the
// bucket's lock exclusively notifies them, and sends the row with that if it is short: see listener. It takes the lock in the transaction, which releases it at the
// commit, when the new row is visible to them.
//
// The time is clock_timestamp(), not now(): now() is the start of the transaction, and a statement may wait for
// another one's row lock before it writes.
//
// The statements run under READ COMMITTED, the server's default. An update that waited for another one then
// checks its condition again on the new row, and does not find the version that it wants. The part of the
// statement that reads the row sees the state before the wait, which writeRow has to allow for. Under stricter
// levels such an update fails with a serialization failure, which is a conflict as well.
//
// An update that will probably succeed, and concerns nobody who listens for notices, uses replaceText. It costs the
// server half as much, and returns nothing if it is refused.
const (
	writeText = `with done as (%s returning pg_try_advisory_xact_lock(CLASS, $2::int4) as alone)
		select clock_timestamp(), (select alone from done),
		l.data, l.version, (select pg_notify(CHANNEL, NEWROW || '/' || $1) from done where not alone),
		(select count(pg_notify(c, case c when TABLECHANNEL then '*' else NEWROW end || '/' || $1)) from done, unnest(NOTICES) c)
		from (values (0)) v left join LOCKS l on l.name = $1 and not exists (select from done)`
	insertText  = `insert into LOCKS as l (name, data, version) values ($1, $3, $4) on conflict (name) do nothing`
	updateText  = `update LOCKS set data = $3, version = $4 where name = $1 and version = $5 and sha256(data) = $6`
	replaceText = updateText + ` returning clock_timestamp(),
		case when pg_try_advisory_xact_lock(CLASS, $2::int4) then '' else pg_notify(CHANNEL, NEWROW || '/' || $1)::text end`
	deleteText = `delete from LOCKS where name = $1 and version = $3 and sha256(data) = $4`
	loadText   = `select clock_timestamp(), l.name, l.data, l.version, pg_is_in_recovery()
		from (values (0)) v left join LOCKS l on l.name = $1`
	pageText = `select clock_timestamp(), l.name, l.data, l.version, pg_is_in_recovery() from (values (0)) v
		left join (select name, data, version from LOCKS where name >= $1 order by name limit 200) l on true order by l.name`
)

// fillIn replaces the names in a statement of the table, the class of locks and the channels, which cannot be
// parameters, and what a notification says before the name.
func (t *table) fillIn(text, rowText string) string {
	p := t.location
	class, tableChannel := p.watchClass, "'"+p.channel+"'"
	channel := fmt.Sprintf("'%s_' || $2::int4", p.channel)
	if t.behindPooler {
		class, channel, rowText = p.lockClass, tableChannel, concernsAll
	}
	return strings.NewReplacer("LOCKS", p.locksTable, "CLASS", fmt.Sprint(class), "TABLECHANNEL", tableChannel,
		"CHANNEL", channel, "NEWROW", rowText).Replace(text)
}

// rowText is what a notification of a write says before the name: the version and the data of the row, as base64 without
// slashes, or concernsAll if that is too long. The server takes payloads of up to 7,999 bytes (manual, "NOTIFY").
const (
	rowText = `case when octet_length($3::bytea) > 5400 then ` + concernsAll + `
		else translate(encode(uuid_send($4::uuid) || $3::bytea, 'base64'), E'/\n', '_') end`
	concernsAll = `'*'`
)

// buildStatements fills the table's names into the texts of all statements.
func (t *table) buildStatements() {
	write := func(text, row, notices string, formats ...int16) *statement {
		text = strings.ReplaceAll(fmt.Sprintf(writeText, text), "NOTICES", notices)
		return newStatement(t.fillIn(text, row), formats...)
	}
	t.insertStmt = write(insertText, rowText, "$5::text[]", 0, 1, 1, 1, 0)
	t.updateStmt = write(updateText, rowText, "$7::text[]", 0, 1, 1, 1, 1, 1, 0)
	t.deleteStmt = write(deleteText, concernsAll, "$5::text[]", 0, 1, 1, 1, 0)
	t.replaceStmt = newStatement(t.fillIn(replaceText, rowText), 0, 1, 1, 1, 1, 1)
	t.loadStmt = newStatement(t.fillIn(loadText, ""), 0)
	t.pageStmt = newStatement(t.fillIn(pageText, ""), 0)
	t.loadStmt.standbyColumn, t.pageStmt.standbyColumn = 4, 4
}

func (t *table) Info() driver.Info { return t.info }

func (t *table) TokenFloor() int64   { return t.clock.TokenFloor() }
func (t *table) Clock() record.Clock { return &t.clock }

// ReadClock is one read: each reply tells the time.
func (t *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	return record.ReadClockByLoad(ctx, t)
}

// Traits say that there is a ledger.
func (t *table) Traits() record.Traits { return record.Traits{Ledger: true} }

// Keys names the row of a lock, for people.
func (t *table) Keys(name string) []string {
	return []string{fmt.Sprintf("%s: name = %q", t.location.locksTable, name)}
}

// queryRows runs one statement. A read is repeated once; a write is not, because it may have taken effect.
func (t *table) queryRows(ctx context.Context, st *statement, params ...[]byte) ([][][]byte, error) {
	a := t.batcher.runStatement(ctx, st, params...)
	// An error of the server's own would come again.
	if a.err != nil && !isServerError(a.err) && st.isRead() {
		a = t.batcher.runStatement(ctx, st, params...) // the first may have used a connection that had broken
	}
	return t.readResult(ctx, st, a)
}

// readResult returns the rows of a result, and its error in the driver's terms.
func (t *table) readResult(ctx context.Context, st *statement, a result) ([][][]byte, error) {
	switch {
	case a.err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case a.notSent && !driverutil.IsFinal(a.err):
		return nil, unsentError{t.location.explainError(a.err)}
	case a.err != nil:
		return nil, t.location.explainError(a.err)
	case !st.isRead():
		t.location.hasWritten.Store(true)
	}
	t.location.admission.CredentialsAccepted()
	if a.isTimed && len(a.rows) > 0 {
		t.clock.AddReply(readMicros(a.rows[0][0]), a.sentAt, a.receivedAt)
	}
	return a.rows, nil
}

// readMicros reads a timestamp, which PostgreSQL sends as microseconds since 2000, as microseconds since
// 1970. Infinity is the largest number.
func readMicros(b []byte) int64 {
	return min(int64(stdbinary.BigEndian.Uint64(b)), math.MaxInt64-y2k.UnixMicro()) + y2k.UnixMicro()
}

var y2k = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// readRow reads columns 2 and 3 of a result: the data and the version.
func readRow(name string, columns [][]byte) record.Row {
	data, id := columns[2], columns[3]
	if id == nil {
		return record.Row{Name: name}
	}
	return record.Row{Name: name, Version: rowVersion(id, data), Data: data}
}

// idSize is the length of the random part of a version, in bytes.
const idSize = 16

// rowVersion joins the random part of a version and the hash of the data. A client keeps two versions for each lock
// that it holds, so they are short.
func rowVersion(id, data []byte) string {
	var v [idSize + sha256.Size]byte
	var text [(len(v) + 2) / 3 * 4]byte
	h := sha256.Sum256(data)
	copy(v[copy(v[:], id):], h[:])
	base64.URLEncoding.Encode(text[:], v[:])
	return string(text[:])
}

// bucketCount limits how many advisory locks a client can hold on the server, whatever it waits for: at most two for
// each bucket. They are kept in a table of fixed size that all sessions share (max_locks_per_transaction in the
// manual).
const bucketCount = 256

// bucketOf is the bucket of a name. All clients must agree on it.
func bucketOf(name string) int32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	return int32(h.Sum32() % bucketCount)
}

func encodeInt4(n int32) []byte { return stdbinary.BigEndian.AppendUint32(nil, uint32(n)) }

// Load is one read.
func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	found := t.listener.noteRequest(name)
	rows, err := t.queryRows(ctx, t.loadStmt, []byte(name))
	if err != nil {
		return record.Row{}, err
	}
	row := readRow(name, rows[0])
	found(row.Version)
	return row, nil
}

// writeRow does one write. If it is refused, the error is ErrConflict, and the row is the one that was there
// instead, where the statement tells.
func (t *table) writeRow(ctx context.Context, st *statement, r record.Row, params ...[]byte) (record.Row, error) {
	bucket := bucketOf(r.Name)
	all := append(make([][]byte, 0, 5+len(params)), []byte(r.Name), encodeInt4(bucket))
	all = append(all, params...)
	if r.Version != "" {
		v, err := base64.URLEncoding.DecodeString(r.Version)
		if err != nil || len(v) != idSize+sha256.Size {
			return record.Row{}, fmt.Errorf("%w: the version %q", driver.ErrInvalid, r.Version)
		}
		all = append(all, v[:idSize], v[idSize:])
	}
	if st != t.replaceStmt {
		all = append(all, []byte(t.location.noticeChannels(r.Notify)))
	}
	rows, err := t.queryRows(ctx, st, all...)
	if err != nil || len(rows) > 0 && rows[0][1] != nil {
		return record.Row{}, err
	}
	t.contended[bucket].Store(contendedWrites)
	if len(rows) == 0 {
		return record.Row{}, record.ErrConflict
	}
	now := readRow(r.Name, rows[0])
	if now.Version == r.Version {
		// The statement read the row before the other write, for which it then had to wait.
		now = record.Row{}
	}
	return now, record.ErrConflict
}

// Swap is one write. Where it concerns clients that wait, or another write is likely to have come first, it uses a
// statement that costs more and returns the row of the other write, which saves the read that would follow.
func (t *table) Swap(ctx context.Context, r record.Row) (record.Row, error) {
	if len(r.Data) > record.MaxData {
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes", driver.ErrInvalid, len(r.Data))
	}
	st := t.replaceStmt
	if r.Version == "" {
		st = t.insertStmt
	} else if n := &t.contended[bucketOf(r.Name)]; n.Load() > 0 {
		n.Add(-1)
		st = t.updateStmt
	} else if len(r.Notify) > 0 {
		st = t.updateStmt
	}
	// A new one for each attempt. After a lost reply, the engine tells by its claim in the data whether the write was
	// done.
	id := make([]byte, idSize)
	_, _ = rand.Read(id) // it never fails
	known := t.listener.noteRequest(r.Name)
	if now, err := t.writeRow(ctx, st, r, r.Data, id); err != nil {
		if now.Version != "" {
			known(now.Version)
		}
		return now, err
	}
	r.Version = rowVersion(id, r.Data)
	known(r.Version)
	return r, nil
}

// Delete is one write. It succeeds if the row does not exist any more, even when an earlier attempt without a reply,
// or another client, has deleted it.
func (t *table) Delete(ctx context.Context, r record.Row) error {
	if r.Version == "" { // the caller has seen no row, so there is nothing to remove
		now, err := t.Load(ctx, r.Name)
		if err == nil && now.Version != "" {
			return record.ErrConflict
		}
		return err
	}
	now, err := t.writeRow(ctx, t.deleteStmt, r)
	if err != nil && now.Name != "" && now.Version == "" {
		return nil // the row does not exist any more
	}
	return err
}

// List reads page by page. Names are ordered by their bytes.
func (t *table) List(ctx context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		for from := prefix; ; {
			rows, err := t.queryRows(ctx, t.pageStmt, []byte(from))
			if err != nil {
				yield(record.Row{}, err)
				return
			}
			for _, r := range rows {
				name := string(r[1])
				if name == "" || !strings.HasPrefix(name, prefix) || !yield(readRow(name, r), nil) {
					return // there are no more names with this prefix
				}
				from = name + "\x01" // the smallest name after this one: names have no NUL
			}
		}
	}
}

// Close ends the listening first: it uses the batcher.
func (t *table) Close() error {
	t.listener.close()
	t.batcher.close()
	if t.closePool != nil {
		t.closePool()
	}
	return nil
}
