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
	host *host
}

// fate is what happens to one request.
type fate struct {
	there, back     time.Duration
	noThere, noBack bool
	doubled         bool
	second, giveUp  time.Duration
}

func (w *World) fate() fate {
	f := fate{there: w.hop(), back: w.hop(), giveUp: 2 * time.Second}
	if w.faults() {
		f.noThere, f.noBack = w.chance(0.05), w.chance(0.05)
		f.doubled, f.second = w.chance(0.02), w.hop()
	}
	return f
}

// hop is how long a message takes: some milliseconds as a rule, and up to one and a half TTLs now and then.
func (w *World) hop() time.Duration {
	if w.faults() && w.chance(0.05) {
		return w.upTo(w.ttl * 3 / 2)
	}
	return w.upTo(10 * time.Millisecond)
}

var errTimeout = errors.New("the store did not answer in time")

type reply struct {
	row record.Row
	err error
}

func (t *wire) call(ctx context.Context, do func() reply) (record.Row, error) {
	got, err := t.host.carry(ctx, true, func() any { return do() })
	if err != nil {
		return record.Row{}, err
	}
	r := got.(reply)
	return r.row, r.err
}

// carry sends one request. Its effect can come after the caller has given up, and, where the link allows it, twice.
func (h *host) carry(ctx context.Context, twice bool, do func() any) (any, error) {
	w := h.world
	if err := h.pass(ctx); err != nil {
		return nil, err
	}
	f := w.fate()
	back := make(chan any, 1)
	w.flying.Go(func() {
		time.Sleep(f.there)
		if f.noThere || !h.reachable() {
			return
		}
		r := do()
		if f.doubled && twice {
			w.flying.Go(func() { time.Sleep(f.second); do() })
		}
		time.Sleep(f.back)
		if !f.noBack && h.reachable() {
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
	return info
}

// Now is the store's clock where it judges, and the host's own wall clock where it is good for tokens only.
func (t *wire) Now() (int64, time.Duration) {
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
		return reply{row, err}
	})
}

func (t *wire) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	return t.call(ctx, func() reply {
		t.host.world.store.Lock() // so that the judge sees swaps in their order
		defer t.host.world.store.Unlock()
		now, err := t.Table.Swap(context.Background(), row)
		if err == nil {
			t.host.world.judge.swapped(now)
		}
		return reply{now, err}
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

func (t *wire) Gone(session string) bool {
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
	err := s.Store.Release(ctx, c, ref)
	if err == nil {
		s.host.world.judge.released(c.ID)
	}
	return err
}

func (s *watched) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return s.Store.(driver.Detacher).Detach(ctx, g, keep)
}

func (s *watched) Reweigh(ctx context.Context, g driver.Grant, weight int64) error {
	return s.Store.(driver.Reweigher).Reweigh(ctx, g, weight)
}
