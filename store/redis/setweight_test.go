package redis

import (
	"errors"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestLateWeightChange: a downgrade that arrives after the upgrade that was requested later changes nothing: no other
// claim is granted next to a writer.
func TestLateWeightChange(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := openForTest(t, "redis://"+server.Addr).(*store)
	c := mutex("m", longTTL)
	c.Kind, c.Limit, c.Weight = driver.KindRW, driver.RWLimit, driver.RWLimit
	g := acquire(t, s, c)
	late := strconv.FormatInt(s.lastChange.Add(1), 10)
	if err := s.SetWeight(t.Context(), g, 1); err != nil {
		t.Fatal(err)
	}
	if err := s.SetWeight(t.Context(), g, driver.RWLimit); err != nil {
		t.Fatal(err)
	}
	keys := s.keys.allKeys("m")
	if _, err := setWeightScript.eval(t.Context(), s.client, keys[:],
		new(queueArgs).fill(s, c.ID, strconv.FormatInt(g.Token, 10), "1", late)); err != nil {
		t.Fatal(err)
	}
	reader := c
	reader.ID, reader.Weight = mutex("m", longTTL).ID, 1
	if in, err := s.Acquire(t.Context(), reader); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("next to a writer: %+v, %v", in, err)
	}
}
