package postgres

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// TestAfterIdleHours: a client that has sent nothing for hours knows the server's clock badly. It reads before it
// makes a claim, so the claim expires a TTL after its client's death, and not minutes later.
func TestAfterIdleHours(t *testing.T) {
	t.Parallel()
	url := freshURL(t, sharedServer(t))
	config, opts := parseURL(t, url)
	pool := newPool(t, config)
	table, err := newTable(t.Context(), pool, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	micro := table.TokenFloor()
	const idle = 5 * time.Hour
	table.clock = record.ServerClock{Clock: driver.SystemClock}
	long := driver.SystemClock.Now().Add(-idle)
	table.clock.AddReply(micro-idle.Microseconds(), long, long)
	st := record.New(table)
	defer st.Close()
	var machine pace.Pace
	defer machine.Watch()()
	began := time.Now()
	acquire(t, st, mutexClaim("m", time.Minute))
	l, err := mustOpen(t, url).Inspect(t.Context(), "m")
	if err != nil || len(l.Holders) != 1 || l.Holders[0].Remaining > time.Minute+time.Second+machine.Lost(began) {
		t.Errorf("%+v %v", l, err)
	}
}
