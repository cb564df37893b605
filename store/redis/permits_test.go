package redis

import (
	"regexp"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestPermits: a holder of a semaphore has the smallest permits that no other holder has, and keeps them when it is
// detached. Next to a holder without any, as those of the version before are, nobody gets numbers.
func TestPermits(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	take := func(weight int64, want ...int64) driver.Grant {
		t.Helper()
		c := mutex("s", longTTL)
		c.Kind, c.Limit, c.Weight = driver.KindSemaphore, 100, weight
		g := acquire(t, s, c)
		if !slices.Equal(g.Permits, want) {
			t.Errorf("want %v, got %v", want, g.Permits)
		}
		return g
	}
	a, b := take(1, 0), take(2, 1, 2)
	if err := s.Detach(t.Context(), b, longTTL); err != nil {
		t.Fatal(err)
	}
	release(t, s, a.Claim)
	c := take(3, 0, 3, 4)
	if again := acquire(t, s, c.Claim); !slices.Equal(again.Permits, c.Permits) {
		t.Errorf("%v became %v", c.Permits, again.Permits)
	}

	claims := s.keys.allKeys("s")[2]
	stored := sendCommand(t, server, "HGET", claims, b.ID)
	without := regexp.MustCompile(`,"permits":\[[0-9,]*\]|"permits":\[[0-9,]*\],`).ReplaceAllString(stored, "")
	if without == stored {
		t.Fatalf("%s is stored of a holder", stored)
	}
	sendCommand(t, server, "HSET", claims, b.ID, without)
	d := take(1)
	release(t, s, b.Claim)
	take(1)
	release(t, s, d.Claim)
}
