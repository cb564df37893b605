package shedlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Inspect reads the row once.
func (s *store) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	if err := driver.CheckName(name, s.info); err != nil {
		return driver.Lock{}, err
	}
	v, err := s.table.ReadRow(ctx, name)
	return v.ToLock(name), err
}

// List reads page by page.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for after := ""; ; {
			rows, err := s.table.ListRows(ctx, prefix, after)
			if err != nil {
				yield(driver.Lock{}, err)
				return
			}
			for _, v := range rows {
				if !strings.HasPrefix(v.Name, prefix) || !yield(v.ToLock(v.Name), nil) {
					return // there are no more names with this prefix
				}
				after = v.Name
			}
			if len(rows) == 0 {
				return
			}
		}
	}
}

// Break sets a flag in the signature of a holder of ours. A foreign holder can only be ended by force.
func (s *store) Break(ctx context.Context, name, ref string, b driver.Break) error {
	lockedAt, foreign := strings.CutPrefix(ref, ForeignRefPrefix)
	switch {
	case ref == "":
		return fmt.Errorf("%w: an empty ref names no claim", driver.ErrInvalid)
	case foreign && !isTimestamp(lockedAt):
		return fmt.Errorf("no such claim exists: %w", driver.ErrLost)
	case foreign && b.Mode != driver.BreakForce:
		return fmt.Errorf("%w: ShedLock's own holders cannot be notified: force it", driver.ErrUnsupported)
	case !foreign:
		lockedAt = ""
	}
	loop := s.newLoop(driver.MaxTTL)
	for {
		v, done, err := s.breakOnce(ctx, name, SignaturePrefix(ref), lockedAt, b.Mode)
		switch {
		case done:
			return nil
		case err != nil && !errors.Is(err, record.ErrConflict):
			err = loop.PauseAfterFailure(ctx, err, !errors.Is(err, record.ErrUnsent))
		case err == nil && (v.Remaining <= 0 || v.Claim.Ref != ref):
			if loop.Uncertain && b.Mode != driver.BreakRequestRelease {
				return nil // as after an earlier try whose reply was lost
			}
			return fmt.Errorf("no such claim exists: %w", driver.ErrLost)
		default:
			err = loop.PauseAfterAnswer(ctx)
		}
		if err != nil {
			return err
		}
	}
}

func (s *store) breakOnce(
	ctx context.Context, name, prefix, lockedAt string, mode driver.BreakMode,
) (v Row, done bool, err error) {
	switch mode {
	case driver.BreakForce:
		return s.table.ForceRow(ctx, name, prefix, lockedAt)
	case driver.BreakGraceful:
		return s.table.FlagRow(ctx, name, prefix, statePosition, FlagBroken)
	}
	return s.table.FlagRow(ctx, name, prefix, requestPosition, flagRequested)
}
