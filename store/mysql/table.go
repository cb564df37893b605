package mysql

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// table is a table of MySQL as a record.Table: one row per record.
//
// The version of a row has two parts. The first is a random number, so no version is ever used twice, not even after a
// backup was restored. The second is the hash of the data, so a row that an operator has edited has another version.
//
// A statement that changes a row is a transaction of its own. Under each isolation level an UPDATE and a DELETE check
// their conditions on the latest row, which they lock (MySQL manual, "Consistent Nonlocking Reads"), so of two that
// want the same version one finds it changed. A SELECT is a transaction of its own, too, and sees all that was
// committed before it began.
type table struct {
	record.Unsupported

	db         *sql.DB
	opts       Options
	quotedName string
	info       driver.Info
	clock      record.ServerClock
	maxRecord  int    // bytes
	closePool  func() // nil: the pool is the user's
	life       *driverutil.Lifetime
	isPlain    bool       // the server is on another machine, and the connection is not encrypted
	isClosing  sync.Mutex // held by closeReadOnlyConns
	admission  driverutil.Admission

	loadStmt, insertStmt, updateStmt, deleteStmt, pageStmt *sql.Stmt
	prepared                                               []*sql.Stmt // all of them

	nameSize, ownerSize int  // of ShedLock's columns, in characters
	zoneMatters         bool // ShedLock's columns are of the type TIMESTAMP, which depends on the session's time_zone
}

// takesWrites is the condition that the server takes writes of ordinary users. Each statement that writes has it,
// because read_only does not stop a user with SUPER, READ ONLY ADMIN or CONNECTION_ADMIN: a primary that was demoted
// would go on granting locks to it. A write that is refused so changes no row, and the read that follows says why.
// read_only is a number in most versions, and a word in the latest of MariaDB.
const takesWrites = `(concat(@@global.read_only) in ('0', 'OFF') and @@global.innodb_read_only = 0)`

// A read also returns the server's clock, in microseconds, and whether the server takes writes. UTC_TIMESTAMP is the
// time at which the statement began.
const (
	serverColumns = `timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), ` + takesWrites + `, `
	loadText      = `select ` + serverColumns + `l.name, l.data, l.version
		from (select 1) one left join LOCKS l on l.name = ?`
	pageText = `select ` + serverColumns + `l.name, l.data, l.version
		from (select 1) one left join (select name, data, version from LOCKS where name >= ? order by name limit 200) l
		on true order by l.name`
	insertText = `insert into LOCKS (name, data, version) select ?, ?, ? from dual where ` + takesWrites
	updateText = `update LOCKS set data = ?, version = ? where name = ? and version = ? and sha2(data, 256) = ? and ` +
		takesWrites
	deleteText = `delete from LOCKS where name = ? and version = ? and sha2(data, 256) = ? and ` + takesWrites
)

// prepareStatements prepares the statements. The pool prepares them again on each connection that it opens.
func (t *table) prepareStatements(ctx context.Context, texts map[**sql.Stmt]string) error {
	for to, text := range texts {
		statement, err := t.db.PrepareContext(ctx, strings.ReplaceAll(text, "LOCKS", t.quotedName))
		if err != nil {
			_ = t.closeStatements()
			return t.explainError(ctx, err)
		}
		*to, t.prepared = statement, append(t.prepared, statement)
	}
	return nil
}

func (t *table) closeStatements() error {
	var errs []error
	for _, statement := range t.prepared {
		errs = append(errs, statement.Close())
	}
	return errors.Join(errs...)
}

func (t *table) Info() driver.Info { return t.info }

func (t *table) TokenFloor() int64   { return t.clock.TokenFloor() }
func (t *table) Clock() record.Clock { return &t.clock }

// ReadClock is one read: each reply tells the time.
func (t *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	return record.ReadClockByLoad(ctx, t)
}

// Traits limit the records, because the server's max_allowed_packet may be small.
func (t *table) Traits() record.Traits {
	return record.Traits{MaxRecord: t.maxRecord, ListsInOrder: true, Ledger: true}
}

// Keys names the row of a lock, for people.
func (t *table) Keys(name string) []string {
	return []string{fmt.Sprintf("%s: name = %q", t.quotedName, name)}
}

// callServer bounds one call by the table's timeout and its life.
func (t *table) callServer(ctx context.Context, call func(context.Context) error) error {
	if t.life.Err() != nil {
		return driver.ErrClosed
	}
	living, done := t.life.Bind(ctx)
	defer done()
	err := driverutil.CallWithTimeout(living, t.opts.Timeout, "the server", call)
	switch {
	case err == nil:
		t.admission.CredentialsAccepted()
		return nil
	case t.life.Err() != nil:
		return driver.ErrClosed
	}
	err = t.explainError(ctx, err)
	if errors.Is(err, errReadOnly) {
		t.closeReadOnlyConns(living)
	}
	return err
}

// closeReadOnlyConns closes the idle connections to a server that takes no writes, so that the next statements are sent
// on new ones. One caller does it for all: the others return at once.
func (t *table) closeReadOnlyConns(ctx context.Context) {
	if !t.isClosing.TryLock() {
		return
	}
	defer t.isClosing.Unlock()
	_ = driverutil.CallWithTimeout(ctx, t.opts.Timeout, "the server", func(ctx context.Context) error {
		for range t.db.Stats().OpenConnections {
			conn, err := t.db.Conn(ctx)
			if err != nil {
				return err
			}
			isWritable := true
			err = conn.QueryRowContext(ctx, `select `+takesWrites).Scan(&isWritable)
			isUseless := err == nil && !isWritable
			if isUseless { // the pool closes a connection that is said to be bad
				_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
			}
			_ = conn.Close()
			if !isUseless {
				return err
			}
		}
		return nil
	})
}

// isReadOnly reports whether a value of read_only, as SHOW VARIABLES writes it, means that the server takes no writes
// of ordinary users.
func isReadOnly(value string) bool { return value != "0" && value != "OFF" && value != "" }

// readRows runs a SELECT, and once more if the connection broke.
func (t *table) readRows(ctx context.Context, statement *sql.Stmt, from []byte) (rows []record.Row, err error) {
	for range 2 {
		if rows, err = t.readRowsOnce(ctx, statement, from); !isBrokenConn(err) {
			break
		}
	}
	return rows, err
}

// readRowsOnce reads one page of rows in one query.
func (t *table) readRowsOnce(ctx context.Context, statement *sql.Stmt, from []byte) (rows []record.Row, err error) {
	err = t.callServer(ctx, func(ctx context.Context) error {
		rows = nil
		sent := t.clock.Clock.Now()
		result, err := statement.QueryContext(ctx, from)
		if err != nil {
			return err
		}
		defer result.Close()
		var micros int64
		isWritable := true
		for result.Next() {
			var name, data, id []byte
			if err := result.Scan(&micros, &isWritable, &name, &data, &id); err != nil {
				return err
			}
			if id == nil { // there is no row
				continue
			}
			rows = append(rows, record.Row{Name: string(name), Data: data, Version: rowVersion(id, data)})
		}
		if err := result.Err(); err != nil {
			return err
		}
		if !isWritable {
			return errReadOnly
		}
		t.clock.AddReply(micros, sent, t.clock.Clock.Now())
		return nil
	})
	return rows, err
}

// Load is one read.
func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	rows, err := t.readRows(ctx, t.loadStmt, []byte(name))
	if err != nil || len(rows) == 0 {
		return record.Row{Name: name}, err
	}
	return rows[0], nil
}

// idSize is the length of the random part of a version, in bytes.
const idSize = 16

// rowVersion joins the random part of a version and the hash of the data. A client keeps two versions for each lock
// that it holds, so they are short.
func rowVersion(id, data []byte) string {
	h := sha256.Sum256(data)
	return base64.URLEncoding.EncodeToString(append(id[:len(id):len(id)], h[:]...))
}

// splitVersion is the reverse of rowVersion. The hash is returned as the server writes it.
func splitVersion(version string) (id []byte, hash string, err error) {
	v, err := base64.URLEncoding.DecodeString(version)
	if err != nil || len(v) != idSize+sha256.Size {
		return nil, "", fmt.Errorf("%w: the version %q", driver.ErrInvalid, version)
	}
	return v[:idSize], hex.EncodeToString(v[idSize:]), nil
}

// writeRow runs a statement that changes one row, or none if the row has another version.
func (t *table) writeRow(ctx context.Context, statement *sql.Stmt, args ...any) (changed bool, err error) {
	err = t.callServer(ctx, func(ctx context.Context) error {
		result, err := statement.ExecContext(ctx, args...)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		changed = n > 0
		return err
	})
	return changed, err
}

// Swap is one write.
func (t *table) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if len(row.Data) > t.maxRecord {
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes", driver.ErrInvalid, len(row.Data))
	}
	// A new one for each attempt. After a lost reply, the engine tells by its claim in the data whether the write was
	// done.
	id := make([]byte, idSize)
	_, _ = rand.Read(id) // it never fails
	var changed bool
	var err error
	if row.Version == "" {
		changed, err = t.writeRow(ctx, t.insertStmt, []byte(row.Name), row.Data, id)
	} else {
		var wantID []byte
		var wantHash string
		if wantID, wantHash, err = splitVersion(row.Version); err == nil {
			changed, err = t.writeRow(ctx, t.updateStmt, row.Data, id, []byte(row.Name), wantID, wantHash)
		}
	}
	switch {
	case err != nil:
		return record.Row{}, err
	case !changed:
		return record.Row{}, record.ErrConflict
	}
	row.Version = rowVersion(id, row.Data)
	return row, nil
}

// Delete is one write. It succeeds if the row does not exist any more, even when an earlier attempt without a reply, or
// another client, has deleted it.
func (t *table) Delete(ctx context.Context, row record.Row) error {
	if row.Version != "" {
		id, hash, err := splitVersion(row.Version)
		if err != nil {
			return err
		}
		if deleted, err := t.writeRow(ctx, t.deleteStmt, []byte(row.Name), id, hash); err != nil || deleted {
			return err
		}
	}
	now, err := t.Load(ctx, row.Name)
	if err == nil && now.Version != "" {
		return record.ErrConflict
	}
	return err
}

// List reads page by page. Names are ordered by their bytes.
func (t *table) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	from := prefix
	if after != "" {
		from = max(from, nextName(after))
	}
	return t.listFrom(ctx, from, prefix)
}

// nextName is the smallest name after another one: names have no NUL.
func nextName(name string) string { return name + "\x01" }

// listFrom lists the rows in pages, until the names do not begin with prefix any more.
func (t *table) listFrom(ctx context.Context, from, prefix string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		for {
			rows, err := t.readRows(ctx, t.pageStmt, []byte(from))
			if err != nil {
				yield(record.Row{}, err)
				return
			}
			for _, row := range rows {
				if !strings.HasPrefix(row.Name, prefix) || !yield(row, nil) {
					return // there are no more names with this prefix
				}
				from = nextName(row.Name)
			}
			if len(rows) == 0 {
				return
			}
		}
	}
}

// Close ends the calls in flight, and closes the pool if it is the store's own.
func (t *table) Close() error {
	t.life.End()
	err := t.closeStatements()
	if t.closePool != nil {
		t.closePool()
	}
	return err
}
