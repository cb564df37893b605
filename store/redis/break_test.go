package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// openLossy opens a store. A call of lose makes each of its links lose the next reply.
func openLossy(t *testing.T, raw string) (s driver.Store, lose func()) {
	t.Helper()
	via := &servertest.Net{}
	t.Cleanup(via.Close)
	lose = func() { via.Each(func(k *servertest.Link) { k.LoseReplies(1) }) }
	if !strings.HasPrefix(raw, "redlock:") {
		s, err := openThroughLink(t, raw, via)
		if err != nil {
			t.Fatal(err)
		}
		return s, lose
	}
	_, p, err := parseRawURL(raw)
	if err != nil {
		t.Fatal(err)
	}
	dialVia(via)(&p.client)
	if s, err = openRedlock(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, lose
}

// TestHolderLearnsOfBreak: a lock is broken by force, and granted to another claim. Its former holder learns that an
// operator broke it: by a renewal, by a detach, and by a release, even if the first replies to the release are lost.
// Without a note of the break, such a release would take the missing claim for its own work.
func TestHolderLearnsOfBreak(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	g := mustStart(t)(redistest.Independent(3))
	a := g.Addrs()
	for _, kind := range []string{"plain", "fair", "semaphore", "redisson", "redlock"} {
		t.Run(kind, func(t *testing.T) {
			raw := "redis://" + server.Addr
			switch kind {
			case "redisson":
				raw += "?layout=redisson"
			case "redlock":
				raw = "redlock://" + a[0] + "?addrs=" + a[1] + "," + a[2]
			}
			operator := openForTest(t, raw)
			s, lose := openLossy(t, raw)
			claim := func(name string) driver.Claim {
				c := waiting(mutex(kind+name, longTTL))
				switch kind {
				case "fair":
					c.Fair = true
				case "semaphore":
					c.Kind, c.Limit, c.Weight = driver.KindSemaphore, 3, 2
				}
				return c
			}
			var next driver.Grant
			broken := func(name string) driver.Grant {
				held := acquire(t, s, claim(name))
				if err := operator.Break(t.Context(), held.Name, held.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
					t.Fatal(err)
				}
				next = acquire(t, operator, claim(name))
				return held
			}
			acquire(t, s, claim("warm"))
			held := broken("renewed")
			if err := renewUntilSure(t, s, held).Err; loss(err) != driver.LossBroken || staysHeld(err) {
				t.Errorf("a renewal reports the break as %v", err)
			}
			if kind != "redisson" { // whose claims cannot be marked
				held = acquire(t, s, claim("marked"))
				if err := operator.Break(t.Context(), held.Name, held.Ref, driver.Break{Mode: driver.BreakGraceful}); err != nil {
					t.Fatal(err)
				}
				if err := renewUntilSure(t, s, held).Err; loss(err) != driver.LossBroken || !staysHeld(err) {
					t.Errorf("a renewal reports a graceful break as %v", err)
				}
			}
			held = broken("detached")
			if loss(s.Detach(t.Context(), held, time.Minute)) != driver.LossBroken {
				t.Error("a detach does not report the break")
			}
			if err := s.Release(t.Context(), broken("released").Claim, ""); loss(err) != driver.LossBroken {
				t.Errorf("a release: %v", err)
			}
			for i := range 3 {
				held := broken(fmt.Sprint("lost", i))
				lose()
				if err := s.Release(t.Context(), held.Claim, ""); loss(err) != driver.LossBroken {
					t.Errorf("a release whose first reply is lost: %v", err)
				}
				release(t, operator, next.Claim)
				if _, err := s.Acquire(t.Context(), held.Claim); loss(err) != driver.LossBroken {
					t.Errorf("a claim that was broken comes again: %v", err)
				}
				own := acquire(t, s, claim(fmt.Sprint("own", i)))
				lose()
				if err := s.Release(t.Context(), own.Claim, ""); err != nil {
					t.Errorf("a release of a claim that was not broken, whose reply is lost: %v", err)
				}
			}
		})
	}
}

// staysHeld reports whether a loss says that the claim keeps others out.
func staysHeld(err error) bool {
	var loss *driver.LossError
	return errors.As(err, &loss) && loss.StaysHeld
}

// TestLeaseAfterBreak: a lease whose lock was broken by force, and granted to another claim, ends with that cause at
// its next renewal. A Release before that returns it too, even if its first replies are lost.
func TestLeaseAfterBreak(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	via, err := servertest.NewLink(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	operator, holder := openClientForTest(t, "redis://"+server.Addr), openClientForTest(t, "redis://"+via.Addr)
	broken := func(name string, ttl time.Duration) *holdfast.Lease {
		l := lockEventually(t, holder, name, ttl)
		now, err := operator.Inspect(t.Context(), name)
		if err != nil || len(now.Holders) != 1 {
			t.Fatalf("%+v %v", now, err)
		}
		if err := operator.Break(t.Context(), name, now.Holders[0].Ref, holdfast.BreakForce, ""); err != nil {
			t.Fatal(err)
		}
		lockEventually(t, operator, name, longTTL)
		return l
	}
	expectLoss(t, broken("renewed", 12*time.Second), longTTL, driver.LossBroken)
	for i := range 5 {
		l := broken(fmt.Sprint("unlocked", i), time.Hour)
		via.LoseReplies(i)
		if err := l.Release(); loss(err) != driver.LossBroken {
			t.Errorf("after %d lost replies Release returns %v", i, err)
		}
		via.LoseReplies(0)
	}
}

// TestBreakDuringRelease: a break by force and a release come at the same time, over a link that loses replies. Exactly
// one of them has ended the claim, and the other reports that.
func TestBreakDuringRelease(t *testing.T) {
	t.Parallel()
	rounds := 60
	if *prove {
		rounds = 1000
	}
	server := startServer(t)
	via, err := servertest.NewLink(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	for _, kind := range []string{"plain", "fair", "semaphore", "redisson"} {
		options := ""
		if kind == "redisson" {
			options = "?layout=redisson"
		}
		operator, s := openForTest(t, "redis://"+server.Addr+options), openForTest(t, "redis://"+via.Addr+options)
		count := map[string]int{}
		for i := range rounds {
			c := waiting(mutex(fmt.Sprint(kind, i), longTTL))
			switch kind {
			case "fair":
				c.Fair = true
			case "semaphore":
				c.Kind, c.Limit, c.Weight = driver.KindSemaphore, 3, 2
			}
			g := acquire(t, s, c)
			via.LoseReplies(rand.N(3))
			broken := make(chan error, 1)
			force := func() { broken <- operator.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakForce}) }
			if i%3 == 0 {
				force()
			} else {
				go force()
			}
			released := s.Release(t.Context(), c, "")
			byForce := <-broken
			via.LoseReplies(0)
			switch {
			case byForce == nil && loss(released) == driver.LossBroken:
				count["broken"]++
			case byForce != nil && released == nil:
				count["released"]++
			default:
				t.Errorf("%s: the break returns %v, and the release %v", kind, byForce, released)
			}
		}
		t.Logf("%s: %v", kind, count)
	}
}

// TestUnsentRequestLeavesNoDoubt: a request for which no connection could be made leaves nothing uncertain. So a
// release whose first requests were not sent still reports that the claim had ended before.
func TestUnsentRequestLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	via := &servertest.Net{}
	t.Cleanup(via.Close)
	var refuse atomic.Int64
	dial := func(o *rueidis.ClientOption) {
		o.DialFn = func(addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if refuse.Add(-1) >= 0 {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
			}
			return via.Dial(addr)
		}
	}
	s, err := openViaURL("redis://"+server.Addr)(t.Context(), dial, &Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for _, fair := range []bool{false, true} {
		c := mutex(fmt.Sprint("m", fair), longTTL)
		c.Fair = fair
		acquire(t, s, c)
		sendCommand(t, server, "DEL", c.Name)
		refuse.Store(1 << 30)
		via.Each((*servertest.Link).Reset)
		client := s.(*store).client
		if err := redistest.Until(t.Context(),
			func() bool { return isUnsent(client.Do(t.Context(), client.B().Ping().Build()).Error()) }); err != nil {
			t.Fatal(err)
		}
		refuse.Store(3)
		if err := s.Release(t.Context(), c, ""); loss(err) != driver.LossGone {
			t.Errorf("fair %v: a release that was not sent until the claim was gone: %v", fair, err)
		}
		if refuse.Load() >= 0 {
			t.Error("no connection was refused")
		}
	}
}
