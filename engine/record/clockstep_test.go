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

// served is a table whose server tells its clock with each reply.
type served struct {
	record.Table
	clock record.ServerClock
	ahead *atomic.Int64 // by how much the server's clock was set forward
}

func (s *served) Now() (int64, time.Duration)      { return s.clock.Now() }
func (s *served) ClockBounds() (early, late int64) { return s.clock.ClockBounds() }

func (s *served) heard(from driver.Instant) {
	now, _ := s.Table.Now()
	s.clock.AddReply(now+time.Duration(s.ahead.Load()).Microseconds(), from, s.clock.Clock.Now())
}

func (s *served) Load(ctx context.Context, name string) (record.Row, error) {
	defer s.heard(s.clock.Clock.Now())
	return s.Table.Load(ctx, name)
}

func (s *served) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	defer s.heard(s.clock.Clock.Now())
	return s.Table.Swap(ctx, row)
}

// stepped is a store on a server whose clock is set, and its clients.
type stepped struct {
	t     *testing.T
	m     *memory.Memory
	ahead atomic.Int64
}

// open gives a client that has asked the server once.
func (s *stepped) open() driver.Store {
	table := s.m.Table()
	client := &served{Table: table, clock: record.ServerClock{Clock: table.Info().Clock}, ahead: &s.ahead}
	if _, err := client.Load(s.t.Context(), "clock"); err != nil {
		s.t.Fatal(err)
	}
	return record.New(client)
}

func (s *stepped) acquire(by driver.Store, c driver.Claim) driver.Grant {
	s.t.Helper()
	g, err := by.Acquire(s.t.Context(), c)
	if err != nil {
		s.t.Fatal(err)
	}
	return g
}

// TestServerSetForward promises that nobody who had asked a server before ends a living holder's claim because the
// server's clock was set forward, or another took over whose clock is ahead; and that a dead holder is replaced all
// the same, also by one who came later.
func TestServerSetForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stepped{t: t, m: fakeMemory()}
		holder, other := s.open(), s.open()
		defer holder.Close()
		defer other.Close()
		g := s.acquire(holder, paceClaim(1, false))
		s.ahead.Store(int64(time.Hour))
		refused := func(by driver.Store, n int) {
			t.Helper()
			if _, err := by.Acquire(t.Context(), paceClaim(n, false)); !errors.Is(err, driver.ErrHeld) {
				t.Fatalf("beside a living holder: %v", err)
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
		newcomer := s.open()
		defer newcomer.Close()
		refused(newcomer, 100)
		for n, by := range []driver.Store{other, newcomer} {
			from := time.Now()
			next := s.acquire(by, paceClaim(200+n, true))
			if took := time.Since(from); next.Token <= g.Token || took > g.GrantedTTL+2*driver.Margin(g.GrantedTTL) {
				t.Errorf("%d: let in %v after the last sign of life, with token %d after %d", n, took, next.Token,
					g.Token)
			}
			g = next
		}
	})
}

// TestServerOddForOnce promises that one reply by a clock that is ahead, be it the first, ends no living holder's
// claim, and puts no end off for long: a holder that dies two renewals later is replaced when its TTL has passed, by
// one who tries once.
func TestServerOddForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stepped{t: t, m: fakeMemory()}
		holder, other := s.open(), s.open()
		defer holder.Close()
		defer other.Close()
		g := s.acquire(holder, paceClaim(1, false))
		s.ahead.Store(int64(time.Hour))
		if _, err := other.Inspect(t.Context(), g.Name); err != nil {
			t.Fatal(err)
		}
		misled := s.open() // the odd reply is the first that it has
		defer misled.Close()
		holder.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		})
		s.ahead.Store(0)
		for n := range 10 {
			for _, by := range []driver.Store{other, misled} {
				if _, err := by.Acquire(t.Context(), paceClaim(2+n, false)); !errors.Is(err, driver.ErrHeld) {
					t.Fatalf("beside a living holder: %v", err)
				}
			}
		}
		for range 2 { // the first hears that the odd reply was wrong
			holder.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
			})
		}
		time.Sleep(g.GrantedTTL + time.Second)
		newcomer := s.open()
		defer newcomer.Close()
		if next := s.acquire(newcomer, paceClaim(100, false)); next.Token <= g.Token ||
			next.Token > time.Now().Add(time.Minute).UnixMicro() {
			t.Errorf("token %d after %d", next.Token, g.Token)
		}
	})
}

// TestServerSetBack promises that a holder that died before the server's clock was set back is replaced by one who
// comes later and waits for its TTL.
func TestServerSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stepped{t: t, m: fakeMemory()}
		s.ahead.Store(int64(time.Hour))
		holder := s.open()
		defer holder.Close()
		g := s.acquire(holder, paceClaim(1, false))
		s.ahead.Store(0)
		newcomer := s.open()
		defer newcomer.Close()
		from := time.Now()
		next := s.acquire(newcomer, paceClaim(2, true))
		if took := time.Since(from); next.Token <= g.Token || took < g.GrantedTTL ||
			took > g.GrantedTTL+2*driver.Margin(g.GrantedTTL) {
			t.Errorf("let in after %v, with token %d after %d", took, next.Token, g.Token)
		}
	})
}

// ClockIsStale has the engine ask for the time.
func (s *served) ClockIsStale() bool { return s.clock.ClockIsStale() }

// TestRenewalsKnowTheTime promises that a holder which dies is replaced when its TTL is over, also by one who tries
// once, though it had a long TTL, and its client asked the store for nothing between its renewals.
func TestRenewalsKnowTheTime(t *testing.T) {
	for _, ttl := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := &stepped{t: t, m: fakeMemory()}
			holder := s.open()
			defer holder.Close()
			c := paceClaim(1, false)
			c.TTL = ttl
			g := s.acquire(holder, c)
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
				newcomer := s.open()
				defer newcomer.Close()
				_, err := newcomer.Acquire(t.Context(), paceClaim(n, false))
				return err
			}
			if err := try(2); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("TTL %v: a second before the end one who tries is told %v", ttl, err)
			}
			time.Sleep(2 * time.Second)
			if err := try(3); err != nil {
				t.Errorf("TTL %v: a second after it one who tries is told %v", ttl, err)
			}
		})
	}
}
