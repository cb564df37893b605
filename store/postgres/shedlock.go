package postgres

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/shedlock"
)

// shedlockTable is ShedLock's own table on PostgreSQL.
type shedlockTable struct {
	*table
	takeStmt, renewStmt, releaseStmt, flagStmt, forceStmt, readStmt, listStmt, suspectStmt *statement
}

// newShedlock makes the store.
func newShedlock(t *table) driver.Store {
	size := func(modifier int) int {
		if modifier < 0 {
			return math.MaxInt32 // unlimited
		}
		return modifier - 4 // atttypmod is 4 more than the number of characters
	}
	return shedlock.New(newShedlockTable(t), size(t.nameSize), size(t.ownerSize))
}

// newShedlockTable prepares the statements. The column's precision decides by how much two grants differ at least.
func newShedlockTable(t *table) *shedlockTable {
	s := &shedlockTable{table: t}
	step := "'1 microsecond'"
	if t.atSize >= 0 && t.atSize < 6 {
		step = "'1 millisecond'"
	}
	names := strings.NewReplacer("STEP", step, "NOW", "timezone('utc', clock_timestamp())")
	read := func(text string) *statement { return newStatement(t.fillIn(names.Replace(text), "")) }
	write := func(text string) *statement { return read(fmt.Sprintf(shedWrite, text)) }
	s.takeStmt, s.renewStmt, s.releaseStmt = write(shedTake), write(shedRenew), write(shedRelease)
	s.flagStmt, s.forceStmt = write(shedFlag), write(shedForce)
	s.readStmt, s.listStmt = read(shedRead), read(shedList)
	s.suspectStmt = read(shedSuspect)
	s.readStmt.standbyColumn, s.listStmt.standbyColumn = 5, 5
	return s
}

func (s *shedlockTable) Sleep(ctx context.Context, d time.Duration) error {
	return s.batcher.life.Sleep(ctx, d)
}

// parseShedlockRow reads the columns of shedColumns.
func parseShedlockRow(row [][]byte) shedlock.Row {
	if row[1] == nil {
		return shedlock.Row{}
	}
	return shedlock.ParseRow(string(row[4]), string(row[3]), readMicros(row[0]), readMicros(row[1]), readMicros(row[2]))
}

func (s *shedlockTable) ReadRow(ctx context.Context, name string) (shedlock.Row, error) {
	rows, err := s.queryRows(ctx, s.readStmt, []byte(name))
	if err != nil {
		return shedlock.Row{}, err
	}
	return parseShedlockRow(rows[0]), nil
}

// ListRows leaves out rows that are no locks.
func (s *shedlockTable) ListRows(ctx context.Context, prefix, after string) (all []shedlock.Row, err error) {
	rows, err := s.queryRows(ctx, s.listStmt, []byte(prefix), []byte(after))
	for _, row := range rows {
		if v := parseShedlockRow(row); v.Name != "" {
			all = append(all, v)
		}
	}
	return all, err
}

func (s *shedlockTable) ReadClock(ctx context.Context) (int64, error) {
	rows, err := s.queryRows(ctx, s.readStmt, nil)
	if err != nil {
		return 0, err
	}
	return readMicros(rows[0][0]), nil
}

// encodeParams puts the name and its bucket before the parameters of a write. All are sent as text.
func encodeParams(name string, params ...string) [][]byte {
	ps := [][]byte{[]byte(name), []byte(strconv.Itoa(int(bucketOf(name))))}
	for _, p := range params {
		ps = append(ps, []byte(p))
	}
	return ps
}

func encodeMillis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// TakeRow is one statement. The statement of a caller that has gone goes on.
func (s *shedlockTable) TakeRow(
	ctx context.Context, name string, sign shedlock.Signature, ttl time.Duration,
) (taken shedlock.TakeResult) {
	r := s.batcher.submitRequest(ctx, s.takeStmt,
		encodeParams(name, sign.Prefix, sign.Head, encodeMillis(ttl), sign.Rest)...)
	a := s.batcher.awaitResult(ctx, r)
	if a.stillPending {
		taken.Pending = r.answered
	}
	rows, err := s.readResult(ctx, s.takeStmt, a)
	switch {
	case err != nil:
		taken.Err = err
	case rows[0][6] != nil:
		taken.Token = readMicros(rows[0][6])
	default:
		taken.Seen = parseShedlockRow(rows[0])
	}
	return taken
}

// changeRow runs a statement that writes one row. It returns the row as the statement has read it, before it waited for
// other writes.
func (s *shedlockTable) changeRow(
	ctx context.Context, st *statement, name string, params ...string,
) (v shedlock.Row, done bool, err error) {
	rows, err := s.queryRows(ctx, st, encodeParams(name, params...)...)
	if err != nil {
		return shedlock.Row{}, false, err
	}
	return parseShedlockRow(rows[0]), rows[0][6] != nil, nil
}

// RenewRow sets a new end if the row is still the caller's grant. With detach the row then says that no process
// holds it.
func (s *shedlockTable) RenewRow(
	ctx context.Context, name, prefix, lockedAt string, d time.Duration, detach bool,
) (v shedlock.Row, done bool, err error) {
	flag := ""
	if detach {
		flag = "d"
	}
	return s.changeRow(ctx, s.renewStmt, name, prefix, lockedAt, encodeMillis(d), flag)
}

func (s *shedlockTable) ReleaseRow(ctx context.Context, name, prefix string) (v shedlock.Row, done bool, err error) {
	return s.changeRow(ctx, s.releaseStmt, name, prefix)
}

func (s *shedlockTable) FlagRow(
	ctx context.Context, name, prefix string, position int, flag string,
) (v shedlock.Row, done bool, err error) {
	return s.changeRow(ctx, s.flagStmt, name, prefix, flag, strconv.Itoa(position))
}

func (s *shedlockTable) ForceRow(
	ctx context.Context, name, prefix, lockedAt string,
) (v shedlock.Row, done bool, err error) {
	return s.changeRow(ctx, s.forceStmt, name, prefix, lockedAt)
}

// WatchRow returns nil behind a pooler, where nobody can listen.
func (s *shedlockTable) WatchRow(name string) shedlock.RowWatch {
	if s.behindPooler {
		return nil
	}
	return &rowWatch{shedlockTable: s, name: name}
}

// rowWatch is a waiter's subscription to a row.
type rowWatch struct {
	*shedlockTable
	name      string
	sub       *subscription   // nil: there is none now
	listening <-chan struct{} // closed when all changes from then on are notified; nil: that is seen
}

func (w *rowWatch) wanted() wanted { return wanted{bucket: bucketOf(w.name)} }

// Wait also returns when the client listens, so that the row is read once for the changes before.
func (w *rowWatch) Wait(ctx context.Context, d time.Duration) error {
	if w.sub == nil {
		if w.sub, w.listening = w.listener.subscribe(w.wanted(), w.name); w.sub == nil {
			return driver.ErrClosed
		}
	}
	poll := time.NewTimer(d)
	defer poll.Stop()
	select {
	case <-w.listening:
		w.listening = nil
	case <-w.sub.notified:
		w.Close()
	case <-poll.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.batcher.life.Done():
		return driver.ErrClosed
	}
	return nil
}

// Close ends the subscription. The next Wait makes another one.
func (w *rowWatch) Close() {
	if w.sub != nil {
		w.listener.unsubscribe(w.wanted(), w.name, w.sub)
		w.sub = nil
	}
}
