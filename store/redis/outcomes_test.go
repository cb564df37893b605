package redis

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// outcomeSteps are the calls that change a lock, and that are tried until their outcome is known.
var outcomeSteps = map[string]func(ctx context.Context, s *store, g driver.Grant) error{
	"Acquire": func(ctx context.Context, s *store, g driver.Grant) error {
		_, err := s.Acquire(ctx, mutex(g.Name+" of its own", longTTL))
		return err
	},
	"Release": func(ctx context.Context, s *store, g driver.Grant) error { return s.Release(ctx, g.Claim, "") },
	"Detach":  func(ctx context.Context, s *store, g driver.Grant) error { return s.Detach(ctx, g, time.Hour) },
	"SetWeight": func(ctx context.Context, s *store, g driver.Grant) error {
		return s.SetWeight(ctx, g, 1)
	},
	"Break": func(ctx context.Context, s *store, g driver.Grant) error {
		return s.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakForce})
	},
	"RaiseToken": func(ctx context.Context, s *store, g driver.Grant) error {
		return s.RaiseToken(ctx, g.Name, g.Token+1e9)
	},
}

// TestRefusalOfUncertainStep: a server that refuses everything does not tell whether an earlier request took effect,
// whose reply was lost. If there was none, the refusal is the answer.
func TestRefusalOfUncertainStep(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for name, step := range outcomeSteps {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, %v", name, lost), func(t *testing.T) {
				t.Parallel()
				user := fmt.Sprintf("%s-%v", name, lost)
				sendCommand(t, server, "ACL", "SETUSER", user, "reset", "on", ">hunter2", "~*", "&*", "+@all")
				via := &servertest.Net{}
				t.Cleanup(via.Close)
				opened, err := openThroughLink(t, "redis://"+user+":hunter2@"+server.Addr, via)
				if err != nil {
					t.Fatal(err)
				}
				s := opened.(*store)
				c := mutex("lock of "+user, longTTL)
				c.Kind, c.Limit, c.Weight = driver.KindRW, 10, 10
				g := acquire(t, s, c)
				acquire(t, s, mutex("known scripts of "+user, longTTL))
				if lost { // a connection that is open stays so, and a new one is refused
					s.admission = driverutil.Admission{} // else a password that has worked is tried again for a while
					sendCommand(t, server, "ACL", "SETUSER", user, "resetpass", ">hunter3")
					via.Each(func(l *servertest.Link) { l.LoseReplies(1) })
				} else {
					sendCommand(t, server, "ACL", "SETUSER", user, "-@all")
				}
				err = step(t.Context(), s, g)
				if !errors.Is(err, driver.ErrDenied) || errors.Is(err, driver.ErrUncertain) != lost {
					t.Errorf("unexpected error %v", err)
				}
			})
		}
	}
}

// TestRedlockRefusalAfterUnknownOutcome: if a majority of servers refuses everything, that is the answer, unless a
// server may have done what was asked before. A call of which nothing was sent ends with the plain error of its
// context.
func TestRedlockRefusalAfterUnknownOutcome(t *testing.T) {
	t.Parallel()
	a := mustStart(t)(redistest.Independent(3)).Addrs()
	s := openForTest(t, "redlock://"+a[0]+"?addrs="+a[1]+","+a[2]).(*redlockStore)
	denied := replyCounts{refusals: 3, refusal: driver.ErrDenied, err: driver.ErrDenied}
	away := replyCounts{err: &unsentError{errors.New("refused")}}
	for what, c := range map[string]struct {
		rounds    []replyCounts
		want      error
		uncertain bool
	}{
		"denied":             {[]replyCounts{denied}, driver.ErrDenied, false},
		"denied after this":  {[]replyCounts{{outcomeUnknown: map[int]bool{1: true}}, denied}, driver.ErrDenied, true},
		"denied after one":   {[]replyCounts{{replies: 1}, denied}, driver.ErrDenied, true},
		"away":               {[]replyCounts{away, away}, context.Canceled, false},
		"away after a reply": {[]replyCounts{{replies: 1}, away}, context.Canceled, true},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		_, _, err := s.retryUntilMajority(ctx, longTTL, func() (replyCounts, error) {
			round := c.rounds[0]
			if c.rounds = c.rounds[1:]; len(c.rounds) == 0 && c.want == context.Canceled {
				cancel()
			}
			return round, nil
		})
		cancel()
		if !errors.Is(err, c.want) || errors.Is(err, driver.ErrUncertain) != c.uncertain {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestRedlockRefusedByMajority: a majority that refuses the password of a store which has worked is waited for, as
// servers that are away are, and then the store is denied, whichever servers they are.
func TestRedlockRefusedByMajority(t *testing.T) {
	t.Parallel()
	for _, refusing := range [][]int{{1, 2}, {0, 1}} {
		t.Run(fmt.Sprint(refusing), func(t *testing.T) {
			t.Parallel()
			g := mustStart(t)(redistest.Independent(3))
			for _, server := range g.Servers {
				sendCommand(t, server, "ACL", "SETUSER", "worker", "on", ">hunter2", "~*", "&*", "+@all")
			}
			a := g.Addrs()
			var passed atomic.Int64
			passed.Store(int64(time.Hour))
			now := func() time.Duration { return time.Duration(passed.Load()) }
			s := openForTest(t, "redlock://worker:hunter2@"+a[0]+"?addrs="+a[1]+","+a[2], func(o *Options) {
				o.Clock = driver.Clock{Monotonic: now, Boottime: now}
			}).(*redlockStore)
			limit := driver.UnreachableTimeout(driver.MaxTTL)
			s.servers[0].pause = func(context.Context, int) error { passed.Add(int64(limit) / 3); return nil }
			held := acquire(t, s, mutex("x", longTTL))
			for _, i := range refusing {
				sendCommand(t, g.Servers[i], "ACL", "SETUSER", "worker", "resetpass", ">hunter3")
				sendCommand(t, g.Servers[i], "CLIENT", "KILL", "USER", "worker")
			}
			err := error(nil)
			for tries := 0; tries < 20 && !errors.Is(err, driver.ErrDenied); tries++ {
				err = s.Break(t.Context(), held.Name, held.Ref, driver.Break{Mode: driver.BreakForce})
			}
			if !errors.Is(err, driver.ErrDenied) || now() < time.Hour+limit {
				t.Errorf("after %v: %v", now(), err)
			}
		})
	}
}

// TestRefusalOfLateClaim: a claim that is refused while a request that may make it is under way is released, so that
// the request makes nothing. If that fails, the outcome is uncertain.
func TestRefusalOfLateClaim(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	other := openForTest(t, "redis://"+server.Addr)
	acquire(t, other, mutex("m", longTTL))
	sendCommand(t, server, "ACL", "SETUSER", "worker", "reset", "on", ">hunter2", "~*", "&*", "+@all")
	s := openForTest(t, "redis://worker:hunter2@"+server.Addr).(*store)
	for _, releases := range []bool{true, false} {
		if !releases {
			sendCommand(t, server, "ACL", "SETUSER", "worker", "-hset")
		}
		c := mutex("m", longTTL)
		s.addInFlight(c.ID)
		_, err := s.Acquire(t.Context(), c)
		if !errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrUncertain) == releases {
			t.Errorf("a release works %v: %v", releases, err)
		}
	}
}

// TestRefusalOfWaitingClaim: if a server refuses everything to the client of a claim that waits in a queue, the
// outcome is uncertain, so that the client goes on to release it.
func TestRefusalOfWaitingClaim(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	other := openForTest(t, "redis://"+server.Addr)
	held := mutex("m", longTTL)
	held.Fair = true
	acquire(t, other, held)
	sendCommand(t, server, "ACL", "SETUSER", "worker", "reset", "on", ">hunter2", "~*", "&*", "+@all")
	s := openForTest(t, "redis://worker:hunter2@"+server.Addr)
	returned := make(chan error, 1)
	go func() {
		c := waiting(mutex("m", longTTL))
		c.Fair = true
		_, err := s.Acquire(t.Context(), c)
		returned <- err
	}()
	if err := redistest.Until(t.Context(), func() bool {
		l, err := other.Inspect(t.Context(), "m")
		return err == nil && len(l.Waiters) == 1
	}); err != nil {
		t.Fatal(err)
	}
	sendCommand(t, server, "ACL", "SETUSER", "worker", "-@all")
	if err := <-returned; !errors.Is(err, driver.ErrDenied) || !errors.Is(err, driver.ErrUncertain) {
		t.Errorf("unexpected error %v", err)
	}
}
