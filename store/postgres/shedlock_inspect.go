package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

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
	v, _, err := s.runStatement(ctx, s.readStmt, name)
	if err != nil && !isServerError(err) && ctx.Err() == nil {
		v, _, err = s.runStatement(ctx, s.readStmt, name)
	}
	return v.ToLock(name), err
}

// List reads page by page.
func (s *shedlockStore) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for after := ""; ; {
			a := s.table.batcher.runStatement(ctx, s.listStmt, []byte(prefix), []byte(after))
			if a.err != nil {
				yield(driver.Lock{}, cmp.Or(ctx.Err(), s.table.location.explainError(a.err)))
				return
			}
			for _, row := range a.rows {
				v := parseShedlockRow(row)
				if after = v.Name; after == "" || !yield(v.ToLock(v.Name), nil) {
					return // there are no more rows
				}
			}
		}
	}
}

// Break sets a flag in the signature of a holder of ours. A foreign holder can only be ended by force.
func (s *shedlockStore) Break(ctx context.Context, name, ref string, mode driver.BreakMode) error {
	came, foreign := strings.CutPrefix(ref, shedlock.ForeignRefPrefix)
	if foreign && !shedlock.IsTimestamp(came) {
		return fmt.Errorf("no such claim exists: %w", driver.ErrLost)
	}
	if ref == "" {
		return fmt.Errorf("%w: an empty ref names no claim", driver.ErrInvalid)
	}
	if foreign && mode != driver.BreakForce {
		return fmt.Errorf("%w: ShedLock's own holders cannot be notified: force it", driver.ErrUnsupported)
	}
	mine := shedlock.SignaturePrefix(ref)
	if !foreign {
		came = ""
	}
	for {
		var done int64
		var v shedlock.Row
		var err error
		switch mode {
		case driver.BreakForce:
			v, done, err = s.runStatement(ctx, s.forceStmt, name, mine, came)
		case driver.BreakGraceful:
			v, done, err = s.runStatement(ctx, s.flagStmt, name, mine, "b", "37")
		default:
			v, done, err = s.runStatement(ctx, s.flagStmt, name, mine, "a", "39")
		}
		switch {
		case errors.Is(err, record.ErrConflict), err == nil && done == 0 && v.Remaining > 0 && v.Claim.Ref == ref:
			continue // the statement read the row before another write, for which it then had to wait
		case err != nil:
			return driverutil.Uncertain(err)
		case done == 0:
			return fmt.Errorf("no such claim exists: %w", driver.ErrLost)
		}
		return nil
	}
}
