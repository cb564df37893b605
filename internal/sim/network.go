package sim

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// faultyTable is the store as one host reaches it: a table whose requests and replies are late, lost or doubled.
type faultyTable struct {
	record.Table
	host  *host
	clock *record.ServerClock // nil: the table's own is to be had at any time
}

// messageFate is what happens to one request.
type messageFate struct {
	requestDelay, replyDelay time.Duration
	requestLost, replyLost   bool
	doubled                  bool
	secondDelay, timeout     time.Duration
}

func (w *simulation) drawFate(h *host) messageFate {
	f := messageFate{requestDelay: w.upTo(10 * time.Millisecond), replyDelay: w.upTo(10 * time.Millisecond), timeout: 2 * time.Second}
	if h.reliable {
		return f
	}
	f.requestDelay, f.replyDelay = w.messageDelay(), w.messageDelay()
	if w.faultsActive() && !w.gentle.Load() {
		f.requestLost, f.replyLost = w.chance(0.05), w.chance(0.05)
		f.doubled, f.secondDelay = w.chance(0.02), w.messageDelay()
	}
	return f
}

// messageDelay is how long a message takes: some milliseconds as a rule, and up to one and a half TTLs now and then.
func (w *simulation) messageDelay() time.Duration {
	if w.faultsActive() && !w.gentle.Load() && w.chance(0.05) {
		return w.upTo(w.timeScale * 3 / 2)
	}
	return w.upTo(10 * time.Millisecond)
}

var errTimeout = errors.New("the store did not answer in time")

type reply struct {
	row   record.Row
	err   error
	micro int64 // the store's clock
}

// callStore is one request. What the store does for it is done with its mutex held, so that the judge sees all in its order.
func (t *faultyTable) callStore(ctx context.Context, do func() reply) (record.Row, error) {
	w := t.host.sim
	from := t.host.newClock().Now()
	got, err := t.host.sendRequest(ctx, true, func() any {
		w.storeMu.Lock()
		defer w.storeMu.Unlock()
		if w.storeDenies && !t.host.reliable {
			return reply{err: driver.ErrDenied}
		}
		r := do()
		r.micro = t.readStoreClock()
		return r
	})
	if err != nil {
		return record.Row{}, err
	}
	r := got.(reply)
	if t.clock != nil {
		t.addClockReply(r.micro, from)
	}
	return r.row, r.err
}

// readStoreClock is the store's clock, as one reply tells it. Called with the store's mutex held.
func (t *faultyTable) readStoreClock() int64 {
	w := t.host.sim
	micro := w.started.UnixMicro() + (w.elapsed() + w.storeOffset).Microseconds()
	if w.kind == astray && w.faultsActive() && w.elapsed() > 0 && w.chance(0.02) {
		micro += (25*time.Second + w.upTo(10*time.Minute)).Microseconds()
	}
	return micro
}

// clockedTable is a wire whose store tells its clock with replies.
type clockedTable struct{ *faultyTable }

// ClockBounds are those that the replies leave.
func (t clockedTable) ClockBounds() (early, late int64) { return t.clock.ClockBounds() }

func (t *faultyTable) addClockReply(micro int64, from driver.Instant) {
	t.clock.AddReply(micro, from, t.host.newClock().Now())
}

// ClockIsStale asks for a look where the store's clock is told with replies.
func (t *faultyTable) ClockIsStale() bool { return t.clock != nil && t.clock.ClockIsStale() }

// sendRequest sends one request. Its effect can come after the caller has given up, and, where the link allows it, twice.
func (h *host) sendRequest(ctx context.Context, twice bool, do func() any) (any, error) {
	w := h.sim
	if err := h.waitUntilRunning(ctx); err != nil {
		return nil, err
	}
	f := w.drawFate(h)
	back := make(chan any, 1)
	w.requests.Go(func() {
		time.Sleep(f.requestDelay)
		if f.requestLost || !h.isReachable() || w.isStoreSilent() && !h.reliable {
			return
		}
		r := do()
		if f.doubled && twice {
			w.requests.Go(func() { time.Sleep(f.secondDelay); do() })
		}
		time.Sleep(f.replyDelay)
		if !f.replyLost && h.isReachable() && (!w.isStoreSilent() || h.reliable) {
			back <- r
		}
	})
	timer := time.NewTimer(f.timeout)
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
	if err := h.waitUntilRunning(ctx); err != nil {
		return nil, err
	}
	return r, err
}

// Info shows the host's clock in the store's place.
func (t *faultyTable) Info() driver.Info {
	info := t.Table.Info()
	info.Clock = t.host.newClock()
	info.MaxWaiters = t.host.sim.maxWaiters
	return info
}

// Now is the store's clock where it judges, and the host's own wall clock where it is good for tokens only.
func (t *faultyTable) Now() (int64, time.Duration) {
	if t.clock != nil {
		return t.clock.Now()
	}
	now, off := t.Table.Now()
	if off < 0 {
		t.host.mu.Lock()
		defer t.host.mu.Unlock()
		return now + t.host.wallOffset.Microseconds(), off
	}
	return now, 20 * time.Millisecond
}

func (t *faultyTable) Load(ctx context.Context, name string) (record.Row, error) {
	return t.callStore(ctx, func() reply {
		row, err := t.Table.Load(context.Background(), name)
		if t.host.sim.kind == stale && !t.host.reliable {
			row = t.host.sim.readOldRow(row)
		}
		return reply{row: row, err: err}
	})
}

func (t *faultyTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	by := actorOf(ctx)
	return t.callStore(ctx, func() reply {
		now, err := t.Table.Swap(context.Background(), row)
		if err == nil || errors.Is(err, errConnectionBroke) {
			t.host.sim.checker.checkSwap(now, by)
			t.host.sim.rememberRow(now)
		}
		return reply{row: now, err: err}
	})
}

func (t *faultyTable) Delete(ctx context.Context, row record.Row) error {
	_, err := t.callStore(ctx, func() reply { return reply{err: t.Table.Delete(context.Background(), row)} })
	return err
}

func (t *faultyTable) List(ctx context.Context, prefix string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		if _, err := t.callStore(ctx, func() reply { return reply{} }); err != nil {
			yield(record.Row{}, err)
			return
		}
		t.Table.List(ctx, prefix)(yield)
	}
}

// Wait is there in some worlds, and in the others a table cannot tell.
func (t *faultyTable) Wait(ctx context.Context, name, version string) error {
	if !t.host.sim.notifies {
		return driver.ErrUnsupported
	}
	if err := t.Table.(record.Notifier).Wait(ctx, name, version); err != nil {
		return err
	}
	time.Sleep(t.host.sim.messageDelay())
	return t.host.waitUntilRunning(ctx)
}

// Session and Gone are there in some worlds.
func (t *faultyTable) Session() string {
	if t.host.sim.knowsDead {
		return t.host.name
	}
	return ""
}

func (t *faultyTable) IsDead(session string) bool {
	h := t.host.sim.hosts[session]
	return t.host.sim.knowsDead && h != nil && h.hasCrashed()
}

// checkedStore is the host's driver.Store, with an eye on what the client asks of it.
type checkedStore struct {
	driver.Store
	host *host
}

func (s *checkedStore) Renew(ctx context.Context, g []driver.Grant, done func(int, driver.Renewal)) {
	for i := range g {
		s.host.sim.checker.checkRenewal(g[i])
	}
	s.Store.Renew(ctx, g, done)
}

func (s *checkedStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	s.host.sim.checker.noteReleaseStart(c.ID)
	s.host.sim.checker.logEvent(c.ID, "%s begins to release it", s.host.name)
	err := s.Store.Release(context.WithValue(ctx, actorKey{}, actor{release: c.ID}), c, ref)
	s.host.sim.checker.logEvent(c.ID, "%s released it: %v", s.host.name, err)
	if err == nil {
		s.host.sim.checker.noteRelease(c)
	}
	return err
}

func (s *checkedStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Wait {
		s.host.sim.checker.noteWait(s.host, c)
		defer s.host.sim.checker.noteWaitEnd(c)
	}
	s.host.sim.checker.logEvent(c.ID, "%s asks for it, wait %v, weight %d of %d", s.host.name, c.Wait, c.Weight, c.Limit)
	g, err := s.Store.Acquire(ctx, c)
	s.host.sim.checker.noteAcquireResult(c, g, err)
	return g, err
}

// endingStore is watched where the engine tells of endings.
type endingStore struct{ *checkedStore }

func (s endingStore) NextEnding(ctx context.Context) (driver.Ending, error) {
	return s.Store.(driver.EndWatcher).NextEnding(ctx)
}

func (s *checkedStore) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return s.Store.(driver.Detacher).Detach(ctx, g, keep)
}

func (s *checkedStore) SetWeight(ctx context.Context, g driver.Grant, weight int64) error {
	return s.Store.(driver.WeightChanger).SetWeight(ctx, g, weight)
}
