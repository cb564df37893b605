package sim

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// wire is the store as one host reaches it: a table whose requests and replies are late, lost or doubled.
type wire struct {
	record.Table
	host  *host
	clock *record.ServerClock // nil: the table's own is to be had at any time
}

// fate is what happens to one request.
type fate struct {
	there, back     time.Duration
	noThere, noBack bool
	doubled         bool
	second, giveUp  time.Duration
}

func (w *World) fate(h *host) fate {
	f := fate{there: w.upTo(10 * time.Millisecond), back: w.upTo(10 * time.Millisecond), giveUp: 2 * time.Second}
	if h.reliable {
		return f
	}
	f.there, f.back = w.hop(), w.hop()
	if w.faults() && !w.gentle.Load() {
		f.noThere, f.noBack = w.chance(0.05), w.chance(0.05)
		f.doubled, f.second = w.chance(0.02), w.hop()
	}
	return f
}

// hop is how long a message takes: some milliseconds as a rule, and up to one and a half TTLs now and then.
func (w *World) hop() time.Duration {
	if w.faults() && !w.gentle.Load() && w.chance(0.05) {
		return w.upTo(w.span * 3 / 2)
	}
	return w.upTo(10 * time.Millisecond)
}

var errTimeout = errors.New("the store did not answer in time")

type reply struct {
	row   record.Row
	err   error
	micro int64 // the store's clock
}

// call is one request. What the store does for it is done with its mutex held, so that the judge sees all in its order.
func (t *wire) call(ctx context.Context, do func() reply) (record.Row, error) {
	w := t.host.world
	from := t.host.clock().Now()
	got, err := t.host.carry(ctx, true, func() any {
		w.store.Lock()
		defer w.store.Unlock()
		if w.denies && !t.host.reliable {
			return reply{err: driver.ErrDenied}
		}
		r := do()
		r.micro = t.micro()
		return r
	})
	if err != nil {
		return record.Row{}, err
	}
	r := got.(reply)
	if t.clock != nil {
		t.hear(r.micro, from)
	}
	return r.row, r.err
}

// micro is the store's clock, as one reply tells it. Called with the store's mutex held.
func (t *wire) micro() int64 {
	w := t.host.world
	micro := w.started.UnixMicro() + (w.elapsed() + w.offset).Microseconds()
	if w.kind == astray && w.faults() && w.elapsed() > 0 && w.chance(0.02) {
		micro += (25*time.Second + w.upTo(10*time.Minute)).Microseconds()
	}
	return micro
}

// timed is a wire whose store tells its clock with replies.
type timed struct{ *wire }

// ClockBounds are those that the replies leave.
func (t timed) ClockBounds() (early, late int64) { return t.clock.ClockBounds() }

func (t *wire) hear(micro int64, from driver.Instant) {
	t.clock.AddReply(micro, from, t.host.clock().Now())
}

// ClockIsStale asks for a look where the store's clock is told with replies.
func (t *wire) ClockIsStale() bool { return t.clock != nil && t.clock.ClockIsStale() }

// carry sends one request. Its effect can come after the caller has given up, and, where the link allows it, twice.
func (h *host) carry(ctx context.Context, twice bool, do func() any) (any, error) {
	w := h.world
	if err := h.pass(ctx); err != nil {
		return nil, err
	}
	f := w.fate(h)
	back := make(chan any, 1)
	w.flying.Go(func() {
		time.Sleep(f.there)
		if f.noThere || !h.reachable() || w.isMute() && !h.reliable {
			return
		}
		r := do()
		if f.doubled && twice {
			w.flying.Go(func() { time.Sleep(f.second); do() })
		}
		time.Sleep(f.back)
		if !f.noBack && h.reachable() && (!w.isMute() || h.reliable) {
			back <- r
		}
	})
	timer := time.NewTimer(f.giveUp)
	defer timer.Stop()
	var r any
	var err error
	select {
	case r = <-back:
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = errTimeout
	}
	if err := h.pass(ctx); err != nil {
		return nil, err
	}
	return r, err
}

// Info shows the host's clock in the store's place.
func (t *wire) Info() driver.Info {
	info := t.Table.Info()
	info.Clock = t.host.clock()
	info.MaxWaiters = t.host.world.mostWaiting
	return info
}

// Now is the store's clock where it judges, and the host's own wall clock where it is good for tokens only.
func (t *wire) Now() (int64, time.Duration) {
	if t.clock != nil {
		return t.clock.Now()
	}
	now, off := t.Table.Now()
	if off < 0 {
		t.host.mu.Lock()
		defer t.host.mu.Unlock()
		return now + t.host.wall.Microseconds(), off
	}
	return now, 20 * time.Millisecond
}

func (t *wire) Load(ctx context.Context, name string) (record.Row, error) {
	return t.call(ctx, func() reply {
		row, err := t.Table.Load(context.Background(), name)
		if t.host.world.kind == stale && !t.host.reliable {
			row = t.host.world.older(row)
		}
		return reply{row: row, err: err}
	})
}

func (t *wire) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	by := actorOf(ctx)
	return t.call(ctx, func() reply {
		now, err := t.Table.Swap(context.Background(), row)
		if err == nil || errors.Is(err, errCut) {
			t.host.world.judge.swapped(now, by)
			t.host.world.keep(now)
		}
		return reply{row: now, err: err}
	})
}

func (t *wire) Delete(ctx context.Context, row record.Row) error {
	_, err := t.call(ctx, func() reply { return reply{err: t.Table.Delete(context.Background(), row)} })
	return err
}

func (t *wire) List(ctx context.Context, prefix string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		if _, err := t.call(ctx, func() reply { return reply{} }); err != nil {
			yield(record.Row{}, err)
			return
		}
		t.Table.List(ctx, prefix)(yield)
	}
}

// Wait is there in some worlds, and in the others a table cannot tell.
func (t *wire) Wait(ctx context.Context, name, version string) error {
	if !t.host.world.notifies {
		return driver.ErrUnsupported
	}
	if err := t.Table.(record.Notifier).Wait(ctx, name, version); err != nil {
		return err
	}
	time.Sleep(t.host.world.hop())
	return t.host.pass(ctx)
}

// Session and Gone are there in some worlds.
func (t *wire) Session() string {
	if t.host.world.presence {
		return t.host.name
	}
	return ""
}

func (t *wire) IsDead(session string) bool {
	h := t.host.world.hosts[session]
	return t.host.world.presence && h != nil && h.dead()
}

// watched is the host's driver.Store, with an eye on what the client asks of it.
type watched struct {
	driver.Store
	host *host
}

func (s *watched) Renew(ctx context.Context, g []driver.Grant, done func(int, driver.Renewal)) {
	for i := range g {
		s.host.world.judge.renewing(g[i])
	}
	s.Store.Renew(ctx, g, done)
}

func (s *watched) Release(ctx context.Context, c driver.Claim, ref string) error {
	s.host.world.judge.left(c.ID)
	s.host.world.judge.tell(c.ID, "%s begins to release it", s.host.name)
	err := s.Store.Release(context.WithValue(ctx, actorKey{}, actor{release: c.ID}), c, ref)
	s.host.world.judge.tell(c.ID, "%s released it: %v", s.host.name, err)
	if err == nil {
		s.host.world.judge.released(c)
	}
	return err
}

func (s *watched) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Wait {
		s.host.world.judge.waits(s.host, c)
		defer s.host.world.judge.waitsNoMore(c)
	}
	s.host.world.judge.tell(c.ID, "%s asks for it, wait %v, weight %d of %d", s.host.name, c.Wait, c.Weight, c.Limit)
	g, err := s.Store.Acquire(ctx, c)
	s.host.world.judge.acquired(c, g, err)
	return g, err
}

// ending is watched where the engine tells of endings.
type ending struct{ *watched }

func (s ending) NextEnding(ctx context.Context) (driver.Ending, error) {
	return s.Store.(driver.EndWatcher).NextEnding(ctx)
}

func (s *watched) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return s.Store.(driver.Detacher).Detach(ctx, g, keep)
}

func (s *watched) SetWeight(ctx context.Context, g driver.Grant, weight int64) error {
	return s.Store.(driver.WeightChanger).SetWeight(ctx, g, weight)
}
