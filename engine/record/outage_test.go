package record_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// unreachableTable is a table whose requests fail for a while.
type unreachableTable struct {
	record.Table
	reads, writes atomic.Int64 // until when they fail, in Unix nanoseconds
}

func (*unreachableTable) Watcher() record.Watcher { return nil }

var errUnreachable = errors.New("connection refused")

func (t *unreachableTable) Load(ctx context.Context, name string) (record.Row, error) {
	if time.Now().UnixNano() < t.reads.Load() {
		return record.Row{}, errUnreachable
	}
	return t.Table.Load(ctx, name)
}

func (t *unreachableTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if time.Now().UnixNano() < t.writes.Load() {
		return record.Row{}, errUnreachable
	}
	return t.Table.Swap(ctx, row)
}

// slowLoadTable is a table with room for one waiter. One load is delayed after it has read the row.
type slowLoadTable struct {
	record.Table
	next    atomic.Bool   // the next load is delayed
	release chan struct{} // closed to let it return
}

func (*slowLoadTable) Watcher() record.Watcher { return nil }

func (t *slowLoadTable) Info() driver.Info {
	info := t.Table.Info()
	info.MaxWaiters = 1
	return info
}

func (t *slowLoadTable) Load(ctx context.Context, name string) (record.Row, error) {
	row, err := t.Table.Load(ctx, name)
	if t.next.CompareAndSwap(true, false) {
		<-t.release
	}
	return row, err
}

// TestOldLoadIsNotDelivered: a claim that has joined the queue is not notified of a row that was read before it joined.
// The queue was full in that row, and the claim was not in it.
func TestOldLoadIsNotDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := &slowLoadTable{Table: distantTable{m.Table(), 0}, release: make(chan struct{})}
		other, client := m.Open(), record.New(table)
		defer other.Close()
		defer client.Close()
		claim := func(n int, wait, fair bool) driver.Claim {
			c := paceClaim(n, wait)
			c.TTL, c.Fair = time.Hour, fair
			return c
		}
		held := claim(1, false, false)
		if _, err := other.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 2)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, err := client.Acquire(ctx, claim(3, true, false)); ended <- err }() // outside the queue
		time.Sleep(time.Second)
		first := claim(2, true, true)
		waiting, giveUp := context.WithCancel(t.Context())
		go other.Acquire(waiting, first)
		synctest.Wait() // the queue is full
		table.next.Store(true)
		time.Sleep(2 * time.Second) // the client polls, and the reply is delayed
		giveUp()
		if err := other.Release(t.Context(), first, ""); err != nil {
			t.Fatal(err)
		}
		go func() { _, err := client.Acquire(ctx, claim(4, true, true)); ended <- err }() // joins the queue
		time.Sleep(5 * time.Second)
		lock, err := other.Inspect(t.Context(), held.Name)
		if err != nil || len(lock.Waiters) != 1 {
			t.Fatalf("%d waiters, %v", len(lock.Waiters), err)
		}
		close(table.release)
		time.Sleep(5 * time.Second)
		select {
		case err := <-ended:
			t.Errorf("a wait has ended: %v", err)
		default:
		}
		cancel() // both waits end
		synctest.Wait()
	})
}

// TestWaiterSurvivesShortOutage: the wait of a claim survives an outage that is shorter than its unreachable timeout.
// It ends when the store has not answered for that time since the first request that failed, or has accepted no writes.
func TestWaiterSurvivesShortOutage(t *testing.T) {
	for _, c := range []struct {
		what          string
		fair          bool
		reads, writes time.Duration // for how long each fails
		survives      bool
	}{
		{"queued, a short outage", true, 2 * time.Second, 0, true},
		{"queued, a long outage", true, 9 * time.Second, 0, true},
		{"plain, a long outage", false, 9 * time.Second, 0, true},
		{"queued, no end", true, time.Hour, time.Hour, false},
		{"plain, no end", false, time.Hour, time.Hour, false},
		{"queued, only reads are answered", true, 0, time.Hour, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := fakeMemory()
				table := &unreachableTable{Table: distantTable{m.Table(), 0}}
				holder, waiter := m.Open(), record.New(table)
				defer holder.Close()
				defer waiter.Close()
				held := paceClaim(1, false)
				held.TTL = time.Hour
				if _, err := holder.Acquire(t.Context(), held); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				returned := make(chan error, 1)
				claim := paceClaim(2, true)
				claim.Fair = c.fair
				go func() { _, err := waiter.Acquire(ctx, claim); returned <- err }()
				time.Sleep(39 * time.Second) // a queued claim renews itself at 40 s
				synctest.Wait()
				from := time.Now()
				table.reads.Store(from.Add(c.reads).UnixNano())
				table.writes.Store(from.Add(c.writes).UnixNano())
				if !c.survives {
					err := <-returned
					timeout := driver.UnreachableTimeout(claim.TTL)
					if took := time.Since(from); !errors.Is(err, errUnreachable) || took < timeout || took > 2*timeout {
						t.Errorf("the wait ended after %v: %v", took, err)
					}
					return
				}
				time.Sleep(c.reads + time.Second)
				if err := holder.Release(t.Context(), held, ""); err != nil {
					t.Fatal(err)
				}
				if err := <-returned; err != nil {
					t.Errorf("the waiting Acquire returned: %v", err)
				}
			})
		})
	}
}

// refusingTable is a table whose loads fail with a final error once it is set.
type refusingTable struct {
	record.Table
	with atomic.Pointer[error]
}

func (*refusingTable) Watcher() record.Watcher { return nil }

func (r *refusingTable) Load(ctx context.Context, name string) (record.Row, error) {
	if err := r.with.Load(); err != nil {
		return record.Row{}, *err
	}
	return r.Table.Load(ctx, name)
}

// TestOutageEndsWaits: every wait, in the queue or outside it, ends when the store has not answered for the unreachable
// timeout of its TTL, and ends at once if the store denies access or a record is corrupt. If the claim is left in the
// queue, the error says that the outcome is not known, so that the client releases the claim.
func TestOutageEndsWaits(t *testing.T) {
	for _, fault := range []error{errUnreachable, driver.ErrDenied, driver.ErrCorrupt} {
		for _, ttl := range []time.Duration{2 * time.Second, time.Minute, 24 * time.Hour} {
			for _, fair := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v, %v, fair %v", fault, ttl, fair), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						m := fakeMemory()
						table := &refusingTable{Table: distantTable{m.Table(), 0}}
						holder, waiter := m.Open(), record.New(table)
						defer holder.Close()
						defer waiter.Close()
						held := paceClaim(1, false)
						held.TTL = 24 * time.Hour
						if _, err := holder.Acquire(t.Context(), held); err != nil {
							t.Fatal(err)
						}
						returned := make(chan error, 1)
						claim := paceClaim(2, true)
						claim.Fair, claim.TTL = fair, ttl
						go func() { _, err := waiter.Acquire(t.Context(), claim); returned <- err }()
						time.Sleep(time.Second)
						from := time.Now()
						table.with.Store(&fault)
						minWait, maxWait := time.Duration(0), 2*time.Second
						if !driverutil.IsFinal(fault) {
							minWait = driver.UnreachableTimeout(ttl)
							maxWait = minWait + 4*time.Second
						}
						err := <-returned
						if !errors.Is(err, fault) || time.Since(from) < minWait || time.Since(from) > maxWait {
							t.Errorf("returned after %v: %v", time.Since(from), err)
						}
						lock, inspectErr := holder.Inspect(t.Context(), held.Name)
						if inspectErr != nil || len(lock.Waiters) > 0 && driverutil.IsFinal(fault) &&
							!errors.Is(err, driver.ErrUncertain) {
							t.Errorf("%d waiters are left, and the error is: %v; %v", len(lock.Waiters), err, inspectErr)
						}
					})
				})
			}
		}
	}
}

// TestSharedSwapDoesNotProlongOutage: a store is unreachable for a waiter since the first request that failed, also if
// the swap of another call, made later, had a part for the waiter and failed too.
func TestSharedSwapDoesNotProlongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &unreachableTable{Table: distantTable{fakeMemory().Table(), 0}}
		client := record.New(table)
		defer client.Close()
		held := paceClaim(1, false)
		held.TTL = time.Hour
		if _, err := client.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		claim := paceClaim(2, true)
		claim.Fair, claim.TTL = true, time.Hour
		returned := make(chan error, 1)
		go func() { _, err := client.Acquire(t.Context(), claim); returned <- err }()
		time.Sleep(10 * time.Second)
		from, timeout := time.Now(), driver.UnreachableTimeout(claim.TTL)
		table.reads.Store(from.Add(time.Hour).UnixNano())
		table.writes.Store(from.Add(time.Hour).UnixNano())
		time.Sleep(timeout * 8 / 10)
		go client.Release(t.Context(), held, "") // makes room for the waiter, and so grants it in the same swap
		err := <-returned
		if took := time.Since(from); !errors.Is(err, errUnreachable) || took < timeout || took > timeout*3/2 {
			t.Errorf("the wait ended after %v: %v", took, err)
		}
	})
}

// silentTable is a table that stops answering: its requests hang until their contexts end.
type silentTable struct {
	record.Table
	silent atomic.Bool
}

func (*silentTable) Watcher() record.Watcher { return nil }

func (t *silentTable) Load(ctx context.Context, name string) (record.Row, error) {
	if t.silent.Load() {
		<-ctx.Done()
		return record.Row{}, ctx.Err()
	}
	return t.Table.Load(ctx, name)
}

func (t *silentTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if t.silent.Load() {
		<-ctx.Done()
		return record.Row{}, ctx.Err()
	}
	return t.Table.Swap(ctx, row)
}

// TestDeadlineTellsSilence: the error of a wait whose context ends says since when the store has not answered, in the
// queue or outside it. While the store answers it says nothing of that, even if nothing needs to be asked.
func TestDeadlineTellsSilence(t *testing.T) {
	for _, fair := range []bool{true, false} {
		for _, falls := range []string{"never", "during the wait", "before it"} {
			t.Run(fmt.Sprintf("fair %v, silent %s", fair, falls), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := fakeMemory()
					table := &silentTable{Table: distantTable{m.Table(), 0}}
					holder, waiter := m.Open(), record.New(table)
					defer holder.Close()
					defer waiter.Close()
					held := paceClaim(1, false)
					held.TTL = 24 * time.Hour
					if _, err := holder.Acquire(t.Context(), held); err != nil {
						t.Fatal(err)
					}
					table.silent.Store(falls == "before it")
					if falls == "during the wait" {
						time.AfterFunc(10*time.Second, func() { table.silent.Store(true) })
					}
					claim := paceClaim(2, true)
					claim.Fair, claim.TTL = fair, time.Minute
					ctx, cancel := context.WithTimeout(t.Context(), 18*time.Second)
					defer cancel()
					_, err := waiter.Acquire(ctx, claim)
					var heldErr *driver.HeldError
					var silent *driver.SilentError
					isHeld := errors.As(err, &heldErr)
					isSilent := errors.As(err, &silent) && silent.For > 50*time.Millisecond // which a request takes
					if !errors.Is(err, context.DeadlineExceeded) || isHeld != (falls != "before it") || isSilent != (falls != "never") {
						t.Fatalf("%#v", err)
					}
					least, most := 18*time.Second, 18*time.Second
					if falls == "during the wait" { // the store is asked a second later at the latest
						least, most = 7*time.Second, 8*time.Second
					}
					if isSilent && (silent.For < least || silent.For > most) {
						t.Errorf("silent for %v", silent.For)
					}
				})
			})
		}
	}
}

// TestDeadlineTellsReason: the error of a call whose context ends has what the store has said last, if that refuses all
// requests, before the call waits or during its wait.
func TestDeadlineTellsReason(t *testing.T) {
	for _, fair := range []bool{true, false} {
		for _, waits := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				m := fakeMemory()
				table := &unreachableTable{Table: distantTable{m.Table(), 0}}
				holder, waiter := m.Open(), record.New(table)
				defer holder.Close()
				defer waiter.Close()
				held := paceClaim(1, false)
				held.TTL = 24 * time.Hour
				if _, err := holder.Acquire(t.Context(), held); err != nil {
					t.Fatal(err)
				}
				refuse := func() {
					until := time.Now().Add(time.Hour).UnixNano()
					table.reads.Store(until)
					table.writes.Store(until)
				}
				limit := 8 * time.Second
				if waits {
					time.AfterFunc(limit, refuse)
					limit *= 2
				} else {
					refuse()
				}
				claim := paceClaim(2, true)
				claim.Fair, claim.TTL = fair, time.Minute
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				_, err := waiter.Acquire(ctx, claim)
				silent, ok := errors.AsType[*driver.SilentError](err)
				if !errors.Is(err, context.DeadlineExceeded) || !ok || !errors.Is(silent.Reason, errUnreachable) {
					t.Errorf("fair %v, waits %v: %#v", fair, waits, err)
				}
			})
		}
	}
}
