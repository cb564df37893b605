package consul

import (
	"context"
	"runtime"
	"testing"
	"unsafe"

	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// TestWatchPlaces: a watch that waits for a place has no goroutine. It gets the place of one that has ended, in turn;
// one that is stopped before never runs.
func TestWatchPlaces(t *testing.T) {
	life := driverutil.NewLifetime()
	p := &watchPlaces{life: life, free: 1}
	const waiting = 1000
	began := make(chan int, waiting)
	watches := make([]*watch, waiting)
	before := runtime.NumGoroutine()
	for i := range watches {
		watches[i] = p.start(func(ctx context.Context) {
			began <- i
			<-ctx.Done()
		})
	}
	if n := runtime.NumGoroutine() - before; n > waiting/10 {
		t.Errorf("%d watches have %d goroutines", waiting, n)
	}
	if i := <-began; i != 0 || p.count(1) != 1 {
		t.Errorf("watch %d has begun, and %d run", i, p.count(1))
	}
	watches[1].Stop()
	watches[1].Stop()
	watches[0].Stop()
	if i := <-began; i != 2 {
		t.Errorf("watch %d has got the place", i)
	}
	watches[0].Stop()
	life.End()
	life.Wait()
	select {
	case i := <-began:
		t.Errorf("watch %d has begun after the store was closed", i)
	default:
	}
	p.start(func(context.Context) { t.Error("a watch runs on a store that is closed") }).Stop()
}

// TestWatchSize: a watch that waits for its place has no more than 48 bytes, which is one of the sizes in which Go
// allocates, besides the function that it will run.
func TestWatchSize(t *testing.T) {
	t.Parallel()
	if size := unsafe.Sizeof(watch{}); size > 48 {
		t.Errorf("a watch has %d bytes", size)
	}
}
