package sim

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// faultyTable is the store as one host reaches it: a table whose requests and replies are late, lost or duplicated.
type faultyTable struct {
	record.Table
	host  *host
	clock *record.ServerClock // nil: the store's clock is known without replies
	// keepsRuns says that it has the histories of a ledger.
	keepsRuns bool
}

// messageFate is what happens to one request and its reply.
type messageFate struct {
	requestDelay, replyDelay time.Duration
	requestLost, replyLost   bool
	doubled                  bool
	secondDelay, timeout     time.Duration
}

// drawFate decides what the network does to a request and its reply: delays, losses, a second delivery. A reliable
// host has delays only.
func (sim *simulation) drawFate(h *host) messageFate {
	f := messageFate{
		requestDelay: sim.upTo(10 * time.Millisecond), replyDelay: sim.upTo(10 * time.Millisecond),
		timeout: 2 * time.Second,
	}
	if h.reliable {
		return f
	}
	f.requestDelay, f.replyDelay = sim.messageDelay(), sim.messageDelay()
	if sim.faultsActive() && !sim.gentle.Load() {
		f.requestLost, f.replyLost = sim.chance(0.05), sim.chance(0.05)
		f.doubled, f.secondDelay = sim.chance(0.02), sim.messageDelay()
	}
	return f
}

// messageDelay is how long a message takes: usually some milliseconds, and sometimes up to one and a half TTLs.
func (sim *simulation) messageDelay() time.Duration {
	if sim.faultsActive() && !sim.gentle.Load() && sim.chance(0.05) {
		return sim.upTo(sim.timeScale * 3 / 2)
	}
	return sim.upTo(10 * time.Millisecond)
}

var errTimeout = errors.New("the store did not answer in time")

type reply struct {
	row   record.Row
	err   error
	micro int64 // the store's clock
}

// callStore sends one request. The store carries it out with storeMu held, so that the checker sees everything in
// order.
func (t *faultyTable) callStore(ctx context.Context, do func() reply) (record.Row, error) {
	sim := t.host.sim
	from := t.host.newClock().Now()
	got, err := t.host.sendRequest(ctx, true, func() any {
		sim.storeMu.Lock()
		defer sim.storeMu.Unlock()
		if sim.storeDenies && !t.host.reliable {
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

// readStoreClock returns the store's clock as one reply has it. It is called with storeMu held.
func (t *faultyTable) readStoreClock() int64 {
	sim := t.host.sim
	micro := sim.started.UnixMicro() + (sim.elapsed() + sim.storeOffset + sim.storeShift).Microseconds()
	if sim.kind == astray && sim.faultsActive() && sim.elapsed() > 0 && sim.chance(0.02) {
		micro += (25*time.Second + sim.upTo(10*time.Minute)).Microseconds()
	}
	return micro
}

func (t *faultyTable) addClockReply(micro int64, from driver.Instant) {
	t.clock.AddReply(micro, from, t.host.newClock().Now())
}

// sendRequest sends one request. It may take effect after the caller has given up, and, if twice is set, two times.
func (h *host) sendRequest(ctx context.Context, twice bool, do func() any) (any, error) {
	sim := h.sim
	if err := h.waitUntilRunning(ctx); err != nil {
		return nil, err
	}
	f := sim.drawFate(h)
	back := make(chan any, 1)
	sim.requests.Go(func() {
		time.Sleep(f.requestDelay)
		if f.requestLost || !h.isReachable() || sim.isStoreSilent() && !h.reliable {
			return
		}
		r := do()
		if f.doubled && twice {
			sim.requests.Go(func() { time.Sleep(f.secondDelay); do() })
		}
		time.Sleep(f.replyDelay)
		if !f.replyLost && h.isReachable() && (!sim.isStoreSilent() || h.reliable) {
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

// Info has the host's clock in place of the store's.
func (t *faultyTable) Info() driver.Info {
	info := t.Table.Info()
	info.Clock = t.host.newClock()
	info.MaxWaiters = t.host.sim.maxWaiters
	info.Store = cmp.Or(t.host.address, info.Store)
	return info
}

// TokenFloor returns the store's clock, or, if that expires no claims, the host's own wall clock.
func (t *faultyTable) TokenFloor() int64 {
	if t.clock != nil {
		return t.clock.TokenFloor()
	}
	now := t.Table.TokenFloor()
	if t.Table.Clock() == nil {
		t.host.mu.Lock()
		defer t.host.mu.Unlock()
		return now + t.host.wallOffset.Microseconds()
	}
	return now + t.host.sim.storeShift.Microseconds()
}

// Clock returns the clock that the host has learned from replies, or one that is known to 20 ms.
func (t *faultyTable) Clock() record.Clock {
	switch {
	case t.clock != nil:
		return t.clock
	case t.Table.Clock() == nil:
		return nil
	}
	return roughClock{t}
}

// roughClock is a store's clock that each host knows to 20 ms.
type roughClock struct{ *faultyTable }

func (c roughClock) Bounds() (early, late int64, known bool) {
	const off = 20 * time.Millisecond
	now := c.TokenFloor()
	return now - off.Microseconds(), now + off.Microseconds(), true
}

func (roughClock) IsStale() bool { return false }

// ReadClock sends a request, which may be delayed or lost.
func (t *faultyTable) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	var at atomic.Int64
	_, err = t.callStore(ctx, func() reply {
		at.Store(t.Table.TokenFloor() + t.host.sim.storeShift.Microseconds())
		if t.clock != nil {
			at.Store(t.readStoreClock())
		}
		return reply{}
	})
	return time.UnixMicro(at.Load()), 0, err
}

// Load reads a row, on a stale store perhaps an old one.
func (t *faultyTable) Load(ctx context.Context, name string) (record.Row, error) {
	return t.callStore(ctx, func() reply {
		row, err := t.Table.Load(context.Background(), name)
		if t.host.sim.kind == stale && !t.host.reliable {
			row = t.host.sim.readOldRow(row)
		}
		return reply{row: row, err: err}
	})
}

// Swap writes a row. What has been written is checked at once, also if the reply is lost later.
func (t *faultyTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	by := actorOf(ctx)
	by.host = t.host
	if size := len(row.Data); size > cmp.Or(t.Traits().MaxRecord, record.MaxData) {
		t.host.sim.reportViolation("a record of %d bytes is written, and %d fit", size, cmp.Or(t.Traits().MaxRecord, record.MaxData))
		return record.Row{}, driver.ErrInvalid
	}
	return t.callStore(ctx, func() reply {
		now, err := t.Table.Swap(context.Background(), row)
		switch {
		case err != nil && !errors.Is(err, errConnectionBroke):
		case t.keepsRuns:
			t.host.sim.runs.checkSwap(now, by)
		default:
			t.host.sim.checker.checkSwap(now, by)
			t.host.sim.rememberRow(now)
			t.host.sim.sendNotices(row, now.Version)
		}
		return reply{row: now, err: err}
	})
}

// Delete removes a row. The rows of a ledger are checked first.
func (t *faultyTable) Delete(ctx context.Context, row record.Row) error {
	_, err := t.callStore(ctx, func() reply {
		if t.keepsRuns {
			return reply{err: t.deleteRuns(row)}
		}
		return reply{err: t.Table.Delete(context.Background(), row)}
	})
	return err
}

// Traits have small records in some simulations of ledgers. There is a ledger in all, and no order of a listing.
func (t *faultyTable) Traits() record.Traits {
	traits := record.Traits{Ledger: true, PeerNotices: true} // notices may be lost
	if t.keepsRuns {
		traits.MaxRecord = t.host.sim.maxRecord
	}
	return traits
}

// Liveness works in some simulations.
func (t *faultyTable) Liveness() record.LivenessChecker { return t }

// deleteRuns deletes a row of a ledger, and lets the checker see what was in it.
func (t *faultyTable) deleteRuns(row record.Row) error {
	before, err := t.Table.Load(context.Background(), row.Name)
	if err == nil {
		err = t.Table.Delete(context.Background(), row)
	}
	if before.Version == row.Version && before.Version != "" && (err == nil || errors.Is(err, errConnectionBroke)) {
		t.host.sim.runs.checkDelete(before)
	}
	return err
}

// OpenLedgerTable opens the histories of the same store.
func (t *faultyTable) OpenLedgerTable(context.Context) (record.Table, error) {
	return t.host.sim.newTable(t.host, t.host.sim.ledgerTable(), true), nil
}

// List fails as a whole, or not at all.
func (t *faultyTable) List(ctx context.Context, prefix, after string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		if _, err := t.callStore(ctx, func() reply { return reply{} }); err != nil {
			yield(record.Row{}, err)
			return
		}
		t.Table.List(ctx, prefix, after)(yield)
	}
}

// Watcher notifies in some simulations. In the others the table cannot notify.
func (t *faultyTable) Watcher() record.Watcher { return t }

// Session is for notices, and for a store that can tell that a client is dead.
func (t *faultyTable) Session() string { return t.host.name }

// Watch implements record.Watcher.
func (t *faultyTable) Watch(name string) record.Watch { return &simWatch{table: t, name: name} }

// listening is a client that listens for notices of a lock.
type listening struct{ lock, session string }

// simWatch is a record.Watch.
type simWatch struct {
	record.PlainWatch
	table *faultyTable
	name  string
	bell  chan record.Row // gets the rows of notices, or none; nil before the first wait for one
}

// Wait returns some time after the change, or never if the store notifies nobody.
func (w *simWatch) Wait(ctx context.Context, version string, place record.Place) (none record.Row, err error) {
	t, sim := w.table, w.table.host.sim
	if !sim.notifies {
		return none, driver.ErrUnsupported
	}
	if place == record.InQueue && sim.notifiesOne {
		return w.waitForNotice(ctx)
	}
	watch := t.Table.Watcher().Watch(w.name)
	defer watch.Stop()
	if _, err := watch.Wait(ctx, version, place); err != nil {
		return none, err
	}
	row, err := t.Table.Load(context.Background(), w.name)
	if err != nil || !sim.carriesRows {
		row = none
	}
	time.Sleep(sim.messageDelay()) // the row may be old then
	return row, t.host.waitUntilRunning(ctx)
}

// waitForNotice waits for the bell. When it has just begun to listen, it may have missed a notice.
func (w *simWatch) waitForNotice(ctx context.Context) (row record.Row, err error) {
	sim, who := w.table.host.sim, listening{w.name, w.table.Session()}
	if w.bell == nil {
		w.bell = make(chan record.Row, 1)
		sim.storeMu.Lock()
		defer sim.storeMu.Unlock()
		sim.bells[who] = append(sim.bells[who], w.bell)
		return row, nil
	}
	select {
	case row = <-w.bell:
		return row, nil
	case <-ctx.Done():
		return row, ctx.Err()
	}
}

func (w *simWatch) Stop() {
	sim, who := w.table.host.sim, listening{w.name, w.table.Session()}
	sim.storeMu.Lock()
	defer sim.storeMu.Unlock()
	sim.bells[who] = slices.DeleteFunc(sim.bells[who], func(b chan record.Row) bool { return b == w.bell })
}

// sendNotices notifies the clients that a swap concerns. Notices are late as messages are, come in any order, and some
// are lost. It is called with storeMu held.
func (sim *simulation) sendNotices(row record.Row, version string) {
	brought := record.Row{}
	if sim.carriesRows {
		brought = record.Row{Name: row.Name, Version: version, Data: row.Data}
	}
	for _, session := range row.Notify {
		who := listening{row.Name, session}
		if sim.faultsActive() && sim.chance(0.1) {
			continue
		}
		delay := sim.messageDelay()
		for _, bell := range sim.bells[who] {
			sim.requests.Go(func() {
				time.Sleep(delay)
				select {
				case <-bell: // a later one replaces it
				default:
				}
				select {
				case bell <- brought:
				default:
				}
			})
		}
	}
}

// LivenessFile is refused: the hosts share no files.
func (t *faultyTable) LivenessFile() (*os.File, error) { return nil, driver.ErrUnsupported }

func (t *faultyTable) IsDead(session string) bool {
	h := t.host.sim.hosts[session]
	return t.host.sim.knowsDead && h != nil && h.hasCrashed()
}
