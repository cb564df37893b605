package shedlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// scriptedTable answers as a test says.
type scriptedTable struct {
	Table
	life   *driverutil.Lifetime
	writes int // how often it was asked to write

	take  func(ctx context.Context) TakeResult
	write func() (Row, bool, error) // anything but a take
	read  Row
}

func (t *scriptedTable) Info() driver.Info { return driver.Info{Clock: driver.SystemClock} }

func (t *scriptedTable) Sleep(ctx context.Context, d time.Duration) error {
	return t.life.Sleep(ctx, d)
}

func (t *scriptedTable) TakeRow(
	ctx context.Context, _ string, _ Signature, _ time.Duration,
) TakeResult {
	if t.writes++; t.writes > 1000 {
		return TakeResult{Err: driver.ErrClosed}
	}
	return t.take(ctx)
}

func (t *scriptedTable) answerWrite() (Row, bool, error) {
	if t.writes++; t.writes > 1000 {
		return Row{}, false, driver.ErrClosed
	}
	return t.write()
}

func (t *scriptedTable) RenewRow(
	context.Context, string, string, string, time.Duration, bool,
) (Row, bool, error) {
	return t.answerWrite()
}

func (t *scriptedTable) ReleaseRow(context.Context, string, string) (Row, bool, error) {
	return t.answerWrite()
}

func (t *scriptedTable) FlagRow(context.Context, string, string, int, string) (Row, bool, error) {
	return t.answerWrite()
}

func (t *scriptedTable) ForceRow(context.Context, string, string, string) (Row, bool, error) {
	return t.answerWrite()
}

func (t *scriptedTable) ReadRow(context.Context, string) (Row, error) { return t.read, nil }

func (t *scriptedTable) WatchRow(string) RowWatch { return nil }

func newScripted() (*scriptedTable, *store) {
	t := &scriptedTable{life: driverutil.NewLifetime()}
	return t, New(t, 64, 255).(*store)
}

// rowOf is the row of a claim that holds the lock for a minute.
func rowOf(c driver.Claim, token int64) Row {
	return ParseRow(c.Name, "holdfast/"+c.ID+"/---/60000/0 ", token, token, token+time.Minute.Microseconds())
}

// TestConflicts: a statement that the server refuses because of another write, or that has read the row before another
// write, is sent again until it succeeds or its caller gives up, after pauses that grow.
func TestConflicts(t *testing.T) {
	c := storetest.Mutex("m", time.Minute)
	const token = 1e15
	g := driver.Grant{Claim: c, Token: token, GrantedTTL: c.TTL, Ref: c.ID}
	for what, call := range map[string]func(context.Context, driver.Store) error{
		"Acquire": func(ctx context.Context, s driver.Store) error { _, err := s.Acquire(ctx, c); return err },
		"Release": func(ctx context.Context, s driver.Store) error { return s.Release(ctx, c, "") },
		"Renew": func(ctx context.Context, s driver.Store) (err error) {
			s.Renew(ctx, []driver.Grant{g}, func(_ int, r driver.Renewal) { err = r.Err })
			return err
		},
		"Detach": func(ctx context.Context, s driver.Store) error {
			return s.Detach(ctx, g, time.Hour)
		},
		"Break": func(ctx context.Context, s driver.Store) error {
			return s.Break(ctx, "m", c.ID, driver.Break{Mode: driver.BreakForce})
		},
	} {
		for reason, refused := range map[string]TakeResult{
			"a conflict":             {Err: record.ErrConflict},
			"a row that was earlier": {Seen: rowOf(c, token)},
		} {
			synctest.Test(t, func(t *testing.T) {
				table, s := newScripted()
				refuse := true
				table.take = func(context.Context) TakeResult {
					if refuse {
						return refused
					}
					return TakeResult{Token: token}
				}
				table.write = func() (Row, bool, error) { return refused.Seen, !refuse, refused.Err }
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if err := call(ctx, s); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s, refused for 10 s by %s: %v", what, reason, err)
				}
				// Pauses are of up to 640 ms, and of half of that on average.
				if table.writes < 10 || table.writes > 100 {
					t.Errorf("%s, refused for 10 s by %s, was sent %d times", what, reason, table.writes)
				}
				refuse, refused.Err = false, nil
				if err := call(t.Context(), s); err != nil {
					t.Errorf("%s, after %s: %v", what, reason, err)
				}
			})
		}
	}
}

// TestReleaseAwaitsTake: a release waits for a take of its claim that the server has not answered yet, and so does the
// next release if the first gives up.
func TestReleaseAwaitsTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, s := newScripted()
		c := storetest.Mutex("m", time.Minute)
		pending := make(chan struct{})
		table.take = func(ctx context.Context) TakeResult {
			<-ctx.Done()
			return TakeResult{Err: ctx.Err(), Pending: pending}
		}
		table.write = func() (Row, bool, error) { return Row{}, true, nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Acquire(ctx, c); !errors.Is(err, driver.ErrUncertain) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a take that was given up: %v", err)
		}
		if err := s.Release(ctx, c, ""); !errors.Is(err, driver.ErrUncertain) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a release that was given up: %v", err)
		}
		released := false
		go func() {
			if err := s.Release(t.Context(), c, ""); err != nil {
				t.Error(err)
			}
			released = true
		}()
		synctest.Wait()
		if table.writes != 1 {
			t.Errorf("%d writes before the take is answered", table.writes)
		}
		close(pending)
		synctest.Wait()
		if !released || table.writes != 2 {
			t.Errorf("after the take: released %v, %d writes", released, table.writes)
		}
	})
}

// TestAnsweredTakesAreForgotten: takes that were given up are forgotten when the server has answered them, even if
// their claims are never released.
func TestAnsweredTakesAreForgotten(t *testing.T) {
	table, s := newScripted()
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		pending := make(chan struct{})
		table.take = func(context.Context) TakeResult {
			cancel()
			return TakeResult{Err: ctx.Err(), Pending: pending}
		}
		if _, err := s.Acquire(ctx, storetest.Mutex("m", time.Minute)); !errors.Is(err, driver.ErrUncertain) {
			t.Error(err)
		}
		if len(s.pendingTakes) != 1 {
			t.Errorf("%d takes are remembered, one of which is pending", len(s.pendingTakes))
		}
		close(pending)
	}
}

// TestLateTry: a waiter that sees its own claim hold the lock, because a try without a reply has taken it after all,
// has the lock at once.
func TestLateTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, s := newScripted()
		c := storetest.Waiting(storetest.Mutex("m", time.Minute))
		const token = 1e15
		results := []TakeResult{{Err: errors.New("no reply")}, {Seen: rowOf(c, token)}, {Token: token}}
		table.take = func(context.Context) TakeResult { return results[table.writes-1] }
		began := time.Now()
		g, err := s.Acquire(t.Context(), c)
		if passed := time.Since(began); err != nil || g.Token != token || passed > time.Second {
			t.Errorf("%+v %v after %v", g, err, passed)
		}
	})
}
