package record_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// noticeTable is one client's table of a store that can notify one client. All locks are one.
type noticeTable struct {
	record.Table
	session string
	notices *notices
	known   *sync.Map // by version that the client has read or written: how many notices had been sent to it before
}

// notices is what the clients of a store share.
type notices struct {
	mu       sync.Mutex
	bells    map[string]chan record.Row // by session; each gets the rows of notices, or none
	rung     map[string]int             // by session: how many notices were sent
	dead     map[string]bool            // by session
	peer     bool                       // the clients send them after the swap
	rows     bool                       // they carry the rows
	lose     bool                       // nobody is notified
	onListen func()                     // called before a client listens, if it is set
	blocked  bool                       // nobody can be notified
	vain     bool                       // each client gets a notice at once
	requests atomic.Int64               // loads and swaps of all clients
	checks   atomic.Int64               // how often clients have asked whether another one is dead
	watches  atomic.Int64               // how often clients have begun to watch all changes
}

func newNotices() *notices {
	return &notices{bells: map[string]chan record.Row{}, rung: map[string]int{}, dead: map[string]bool{}}
}

// table makes the table of a client.
func (n *notices) table(m *memory.Memory, session string) noticeTable {
	return noticeTable{m.Table(), session, n, &sync.Map{}}
}

// open opens a client that has a session.
func (n *notices) open(m *memory.Memory, session string) driver.Store {
	return record.New(n.table(m, session))
}

func (n *notices) countRung(session string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rung[session]
}

func (t noticeTable) Load(ctx context.Context, name string) (record.Row, error) {
	t.notices.requests.Add(1)
	rung := t.notices.countRung(t.session)
	row, err := t.Table.Load(ctx, name)
	t.known.Store(row.Version, rung)
	return row, err
}

func (t noticeTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.notices.requests.Add(1)
	rung := t.notices.countRung(t.session)
	now, err := t.Table.Swap(ctx, row)
	t.known.Store(now.Version, rung)
	if err == nil {
		t.notices.ring(row.Notify, record.Row{Name: row.Name, Version: now.Version, Data: row.Data})
	}
	return now, err
}

func (t noticeTable) Traits() record.Traits { return record.Traits{PeerNotices: t.notices.peer} }

func (t noticeTable) Watcher() record.Watcher { return t }

func (t noticeTable) Session() string { return t.session }

func (t noticeTable) Liveness() record.LivenessChecker { return t }

func (noticeTable) LivenessFile() (*os.File, error) { return nil, driver.ErrUnsupported }

func (t noticeTable) IsDead(session string) bool {
	t.notices.checks.Add(1)
	t.notices.mu.Lock()
	defer t.notices.mu.Unlock()
	return t.notices.dead[session]
}

func (t noticeTable) Watch(name string) record.Watch { return &noticeWatch{table: t, name: name} }

// noticeWatch is a client's watch.
type noticeWatch struct {
	record.PlainWatch
	table noticeTable
	name  string
	bell  chan record.Row // nil before the first wait for a notice
}

func (w *noticeWatch) Wait(ctx context.Context, version string, place record.Place) (row record.Row, err error) {
	if place != record.InQueue {
		if ctx.Err() == nil { // else nobody waits any more
			w.table.notices.watches.Add(1)
		}
		return row, storetest.WaitForChange(ctx, w.table.Table, w.name, version)
	}
	n, isNew := w.table.notices, w.bell == nil
	if isNew {
		w.listen()
	}
	switch {
	case n.blocked:
		return row, errors.New("no notices at present")
	case n.vain:
		time.Sleep(time.Millisecond) // so that time passes even if it is called again and again
		return row, nil
	}
	rung, ok := w.table.known.Load(version)
	if n.rows && len(w.bell) > 0 {
		ok, rung = true, n.countRung(w.table.session) // the notice that came is there
	}
	if isNew && n.peer || !n.peer && (!ok || rung != n.countRung(w.table.session)) {
		return row, nil // it may have missed a notice
	}
	select {
	case row = <-w.bell:
		if n.rows {
			w.table.known.Store(row.Version, n.countRung(w.table.session))
			return row, nil
		}
		return record.Row{}, nil
	case <-ctx.Done():
		return row, ctx.Err()
	}
}

func (w *noticeWatch) listen() {
	n := w.table.notices
	if n.onListen != nil {
		n.onListen()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	w.bell = make(chan record.Row, 1)
	n.bells[w.table.session] = w.bell
}

func (w *noticeWatch) Stop() {
	n := w.table.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bells[w.table.session] == w.bell {
		delete(n.bells, w.table.session)
	}
}

// ring notifies the clients of sessions.
func (n *notices) ring(sessions []string, row record.Row) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, session := range sessions {
		if n.lose {
			continue
		}
		n.rung[session]++
		select {
		case <-n.bells[session]: // a later one replaces it
		default:
		}
		select {
		case n.bells[session] <- row:
		default:
		}
	}
}

// fairWaiters opens clients that wait in the queue of a lock, one behind the other, and sends each grant's time. Those
// that are granted the lock release it after 5 ms.
func fairWaiters(t *testing.T, m *memory.Memory, n *notices, clients int) (granted chan time.Time) {
	granted = make(chan time.Time, clients)
	for i := range clients {
		s := n.open(m, string(rune('a'+i)))
		t.Cleanup(func() { s.Close() })
		go func() {
			c := paceClaim(i+1, true)
			c.Fair = true
			if _, err := s.Acquire(t.Context(), c); err != nil {
				if t.Context().Err() == nil {
					t.Error(err)
				}
				return
			}
			now := time.Now()
			time.Sleep(5 * time.Millisecond)
			storetest.Release(t, s, c)
			granted <- now
		}()
		synctest.Wait()
	}
	return granted
}

// TestNoticesToHead: the head of the queue waits for notices as well. Nobody watches the lock, a hand-over costs a few
// requests, and no client asks at each step whether the others are alive.
func TestNoticesToHead(t *testing.T) {
	t.Run("one machine", func(t *testing.T) { testNoticesToHead(t, true, 24) })
	t.Run("with the swap", func(t *testing.T) { testNoticesToHead(t, false, 12) })
}

func testNoticesToHead(t *testing.T, peer bool, limit float64) {
	synctest.Test(t, func(t *testing.T) {
		const clients, turns = 8, 20
		m, n := fakeMemory(), newNotices()
		n.peer = peer
		var crowd sync.WaitGroup
		from := time.Now()
		for i := range clients {
			s := n.open(m, string(rune('a'+i)))
			defer s.Close()
			crowd.Go(func() {
				for turn := range turns {
					c := paceClaim(1+i*turns+turn, true)
					c.Fair = true
					if _, err := s.Acquire(t.Context(), c); err != nil {
						t.Error(err)
					}
					time.Sleep(5 * time.Millisecond)
					storetest.Release(t, s, c)
				}
			})
		}
		crowd.Wait()
		perTurn := float64(n.requests.Load()) / clients / turns
		t.Logf("%.1f requests per turn, %d watches, %v", perTurn, n.watches.Load(), time.Since(from))
		if perTurn > limit {
			t.Errorf("%.1f requests per turn", perTurn)
		}
		if n.watches.Load() > 0 {
			t.Errorf("clients have watched the lock %d times", n.watches.Load())
		}
		// Each may ask for each other one every 20 ms.
		if most := clients * clients * (time.Since(from).Milliseconds()/20 + 1); n.checks.Load() > most {
			t.Errorf("clients have asked %d times whether others are dead, at most %d are needed", n.checks.Load(), most)
		}
		if took := time.Since(from); took > clients*turns*6*time.Millisecond+turnsTake {
			t.Errorf("%d turns took %v", clients*turns, took)
		}
	})
}

// TestStoppedBeforeNotice: if the client that has released the lock is stopped before it sends the notice, the next one
// finds out within a second.
func TestStoppedBeforeNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, n := fakeMemory(), newNotices()
		n.peer, n.lose = true, true
		open := func(session string) driver.Store {
			s := n.open(m, session)
			t.Cleanup(func() { s.Close() })
			return s
		}
		holder, waiter := open("a"), open("b")
		for range 20 {
			held := storetest.Acquire(t, holder, paceClaim(0, false))
			fair := paceClaim(1, true)
			fair.Fair = true
			granted := acquireLater(t, waiter, fair)
			time.Sleep(time.Minute / 7)
			from := time.Now()
			storetest.Release(t, holder, held.Claim)
			if took := (<-granted).Sub(from); took > time.Second+50*time.Millisecond {
				t.Errorf("granted %v after the release", took)
			}
			storetest.Release(t, waiter, fair)
		}
	})
}

// TestNotices: a hand-over costs the same number of requests, however many claims are in the queue. If the notices
// are sent with the swap, it costs four: two writes of the claim that gets the lock, and a read of it and of the next
// one. If they bring the row, it costs no reads.
func TestNotices(t *testing.T) {
	t.Run("after the swap", func(t *testing.T) { testNotices(t, true, false, 9) })
	t.Run("with the swap", func(t *testing.T) { testNotices(t, false, false, 4.5) })
	t.Run("with the row", func(t *testing.T) { testNotices(t, false, true, 2.5) })
}

func testNotices(t *testing.T, peer, rows bool, most float64) {
	perTurn := map[int]float64{}
	for _, clients := range []int{6, 36} {
		synctest.Test(t, func(t *testing.T) {
			m, n := fakeMemory(), newNotices()
			n.peer, n.rows = peer, rows
			holder := n.open(m, "holder")
			defer holder.Close()
			held := storetest.Acquire(t, holder, paceClaim(0, false))
			granted := fairWaiters(t, m, n, clients)
			time.Sleep(5 * time.Second)
			n.requests.Store(0)
			time.Sleep(5 * time.Second)
			// In that time each polls a few times.
			if polls := int(n.requests.Load()); polls > 5*clients {
				t.Errorf("%d clients wait with %d requests", clients, polls)
			}
			n.requests.Store(0)
			from := time.Now()
			storetest.Release(t, holder, held.Claim)
			for range clients {
				<-granted
			}
			if took := time.Since(from); took > time.Duration(clients)*20*time.Millisecond {
				t.Errorf("they took %v", took)
			}
			perTurn[clients] = float64(n.requests.Load()) / float64(clients)
		})
	}
	t.Logf("requests per turn, by the number of clients: %v", perTurn)
	if perTurn[36] > perTurn[6]+2 || perTurn[36] > most {
		t.Errorf("the requests per turn are too many: %v", perTurn)
	}
}

// TestLateNotice: a notice is late, and brings a row that is old. Nobody is refused on account of it: the lock was a
// semaphore then.
func TestLateNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		holder := m.Open()
		defer holder.Close()
		semaphore := driver.Claim{
			Name: "m", ID: "semaphore", Kind: driver.KindSemaphore, Limit: 2, Weight: 1, TTL: time.Minute,
		}
		storetest.Acquire(t, holder, semaphore)
		old, err := m.Table().Load(t.Context(), "m")
		if err != nil {
			t.Fatal(err)
		}
		storetest.Release(t, holder, semaphore)
		held := storetest.Acquire(t, holder, paceClaim(0, false))
		late := lateTable{m.Table(), old}
		waiter := record.New(late)
		defer waiter.Close()
		granted := acquireLater(t, waiter, paceClaim(1, true))
		time.Sleep(10 * time.Second)
		storetest.Release(t, holder, held.Claim)
		<-granted
	})
}

// lateTable is a table with a notice of an old row in each second.
type lateTable struct {
	record.Table
	old record.Row
}

func (t lateTable) Watcher() record.Watcher { return t }

func (t lateTable) Session() string { return "" }

func (t lateTable) Watch(string) record.Watch { return lateWatch{row: t.old} }

type lateWatch struct {
	record.PlainWatch
	row record.Row
}

func (w lateWatch) Wait(ctx context.Context, _ string, _ record.Place) (record.Row, error) {
	select {
	case <-time.After(time.Second):
		return w.row, nil
	case <-ctx.Done():
		return record.Row{}, ctx.Err()
	}
}

// TestNoticeOfReplacedRow: a notice brings a row that this client has replaced since, and the table does not know that.
// The hub reads, and goes on to wait for notices.
func TestNoticeOfReplacedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		holder := m.Open()
		defer holder.Close()
		held := storetest.Acquire(t, holder, paceClaim(0, false))
		late := &replacedTable{Table: m.Table(), bell: make(chan struct{}, 1)}
		waiter := record.New(late)
		defer waiter.Close()
		first, second := paceClaim(1, true), paceClaim(2, true)
		first.Fair, second.Fair = true, true
		granted := acquireLater(t, waiter, first)
		synctest.Wait()
		replaced, err := m.Table().Load(t.Context(), "m")
		if err != nil {
			t.Fatal(err)
		}
		last := acquireLater(t, waiter, second)
		time.Sleep(100 * time.Millisecond)
		late.notify(replaced)
		time.Sleep(100 * time.Millisecond)
		if n := late.brought.Load(); n != 1 {
			t.Errorf("the row was brought %d times", n)
		}
		from := time.Now()
		storetest.Release(t, holder, held.Claim)
		late.notify(record.Row{})
		if took := (<-granted).Sub(from); took > turnsTake {
			t.Errorf("granted %v after the release", took)
		}
		storetest.Release(t, waiter, first)
		<-last
	})
}

// replacedTable is a table that learns what its client has written by reads alone.
type replacedTable struct {
	record.Table
	bell    chan struct{}
	mu      sync.Mutex
	row     record.Row // of the last notice; none since the last read
	brought atomic.Int64
}

func (t *replacedTable) notify(row record.Row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.row = row
	t.bell <- struct{}{}
}

func (t *replacedTable) Load(ctx context.Context, name string) (record.Row, error) {
	t.mu.Lock()
	t.row = record.Row{}
	t.mu.Unlock()
	return t.Table.Load(ctx, name)
}

func (t *replacedTable) Watcher() record.Watcher { return t }

func (t *replacedTable) Session() string { return "waiter" }

func (t *replacedTable) Watch(string) record.Watch { return replacedWatch{table: t} }

type replacedWatch struct {
	record.PlainWatch
	table *replacedTable
}

func (w replacedWatch) Wait(ctx context.Context, version string, _ record.Place) (record.Row, error) {
	t := w.table
	for rung := false; ; rung = true {
		t.mu.Lock()
		row := t.row
		t.mu.Unlock()
		switch {
		case row.Version != "" && row.Version != version:
			t.brought.Add(1)
			return row, nil
		case rung:
			return record.Row{}, nil
		}
		select {
		case <-t.bell:
		case <-ctx.Done():
			return record.Row{}, ctx.Err()
		}
	}
}

// TestBreakFarWaiter: a claim that is far from the head of the queue is broken, and learns of it at once.
func TestBreakFarWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, n := fakeMemory(), newNotices()
		holder := m.Open()
		defer holder.Close()
		held := storetest.Acquire(t, holder, paceClaim(0, false))
		granted := fairWaiters(t, m, n, 5)
		far := n.open(m, "far")
		defer far.Close()
		c := paceClaim(6, true)
		c.Fair = true
		ended := make(chan error, 1)
		go func() {
			_, err := far.Acquire(t.Context(), c)
			ended <- err
		}()
		synctest.Wait()
		operator := n.open(m, "operator")
		defer operator.Close()
		if err := operator.Break(t.Context(), c.Name, c.ID, driver.Break{Mode: driver.BreakForce}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := <-ended; storetest.LossOf(err) != driver.LossBroken || time.Since(began) > 100*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		storetest.Release(t, holder, held.Claim)
		for range 5 {
			<-granted
		}
	})
}

// TestLostNotices: if no notice ever comes, each waiter still learns of its turn in time to confirm it.
func TestLostNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, n := fakeMemory(), newNotices()
		n.peer, n.lose = true, true
		holder := m.Open()
		defer holder.Close()
		held := storetest.Acquire(t, holder, paceClaim(0, false))
		granted := fairWaiters(t, m, n, 10)
		time.Sleep(20 * time.Second)
		from := time.Now()
		storetest.Release(t, holder, held.Claim)
		for range 10 {
			<-granted
		}
		if took := time.Since(from); took > 30*time.Second {
			t.Errorf("ten turns took %v", took)
		}
	})
}

// TestNoNotices: while no client can be notified, or each gets a notice at once that brings no change, waiters poll
// as they do in a store that does not notify.
func TestNoNotices(t *testing.T) {
	for _, what := range []string{"blocked", "vain"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, n := fakeMemory(), newNotices()
				n.blocked, n.vain = what == "blocked", what == "vain"
				holder := m.Open()
				defer holder.Close()
				held := storetest.Acquire(t, holder, paceClaim(0, false))
				const clients = 10
				granted := fairWaiters(t, m, n, clients)
				time.Sleep(5 * time.Second)
				n.requests.Store(0)
				time.Sleep(14 * time.Second) // no claim is renewed yet
				if polls := n.requests.Load(); polls > 14*clients*2 {
					t.Errorf("%d clients wait for 14 s with %d requests", clients, polls)
				}
				from := time.Now()
				storetest.Release(t, holder, held.Claim)
				for range clients {
					<-granted
				}
				if took := time.Since(from); took > clients*time.Second {
					t.Errorf("%d turns took %v", clients, took)
				}
			})
		})
	}
}

// TestNoticeDuringListen: a claim that is promoted just before its client listens for notices is granted at once.
func TestNoticeDuringListen(t *testing.T) {
	t.Run("after the swap", func(t *testing.T) { testNoticeDuringListen(t, true) })
	t.Run("with the swap", func(t *testing.T) { testNoticeDuringListen(t, false) })
}

func testNoticeDuringListen(t *testing.T, peer bool) {
	synctest.Test(t, func(t *testing.T) {
		m, n := fakeMemory(), newNotices()
		n.peer = peer
		holder, ahead := n.open(m, "holder"), m.Open()
		defer holder.Close()
		defer ahead.Close()
		held := storetest.Acquire(t, holder, paceClaim(0, false))
		wait, end := context.WithCancel(t.Context())
		first, ended := paceClaim(1, true), make(chan struct{})
		first.Fair = true
		go func() {
			defer close(ended)
			_, _ = ahead.Acquire(wait, first)
		}()
		synctest.Wait()
		var from time.Time
		n.onListen = sync.OnceFunc(func() {
			end()
			<-ended
			storetest.Release(t, ahead, first)
			storetest.Release(t, holder, held.Claim)
			from = time.Now()
		})
		s := n.open(m, "late")
		defer s.Close()
		c := paceClaim(2, true)
		c.Fair = true
		granted := acquireLater(t, s, c)
		if took := (<-granted).Sub(from); took > turnsTake {
			t.Errorf("granted %v after its promotion", took)
		}
	})
}

// TestDetachIsNoticed: the head of the queue, which listens for notices, is granted the lock as soon as the time has
// passed for which the holder has left it.
func TestDetachIsNoticed(t *testing.T) {
	const keep = 300 * time.Millisecond
	for _, peer := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m, n := fakeMemory(), newNotices()
			n.peer = peer
			holder, waiter := n.open(m, "holder"), n.open(m, "waiter")
			defer holder.Close()
			defer waiter.Close()
			held := paceClaim(0, false)
			held.TTL = time.Hour
			g := storetest.Acquire(t, holder, held)
			c := paceClaim(1, true)
			c.Fair = true
			granted := acquireLater(t, waiter, c)
			time.Sleep(30 * time.Second)
			from := time.Now()
			if err := holder.Detach(t.Context(), g, keep); err != nil {
				t.Fatal(err)
			}
			if late := (<-granted).Sub(from) - keep; late > 200*time.Millisecond {
				t.Errorf("notices of clients %v: granted %v late", peer, late)
			}
		})
	}
}

// lostReplyTable is a noticeTable that loses the reply of its next swap once lose is set.
type lostReplyTable struct {
	noticeTable
	lose *atomic.Bool
}

func (t lostReplyTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	now, err := t.noticeTable.Swap(ctx, row)
	if err == nil && t.lose.CompareAndSwap(true, false) {
		return record.Row{}, errUnreachable
	}
	return now, err
}

// TestReleaseWithoutReply: a client is notified of no writes of its own. Yet if the reply to its release is lost, its
// own waiter, which is the next in the queue, is granted the lock at once: it has a part in that swap.
func TestReleaseWithoutReply(t *testing.T) {
	for range 3 { // a waiter that is not told looks at a random time
		synctest.Test(t, testReleaseWithoutReply)
	}
}

func testReleaseWithoutReply(t *testing.T) {
	m, n, lose := fakeMemory(), newNotices(), &atomic.Bool{}
	own, other := record.New(lostReplyTable{n.table(m, "own"), lose}), n.open(m, "other")
	defer own.Close()
	defer other.Close()
	held := storetest.Acquire(t, own, paceClaim(0, false))
	next, last := paceClaim(1, true), paceClaim(2, true)
	next.Fair, last.Fair = true, true
	granted := acquireLater(t, own, next)
	synctest.Wait()
	grantedLast := acquireLater(t, other, last)
	time.Sleep(10 * time.Second)
	lose.Store(true)
	from := time.Now()
	storetest.Release(t, own, held.Claim)
	select {
	case at := <-granted:
		if took := at.Sub(from); took > 100*time.Millisecond {
			t.Errorf("granted %v after the release", took)
		}
		storetest.Release(t, own, next)
		<-grantedLast
	case <-grantedLast:
		t.Error("the claim behind it was granted before")
	}
}

// TestDeadAheadInQueue: when the holder and the claims at the head of the queue die together, the first living claim
// behind them is granted at once.
func TestDeadAheadInQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, n := fakeMemory(), newNotices()
		holder := n.open(m, "holder")
		defer holder.Close()
		storetest.Acquire(t, holder, paceClaim(0, false))
		const dying = 50
		var wait context.Context
		wait, end := context.WithCancel(t.Context())
		for i := range dying {
			s := n.open(m, string(rune('a'+i)))
			defer s.Close()
			go func() {
				c := paceClaim(i+1, true)
				c.Fair = true
				_, _ = s.Acquire(wait, c)
			}()
			synctest.Wait()
		}
		living := n.open(m, "living")
		defer living.Close()
		c := paceClaim(dying+1, true)
		c.Fair = true
		granted := acquireLater(t, living, c)
		time.Sleep(time.Minute / 7)
		n.mu.Lock()
		for i := range dying {
			n.dead[string(rune('a'+i))] = true
		}
		n.dead["holder"] = true
		n.mu.Unlock()
		from := time.Now()
		end() // they leave their claims behind
		if took := (<-granted).Sub(from); took > 500*time.Millisecond {
			t.Errorf("granted %v after the others died", took)
		}
	})
}

// TestDeadAmongHolders: the head of the queue, which listens for notices, notices the death of one of many holders as
// soon as that of a single one.
func TestDeadAmongHolders(t *testing.T) {
	const holders, rounds = 16, 10
	shared := func(id int) driver.Claim {
		c := paceClaim(id, true)
		c.Kind, c.Limit = driver.KindSemaphore, holders
		return c
	}
	for round := range rounds { // it dies at another time each time
		synctest.Test(t, func(t *testing.T) {
			m, n := fakeMemory(), newNotices()
			n.peer = true
			open := func(session string) driver.Store {
				s := n.open(m, session)
				t.Cleanup(func() { s.Close() })
				return s
			}
			dead, others := open("dead"), open("others")
			storetest.Acquire(t, dead, shared(0))
			for i := range holders - 1 {
				storetest.Acquire(t, others, shared(1+i))
			}
			granted := acquireLater(t, open("waiter"), shared(holders))
			time.Sleep(time.Minute/7 + time.Duration(round)*time.Second/rounds)
			n.mu.Lock()
			n.dead["dead"] = true
			n.mu.Unlock()
			from := time.Now()
			if took := (<-granted).Sub(from); took > 200*time.Millisecond {
				t.Errorf("granted %v after the death of a holder", took)
			}
		})
	}
}

// countedTable is a noticeTable that counts the requests of its client.
type countedTable struct {
	noticeTable
	loads, swaps *atomic.Int64
}

func (t countedTable) Load(ctx context.Context, name string) (record.Row, error) {
	t.loads.Add(1)
	return t.noticeTable.Load(ctx, name)
}

func (t countedTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.swaps.Add(1)
	return t.noticeTable.Swap(ctx, row)
}

// TestPromotedBehindWriter: a writer removes a claim that did not confirm, so all waiters are asked to confirm, and
// goes on waiting itself. The client of a reader behind it answers at once, and not when it polls: by then it may be
// too late.
func TestPromotedBehindWriter(t *testing.T) { synctest.Test(t, testPromotedBehindWriter) }

func testPromotedBehindWriter(t *testing.T) {
	m, n := fakeMemory(), newNotices()
	claim := func(id int, weight int64) driver.Claim {
		c := paceClaim(id, true)
		c.Kind, c.Limit, c.Weight, c.TTL = driver.KindRW, driver.RWLimit, weight, time.Hour // it renews no place
		return c
	}
	join := func(s driver.Store, c driver.Claim) <-chan time.Time {
		t.Cleanup(func() { s.Close() })
		granted := acquireLater(t, s, c)
		synctest.Wait()
		return granted
	}
	var loads, swaps atomic.Int64
	first, ahead, dead, writer := n.open(m, "first"), n.open(m, "ahead"), n.open(m, "dead"), n.open(m, "writer")
	behind := record.New(countedTable{n.table(m, "behind"), &loads, &swaps})
	<-join(first, claim(0, driver.RWLimit))
	aheadGranted := join(ahead, claim(1, 1))
	go func() { _, _ = dead.Acquire(t.Context(), claim(2, 1)) }()
	synctest.Wait()
	writerGranted := join(writer, claim(3, driver.RWLimit))
	behindGranted := join(behind, claim(4, 1))
	_ = dead.Close()             // which leaves its claim in the queue, as if it had been killed
	time.Sleep(30 * time.Second) // by now each waits for 2.5 to 5 s between two loads
	for before := loads.Load(); loads.Load() == before; {
		time.Sleep(time.Millisecond)
	}
	written := swaps.Load()
	storetest.Release(t, first, claim(0, driver.RWLimit))
	<-aheadGranted
	time.Sleep(2400 * time.Millisecond) // the dead one has had 2 s and ten round trips
	if swaps.Load() == written {
		t.Error("the reader behind the writer has not answered: its client was not notified")
	}
	storetest.Release(t, ahead, claim(1, 1))
	<-writerGranted
	storetest.Release(t, writer, claim(3, driver.RWLimit))
	from := time.Now()
	if took := (<-behindGranted).Sub(from); took > turnsTake {
		t.Errorf("the reader was granted the lock %v after the writer had released it", took)
	}
}
