package record

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Inspect is one load. Claims that are over are left out, though they stand until somebody's next write.
func (e *engine) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	row, rec, err := e.load(ctx, name)
	if err != nil {
		return driver.Lock{}, err
	}
	return e.show(row, rec), nil
}

// List shows what Inspect would show, without the idle locks.
func (e *engine) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for row, err := range e.table.List(ctx, prefix) {
			lock := driver.Lock{Name: row.Name}
			if err == nil {
				var rec *Record
				if rec, err = read(row); err == nil {
					lock = e.show(row, rec)
				}
			}
			if err == nil && len(lock.Holders)+len(lock.Waiters) == 0 {
				continue
			}
			if !yield(lock, e.fault(err)) || err != nil && row.Name == "" {
				return
			}
		}
	}
}

// Break is one load and one swap.
func (e *engine) Break(ctx context.Context, name, ref string, mode driver.BreakMode) error {
	return e.write(ctx, name, func(rec *Record, m Moment) error { return rec.Break(ref, mode, m) })
}

// Detach is one swap. It is settled like a renewal: the claim stands under its id, or the grant is lost.
func (e *engine) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return e.write(ctx, g.Name, func(rec *Record, m Moment) error { return rec.Detach(g.ID, g.Token, keep, m) })
}

// Reweigh is one load and one swap. A claim that has the weight already is taken for the outcome of an earlier swap.
func (e *engine) Reweigh(ctx context.Context, g driver.Grant, weight int64) error {
	return e.write(ctx, g.Name, func(rec *Record, m Moment) error { return rec.Reweigh(g.ID, g.Token, weight, m) })
}

// write makes one step that may be made twice without harm, until it has succeeded or was refused.
func (e *engine) write(ctx context.Context, name string, step func(*Record, Moment) error) error {
	for tries := 0; ; tries++ {
		row, rec, err := e.load(ctx, name)
		if err != nil {
			return err
		}
		next := rec.clone()
		if err := step(next, e.moment(row)); err != nil {
			return err
		}
		if _, _, err = e.swap(ctx, row, next); !errors.Is(err, ErrConflict) {
			return driver.Uncertain(err)
		}
		if _, err := e.pause(ctx, tries, len(next.Claims)); err != nil {
			return err
		}
	}
}

func (e *engine) show(row Row, rec *Record) driver.Lock {
	m := e.moment(row)
	shown := *rec
	shown.Claims = alive(rec.Claims, m)
	shown.Foreign = m.foreign(rec)
	lock := shown.lock(row.Name, m)
	over := len(rec.Claims) - len(shown.Claims)
	if shown.Foreign != rec.Foreign {
		over++
	}
	if lock.Revision = row.Version; over > 0 { // that changes no record
		lock.Revision += "-" + strconv.Itoa(over)
	}
	return lock
}

func alive(claims []Claim, m Moment) (left []Claim) {
	for i := range claims {
		if m.verdict(&claims[i]) == Alive {
			left = append(left, claims[i])
		}
	}
	return left
}

// lock is a record as others see it.
func (r *Record) lock(name string, m Moment) driver.Lock {
	l := driver.Lock{Name: name, Token: r.Token}
	if len(r.Claims) > 0 {
		l.Kind, l.Limit = r.Kind, r.Limit
	}
	if r.Foreign != 0 {
		l.Kind, l.Limit = driver.KindMutex, 1
		l.Holders = append(l.Holders, driver.Standing{Ref: r.foreignRef(), Owner: "a foreign client", Weight: 1, Foreign: true,
			Left: m.until(r.Foreign)})
	}
	for i := range r.Claims {
		c := &r.Claims[i]
		s := driver.Standing{
			Ref: c.ID, Owner: c.Owner, Meta: c.Meta, Weight: c.Weight, Token: c.Token, TTL: c.TTL,
			Since: micros(c.Since), Left: m.left(c), Detached: c.Detached, Asked: c.Asked, Broken: c.Broken,
		}
		if c.State == Granted {
			l.Holders = append(l.Holders, s)
		} else {
			l.Waiters = append(l.Waiters, s)
		}
	}
	return l
}

// left is how long a claim surely stands if it stays silent, where the store's clock can tell.
func (m Moment) left(c *Claim) time.Duration {
	if c.Ends == 0 {
		return 0
	}
	return m.until(c.Ends)
}

// until is how long it surely is to a time of the store's clock; 0: not known, or for ever.
func (m Moment) until(at int64) time.Duration {
	if !m.Clocked || at == NoEnd {
		return 0
	}
	return max(time.Duration(at-m.Late)*time.Microsecond, 0)
}

func micros(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(n)
}
