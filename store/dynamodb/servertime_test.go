package dynamodb

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestCron: a process that comes once, and has watched nothing, replaces a dead holder when its TTL and three
// seconds have passed, and never before its TTL. It does not matter in what part of a second it comes, nor that
// its clock is an hour off.
func TestCron(t *testing.T) {
	t.Parallel()
	table := newTableName()
	const ttl = 4 * time.Second
	clock := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, "")).Info().Clock
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 97 * time.Millisecond)
			name := fmt.Sprint("job", i)
			dead := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
			g := acquire(t, dead, mutexClaim(name, ttl))
			silent := clock.Now() // it has renewed for the last time
			comes := func() error {
				s, err := New(t.Context(), dynamodbtest.Client(sharedServer(t).Endpoint), table,
					&Options{Clock: shiftedClock(time.Duration(i-5) * time.Hour / 5)})
				if err != nil {
					t.Error(err)
					return err
				}
				defer s.Close()
				_, err = s.Acquire(t.Context(), mutexClaim(name, time.Minute))
				return err
			}
			if i%2 == 0 {
				time.Sleep(ttl + 3*time.Second - clock.Since(silent))
				if err := comes(); err != nil {
					t.Errorf("%v after the TTL of a dead holder: %v", clock.Since(g.Since)-ttl, err)
				}
				return
			}
			for late := false; comes() != nil; late = clock.Since(silent) > ttl+4*time.Second {
				if late { // the process has come after that time
					t.Errorf("a dead holder stands %v after its TTL", clock.Since(silent)-ttl)
					return
				}
			}
			after := clock.Since(g.Since) - ttl
			t.Logf("a dead holder was replaced %v after its TTL", after.Round(time.Millisecond))
			if after < 0 {
				t.Errorf("a holder was replaced %v before its TTL was over", -after)
			}
		})
	}
	wg.Wait()
}

// TestClockOff: a client whose wall clock is an hour off works: its requests are signed again with the service's
// time, which also decides about expiry.
func TestClockOff(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			table, client := newTableName(), dynamodbtest.Client(sharedServer(t).Endpoint)
			p := newProxy(t, sharedServer(t).Direct)
			p.Shift(off) // seen from the test, the service is off
			// The clocks of our two clients are an hour apart, too.
			one := mustOpen(t, urlOf(table, p.Endpoint, ""))
			two, err := New(t.Context(), dynamodbtest.Client(p.Endpoint), table,
				&Options{Clock: shiftedClock(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			defer two.Close()
			var machine pace.Pace
			defer machine.Watch()()
			began := time.Now()
			g := acquire(t, one, mutexClaim("m", 8*time.Second))
			if _, err := two.Acquire(t.Context(), mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
			next := acquire(t, two, waitingClaim(mutexClaim("m", time.Minute)))
			after := one.Info().Clock.Since(g.Since) - g.GrantedTTL
			t.Logf("a dead holder was replaced %v after its TTL", after.Round(time.Millisecond))
			if after < 0 || after > 4*time.Second+machine.Lost(began) || next.Token <= g.Token {
				t.Errorf("replaced %v after its TTL, token %d after %d", after, next.Token, g.Token)
			}
			release(t, two, next.Claim)

			now := time.Now().Add(off).Unix()
			putItem(t, client, table, item{"primary_id": textValue("stands"), "expired_at": numberText(now + 60)})
			if _, err := one.Acquire(t.Context(), mutexClaim("stands", time.Minute)); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("next to a plain item: %v", err)
			}
			putItem(t, client, table, item{"primary_id": textValue("over"), "expired_at": numberText(now - 60)})
			acquire(t, two, mutexClaim("over", time.Minute))
		})
	}
}
