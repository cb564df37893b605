package mysql

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/shedlock"
)

// Inspect is one read, repeated once if it got no answer.
func (s *shedlockStore) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	if err := driver.CheckName(name, s.info); err != nil {
		return driver.Lock{}, err
	}
	v, err := s.readRow(ctx, name)
	return v.ToLock(name), err
}

// List reads page by page. Names are ordered by their bytes.
func (s *shedlockStore) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for after := ""; ; {
			seen, err := s.readRows(ctx, s.listStmt, []byte(prefix), []byte(after))
			if err != nil {
				yield(driver.Lock{}, err)
				return
			}
			for _, v := range seen.rows {
				if !strings.HasPrefix(v.Name, prefix) || !yield(v.ToLock(v.Name), nil) {
					return // there are no more names with this prefix
				}
				after = v.Name
			}
			if len(seen.rows) == 0 {
				return
			}
		}
	}
}

// Break sets a flag in the signature of a holder of ours. A foreign holder can only be ended by force.
func (s *shedlockStore) Break(ctx context.Context, name, ref string, mode driver.BreakMode) error {
	came, foreign := strings.CutPrefix(ref, shedlock.ForeignRefPrefix)
	switch {
	case ref == "":
		return fmt.Errorf("%w: an empty ref names no claim", driver.ErrInvalid)
	case foreign && (!shedlock.IsTimestamp(came) || came == shedlock.FormatTimestamp(math.MaxInt64)):
		return fmt.Errorf("no such claim exists: %w", driver.ErrLost)
	case foreign && mode != driver.BreakForce:
		return fmt.Errorf("%w: ShedLock's own holders cannot be notified: force it", driver.ErrUnsupported)
	case !foreign:
		came = ""
	}
	mine := shedlock.SignaturePrefix(ref)
	statement, args := s.flagStmt, []any{39, "a", name, mine}
	switch mode {
	case driver.BreakForce:
		statement, args = s.forceStmt, []any{name, mine, came}
	case driver.BreakGraceful:
		args = []any{37, shedlock.FlagBroken, name, mine}
	}
	for {
		done, err := s.writeRow(ctx, statement, args...)
		switch {
		case errors.Is(err, record.ErrConflict):
			continue
		case err != nil:
			return driverutil.Uncertain(err)
		case done == 0:
			return fmt.Errorf("no such claim exists: %w", driver.ErrLost)
		}
		return nil
	}
}

// Examine also names rows whose times cannot be right, and time zones in which the clients do not exclude each other.
func (s *shedlockStore) Examine(ctx context.Context) ([]driver.Finding, error) {
	all, err := s.table.Examine(ctx)
	if err != nil {
		return nil, err
	}
	seen, err := s.readRows(ctx, s.suspectStmt)
	if err != nil {
		return nil, err
	}
	shown := 0
	for _, v := range seen.rows {
		if v.TimeFault != "" && shown < shedlock.MaxOddRows {
			all = append(all, findingShedLockTime.With("", v.DescribeTimeFault()))
			shown++
		}
	}
	if !s.table.zoneMatters {
		return all, nil
	}
	var ours, servers string
	var winter, summer int64 // by how many seconds the session's time is ahead of UTC
	year := time.Now().UTC().Year()
	january := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
	july := time.Date(year, 7, 1, 0, 0, 0, 0, time.UTC)
	err = s.table.callServer(ctx, func(ctx context.Context) error {
		return s.table.db.QueryRowContext(ctx, `select @@session.time_zone, @@global.time_zone,
			timestampdiff(second, ?, from_unixtime(?)), timestampdiff(second, ?, from_unixtime(?))`,
			january.Format(time.DateTime), january.Unix(), july.Format(time.DateTime), july.Unix()).
			Scan(&ours, &servers, &winter, &summer)
	})
	if err != nil {
		return nil, err
	}
	if ours != servers {
		all = append(all, findingShedLockZone.With("",
			fmt.Sprintf("time_zone of this connection is %s, and that of the server is %s", ours, servers)))
	}
	if winter != summer {
		all = append(all, findingShedLockSummer.With("", fmt.Sprintf("time_zone is %s, which has a summer time", ours)))
	}
	return all, nil
}
