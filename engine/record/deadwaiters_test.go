package record_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestDeadWaitersInARow: waiters that died one behind the other delay the queue by one confirm window for each at most,
// however many wait behind them, and ten or more by half of that.
func TestDeadWaitersInARow(t *testing.T) {
	t.Parallel()
	const window = 2100 * time.Millisecond // the round trips of a store in memory are not longer than was assumed for the first
	for _, dead := range []int{1, 2, 3, 4, 5, 6, 7, 10, 25} {
		for _, alive := range []int{1, 4, 38} {
			t.Run(fmt.Sprintf("%d dead and %d others", dead, alive), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					limit := time.Duration(dead) * window
					if dead >= 10 {
						limit /= 2
					}
					if took := delayByDead(t, dead, alive); took > limit {
						t.Errorf("they delay the queue by %v; promised are %v", took, limit)
					}
				})
			})
		}
	}
}

// delayByDead returns how long after a release the first of some living waiters gets the lock, behind dead ones.
func delayByDead(t *testing.T, dead, alive int) time.Duration {
	m := memory.New(nil)
	holder, died, living := m.Open(), m.Open(), m.Open()
	defer holder.Close()
	defer living.Close()
	held := storetest.Acquire(t, holder, storetest.Mutex("m", time.Hour))
	fair := func() driver.Claim {
		c := storetest.Waiting(storetest.Mutex("m", time.Hour))
		c.Fair = true
		return c
	}
	for range dead {
		go func() { _, _ = died.Acquire(t.Context(), fair()) }()
		synctest.Wait()
	}
	_ = died.Close() // which leaves its waiters in the queue, as if it had been killed
	granted := make(chan time.Time, alive)
	var waiting sync.WaitGroup
	for range alive {
		waiting.Go(func() {
			g, err := living.Acquire(t.Context(), fair())
			if err == nil {
				granted <- time.Now()
				err = living.Release(t.Context(), g.Claim, "")
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	synctest.Wait()
	time.Sleep(time.Second)
	start := time.Now()
	if err := holder.Release(t.Context(), held.Claim, ""); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
	return (<-granted).Sub(start)
}
