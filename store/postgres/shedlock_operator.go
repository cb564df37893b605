package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Inspect is one read.
func (s *shedlock) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	if err := driver.CheckName(name, s.info); err != nil {
		return driver.Lock{}, err
	}
	v, _, err := s.do(ctx, s.look, name)
	if err != nil && !refused(err) && ctx.Err() == nil {
		v, _, err = s.do(ctx, s.look, name)
	}
	return v.lock(name), err
}

// List reads page by page.
func (s *shedlock) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for after := ""; ; {
			a := s.t.lanes.do(ctx, s.all, []byte(prefix), []byte(after))
			if a.err != nil {
				yield(driver.Lock{}, cmp.Or(ctx.Err(), s.t.place.explain(a.err)))
				return
			}
			for _, row := range a.rows {
				v := s.view(row)
				if after = v.name; after == "" || !yield(v.lock(v.name), nil) {
					return // there are no more
				}
			}
		}
	}
}

// Break marks or asks our own holders by a flag in their signature; a foreign one can only be forced out.
func (s *shedlock) Break(ctx context.Context, name, ref string, mode driver.BreakMode) error {
	came, foreign := strings.CutPrefix(ref, foreignRef)
	if foreign && !isStamp(came) {
		return fmt.Errorf("no such claim stands: %w", driver.ErrLost)
	}
	if ref == "" {
		return fmt.Errorf("%w: an empty ref names no claim", driver.ErrInvalid)
	}
	if foreign && mode != driver.BreakForce {
		return fmt.Errorf("%w: ShedLock's own holders cannot be told: force it", driver.ErrUnsupported)
	}
	mine := sign(ref)
	if !foreign {
		came = ""
	}
	for {
		var done int64
		var v shedView
		var err error
		switch mode {
		case driver.BreakForce:
			v, done, err = s.do(ctx, s.force, name, mine, came)
		case driver.BreakGraceful:
			v, done, err = s.do(ctx, s.flag, name, mine, "b", "37")
		default:
			v, done, err = s.do(ctx, s.flag, name, mine, "a", "39")
		}
		switch {
		case errors.Is(err, record.ErrConflict), err == nil && done == 0 && v.left > 0 && v.holds.Ref == ref:
			continue // it saw the row before another's write
		case err != nil:
			return driver.Uncertain(err)
		case done == 0:
			return fmt.Errorf("no such claim stands: %w", driver.ErrLost)
		}
		return nil
	}
}
