package election

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	_ "github.com/holdfast-go/holdfast/store/file"
)

// runCandidate is the life of a candidate process: it stands for election for ever. It prints a line "token moment" each
// time it finds that it leads. SIGUSR1 cuts it off from the store, SIGUSR2 heals that.
func runCandidate(url string, ttl time.Duration) error {
	store, err := driver.Open(context.Background(), url)
	if err != nil {
		return err
	}
	wire := &cuttableStore{Store: store}
	wire.handleSignals()
	client, err := holdfast.New(wire, &holdfast.Options{TTL: ttl})
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	e := client.Election("leader", nil)
	for {
		lease, err := e.Campaign(context.Background())
		if err != nil {
			continue // cut off
		}
		for {
			at := bootTime()
			if !e.IsLeader() {
				break
			}
			fmt.Fprintln(out, lease.Token(), int64(at))
			if err := out.Flush(); err != nil {
				return err // the judge has gone
			}
			time.Sleep(2 * time.Millisecond)
		}
		if err := e.Resign(); err != nil && !errors.Is(err, holdfast.ErrLost) {
			return err
		}
	}
}

// bootTime is a moment on the clock that all processes of the machine share.
func bootTime() time.Duration { return driver.SystemClock.Boottime() }

// cuttableStore is a store that can be cut off: calls then hang until their context ends, or that is healed, and what was asked
// may have been done.
type cuttableStore struct {
	driver.Store
	cut atomic.Pointer[chan struct{}] // closed when it is healed; nil while nothing is cut
}

func (w *cuttableStore) handleSignals() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for s := range signals {
			if s == syscall.SIGUSR1 {
				healed := make(chan struct{})
				w.cut.Store(&healed)
			} else {
				close(*w.cut.Swap(nil))
			}
		}
	}()
}

func (w *cuttableStore) waitWhileCut(ctx context.Context, err error) error {
	healed := w.cut.Load()
	if healed == nil {
		return err
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", driver.ErrUncertain, ctx.Err())
	case <-*healed:
		return fmt.Errorf("%w: no answer from the store", driver.ErrUncertain)
	}
}

func (w *cuttableStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := w.waitWhileCut(ctx, nil); err != nil {
		return driver.Grant{}, err
	}
	g, err := w.Store.Acquire(ctx, c)
	return g, w.waitWhileCut(ctx, err)
}

func (w *cuttableStore) Renew(ctx context.Context, g []driver.Grant, done func(int, driver.Renewal)) {
	if err := w.waitWhileCut(ctx, nil); err != nil {
		for i := range g {
			done(i, driver.Renewal{Err: err})
		}
		return
	}
	w.Store.Renew(ctx, g, func(i int, r driver.Renewal) {
		if err := w.waitWhileCut(ctx, r.Err); err != nil {
			r = driver.Renewal{Err: err}
		}
		done(i, r)
	})
}

func (w *cuttableStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	if err := w.waitWhileCut(ctx, nil); err != nil {
		return err
	}
	return w.waitWhileCut(ctx, w.Store.Release(ctx, c, ref))
}
