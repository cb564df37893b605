package dynamodb

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// TestAfterIdleHours: in the layout awslock, too, a client that has sent nothing for hours reads before it makes
// or renews a claim. So the claim expires a TTL after its client's death, and not later.
func TestAfterIdleHours(t *testing.T) {
	t.Parallel()
	table, p := newTableName(), newProxy(t, sharedServer(t).Direct)
	var passed atomic.Int64
	hand := func() time.Duration { return driver.SystemClock.Monotonic() + time.Duration(passed.Load()) }
	o := &Options{Create: true, Layout: LayoutAWSLock, Clock: driver.Clock{Monotonic: hand, Boottime: hand}}
	s, err := New(t.Context(), dynamodbtest.Client(p.Endpoint), table, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const idle = 10 * time.Hour
	passed.Store(int64(idle))
	p.Shift(idle)
	var machine pace.Pace
	defer machine.Watch()()
	began := time.Now()
	acquire(t, s, mutexClaim("m", time.Minute))
	if h := holdersOf(t, mustOpen(t, urlOf(table, p.Endpoint, "&layout=awslock")), "m"); len(h) != 1 ||
		h[0].Remaining > time.Minute+3*time.Second+machine.Lost(began) {
		t.Errorf("%+v", h)
	}

	c := mutexClaim("day", driver.MaxTTL)
	g := acquire(t, s, c)
	passed.Add(int64(idle / 2))
	p.Shift(idle * 3 / 2)
	began = time.Now()
	if err := renew(t, s, g).Err; err != nil {
		t.Fatal(err)
	}
	if h := holdersOf(t, mustOpen(t, urlOf(table, p.Endpoint, "&layout=awslock")), "day"); len(h) != 1 ||
		h[0].Remaining > driver.MaxTTL+3*time.Second+machine.Lost(began) {
		t.Errorf("after a renewal: %+v", h)
	}
}
