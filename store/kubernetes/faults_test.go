package kubernetes_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/canceltest"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// TestCancels: claims that are canceled at any moment are gone a second after their release.
func TestCancels(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	opened := make([]driver.Store, 4)
	for i := range opened {
		opened[i] = mustOpen(t, c, kubernetestest.AllowAll, &kubernetes.Options{Prefix: "cancels-"})
	}
	rounds := int64(60)
	if *prove {
		rounds = 5000
	}
	canceltest.Run(t, opened, rounds, 20*time.Millisecond, func(worker int) driver.Claim {
		c := storetest.Mutex(fmt.Sprint("m", worker), time.Minute)
		c.Wait = rand.N(2) == 0
		return c
	}, *prove)
}

// TestDeadHolder: a process that tries once, and has not watched before, replaces a dead holder within five seconds
// after its TTL, and not before. The clients' clocks are hours apart.
func TestDeadHolder(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	const ttl, late = 3 * time.Second, 5 * time.Second
	open := func(ahead time.Duration) driver.Store {
		return mustOpen(t, c, kubernetestest.AllowAll, &kubernetes.Options{Prefix: "dead-",
			Clock: storetest.ShiftedClock(ahead)})
	}
	holder, other := open(-2*time.Hour), open(time.Hour)
	var machine pace.Pace
	defer machine.Watch()()
	g := storetest.Acquire(t, holder, storetest.Mutex("m", ttl))
	silent := time.Now()
	for {
		next, err := other.Acquire(t.Context(), storetest.Mutex("m", time.Minute))
		if errors.Is(err, driver.ErrHeld) {
			if over := time.Since(silent) - ttl - machine.Lost(silent); over > late {
				t.Fatalf("refused %v after the end of the TTL", over)
			}
			time.Sleep(50 * time.Millisecond)
			continue
		}
		since := holder.Info().Clock.Since(g.Since)
		t.Logf("let in %v after the grant", since)
		if err != nil || since < ttl || next.Token <= g.Token {
			t.Errorf("let in after %v, with token %d after %d: %v", since, next.Token, g.Token, err)
		}
		return
	}
}
