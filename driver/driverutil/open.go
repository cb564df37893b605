package driverutil

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// MaxOpenTime is how long [OpenWithRetry] waits for a server that does not answer, refuses connections or is starting
// up. A wait for a lock would not last longer either (driver.UnreachableTimeout).
const MaxOpenTime = 10 * time.Second

// OpenWithRetry opens a store for a URL. While no server can be reached it tries again, for MaxOpenTime at most: the
// server may be restarting. It returns a final error at once.
func OpenWithRetry(
	ctx context.Context, open func(ctx context.Context) (driver.Store, error),
) (driver.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, MaxOpenTime)
	defer cancel()
	var last error
	for tries := 0; ; tries++ {
		store, err := open(ctx)
		if err == nil || IsFinal(err) {
			return store, err
		}
		if last == nil || ctx.Err() == nil { // that ctx has ended says less than the error before it
			last = err
		}
		select {
		case <-time.After(rand.N(50 * time.Millisecond << min(tries, 4))):
		case <-ctx.Done():
			return nil, last
		}
	}
}
