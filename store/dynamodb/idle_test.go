package dynamodb

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// TestAfterIdleHours: in the layout awslock, too, a client that has asked the service nothing for hours looks before it makes a
// claim: so the claim stands for its TTL after its client's death, and not for longer.
func TestAfterIdleHours(t *testing.T) {
	t.Parallel()
	url := storeURL(tableName(), server(t).Endpoint, "&layout=awslock")
	s := open(t, url)
	const idle = 10 * time.Hour
	c := s.(*awslock).clock
	c.at, c.early, c.late = c.at.Add(-idle), c.early-idle.Microseconds(), c.late-idle.Microseconds()
	var machine pace.Pace
	defer machine.Watch()()
	began := time.Now()
	acquire(t, s, mutex("m", time.Minute))
	if h := holders(t, open(t, url), "m"); len(h) != 1 || h[0].Left > time.Minute+3*time.Second+machine.Lost(began) {
		t.Errorf("%+v", h)
	}
}
