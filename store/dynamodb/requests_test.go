package dynamodb

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestBilledRequests: a take of a free lock, a renewal and a release are one request each. A take needs one more
// read where the item is not known and the refusal does not show it.
func TestBilledRequests(t *testing.T) {
	t.Parallel()
	table := newTableName()
	p, q := newProxy(t, sharedServer(t).Direct), newProxy(t, sharedServer(t).Direct)
	s, other := mustOpen(t, urlOf(table, p.Endpoint, "")), mustOpen(t, urlOf(table, q.Endpoint, ""))
	p.Counts()
	q.Counts()
	expect := func(p *dynamodbtest.Proxy, what string, want ...map[string]int) {
		t.Helper()
		got := p.Counts()
		t.Logf("%s: %v", what, got)
		for _, w := range want {
			if maps.Equal(got, w) {
				return
			}
		}
		t.Errorf("%s took %v, and may take one of %v", what, got, want)
	}
	write, read := map[string]int{"PutItem": 1}, map[string]int{"GetItem": 1}
	both := map[string]int{"PutItem": 1, "GetItem": 1} // where the service does not tell with the refusal

	for _, what := range []string{"an absent lock", "a lock as it was left"} {
		g := acquire(t, s, mutexClaim("m", time.Minute))
		expect(p, "taking "+what, write)
		if err := renew(t, s, g).Err; err != nil {
			t.Fatal(err)
		}
		expect(p, "renewing", write)
		if _, err := other.Acquire(t.Context(), mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		if what == "an absent lock" {
			expect(q, "being refused by a stranger", write, both)
		} else {
			expect(q, "being refused again", read)
		}
		release(t, s, g.Claim)
		expect(p, "releasing", write)
	}
	acquire(t, other, mutexClaim("m", time.Minute))
	expect(q, "taking a lock that a stranger has left", both)
}

// TestWaiterCost: a waiting claim sends no more requests per minute than documented.
func TestWaiterCost(t *testing.T) {
	t.Parallel()
	lasts := 5 * time.Second
	if *prove {
		lasts = time.Minute
	}
	table := newTableName()
	holder := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	for _, fair := range []bool{false, true} {
		t.Run(fmt.Sprintf("fair=%v", fair), func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprint(fair)
			p := newProxy(t, sharedServer(t).Direct)
			s := mustOpen(t, urlOf(table, p.Endpoint, ""))
			g := acquire(t, holder, mutexClaim(name, 5*time.Minute))
			c := waitingClaim(mutexClaim(name, 30*time.Second))
			c.Fair = fair
			in := make(chan error, 1)
			go func() { _, err := s.Acquire(t.Context(), c); in <- err }()
			time.Sleep(2 * time.Second) // the pauses grow at first
			p.Counts()
			from := time.Now()
			time.Sleep(lasts)
			got, lasted := p.Counts(), time.Since(from)
			perMinute := func(op string) float64 { return float64(got[op]) * float64(time.Minute) / float64(lasted) }
			t.Logf("a waiting claim costs %.0f reads and %.0f writes a minute", perMinute("GetItem"),
				perMinute("PutItem"))
			if perMinute("GetItem") > 130 || perMinute("PutItem") > 15 {
				t.Errorf("%v in %v", got, lasted)
			}
			release(t, holder, g.Claim)
			if err := <-in; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLedgerCost: each step of a run is one request, and so is the question for a key that has succeeded, where the
// service shows the item with the refusal.
func TestLedgerCost(t *testing.T) {
	t.Parallel()
	table := newTableName()
	open := func() storetest.CountedLedger {
		p := newProxy(t, sharedServer(t).Direct)
		return storetest.CountedLedger{
			Ledger: storetest.OpenLedger(t, mustOpen(t, urlOf(table, p.Endpoint, ""))),
			Take:   func() string { return fmt.Sprint(p.Counts()) },
		}
	}
	const write = "map[PutItem:1]"
	storetest.CheckLedgerCosts(t, open(), open(), storetest.LedgerCosts{
		Begin: write, Renew: write, Succeed: write,
		Ask: []string{write, "map[GetItem:1 PutItem:1]"}, // the second where the service does not show the item
	})
}
