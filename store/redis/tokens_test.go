package redis

import (
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// TestRaisedTokenKept: whatever is done with a lock afterwards, its record is kept until the server's clock has
// passed the token that an operator asked for. All later tokens are at least as large.
func TestRaisedTokenKept(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Independent(1))
	s := openForTest(t, "redis://"+g.Addrs()[0]).(*store)
	const ahead = 10 * 24 * time.Hour
	floor, err := s.ReadTokenFloor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	raised := floor.Token + ahead.Microseconds()
	fair := waiting(mutex("fair", longTTL))
	fair.Fair = true
	permit := mutex("semaphore", longTTL)
	permit.Kind, permit.Limit = driver.KindSemaphore, 3
	for _, c := range []driver.Claim{mutex("plain", longTTL), fair, permit} {
		t.Run(c.Name, func(t *testing.T) {
			use := func() {
				c.ID = mutex(c.Name, longTTL).ID
				acquire(t, s, c)
				g := acquire(t, s, c) // the repetition of a request whose reply was lost
				if g.Token < raised {
					t.Errorf("token %d after it was raised to %d", g.Token, raised)
				}
				renew(t, s, g)
				release(t, s, c)
			}
			if err := s.RaiseToken(t.Context(), c.Name, raised); err != nil {
				t.Fatal(err)
			}
			use()
			held := acquire(t, s, c)
			for _, atLeast := range []int64{raised, 1} {
				if err := s.RaiseToken(t.Context(), c.Name, atLeast); err != nil {
					t.Error(err)
				}
			}
			behind := c
			behind.ID, behind.Wait, behind.Fair = mutex(c.Name, longTTL).ID, true, c.Fair
			granted := make(chan driver.Grant, 1)
			go func() {
				g, err := s.Acquire(t.Context(), behind)
				if err != nil {
					t.Error(err)
				}
				granted <- g
			}()
			renew(t, s, held)
			release(t, s, held.Claim)
			release(t, s, (<-granted).Claim)
			use()
			keys := s.keys.allKeys(c.Name)
			left, err := s.client.Do(t.Context(), s.client.B().Pttl().Key(keys[1]).Build()).AsInt64()
			if err != nil || time.Duration(left)*time.Millisecond < ahead {
				t.Errorf("the record is kept for %v, want at least %v (%v)", time.Duration(left)*time.Millisecond, ahead, err)
			}
		})
	}
}

// TestRaisedTokenRedisson: the token that RFencedLock counts is raised too, and its key never expires.
func TestRaisedTokenRedisson(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Independent(1))
	s := openForTest(t, "redis://"+g.Addrs()[0]+"?layout=redisson").(*store)
	floor, err := s.ReadTokenFloor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	raised := floor.Token + time.Hour.Microseconds()
	if err := s.RaiseToken(t.Context(), "m", raised); err != nil {
		t.Fatal(err)
	}
	key := redissonToken(s.keys.lockKey("m"))
	check := func(atLeast int64) {
		t.Helper()
		text, err := s.client.Do(t.Context(), s.client.B().Get().Key(key).Build()).ToString()
		counted, _ := strconv.ParseInt(text, 10, 64)
		if err != nil || counted < atLeast {
			t.Errorf("Redisson counts on from %q, want at least %d (%v)", text, atLeast, err)
		}
		if left, err := s.client.Do(t.Context(), s.client.B().Pttl().Key(key).Build()).AsInt64(); err != nil || left != -1 {
			t.Errorf("the key expires in %d ms (%v)", left, err)
		}
	}
	check(raised - 1)
	c := mutex("m", longTTL)
	if g := acquire(t, s, c); g.Token < raised {
		t.Errorf("token %d after it was raised to %d", g.Token, raised)
	}
	check(raised)
	release(t, s, c)
	check(raised)
}
