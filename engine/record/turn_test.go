package record_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// turnTable is one client's table of a store with turns. The turns are those of one lock.
type turnTable struct {
	record.Table
	turns    chan struct{} // has one element while nobody has the turn
	err      error         // there are no turns
	requests *atomic.Int64 // loads and swaps of all clients
}

func (t turnTable) Load(ctx context.Context, name string) (record.Row, error) {
	t.requests.Add(1)
	return t.Table.Load(ctx, name)
}

func (t turnTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	t.requests.Add(1)
	return t.Table.Swap(ctx, row)
}

func (turnTable) Traits() record.Traits { return record.Traits{PeerNotices: true} }

func (t turnTable) Watcher() record.Watcher { return t }

func (turnTable) Session() string { return "" }

func (t turnTable) Watch(name string) record.Watch {
	return record.WithTurns(t.Table.Watcher().Watch(name), t.takeTurn)
}

func (t turnTable) takeTurn(ctx context.Context) (pass func(), err error) {
	if t.err != nil {
		return nil, t.err
	}
	select {
	case <-t.turns:
		return func() { t.turns <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func newTurnTable(m *memory.Memory) turnTable {
	t := turnTable{Table: m.Table(), turns: make(chan struct{}, 1), requests: &atomic.Int64{}}
	t.turns <- struct{}{}
	return t
}

// acquireLater acquires a lock in the background, and sends the time at which it was granted.
func acquireLater(t *testing.T, s driver.Store, c driver.Claim) <-chan time.Time {
	granted := make(chan time.Time, 1)
	go func() {
		if _, err := s.Acquire(t.Context(), c); err != nil {
			t.Error(err)
		}
		granted <- time.Now()
	}()
	return granted
}

// TestTurns: among many clients that wait for one lock, a hand-over costs a few requests, and nobody polls.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 40
		m := fakeMemory()
		table := newTurnTable(m)
		holder := m.Open()
		defer holder.Close()
		held := storetest.Acquire(t, holder, paceClaim(0, false))
		done := make(chan error, clients)
		for i := range clients {
			waiter := record.New(turnTable{m.Table(), table.turns, nil, table.requests})
			defer waiter.Close()
			go func() {
				c := paceClaim(i+1, true)
				_, err := waiter.Acquire(t.Context(), c)
				if err == nil {
					time.Sleep(5 * time.Millisecond) // the others see that it has the lock
					err = waiter.Release(t.Context(), c, "")
				}
				done <- err
			}()
		}
		synctest.Wait()
		table.requests.Store(0)
		from := time.Now()
		storetest.Release(t, holder, held.Claim)
		for range clients {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := table.requests.Load(); n > 16*clients {
			t.Errorf("%d clients took the lock with %d requests", clients, n)
		}
		if took := time.Since(from); took > turnsTake {
			t.Errorf("they took %v", took)
		}
	})
}

// turnsTake is less than the time after which a client without a turn polls.
const turnsTake = 400 * time.Millisecond

// TestStoppedClientHasTurn: if the client that has the turn has been stopped, the others find out within a second that
// the lock is free.
func TestStoppedClientHasTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := newTurnTable(m)
		<-table.turns
		holder, waiter := m.Open(), record.New(table)
		defer holder.Close()
		defer waiter.Close()
		for range 10 { // it looks at random times
			held := storetest.Acquire(t, holder, paceClaim(0, false))
			granted := acquireLater(t, waiter, paceClaim(1, true))
			time.Sleep(time.Minute / 7)
			from := time.Now()
			storetest.Release(t, holder, held.Claim)
			if took := (<-granted).Sub(from); took > time.Second+50*time.Millisecond {
				t.Errorf("granted %v after the release", took)
			}
			storetest.Release(t, waiter, paceClaim(1, true))
		}
	})
}

// TestNoTurns: where turns cannot be taken at present, a waiter is notified as if there were none.
func TestNoTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := newTurnTable(m)
		table.err = errors.New("no room for the turn")
		holder, waiter := m.Open(), record.New(table)
		defer holder.Close()
		defer waiter.Close()
		held := storetest.Acquire(t, holder, paceClaim(0, false))
		granted := acquireLater(t, waiter, paceClaim(1, true))
		time.Sleep(time.Minute / 7)
		from := time.Now()
		storetest.Release(t, holder, held.Claim)
		if took := (<-granted).Sub(from); took > turnsTake {
			t.Errorf("granted %v after the release", took)
		}
	})
}

// TestQueuedClaimNeedsNoTurn: a claim in the queue is granted at once, although another claim of its client has been
// waiting for its turn.
func TestQueuedClaimNeedsNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := newTurnTable(m)
		<-table.turns
		holder, waiter := m.Open(), record.New(table)
		defer holder.Close()
		defer waiter.Close()
		held := storetest.Acquire(t, holder, paceClaim(0, false))
		plain := acquireLater(t, waiter, paceClaim(1, true))
		time.Sleep(10 * time.Second)
		fair := paceClaim(2, true)
		fair.Fair = true
		granted := acquireLater(t, waiter, fair)
		time.Sleep(10 * time.Second)
		from := time.Now()
		storetest.Release(t, holder, held.Claim)
		if took := (<-granted).Sub(from); took > turnsTake {
			t.Errorf("granted %v after the release", took)
		}
		storetest.Release(t, waiter, fair)
		<-plain
	})
}

// TestTurnIsPassed: a client with many claims that wait does not keep the turn from others.
func TestTurnIsPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const turns = 20
		m := fakeMemory()
		table := newTurnTable(m)
		busy, other := record.New(table), record.New(turnTable{m.Table(), table.turns, nil, table.requests})
		defer busy.Close()
		defer other.Close()
		ctx, cancel := context.WithCancel(t.Context())
		first := storetest.Acquire(t, busy, paceClaim(0, false))
		ended := make(chan struct{})
		for i := range 8 {
			go func() {
				defer func() { ended <- struct{}{} }()
				for ctx.Err() == nil {
					if _, err := busy.Acquire(ctx, paceClaim(i+1, true)); err == nil {
						time.Sleep(10 * time.Millisecond)
						storetest.Release(t, busy, paceClaim(i+1, true))
						time.Sleep(time.Millisecond) // a claim that waits has its chance
					}
				}
			}()
		}
		synctest.Wait()
		storetest.Release(t, busy, first.Claim)
		var waited time.Duration
		for range turns {
			time.Sleep(5 * time.Millisecond) // one of the busy client's claims has the lock
			from := time.Now()
			waited += (<-acquireLater(t, other, paceClaim(9, true))).Sub(from)
			storetest.Release(t, other, paceClaim(9, true))
		}
		if waited > turns*100*time.Millisecond {
			t.Errorf("the other client waited %v for %d turns", waited, turns)
		}
		cancel()
		for range 8 {
			<-ended
		}
	})
}

// knownTurnTable is a table with turns that tells clients apart.
type knownTurnTable struct {
	turnTable
	session string
}

func (t knownTurnTable) Session() string { return t.session }

func (t knownTurnTable) Liveness() record.LivenessChecker { return t }

func (knownTurnTable) LivenessFile() (*os.File, error) { return nil, driver.ErrUnsupported }

func (knownTurnTable) IsDead(string) bool { return false }

// TestPlainClaimJoinsWithTurns: where clients take turns at looking, a plain claim joins the queue soon after it has
// seen that a client which had the lock has it again. While each client comes once, it does not.
func TestPlainClaimJoinsWithTurns(t *testing.T) {
	for _, test := range []struct {
		name    string
		clients int // that have the lock in turn
		joins   bool
	}{
		{"each client once", 30, false},
		{"two clients", 2, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := fakeMemory()
				table := newTurnTable(m)
				open := func(session string) driver.Store {
					s := record.New(knownTurnTable{turnTable{m.Table(), table.turns, nil, table.requests}, session})
					t.Cleanup(func() { s.Close() })
					return s
				}
				clients := make([]driver.Store, test.clients)
				for i := range clients {
					clients[i] = open(fmt.Sprint("client", i))
				}
				plain := paceClaim(1000, true)
				plain.Owner = "plain"
				joined := func() bool {
					l, err := clients[0].Inspect(t.Context(), "m")
					if err != nil {
						t.Fatal(err)
					}
					return slices.ContainsFunc(l.Waiters, func(c driver.ClaimInfo) bool { return c.Owner == "plain" })
				}
				holder, held := clients[0], paceClaim(0, false)
				storetest.Acquire(t, holder, held)
				took := acquireLater(t, open("plain"), plain)
				synctest.Wait()
				for i := 1; i < 30 && !joined(); i++ { // the lock is never free, so nobody takes it on the way
					client, next := clients[i%test.clients], paceClaim(i, true)
					next.Fair = true
					granted := acquireLater(t, client, next)
					synctest.Wait()
					storetest.Release(t, holder, held)
					<-granted
					holder, held = client, next
					time.Sleep(20 * time.Millisecond)
				}
				if joined() != test.joins {
					t.Errorf("the claim has joined the queue: %v, want %v", joined(), test.joins)
				}
				storetest.Release(t, holder, held)
				<-took
			})
		})
	}
}
