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

// runCandidate is the main function of a candidate process, which campaigns forever. It prints a line "token time"
// each time that it finds that it leads. SIGUSR1 cuts it off from the store, and SIGUSR2 reconnects it.
func runCandidate(url string, ttl time.Duration) error {
	store, err := driver.Open(context.Background(), url)
	if err != nil {
		return err
	}
	cuttable := &cuttableStore{Store: store}
	cuttable.handleSignals()
	client, err := holdfast.New(cuttable, &holdfast.Options{TTL: ttl})
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
				return err // the test has ended
			}
			time.Sleep(2 * time.Millisecond)
		}
		if err := e.Resign(); err != nil && !errors.Is(err, holdfast.ErrLost) {
			return err
		}
	}
}

// bootTime reads the clock that all processes of the machine share.
func bootTime() time.Duration { return driver.SystemClock.Boottime() }

// cuttableStore is a store that can be cut off. While it is cut off, calls hang until their context ends or the store
// is healed, and they may have taken effect.
type cuttableStore struct {
	driver.Store
	cut atomic.Pointer[chan struct{}] // closed when it is healed; nil while nothing is cut
}

func (s *cuttableStore) handleSignals() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for sig := range signals {
			if sig == syscall.SIGUSR1 {
				healed := make(chan struct{})
				s.cut.Store(&healed)
			} else {
				close(*s.cut.Swap(nil))
			}
		}
	}()
}

func (s *cuttableStore) waitWhileCut(ctx context.Context, err error) error {
	healed := s.cut.Load()
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

func (s *cuttableStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := s.waitWhileCut(ctx, nil); err != nil {
		return driver.Grant{}, err
	}
	g, err := s.Store.Acquire(ctx, c)
	return g, s.waitWhileCut(ctx, err)
}

func (s *cuttableStore) Renew(ctx context.Context, g []driver.Grant, done func(int, driver.Renewal)) {
	if err := s.waitWhileCut(ctx, nil); err != nil {
		for i := range g {
			done(i, driver.Renewal{Err: err})
		}
		return
	}
	s.Store.Renew(ctx, g, func(i int, r driver.Renewal) {
		if err := s.waitWhileCut(ctx, r.Err); err != nil {
			r = driver.Renewal{Err: err}
		}
		done(i, r)
	})
}

func (s *cuttableStore) Release(ctx context.Context, c driver.Claim, ref string) error {
	if err := s.waitWhileCut(ctx, nil); err != nil {
		return err
	}
	return s.waitWhileCut(ctx, s.Store.Release(ctx, c, ref))
}
