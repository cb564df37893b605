package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestCancel: claims whose contexts end at random times, and which are released then, leave nothing behind a second
// later. Their TTL is an hour, so nothing has expired by then. A machine that runs late has more time.
func TestCancel(t *testing.T) {
	t.Parallel()
	n := 500
	if *prove {
		n = 10000
	}
	server := startServer(t)
	pace := watchServer(t, server)
	for _, raw := range []string{"redis://" + server.Addr, "redis://" + server.Addr +
		"?prefix=redisson-&layout=redisson"} {
		s := openForTest(t, raw)
		var todo, after atomic.Int64
		todo.Store(int64(n))
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for todo.Add(-1) >= 0 {
					c := mutex(fmt.Sprint("m", i%4), time.Hour)
					c.Wait = true
					c.Fair = s.Info().Order == driver.OrderFairOnly && rand.N(2) == 0
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*time.Millisecond>>rand.N(5)))
					_, err := s.Acquire(ctx, c)
					cancel()
					if err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					switch rerr := s.Release(t.Context(), c, ""); {
					case rerr == nil && err != nil:
						after.Add(1)
					case rerr != nil && (err == nil || !errors.Is(rerr, driver.ErrLost)):
						t.Errorf("release: %v (acquire: %v)", rerr, err)
					}
				}
			})
		}
		wg.Wait()
		ended := time.Now()
		orphans := func() (found []string) {
			for l, err := range s.List(t.Context(), "") {
				found = append(found, fmt.Sprintf("%+v %v", l, err))
			}
			// The record of each lock stays, for the next token. In Redisson's layout so does Redisson's token key.
			for key := range strings.FieldsSeq(sendCommand(t, server, "EVAL",
				"return table.concat(redis.call('KEYS', '*'), ' ')", "0")) {
				if !strings.HasPrefix(key, "holdfast:{") && !strings.HasPrefix(key, "redisson_lock_token:{") {
					found = append(found, key)
				}
			}
			return found
		}
		time.Sleep(time.Second)
		var left []string
		for left = orphans(); len(left) > 0; left = orphans() {
			if time.Since(ended) > time.Second+10*max(machine.Worst(ended), pace.Worst(ended)) {
				t.Errorf("orphans: %q", left)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Logf("%s: %d claims, %d were granted after their context had ended, no orphan a second later", s.Info().Store, n,
			after.Load())
	}
}
