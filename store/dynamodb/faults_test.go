package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/canceltest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

var lockLayouts = []string{"record", "awslock"}

// decideWrites makes f the fate of the next n writes. It returns the count of those that have met it.
func decideWrites(p *dynamodbtest.Proxy, n int, f dynamodbtest.Fate) (met *atomic.Int32) {
	met = &atomic.Int32{}
	p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
		if r.Operation == "GetItem" || int(met.Load()) >= n {
			return dynamodbtest.Fate{}
		}
		met.Add(1)
		return f
	})
	return met
}

// TestLostReplies: a write whose reply is lost or replaced by an error is settled by a read. An acquire is granted
// once, and counts from its first request; a renewal keeps the lock and its token; a release has released.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	times := 15
	if *prove {
		times = 1000
	}
	for what, fate := range map[string]dynamodbtest.Fate{
		"reply lost":   {DropReply: true},
		"request lost": {DropRequest: true},
		"internal error, done": {Status: 500, Code: "InternalServerError", Message: "done nevertheless",
			After: true},
		"internal error, not done": {Status: 500, Code: "InternalServerError", Message: "not done"},
		"throttled": {Status: 400, Code: "ProvisionedThroughputExceededException",
			Message: "too fast"},
		"request rate too high, 503": {Status: 503, Code: "ServiceUnavailable", Message: "later"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, layout := range lockLayouts {
				p, table := newProxy(t, sharedServer(t).Direct), newTableName()
				s, witness := mustOpen(t, urlOf(table, p.Endpoint, "&layout="+layout)), mustOpen(t,
					urlOf(table, sharedServer(t).Endpoint, "&layout="+layout))
				for i := range times {
					c := mutexClaim("m", time.Minute)
					if i%2 == 0 {
						c = waitingClaim(c)
					}
					met := decideWrites(p, 1, fate)
					g := acquire(t, s, c)
					if h := holdersOf(t, witness, "m"); len(h) != 1 || h[0].Token != g.Token || h[0].Ref != g.Ref ||
						met.Load() != 1 {
						t.Fatalf("granted %d, and shown is %+v", g.Token, h)
					}
					met = decideWrites(p, 1, fate)
					for err := renew(t, s, g).Err; err != nil; err = renew(t, s, g).Err {
						if errors.Is(err, driver.ErrLost) {
							t.Fatal(err)
						}
					}
					if h := holdersOf(t, witness, "m"); len(h) != 1 || h[0].Token != g.Token || met.Load() != 1 {
						t.Fatalf("renewed %d, and shown is %+v", g.Token, h)
					}
					met = decideWrites(p, 1, fate)
					release(t, s, c)
					if h := holdersOf(t, witness, "m"); len(h) != 0 || met.Load() != 1 {
						t.Fatalf("released, and shown is %+v", h)
					}
				}
				t.Logf("%s, layout %s: %d acquires, renewals and releases settled", what, layout, times)
			}
		})
	}
}

// TestRetryAfterLateFailure: a claim tries again after a request that fails long after the last answer. It ends when no
// write is answered for the unreachable timeout, although reads are.
func TestRetryAfterLateFailure(t *testing.T) {
	t.Parallel()
	for _, layout := range lockLayouts {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			table, p := newTableName(), newProxy(t, sharedServer(t).Direct)
			s, holder := mustOpen(t, urlOf(table, p.Endpoint, "&layout="+layout)), mustOpen(t,
				urlOf(table, sharedServer(t).Endpoint, "&layout="+layout))
			g := acquire(t, holder, mutexClaim("m", time.Minute))
			fail := dynamodbtest.Fate{Status: 500, Code: "InternalServerError", Message: "later"}
			late := fail
			const ttl = 4 * time.Second // also the unreachable timeout
			late.Delay = ttl * 3 / 2
			var looks atomic.Int32
			failed := make(chan struct{})
			p.Decide(func(r dynamodbtest.Request) dynamodbtest.Fate {
				if r.Operation == "GetItem" && looks.Add(1) == 2 {
					close(failed)
					return late
				}
				return dynamodbtest.Fate{}
			})
			in := make(chan error, 1)
			c := waitingClaim(mutexClaim("m", ttl))
			go func() { _, err := s.Acquire(t.Context(), c); in <- err }()
			<-failed
			release(t, holder, g.Claim)
			if err := <-in; err != nil {
				t.Fatalf("one request has failed, and the claim ends: %v", err)
			}
			release(t, s, c)

			decideWrites(p, 1<<30, fail)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			from := time.Now()
			_, err := s.Acquire(ctx, waitingClaim(mutexClaim("m", ttl)))
			if took := time.Since(from); !errors.Is(err, driver.ErrUncertain) ||
				errors.Is(err, context.DeadlineExceeded) || took < ttl {
				t.Errorf("no write is answered, and after %v the claim is told %v", took, err)
			}
		})
	}
}

// TestCancel: claims that are canceled at random moments, and released, leave nothing behind a second later.
func TestCancel(t *testing.T) {
	t.Parallel()
	n := int64(200)
	if *prove {
		n = 10000
	}
	table := newTableName()
	s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	canceltest.Run(t, slices.Repeat([]driver.Store{s}, 8), n, 30*time.Millisecond, func(worker int) driver.Claim {
		c := waitingClaim(mutexClaim(fmt.Sprint("m", worker%4), 30*time.Second))
		c.Fair = rand.N(2) == 0
		return c
	}, *prove)
}

// TestLateTake: requests of a claim that was canceled, perhaps twice, and then released, are refused if they
// arrive after that.
func TestLateTake(t *testing.T) {
	t.Parallel()
	for _, layout := range lockLayouts {
		for i, state := range []string{"absent", "idle", "held", "absent", "idle", "held"} {
			takes := 1 + i/3
			t.Run(fmt.Sprintf("%s %s, %d takes", layout, state, takes), func(t *testing.T) {
				t.Parallel()
				table, p := newTableName(), newProxy(t, sharedServer(t).Direct)
				s, other := mustOpen(t, urlOf(table, p.Endpoint, "&layout="+layout)), mustOpen(t,
					urlOf(table, sharedServer(t).Endpoint, "&layout="+layout))
				holder := mutexClaim("m", time.Minute)
				if state != "absent" {
					acquire(t, other, holder)
				}
				if state == "idle" {
					release(t, other, holder)
				}
				const delay = 6 * time.Second
				late := decideWrites(p, takes, dynamodbtest.Fate{Delay: delay})
				c := mutexClaim("m", time.Minute)
				for n := range takes {
					ctx, cancel := context.WithCancel(t.Context())
					given := make(chan error, 1)
					go func() { _, err := s.Acquire(ctx, c); given <- err }()
					eventually(t, "a take that is under way", func() bool { return int(late.Load()) > n })
					cancel()
					if err := <-given; err == nil {
						t.Fatal("granted in spite of the delay")
					}
				}
				if err := s.Release(t.Context(), c, ""); err != nil && !errors.Is(err, driver.ErrLost) {
					t.Fatal(err)
				}
				if state == "held" {
					release(t, other, holder)
				}
				time.Sleep(delay + time.Second/2)
				if h := holdersOf(t, other, "m"); len(h) != 0 {
					t.Errorf("a claim that was released holds the lock: %+v", h)
				}
				acquire(t, other, mutexClaim("m", time.Minute))
			})
		}
	}
}
