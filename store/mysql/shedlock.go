package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/shedlock"
)

// shedlockTable is ShedLock's own table on MySQL. Clients are not notified of changes.
type shedlockTable struct {
	*table
	takeStmt, insertStmt, renewStmt, releaseStmt, flagStmt, forceStmt, readStmt, listStmt, suspectStmt *sql.Stmt
}

// newShedlock makes the store.
func newShedlock(ctx context.Context, t *table) (driver.Store, error) {
	s, err := prepareShedlock(ctx, t)
	if err != nil {
		return nil, err
	}
	return shedlock.New(s, t.nameSize, t.ownerSize), nil
}

// prepareShedlock prepares the statements.
func prepareShedlock(ctx context.Context, t *table) (*shedlockTable, error) {
	s := &shedlockTable{table: t}
	texts := map[**sql.Stmt]string{&s.takeStmt: shedTake, &s.insertStmt: shedInsert, &s.renewStmt: shedRenew,
		&s.releaseStmt: shedRelease, &s.flagStmt: shedFlag, &s.forceStmt: shedForce, &s.readStmt: shedRead,
		&s.listStmt: shedList, &s.suspectStmt: shedSuspect}
	for to, text := range texts {
		texts[to] = expandShedlock(text)
	}
	if err := t.prepareStatements(ctx, texts); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *shedlockTable) Sleep(ctx context.Context, d time.Duration) error {
	return s.life.Sleep(ctx, d)
}

func (s *shedlockTable) WatchRow(string) shedlock.RowWatch { return nil }

// runWrite runs a statement that writes one row, and returns its result, or 0 if it has written none: see
// shedlock_sql.go.
func (s *shedlockTable) runWrite(ctx context.Context, statement *sql.Stmt, args ...any) (result int64, err error) {
	err = s.callServer(ctx, func(ctx context.Context) error {
		done, err := statement.ExecContext(ctx, args...)
		if err != nil {
			return err
		}
		result, err = done.LastInsertId()
		return err
	})
	return result, err
}

// runRead runs a statement that returns shedColumns, and once more if the connection broke. now is the server's clock,
// in microseconds.
func (s *shedlockTable) runRead(
	ctx context.Context, statement *sql.Stmt, args ...any,
) (rows []shedlock.Row, now int64, err error) {
	for range 2 {
		err = s.callServer(ctx, func(ctx context.Context) error {
			rows = nil
			result, err := statement.QueryContext(ctx, args...)
			if err != nil {
				return err
			}
			defer result.Close()
			for result.Next() {
				var isWritable bool
				var name, lockedBy sql.NullString
				var at, until sql.NullInt64
				if err := result.Scan(&now, &isWritable, &name, &lockedBy, &at, &until); err != nil {
					return err
				}
				if !isWritable {
					return errReadOnly
				}
				if name.Valid {
					rows = append(rows, shedlock.ParseRow(name.String, lockedBy.String, now, at.Int64, until.Int64))
				}
			}
			return result.Err()
		})
		if !isBrokenConn(err) {
			break
		}
	}
	return rows, now, err
}

// ReadRow fails if the row belongs to another name: to most collations, names that differ in case, accents or a space
// at the end are equal. A caller that holds both locks would wait for itself.
func (s *shedlockTable) ReadRow(ctx context.Context, name string) (shedlock.Row, error) {
	rows, _, err := s.runRead(ctx, s.readStmt, name)
	if err != nil || len(rows) == 0 {
		return shedlock.Row{}, err
	}
	if rows[0].Name != name {
		return shedlock.Row{}, fmt.Errorf("%w: the table %s takes %q and %q for one name: use the other one",
			driver.ErrInvalid, s.quotedName, name, rows[0].Name)
	}
	return rows[0], nil
}

func (s *shedlockTable) ListRows(ctx context.Context, prefix, after string) ([]shedlock.Row, error) {
	rows, _, err := s.runRead(ctx, s.listStmt, []byte(prefix), []byte(after))
	return rows, err
}

func (s *shedlockTable) ReadClock(ctx context.Context) (int64, error) {
	_, now, err := s.runRead(ctx, s.readStmt, "")
	return now, err
}

// TakeRow begins an attempt, which goes on after the end of ctx: its statement cannot be called back.
func (s *shedlockTable) TakeRow(
	ctx context.Context, name string, sign shedlock.Signature, ttl time.Duration,
) shedlock.TakeResult {
	var result shedlock.TakeResult
	done := make(chan struct{})
	if !s.life.Go(func() {
		defer close(done)
		result.Token, result.Seen, result.Err = s.takeOrRead(ctx, name, sign, ttl.Milliseconds())
	}) {
		return shedlock.TakeResult{Err: driver.ErrClosed}
	}
	select {
	case <-done:
		return result
	case <-ctx.Done():
		return shedlock.TakeResult{Err: ctx.Err(), Pending: done}
	}
}

// takeOrRead takes a lock by one statement. If that finds nothing to take, it reads the row, and makes it if there is
// none.
func (s *shedlockTable) takeOrRead(
	caller context.Context, name string, sign shedlock.Signature, ms int64,
) (token int64, seen shedlock.Row, err error) {
	ctx := context.WithoutCancel(caller)
	token, err = s.runWrite(ctx, s.takeStmt, sign.Prefix, sign.Head, sign.Prefix, sign.Rest, ms, name, []byte(name),
		sign.Prefix)
	if err != nil || token != 0 || caller.Err() != nil {
		return token, seen, err
	}
	seen, err = s.ReadRow(ctx, name)
	if err != nil || seen.Name != "" || caller.Err() != nil {
		return 0, seen, err
	}
	token, err = s.runWrite(ctx, s.insertStmt, name, ms, sign.Head+sign.Rest)
	return token, seen, err
}

// changeRow runs a statement that writes one row, and reads the row if it has written none. A result of 2 says that the
// release was requested.
func (s *shedlockTable) changeRow(
	ctx context.Context, name string, statement *sql.Stmt, args ...any,
) (v shedlock.Row, done bool, err error) {
	result, err := s.runWrite(ctx, statement, args...)
	if err != nil || result != 0 {
		v.Claim.ReleaseRequested = result == 2
		return v, err == nil, err
	}
	v, err = s.ReadRow(ctx, name)
	return v, false, err
}

func (s *shedlockTable) RenewRow(
	ctx context.Context, name, prefix, lockedAt string, d time.Duration, detach bool,
) (v shedlock.Row, done bool, err error) {
	flag := ""
	if detach {
		flag = "d"
	}
	return s.changeRow(ctx, name, s.renewStmt, d.Milliseconds(), flag, flag, name, prefix, lockedAt, flag)
}

func (s *shedlockTable) ReleaseRow(ctx context.Context, name, prefix string) (v shedlock.Row, done bool, err error) {
	return s.changeRow(ctx, name, s.releaseStmt, name, prefix)
}

func (s *shedlockTable) FlagRow(
	ctx context.Context, name, prefix string, position int, flag string,
) (v shedlock.Row, done bool, err error) {
	return s.changeRow(ctx, name, s.flagStmt, position, flag, name, prefix)
}

func (s *shedlockTable) ForceRow(
	ctx context.Context, name, prefix, lockedAt string,
) (v shedlock.Row, done bool, err error) {
	if lockedAt == shedlock.FormatTimestamp(math.MaxInt64) {
		lockedAt = "" // MySQL has no such time
	}
	return s.changeRow(ctx, name, s.forceStmt, name, prefix, lockedAt)
}
