package record_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/memory"
)

// clockedTable is a table whose server sends its time with each reply.
type clockedTable struct {
	record.Table
	clock  record.ServerClock
	offset *atomic.Int64 // by how much the server's clock was set forward
}

func (*clockedTable) Watcher() record.Watcher { return nil }

func (s *clockedTable) TokenFloor() int64   { return s.clock.TokenFloor() }
func (s *clockedTable) Clock() record.Clock { return &s.clock }

func (s *clockedTable) addReply(from driver.Instant) {
	now := s.Table.TokenFloor()
	s.clock.AddReply(now+time.Duration(s.offset.Load()).Microseconds(), from, s.clock.Clock.Now())
}

func (s *clockedTable) Load(ctx context.Context, name string) (record.Row, error) {
	defer s.addReply(s.clock.Clock.Now())
	return s.Table.Load(ctx, name)
}

func (s *clockedTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	defer s.addReply(s.clock.Clock.Now())
	return s.Table.Swap(ctx, row)
}

// steppedServer is a server whose clock can be set, with its clients.
type steppedServer struct {
	t           *testing.T
	m           *memory.Memory
	clockOffset atomic.Int64
}

// openClient opens a client that has had one reply from the server.
func (s *steppedServer) openClient() driver.Store {
	table := s.m.Table()
	client := &clockedTable{Table: table, clock: record.ServerClock{Clock: table.Info().Clock}, offset: &s.clockOffset}
	if _, err := client.Load(s.t.Context(), "clock"); err != nil {
		s.t.Fatal(err)
	}
	return record.New(client)
}

func (s *steppedServer) mustAcquire(by driver.Store, c driver.Claim) driver.Grant {
	s.t.Helper()
	g, err := by.Acquire(s.t.Context(), c)
	if err != nil {
		s.t.Fatal(err)
	}
	return g
}

// TestServerSetForward: when a server's clock is set forward, or another server takes over whose clock is ahead, no
// client that had a reply before expires the claim of a holder that renews. A dead holder is replaced nevertheless,
// also by a client that came later.
func TestServerSetForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &steppedServer{t: t, m: fakeMemory()}
		holder, other := s.openClient(), s.openClient()
		defer holder.Close()
		defer other.Close()
		g := s.mustAcquire(holder, paceClaim(1, false))
		s.clockOffset.Store(int64(time.Hour))
		refused := func(by driver.Store, n int) {
			t.Helper()
			if _, err := by.Acquire(t.Context(), paceClaim(n, false)); !errors.Is(err, driver.ErrHeld) {
				t.Fatalf("next to a holder that renews: %v", err)
			}
		}
		for n := range 40 {
			refused(other, 2+n)
			time.Sleep(5 * time.Second)
			if n%4 == 3 {
				holder.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
					if r.Err != nil {
						t.Fatal(r.Err)
					}
				})
			}
		}
		newcomer := s.openClient()
		defer newcomer.Close()
		refused(newcomer, 100)
		for n, by := range []driver.Store{other, newcomer} {
			from := time.Now()
			next := s.mustAcquire(by, paceClaim(200+n, true))
			if took := time.Since(from); next.Token <= g.Token || took > g.GrantedTTL+2*driver.Margin(g.GrantedTTL) {
				t.Errorf("%d: granted %v after the last renewal, with token %d after %d", n, took, next.Token,
					g.Token)
			}
			g = next
		}
	})
}

// toldTable is a clockedTable with notices that bring rows.
type toldTable struct {
	*clockedTable
	notices chan record.Row
}

func (t toldTable) Watcher() record.Watcher { return t }

func (t toldTable) Session() string { return "" }

func (t toldTable) Watch(string) record.Watch { return toldWatch{notices: t.notices} }

type toldWatch struct {
	record.PlainWatch
	notices chan record.Row
}

func (w toldWatch) Wait(ctx context.Context, _ string, _ record.Place) (record.Row, error) {
	select {
	case row := <-w.notices:
		return row, nil
	case <-ctx.Done():
		return record.Row{}, ctx.Err()
	}
}

// TestServerSetBackBeforeNotice: a server's clock is set back, and a newcomer takes the lock, with an end by that clock.
// A waiter that has had no reply since then gets the record by a notice, and does not take the holder for expired.
func TestServerSetBackBeforeNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &steppedServer{t: t, m: fakeMemory()}
		first := s.openClient()
		defer first.Close()
		g := s.mustAcquire(first, paceClaim(1, false))
		table := s.m.Table()
		told := toldTable{&clockedTable{Table: table, clock: record.ServerClock{Clock: table.Info().Clock},
			offset: &s.clockOffset}, make(chan record.Row)}
		waiter := record.New(told)
		defer waiter.Close()
		granted := acquireLater(t, waiter, paceClaim(2, true))
		synctest.Wait()
		s.clockOffset.Store(-int64(time.Hour))
		newcomer := s.openClient()
		defer newcomer.Close()
		if err := first.Release(t.Context(), g.Claim, ""); err != nil {
			t.Fatal(err)
		}
		held := s.mustAcquire(newcomer, paceClaim(3, false))
		row, err := table.Load(t.Context(), held.Claim.Name)
		if err != nil {
			t.Fatal(err)
		}
		row.Name = held.Claim.Name
		told.notices <- row
		synctest.Wait()
		newcomer.Renew(t.Context(), []driver.Grant{held}, func(_ int, r driver.Renewal) {
			if r.Err != nil {
				t.Errorf("the holder renews: %v", r.Err)
			}
		})
		if err := newcomer.Release(t.Context(), held.Claim, ""); err != nil {
			t.Error(err)
		}
		<-granted
	})
}

// TestServerClockWrongOnce: one reply with a time that is ahead, even the first one, expires no claim of a holder that
// renews, and delays no expiry for long: a holder that dies two renewals later is replaced when its TTL has passed, by
// a client that tries once.
func TestServerClockWrongOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &steppedServer{t: t, m: fakeMemory()}
		holder, other := s.openClient(), s.openClient()
		defer holder.Close()
		defer other.Close()
		g := s.mustAcquire(holder, paceClaim(1, false))
		s.clockOffset.Store(int64(time.Hour))
		if _, err := other.Inspect(t.Context(), g.Name); err != nil {
			t.Fatal(err)
		}
		misled := s.openClient() // its first reply is the wrong one
		defer misled.Close()
		holder.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		})
		s.clockOffset.Store(0)
		for n := range 10 {
			for _, by := range []driver.Store{other, misled} {
				if _, err := by.Acquire(t.Context(), paceClaim(2+n, false)); !errors.Is(err, driver.ErrHeld) {
					t.Fatalf("next to a holder that renews: %v", err)
				}
			}
		}
		for range 2 { // the first renewal learns that the reply was wrong
			holder.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
			})
		}
		time.Sleep(g.GrantedTTL + time.Second)
		newcomer := s.openClient()
		defer newcomer.Close()
		if next := s.mustAcquire(newcomer, paceClaim(100, false)); next.Token <= g.Token ||
			next.Token > time.Now().Add(time.Minute).UnixMicro() {
			t.Errorf("token %d after %d", next.Token, g.Token)
		}
	})
}

// TestServerSetBack: a holder that died before the server's clock was set back is replaced by a client that comes later
// and waits for the holder's TTL.
func TestServerSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &steppedServer{t: t, m: fakeMemory()}
		s.clockOffset.Store(int64(time.Hour))
		holder := s.openClient()
		defer holder.Close()
		g := s.mustAcquire(holder, paceClaim(1, false))
		s.clockOffset.Store(0)
		newcomer := s.openClient()
		defer newcomer.Close()
		from := time.Now()
		next := s.mustAcquire(newcomer, paceClaim(2, true))
		if took := time.Since(from); next.Token <= g.Token || took < g.GrantedTTL ||
			took > g.GrantedTTL+2*driver.Margin(g.GrantedTTL) {
			t.Errorf("granted after %v, with token %d after %d", took, next.Token, g.Token)
		}
	})
}

// TestRenewalRefreshesClock: a dead holder with a long TTL, whose client sent no requests between its renewals, is
// replaced when its TTL has passed, also by a client that tries once.
func TestRenewalRefreshesClock(t *testing.T) {
	for _, ttl := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := &steppedServer{t: t, m: fakeMemory()}
			holder := s.openClient()
			defer holder.Close()
			c := paceClaim(1, false)
			c.TTL = ttl
			g := s.mustAcquire(holder, c)
			for range 3 {
				time.Sleep(ttl / 3)
				holder.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
					if r.Err != nil {
						t.Fatal(r.Err)
					}
				})
			}
			time.Sleep(ttl - time.Second)
			try := func(n int) error {
				newcomer := s.openClient()
				defer newcomer.Close()
				_, err := newcomer.Acquire(t.Context(), paceClaim(n, false))
				return err
			}
			if err := try(2); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("TTL %v: a try one second before the end: got %v", ttl, err)
			}
			time.Sleep(2 * time.Second)
			if err := try(3); err != nil {
				t.Errorf("TTL %v: a try one second after the end: got %v", ttl, err)
			}
		})
	}
}
