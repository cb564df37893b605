package record

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// mapTable is a table that accepts every write, or refuses all requests.
type mapTable struct {
	Unsupported

	refuses bool
	n       int
}

func (*mapTable) Info() driver.Info {
	from := time.Now()
	sinceStart := func() time.Duration { return time.Since(from) }
	return driver.Info{Clock: driver.Clock{Monotonic: sinceStart, Boottime: sinceStart}}
}

func (*mapTable) TokenFloor() int64 { return time.Now().UnixMicro() }
func (p *mapTable) Clock() Clock    { return ExactClock(p.TokenFloor) }

func (*mapTable) ReadClock(context.Context) (now time.Time, maxError time.Duration, err error) {
	return time.Now(), 0, nil
}

func (p *mapTable) Load(_ context.Context, name string) (Row, error) {
	if p.refuses {
		return Row{}, errors.New("connection refused")
	}
	return Row{Name: name}, nil
}

func (p *mapTable) Swap(ctx context.Context, r Row) (Row, error) {
	if p.refuses {
		return Row{}, errors.New("connection refused")
	}
	p.n++
	if ctx.Err() != nil {
		return Row{}, ctx.Err()
	}
	r.Version = fmt.Sprint("version", p.n)
	return r, nil
}

func (*mapTable) Delete(context.Context, Row) error { return nil }
func (*mapTable) List(context.Context, string, string) iter.Seq2[Row, error] {
	return func(func(Row, error) bool) {}
}
func (*mapTable) Close() error { return nil }

func (e *engine) countKept() (idle, used, pending int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	used = e.rows.used.length + e.rows.single.length + len(e.rows.packed.byName)
	return e.rows.idle.length, used, len(e.pending.byClaim)
}

// heapInUse returns the bytes of the heap that are in use.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestRowCacheIsBounded: the rows of free locks that a client caches are bounded in size and age. Rows of locks that it
// holds are kept. What it keeps of claims with unknown outcome is removed with these claims.
func TestRowCacheIsBounded(t *testing.T) {
	const names = 30_000
	claim := func(n int) driver.Claim {
		return driver.Claim{Name: fmt.Sprintf("orders/%032d", n), ID: fmt.Sprintf("%026d", n), Kind: driver.KindMutex,
			Limit: 1, Weight: 1,
			TTL: 30 * time.Second, Owner: "a program on some host", Meta: strings.Repeat("m", 1000)}
	}
	synctest.Test(t, func(t *testing.T) {
		p := &mapTable{}
		e := New(p).(*engine)
		defer e.Close()
		held := claim(names)
		held.TTL = driver.MaxTTL
		if _, err := e.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		before := heapInUse()
		for n := range names {
			_, err := e.Acquire(t.Context(), claim(n))
			if err == nil {
				err = e.Release(t.Context(), claim(n), "")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		grown := heapInUse() - before
		idle, used, _ := e.countKept()
		t.Logf("%d idle rows of %d are cached, in %d KiB", idle, names, grown>>10)
		if idle < names/10 || idle > names*3/4 || used != 1 || grown > 2*maxIdleBytes {
			t.Errorf("%d idle rows and %d others, %d KiB", idle, used, grown>>10)
		}
		time.Sleep(11 * time.Minute)
		if err := e.Release(t.Context(), held, ""); err != nil {
			t.Fatal(err)
		}
		if idle, used, _ := e.countKept(); idle != 1 || used != 0 {
			t.Errorf("eleven minutes later: %d idle rows, %d others", idle, used)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := &mapTable{refuses: true}
		e := New(p).(*engine)
		defer e.Close()
		for n := range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if _, err := e.Acquire(ctx, claim(n)); !errors.Is(err, driver.ErrUncertain) {
				t.Fatal(err)
			}
			cancel()
		}
		if _, _, pending := e.countKept(); pending != 200 {
			t.Errorf("%d claims with unknown outcome are kept", pending)
		}
		time.Sleep(3 * time.Minute)
		p.refuses = false
		if _, err := e.Acquire(t.Context(), claim(1000)); err != nil {
			t.Fatal(err)
		}
		if err := e.Release(t.Context(), claim(1000), ""); err != nil {
			t.Fatal(err)
		}
		if _, _, pending := e.countKept(); pending != 0 {
			t.Errorf("three minutes later %d of them are kept", pending)
		}
	})
	f := pendingSwaps{byClaim: map[string]pendingSwap{}}
	for n := range 2 * maxPendingSwaps {
		f.addSwap(fmt.Sprint(n), "", driver.MaxTTL, driver.Instant{})
	}
	if len(f.byClaim) != maxPendingSwaps {
		t.Errorf("%d claims with unknown outcome are kept, and the maximum is %d", len(f.byClaim), maxPendingSwaps)
	}
}

// busyTable is a table in which each lock has holders of other clients. Its clock is not known.
type busyTable struct {
	mapTable
	data []byte
}

func (p *busyTable) Now() (int64, time.Duration) { return 0, -1 }

func (p *busyTable) Load(_ context.Context, name string) (Row, error) {
	return Row{Name: name, Version: "v", Data: p.data}, nil
}

// TestRowsOfOthersAreBounded: the rows that a client caches of locks that others hold are bounded in size, whether it
// has looked at them or tried to acquire them, and however many holders they have. So is the number of claims that it
// watches.
func TestRowsOfOthersAreBounded(t *testing.T) {
	for _, holders := range []int{1, 40} {
		const memory = 3 * maxUsedBytes // of all holders together, about
		rec := &Record{Kind: driver.KindSemaphore, Limit: int64(holders), Token: 1000}
		for i := range holders {
			rec.Claims = append(rec.Claims, Claim{ID: fmt.Sprintf("%026d", i), Owner: "a program on some host",
				Meta: strings.Repeat("m", 1000), Weight: 1, TTL: time.Minute, State: Granted, Token: int64(i + 1), Beat: 1,
				SilenceLimit: time.Minute})
		}
		data, err := Encode(rec)
		if err != nil {
			t.Fatal(err)
		}
		e := New(&busyTable{data: data}).(*engine)
		before := heapInUse()
		for n := range memory / (holders * 1300) {
			name := fmt.Sprint(n)
			if _, err := e.Inspect(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			if n%64 > 0 {
				continue
			}
			c := driver.Claim{Name: name, ID: "a", Kind: driver.KindSemaphore, Limit: int64(holders), Weight: 1,
				TTL: time.Minute}
			if _, err := e.Acquire(t.Context(), c); !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
		}
		if grown := heapInUse() - before; grown > 2*maxUsedBytes || e.rows.used.length < 100 {
			t.Errorf("with %d holders, %d rows take %d KiB", holders, e.rows.used.length, grown>>10)
		}
		e.Close()
	}
	e := New(&busyTable{}).(*engine)
	defer e.Close()
	for n := range 3 {
		rec := &Record{Claims: make([]Claim, maxWatched/2)}
		for i := range rec.Claims {
			rec.Claims[i].Token = int64(i)
		}
		e.observeClaims(fmt.Sprint(n), rec)
	}
	watched := 0
	for _, claims := range e.watchedSince {
		watched += len(claims)
	}
	if watched > maxWatched || watched < maxWatched/2 || len(e.watchedSince["2"]) == 0 {
		t.Errorf("%d claims are watched", watched)
	}
}

// TestRenewedRowHasNoSpareRoom: the row that a client keeps of a lock has no room for claims that nobody has made,
// which each of many leases would pay for.
func TestRenewedRowHasNoSpareRoom(t *testing.T) {
	s := New(&mapTable{}).(*engine)
	defer s.Close()
	c := driver.Claim{Name: "m", ID: "a", Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: 30 * time.Second}
	g, err := s.Acquire(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	s.Renew(t.Context(), []driver.Grant{g}, func(_ int, r driver.Renewal) { err = r.Err })
	if err != nil {
		t.Fatal(err)
	}
	if _, rec := s.recallRow("m"); len(rec.Claims) != 1 || cap(rec.Claims) != 1 {
		t.Errorf("the row has %d claims, and room for %d", len(rec.Claims), cap(rec.Claims))
	}
}

// TestLateRenewalSendsNothing: a renewal for which no time is left sends nothing, and the row stays known. So the next
// one is one swap again. A busy store has many renewals that come too late, and must not get more requests for that.
func TestLateRenewalSendsNothing(t *testing.T) {
	p := &mapTable{}
	s := New(p).(*engine)
	defer s.Close()
	c := driver.Claim{Name: "m", ID: "a", Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: 30 * time.Second}
	g, err := s.Acquire(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	swaps := p.n
	s.Renew(late, []driver.Grant{g}, func(_ int, r driver.Renewal) { err = r.Err })
	if !errors.Is(err, context.Canceled) || p.n != swaps {
		t.Errorf("a late renewal: %v, with %d swaps", err, p.n-swaps)
	}
	if row, _ := s.recallRow("m"); row.Version == "" {
		t.Error("the row is not known any more")
	}
}

// hangingTable is a mapTable whose swaps hang while hang is not nil, until it is closed.
type hangingTable struct {
	mapTable
	hang  chan struct{}
	hangs atomic.Int64
}

func (p *hangingTable) Swap(ctx context.Context, r Row) (Row, error) {
	if p.hang != nil {
		p.hangs.Add(1)
		<-p.hang
	}
	r.Version += "+"
	return r, nil
}

// partlyHangingTable is a mapTable whose swaps of some rows hang until their contexts end.
type partlyHangingTable struct{ mapTable }

func (p *partlyHangingTable) Swap(ctx context.Context, r Row) (Row, error) {
	if r.Name != "healthy" && r.Version != "" {
		<-ctx.Done()
		return Row{}, ctx.Err()
	}
	r.Version += "+"
	return r, nil
}

// TestHangingBatchDelaysNoOther: a lease is renewed in time, although the renewals of another batch hang.
func TestHangingBatchDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(&partlyHangingTable{})
		defer s.Close()
		acquire := func(name string) driver.Grant {
			c := driver.Claim{Name: name, ID: "a", Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: time.Minute}
			g, err := s.Acquire(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		var hanging []driver.Grant
		for n := range maxRenewWorkers {
			hanging = append(hanging, acquire(fmt.Sprint(n)))
		}
		healthy := acquire("healthy")
		var all sync.WaitGroup
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			s.Renew(ctx, hanging, func(int, driver.Renewal) {})
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.Renew(ctx, []driver.Grant{healthy}, func(_ int, r driver.Renewal) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
		all.Wait()
	})
}

// TestRenewalsAreBounded: however many leases are renewed at a time, few of their requests are under way at a time.
func TestRenewalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &hangingTable{}
		s := New(p)
		defer s.Close()
		var grants []driver.Grant
		for n := range 3 * maxRenewWorkers {
			c := driver.Claim{Name: fmt.Sprint(n), ID: "a", Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: time.Minute}
			g, err := s.Acquire(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			grants = append(grants, g)
		}
		p.hang = make(chan struct{})
		var renewed atomic.Int64
		var all sync.WaitGroup
		all.Go(func() {
			s.Renew(t.Context(), grants, func(_ int, r driver.Renewal) {
				if r.Err != nil {
					t.Error(r.Err)
				}
				renewed.Add(1)
			})
		})
		synctest.Wait()
		if n := p.hangs.Load(); n != maxRenewWorkers {
			t.Errorf("%d requests are under way", n)
		}
		close(p.hang)
		all.Wait()
		if n := renewed.Load(); n != int64(len(grants)) {
			t.Errorf("%d leases were renewed", n)
		}
	})
}
