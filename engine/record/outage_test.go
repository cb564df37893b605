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

// deaf is a table that does not answer for a while.
type deaf struct {
	record.Table
	reads, writes atomic.Int64 // until when each is not answered
}

var errDeaf = errors.New("connection refused")

func (t *deaf) Load(ctx context.Context, name string) (record.Row, error) {
	if time.Now().UnixNano() < t.reads.Load() {
		return record.Row{}, errDeaf
	}
	return t.Table.Load(ctx, name)
}

func (t *deaf) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if time.Now().UnixNano() < t.writes.Load() {
		return record.Row{}, errDeaf
	}
	return t.Table.Swap(ctx, row)
}

// heldUp is a table with room for one waiter, one load of which is held up after it has read the row.
type heldUp struct {
	record.Table
	next    atomic.Bool   // the next load is the one
	release chan struct{} // closed to let it return
}

func (t *heldUp) Info() driver.Info {
	info := t.Table.Info()
	info.MaxWaiters = 1
	return info
}

func (t *heldUp) Load(ctx context.Context, name string) (record.Row, error) {
	row, err := t.Table.Load(ctx, name)
	if t.next.CompareAndSwap(true, false) {
		<-t.release
	}
	return row, err
}

// TestOldLoadIsNotDelivered promises that a claim which has joined the queue is not woken with a row that was read before
// it joined: the queue was full then, and the claim was not in it.
func TestOldLoadIsNotDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMemory()
		table := &heldUp{Table: far{m.Table(), 0}, release: make(chan struct{})}
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
		go func() { _, err := client.Acquire(ctx, claim(3, true, false)); ended <- err }() // outside of the queue
		time.Sleep(time.Second)
		first := claim(2, true, true)
		waiting, giveUp := context.WithCancel(t.Context())
		go other.Acquire(waiting, first)
		synctest.Wait() // the queue is full
		table.next.Store(true)
		time.Sleep(2 * time.Second) // the client polls, and the answer is held up
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

// TestLateFault promises that a claim which has waited for long bears with a store that is silent for less than its
// patience, and ends when the store has not answered for that long, counted from the first request that failed, or
// takes no writes.
func TestLateFault(t *testing.T) {
	for _, c := range []struct {
		what          string
		fair          bool
		reads, writes time.Duration // for how long each fails
		borne         bool
	}{
		{"in line, a short silence", true, 2 * time.Second, 0, true},
		{"in line, a long silence", true, 9 * time.Second, 0, true},
		{"plain, a long silence", false, 9 * time.Second, 0, true},
		{"in line, no end", true, time.Hour, time.Hour, false},
		{"plain, no end", false, time.Hour, time.Hour, false},
		{"in line, only reads are answered", true, 0, time.Hour, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := fakeMemory()
				table := &deaf{Table: far{m.Table(), 0}}
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
				told := make(chan error, 1)
				claim := paceClaim(2, true)
				claim.Fair = c.fair
				go func() { _, err := waiter.Acquire(ctx, claim); told <- err }()
				time.Sleep(39 * time.Second) // a claim in line shows itself at 40 s
				synctest.Wait()
				from := time.Now()
				table.reads.Store(from.Add(c.reads).UnixNano())
				table.writes.Store(from.Add(c.writes).UnixNano())
				if !c.borne {
					err := <-told
					patience := driver.UnreachableTimeout(claim.TTL)
					if took := time.Since(from); !errors.Is(err, errDeaf) || took < patience || took > 2*patience {
						t.Errorf("the wait ended after %v: %v", took, err)
					}
					return
				}
				time.Sleep(c.reads + time.Second)
				if err := holder.Release(t.Context(), held, ""); err != nil {
					t.Fatal(err)
				}
				if err := <-told; err != nil {
					t.Errorf("the waiter is told: %v", err)
				}
			})
		})
	}
}

// refusing is a table that comes to answer every load with a final error.
type refusing struct {
	record.Table
	with atomic.Pointer[error]
}

func (r *refusing) Load(ctx context.Context, name string) (record.Row, error) {
	if err := r.with.Load(); err != nil {
		return record.Row{}, *err
	}
	return r.Table.Load(ctx, name)
}

// TestWaitersAreToldOfTheStore promises that whoever waits, in line or not, is told that the store does not answer
// when its patience is over, whatever its TTL; and at once that it denies access or cannot be read.
func TestWaitersAreToldOfTheStore(t *testing.T) {
	for _, fault := range []error{errDeaf, driver.ErrDenied, driver.ErrCorrupt} {
		for _, ttl := range []time.Duration{2 * time.Second, time.Minute, 24 * time.Hour} {
			for _, fair := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v, %v, fair %v", fault, ttl, fair), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						m := fakeMemory()
						table := &refusing{Table: far{m.Table(), 0}}
						holder, waiter := m.Open(), record.New(table)
						defer holder.Close()
						defer waiter.Close()
						held := paceClaim(1, false)
						held.TTL = 24 * time.Hour
						if _, err := holder.Acquire(t.Context(), held); err != nil {
							t.Fatal(err)
						}
						told := make(chan error, 1)
						claim := paceClaim(2, true)
						claim.Fair, claim.TTL = fair, ttl
						go func() { _, err := waiter.Acquire(t.Context(), claim); told <- err }()
						time.Sleep(time.Second)
						from := time.Now()
						table.with.Store(&fault)
						least, most := time.Duration(0), 2*time.Second
						if !driverutil.IsFinal(fault) {
							least, most = driver.UnreachableTimeout(ttl), driver.UnreachableTimeout(ttl)+4*time.Second
						}
						if err := <-told; !errors.Is(err, fault) || time.Since(from) < least ||
							time.Since(from) > most {
							t.Errorf("told after %v: %v", time.Since(from), err)
						}
					})
				})
			}
		}
	}
}
